"""Where a node's rows go, as plain values: what each kind of sink takes. How it writes is its adapter's business."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from headrace.errors import InputError

__all__ = ["PostgresSink", "Sink", "TopicSink", "sink_of"]


@dataclass(frozen=True)
class Sink:
    """A kind of sink is a subclass with its options as fields, and an adapter registered for it in the engine."""

    kind: ClassVar[str] = "sink"
    takes_records: ClassVar[bool] = False
    """Whether it takes records of topics. Other sinks take rows."""
    binary_keys: ClassVar[bool] = True
    """Whether a column of type BINARY can be part of a key."""

    @property
    def described(self) -> str:
        """What `headrace graph` says of it."""
        return self.kind


@dataclass(frozen=True)
class TopicSink(Sink):
    """The node's own topic, or one for each of its channels."""

    kind = "topic"
    takes_records = True
    binary_keys = False


@dataclass(frozen=True)
class PostgresSink(Sink):
    """The PostgreSQL table `<app>.<node>`."""

    kind = "postgres"


def sink_of(value: Sequence[Sink], default: Sink) -> Sink:
    """The one sink of `to=`."""
    if isinstance(value, Sink):
        raise InputError(f"{value!r} is not in a list", next_step="write to=[...]")
    sinks = list(value)
    if len(sinks) > 1:
        raise InputError(
            f"{len(sinks)} sinks are named, and a node has one",
            next_step="write to one sink here, and to the others from nodes that read this one",
        )
    for sink in sinks:
        if not isinstance(sink, Sink):
            raise InputError(f"{sink!r} is not a sink", next_step="write to=[...] with a sink in it, or leave it out")
    chosen = sinks[0] if sinks else default
    if chosen != default and isinstance(chosen, TopicSink | PostgresSink):
        raise InputError(
            f"the sink {chosen.kind!r} belongs to another kind of node",
            next_step="declare the node with @app.stream for a topic, with @app.view for a table",
        )
    return chosen
