"""The addresses of Kafka and PostgreSQL for commands that start nothing: as given, else the embedded ones if up."""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from headrace.config.reachability import USUAL_ADDRESS
from headrace.config.run import RunConfig
from headrace.errors import ServiceError, Unreachable

if TYPE_CHECKING:
    from headrace.config.cluster import Cluster
    from headrace.services.embedded import Addresses

__all__ = ["find_cluster", "with_kafka", "with_postgres"]

CORRECT_SETTINGS = "correct --kafka-set, HEADRACE_KAFKA_... or [kafka-settings] of headrace.toml"


def find_cluster(config: RunConfig, *, on_lost: Callable[[str], None] | None = None) -> "Cluster":
    """The cluster that `headrace run` would use here, or the one at the usual address if none is configured.

    Unreachable is raised if it does not answer. `on_lost` is called once if it stops answering later.
    """
    from headrace.config.cluster import Cluster

    is_guess = config.kafka is None and not config.home.exists()
    found = replace(config, kafka=USUAL_ADDRESS) if is_guess else with_kafka(config, "--kafka")
    cluster = Cluster(found, is_guess=is_guess, next_step=CORRECT_SETTINGS, on_lost=on_lost)
    cluster.check_reachable()
    return cluster


def with_kafka(config: RunConfig, option: str) -> RunConfig:
    """The settings with an address of Kafka. `option` is how to give one, for the error."""
    if config.kafka is not None:
        return config
    embedded = _embedded(config).kafka
    if embedded is None:
        raise Unreachable(
            f"no Kafka address is given, and the embedded broker of {config.home} is not up",
            next_step=f"start it with headrace up, or give one with {option}, HEADRACE_KAFKA or headrace.toml",
        )
    return replace(config, kafka=embedded)


def with_postgres(config: RunConfig, option: str) -> RunConfig:
    """The settings with an address of PostgreSQL."""
    if config.postgres is not None:
        return config
    embedded = _embedded(config).postgres
    if embedded is None:
        raise ServiceError(
            f"no PostgreSQL address is given, and the embedded one of {config.home} is not up",
            next_step=f"start it with headrace up, or give one with {option}, HEADRACE_POSTGRES or headrace.toml",
        )
    return replace(config, postgres=embedded)


def _embedded(config: RunConfig) -> "Addresses":
    from headrace.services.embedded import Services  # it takes a while, and most addresses are given

    return Services(config.home).addresses()
