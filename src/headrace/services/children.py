"""Which processes an app needs beside its nodes. `headrace/supervised.py` says how a new kind is added."""

from collections.abc import Callable, Sequence

from headrace.config.run import RunConfig
from headrace.supervised import Child
from headrace.topology import Topology

__all__ = ["KINDS", "children_of"]


def queues(topology: Topology, config: RunConfig) -> Sequence[Child]:
    if not topology.queues:
        return []
    from headrace.queues import children  # it takes a while, and most apps have no queues

    return children(topology, config)


KINDS: list[Callable[[Topology, RunConfig], Sequence[Child]]] = [queues]


def children_of(topology: Topology, config: RunConfig) -> list[Child]:
    """The processes of an app. The addresses in `config` are those of the run."""
    return [child for kind in KINDS for child in kind(topology, config)]
