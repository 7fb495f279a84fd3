"""The parts of a pipeline: sources, functions of DataFrames, and their output channels."""

import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn, TypeAlias

from headrace.errors import InputError
from headrace.topology.choices import Format, Guarantee, Latency, OnError
from headrace.topology.datatypes import Column, Primitive
from headrace.topology.duration import Duration
from headrace.topology.names import FAILED, LATE, REJECTED
from headrace.topology.nearest import did_you_mean
from headrace.topology.place import Place, place_of_caller
from headrace.topology.schema import Schema
from headrace.topology.sinks import PostgresSink, Sink
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
]


@dataclass(frozen=True, eq=False, kw_only=True)
class Node:
    """Anything with a name in the graph. An attribute it does not have is a channel: `split.eu`."""

    kind: ClassVar[str] = "node"

    app_name: str
    name: str
    place: Place
    topic_name: str = ""
    """The topic its rows are in; its channels' topics start with it. Empty for what has no topic."""

    # What others need to know of a node, whatever its class. A kind says so by overriding it.

    is_table: ClassVar[bool] = False
    """Whether its rows are those of a table, which change, and not events."""
    is_input: ClassVar[bool] = False
    """Whether it is a topic that others write."""
    is_captured: ClassVar[bool] = False
    """Whether it is a table of a database, whose changes Headrace writes to its topic."""
    is_query: ClassVar[bool] = False
    """Whether it runs as a query of its own."""
    is_inlined: ClassVar[bool] = False
    """Whether it becomes part of what uses it."""
    is_worker: ClassVar[bool] = False
    """Whether it takes messages of a queue, outside of Spark."""

    @property
    def channel_names(self) -> tuple[str, ...]:
        """The channels that can be read from this node."""
        return ()

    @property
    def has_topic(self) -> bool:
        """Whether its rows can be read from the topic `topic_name`."""
        return False

    @property
    def is_parsed(self) -> bool:
        """Whether it is read as bytes that are parsed, some of which may be rejected."""
        return self.has_topic

    @property
    def outputs(self) -> "tuple[Feed, ...]":
        """What its rows end in that has a topic: itself, or its channels."""
        return ()

    @property
    def origin(self) -> str:
        """What it is outside of the app: two nodes of different names that read one topic read the same."""
        return f"topic {self.topic_name}"

    @property
    def heartbeat_after(self) -> Duration | None:
        """After so much silence the clock moves its time on; None where events alone do."""
        return None

    @property
    def own_channels(self) -> tuple[str, ...]:
        """Those of `channel_names` that Headrace writes, not the node's function."""
        return self.channel_names

    @property
    def drawing_facts(self) -> Iterator[str]:
        """What a drawing of the graph says of its kind."""
        yield from ()

    @property
    def fingerprint(self) -> dict[str, Any]:
        """What the checkpoints of its readers depend on, as plain values to compare."""
        return {}

    # A node and its channels are both feeds, and asked alike.

    @property
    def node(self) -> "Node":
        return self

    @property
    def channel_name(self) -> str:
        return ""

    @property
    def is_late(self) -> bool:
        return False

    @property
    def is_rejected(self) -> bool:
        return False

    @property
    def is_failed(self) -> bool:
        return False

    @property
    def is_diverted(self) -> bool:
        return False

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

    @property
    def channel_name(self) -> str:
        return self.name

    @property
    def has_topic(self) -> bool:
        return True

    @property
    def is_parsed(self) -> bool:
        return True

    @property
    def is_table(self) -> bool:
        return False

    @property
    def is_inlined(self) -> bool:
        return False

    @property
    def origin(self) -> str:
        return f"topic {self.topic_name}"

    @property
    def is_late(self) -> bool:
        """Whether it has the rows that came too late. A declared channel cannot have its name."""
        return self.name == LATE

    @property
    def is_rejected(self) -> bool:
        """Whether it has the records that could not be parsed."""
        return self.name == REJECTED

    @property
    def is_failed(self) -> bool:
        """Whether it has the rows on which the node's function raised. A declared channel may have its name."""
        return self.name == FAILED and self.name in self.node.own_channels

    @property
    def is_diverted(self) -> bool:
        """Whether its records are those of another topic, with the reason why they are here in their headers."""
        return self.is_rejected or self.is_failed

    def __call__(self, *_: Any, **__: Any) -> NoReturn:
        """Reached when a method is called that the node does not have."""
        if self.name in self.node.channel_names:
            raise InputError(f"{self} is a channel and cannot be called", next_step=f"read it with app.read({self})")
        methods = [name for name, _ in inspect.getmembers(type(self.node), inspect.isfunction) if name[0] != "_"]
        if methods:
            instead = did_you_mean(self.name, methods)
        elif self.node.has_topic or self.node.outputs:
            instead = f"read its rows with app.read({self.node}), or make an @app.view of it and ask that"
        else:
            instead = "make an @app.stream or an @app.view of it, and read that"
        raise InputError(f"{self.node.kind} {self.node.name!r} has no method {self.name!r}", next_step=instead)

    def __str__(self) -> str:
        return f"{self.node.name}.{self.name}"


