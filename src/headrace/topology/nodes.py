"""The parts of a pipeline: sources, functions of DataFrames, and their output channels."""

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn, TypeAlias

from headrace.errors import InputError
from headrace.topology.choices import Format, Guarantee, Latency, OnError
from headrace.topology.duration import Duration
from headrace.topology.nearest import did_you_mean
from headrace.topology.place import Place, place_of_caller
from headrace.topology.schema import Schema
from headrace.topology.times import EventTime

__all__ = [
    "Channel",
    "Feed",
    "Files",
    "FunctionNode",
    "Node",
    "Parameter",
    "QueryNode",
    "Rate",
    "Source",
    "Step",
    "Stream",
    "TableNode",
    "TableTopic",
    "Topic",
    "View",
    "is_failed",
    "is_table",
    "node_of",
]

LATE = "late"
REJECTED = "rejected"
FAILED = "failed"


@dataclass(frozen=True, eq=False, kw_only=True)
class Node:
    """Anything with a name in the graph. An attribute it does not have is a channel: `split.eu`."""

    kind: ClassVar[str] = "node"

    app_name: str
    name: str
    place: Place
    topic_name: str = ""
    """The topic its rows are in; its channels' topics start with it. Empty for what has no topic."""

    @property
    def channel_names(self) -> tuple[str, ...]:
        """The channels that can be read from this node."""
        return ()

    def __getattr__(self, name: str) -> "Channel":
        # Whether the channel exists is checked with everything else, so that all problems are told at once.
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return Channel(self, name, place_of_caller())

    def __dir__(self) -> Iterable[str]:
        return [*super().__dir__(), *self.channel_names]

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Channel:
    """One of the outputs of a node."""

    node: Node
    name: str
    place: Place

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Channel) and self.node is other.node and self.name == other.name

    def __hash__(self) -> int:
        return hash((self.node, self.name))

    @property
    def topic_name(self) -> str:
        return f"{self.node.topic_name}.{self.name}"

    def __call__(self, *_: Any, **__: Any) -> NoReturn:
        """Reached when a method is called that the node does not have."""
        if self.name in self.node.channel_names:
            raise InputError(f"{self} is a channel and cannot be called", next_step=f"read it with app.read({self})")
        methods = [name for name, _ in inspect.getmembers(type(self.node), inspect.isfunction) if name[0] != "_"]
        if methods:
            instead = did_you_mean(self.name, methods)
        elif isinstance(self.node, Topic | Stream):
            instead = f"read its rows with app.read({self.node}), or make an @app.view of it and ask that"
        else:
            instead = "make an @app.stream or an @app.view of it, and read that"
        raise InputError(f"{self.node.kind} {self.node.name!r} has no method {self.name!r}", next_step=instead)

    def __str__(self) -> str:
        return f"{self.node.name}.{self.name}"


Feed: TypeAlias = Node | Channel
"""Something a node can read."""


def node_of(feed: Feed) -> Node:
    return feed.node if isinstance(feed, Channel) else feed


def is_table(feed: Feed) -> bool:
    """Whether its rows are those of a table, which change, and not events."""
    return isinstance(feed, TableTopic | TableNode)


def is_failed(feed: Feed) -> bool:
    """Whether it is the channel of the rows on which a node's function raised. Declared channels may have its name."""
    return (
        isinstance(feed, Channel)
        and feed.name == FAILED
        and isinstance(feed.node, QueryNode)
        and not (isinstance(feed.node, Stream) and feed.node.channels)
    )


@dataclass(frozen=True, eq=False, kw_only=True)
class Source(Node):
    """A source of rows. Invalid records go to the channel `.rejected`."""

    schema: Schema
    key: tuple[str, ...]
    event_time: EventTime | None
    lateness: Duration
    ahead: Duration | None

    @property
    def channel_names(self) -> tuple[str, ...]:
        return (REJECTED,)


@dataclass(frozen=True, eq=False, kw_only=True)
class Topic(Source):
    """An input topic, written by other programs."""

    kind = "topic"

    format: Format
    record_columns: tuple[str, ...]
    heartbeat: Duration | None = None
    """After this time without events the clock advances the watermark; None if only events do."""


@dataclass(frozen=True, eq=False, kw_only=True)
class TableTopic(Topic):
    """A changelog that others write: the last row of each key is the table, and a null value deletes."""

    kind = "table"


@dataclass(frozen=True, eq=False, kw_only=True)
class Files(Source):
    """A folder with JSON files, one row per line. For experiments."""

    kind = "files"

    path: str


@dataclass(frozen=True, eq=False, kw_only=True)
class Rate(Source):
    """Spark's source of numbered rows at a constant rate. For experiments."""

    kind = "rate"

    rows_per_second: int

    @property
    def channel_names(self) -> tuple[str, ...]:
        return ()


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a node's function, and its upstream: a name or a node."""

    name: str
    upstream: "str | Feed"


@dataclass(frozen=True, eq=False, kw_only=True)
class FunctionNode(Node):
    """A function from DataFrames to a DataFrame. It stays callable, so that a test can call it."""

    function: Callable[..., Any]
    parameters: tuple[Parameter, ...]

    def __post_init__(self) -> None:
        for attribute in ("__name__", "__qualname__", "__doc__", "__module__"):
            object.__setattr__(self, attribute, getattr(self.function, attribute, None))
        object.__setattr__(self, "__wrapped__", self.function)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        given = inspect.signature(self.function).bind(*arguments, **named).arguments
        for parameter in self.parameters:
            if parameter.name not in given:
                raise TypeError(
                    f"{self.name}() needs a DataFrame for {parameter.name!r}: the default only names "
                    f"the upstream {parameter.upstream}"
                )
        return self.function(*arguments, **named)


@dataclass(frozen=True, eq=False, kw_only=True)
class Step(FunctionNode):
    """A function with no sink: it is inlined into what uses it."""

    kind = "step"


@dataclass(frozen=True, eq=False, kw_only=True)
class QueryNode(FunctionNode):
    """A function with a sink, so with its own query."""

    key: tuple[str, ...]
    guarantee: Guarantee
    on_error: OnError = OnError.STOP

    @property
    def diverts(self) -> bool:
        """Whether rows on which its function raises go to the channel `.failed`."""
        return self.on_error is OnError.DIVERT


@dataclass(frozen=True, eq=False, kw_only=True)
class Stream(QueryNode):
    """A function whose rows become a topic, or one topic for each of its channels."""

    kind = "stream"

    event_time: str | None
    lateness: Duration | None
    channels: tuple[str, ...]
    latency: Latency

    @property
    def channel_names(self) -> tuple[str, ...]:
        if self.channels:
            return (*self.channels, LATE)
        return (LATE, REJECTED, FAILED) if self.diverts else (LATE, REJECTED)

    @property
    def outputs(self) -> tuple[Feed, ...]:
        """Where its function's rows go: its declared channels, or the stream itself."""
        return tuple(Channel(self, channel, self.place) for channel in self.channels) or (self,)


@dataclass(frozen=True, eq=False, kw_only=True)
class TableNode(Stream):
    """A function whose rows become a changelog: a stream folded into the last row of each key."""

    kind = "table"


@dataclass(frozen=True, eq=False, kw_only=True)
class View(QueryNode):
    """A function whose rows become a PostgreSQL table, `app.name`, up to date by key."""

    kind = "view"

    order_by: tuple[str, ...]

    @property
    def table_name(self) -> str:
        return f"{self.app_name}.{self.name}"

    @property
    def channel_names(self) -> tuple[str, ...]:
        return (LATE, FAILED) if self.diverts else (LATE,)
