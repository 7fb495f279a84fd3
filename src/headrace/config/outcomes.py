"""What became of each of several things that a cluster was asked for in one request."""

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from headrace.config.cluster import Cluster
from headrace.errors import KafkaError

__all__ = ["Outcome", "outcomes"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Whether a topic or a group was created or deleted; `error` says why not."""

    name: str
    error: KafkaError | None = None


def outcomes(cluster: Cluster, futures: "Mapping[str, Future[Any]]", what: str) -> list[Outcome]:
    """`what` and the name complete "could not ..."."""
    found = []
    for name, future in futures.items():
        try:
            cluster.result(future, f"{what} {name!r}")
            found.append(Outcome(name))
        except KafkaError as error:
            found.append(Outcome(name, error))
    return found