Feed: TypeAlias = Node | Channel
"""Something a node can read."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Source(Node):
    """A source of rows. Invalid records go to the channel `.rejected`.

    A kind of source is a subclass with its options as fields, and an adapter registered for it in the engine.
    """

    schema: Schema
    key: tuple[str, ...]
    event_time: EventTime | None
    lateness: Duration
    ahead: Duration | None
    format: Format = Format.JSON
    record_columns: tuple[str, ...] = ()

    fixed_schema: ClassVar[Schema | None] = None
    """The columns of its rows, where they are not the user's to declare."""
    fixed_time: ClassVar[str | None] = None
    """The column of their event time, where it is not the user's to declare."""

    @property
    def channel_names(self) -> tuple[str, ...]:
        return (REJECTED,) if self.is_parsed else ()

    @property
    def is_described(self) -> bool:
        """Whether columns and key are known. Those of a captured table may have to be read from its database."""
        return True

    @property
    def problems(self) -> Iterator[tuple[str, str]]:
        """What is wrong with its own options, each with what to do."""
        yield from ()

    @property
    def fingerprint(self) -> dict[str, Any]:
        return {
            "key": list(self.key),
            "event_time": None if self.event_time is None else str(self.event_time),
            "ahead": None if self.ahead is None else str(self.ahead),
        }


@dataclass(frozen=True, eq=False, kw_only=True)
class Topic(Source):
    """An input topic, written by other programs."""

    kind = "topic"
    is_input = True

    heartbeat: Duration | None = None
    """After this time without events the clock advances the watermark; None if only events do."""

    @property
    def has_topic(self) -> bool:
        return True

    @property
    def heartbeat_after(self) -> Duration | None:
        return self.heartbeat

    @property
    def drawing_facts(self) -> Iterator[str]:
        if self.topic_name != self.name:
            yield f"topic {self.topic_name}"

    @property
    def fingerprint(self) -> dict[str, Any]:
        return super().fingerprint | {"format": str(self.format)}


@dataclass(frozen=True, eq=False, kw_only=True)
class TableTopic(Topic):
    """A changelog that others write: the last row of each key is the table, and a null value deletes."""

    kind = "table"
    is_table = True


@dataclass(frozen=True, eq=False, kw_only=True)
class Files(Source):
    """A folder with JSON files, one row per line. For experiments."""

    kind = "files"

    path: str

    @property
    def is_parsed(self) -> bool:
        return True

    @property
    def origin(self) -> str:
        return f"files in {self.path}"

    @property
    def problems(self) -> Iterator[tuple[str, str]]:
        if not self.path:
            yield "path is empty", 'name a folder: path="payments/"'

    @property
    def drawing_facts(self) -> Iterator[str]:
        yield f"in {self.path}"


