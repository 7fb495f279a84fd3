"""Which processes an app needs beside its nodes. `headrace/supervised.py` says how a new kind is added."""

from collections.abc import Callable, Sequence

from headrace.capture import Task, tasks_of
from headrace.config.run import RunConfig
from headrace.supervised import Child
from headrace.topology import Topology

__all__ = ["KINDS", "capture_child", "children_of"]


def _queues(topology: Topology, config: RunConfig) -> Sequence[Child]:
    if not topology.queues:
        return []
    from headrace.queues import children  # it takes a while, and most apps have no queues

    return children(topology, config)


def _captures(topology: Topology, config: RunConfig) -> list[Child]:
    return [capture_child(task) for task in tasks_of(topology, config)]


def capture_child(task: Task) -> Child:
    return Child(task.name, CAPTURE, task.to_json())


CAPTURE = "headrace.capture.process:main"
KINDS: list[Callable[[Topology, RunConfig], Sequence[Child]]] = [_captures, _queues]


def children_of(topology: Topology, config: RunConfig) -> list[Child]:
    """The processes of an app. The addresses in `config` are those of the run."""
    return [child for kind in KINDS for child in kind(topology, config)]
