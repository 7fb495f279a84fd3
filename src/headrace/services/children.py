"""Which processes an app needs beside its nodes. `headrace/supervised.py` says how a new kind is added."""

from collections.abc import Callable, Sequence

from headrace.config.run import RunConfig
from headrace.supervised import Child
from headrace.topology import Topology

__all__ = ["KINDS", "children_of"]

KINDS: list[Callable[[Topology, RunConfig], Sequence[Child]]] = []


def children_of(topology: Topology, config: RunConfig) -> list[Child]:
    """The processes of an app. The addresses in `config` are those of the run."""
    return [child for kind in KINDS for child in kind(topology, config)]