@dataclass(frozen=True, eq=False, kw_only=True)
class Rate(Source):
    """Spark's source of numbered rows at a constant rate. For experiments."""

    kind = "rate"
    fixed_schema = Schema((Column("timestamp", Primitive.TIMESTAMP), Column("value", Primitive.BIGINT)))
    fixed_time = "timestamp"

    rows_per_second: int

    @property
    def origin(self) -> str:
        return f"rate of {self.rows_per_second} rows/s"

    @property
    def problems(self) -> Iterator[tuple[str, str]]:
        if self.rows_per_second < 1:
            yield f"rows_per_second is {self.rows_per_second}", "make it at least 1"

    @property
    def drawing_facts(self) -> Iterator[str]:
        yield f"{self.rows_per_second} rows/s"


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
    is_inlined = True


@dataclass(frozen=True, eq=False, kw_only=True)
class QueryNode(FunctionNode):
    """A function with a sink, so with its own query."""

    is_query = True
    holds_table: ClassVar[bool] = False
    """Whether its sink holds the last row of each key, so that its rows are changes."""

    key: tuple[str, ...]
    guarantee: Guarantee
    sink: Sink
    on_error: OnError = OnError.STOP
    event_time: str | None = None
    lateness: Duration | None = None
    channels: tuple[str, ...] = ()
    latency: Latency = Latency.MICRO_BATCH
    order_by: tuple[str, ...] = ()

    @property
    def diverts(self) -> bool:
        """Whether rows on which its function raises go to the channel `.failed`."""
        return self.on_error is OnError.DIVERT

    @property
    def is_real_time(self) -> bool:
        return self.latency is Latency.REAL_TIME

    @property
    def has_topic(self) -> bool:
        return self.sink.takes_records and not self.channels

    @property
    def table_name(self) -> str:
        """The PostgreSQL table that its rows are in; empty where they are elsewhere."""
        return ""

    @property
    def own_channels(self) -> tuple[str, ...]:
        if self.channels:
            return (LATE,)
        rejected = (REJECTED,) if self.has_topic else ()
        return (LATE, *rejected, FAILED) if self.diverts else (LATE, *rejected)

    @property
    def channel_names(self) -> tuple[str, ...]:
        return (*self.channels, *self.own_channels)

    @property
    def outputs(self) -> tuple[Feed, ...]:
        """What its function's rows end in: its declared channels, or else the node itself."""
        if not self.sink.takes_records:
            return ()
        return tuple(Channel(self, channel, self.place) for channel in self.channels) or (self,)

    @property
    def drawing_facts(self) -> Iterator[str]:
        if not self.sink.takes_records:
            yield f"table {self.table_name}" if self.table_name else f"to {self.sink.described}"
        elif self.topic_name != self.name:
            yield f"topic {self.topic_name}"

    @property
    def own_fingerprint(self) -> dict[str, Any]:
        """What its own checkpoint depends on."""
        return {"event_time": self.event_time, "channels": sorted(self.channels)}

    @property
    def fingerprint(self) -> dict[str, Any]:
        return {"key": list(self.key), "event_time": self.event_time}


@dataclass(frozen=True, eq=False, kw_only=True)
class Stream(QueryNode):
    """A function whose rows become a topic, or one topic for each of its channels."""

    kind = "stream"


@dataclass(frozen=True, eq=False, kw_only=True)
class TableNode(Stream):
    """A function whose rows become a changelog: a stream folded into the last row of each key."""

    kind = "table"
    is_table = True
    holds_table = True


@dataclass(frozen=True, eq=False, kw_only=True)
class View(QueryNode):
    """A function whose rows become a PostgreSQL table, `app.name`, up to date by key."""

    kind = "view"
    holds_table = True

    @property
    def table_name(self) -> str:
        return f"{self.app_name}.{self.name}" if isinstance(self.sink, PostgresSink) else ""

    @property
    def own_fingerprint(self) -> dict[str, Any]:
        return {"order_by": list(self.order_by)}

    @property
    def fingerprint(self) -> dict[str, Any]:
        return {}
