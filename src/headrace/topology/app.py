"""The app: where a pipeline is declared. Declaring has no side effects; `topology()` checks and connects the nodes."""

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, TypeAlias, TypeVar, overload

from headrace.errors import InputError, Problem, TopologyError
from headrace.topology.captures import Capture, MaskLike
from headrace.topology.capturing import read_capture, read_table_name
from headrace.topology.choices import Format, Guarantee, Latency, OnError, StateStore
from headrace.topology.databases import DatabaseLike
from headrace.topology.declaring import Declaration, KeyLike, column_of, name_of, names_of, parameters_of
from headrace.topology.duration import Duration, DurationLike
from headrace.topology.graph import Topology
from headrace.topology.nodes import Files, Node, Rate, Source, Step, Stream, TableNode, TableTopic, Topic, View
from headrace.topology.place import place_of_caller
from headrace.topology.queues import QueueDeclarations
from headrace.topology.schema import SchemaLike
from headrace.topology.sinks import PostgresSink, Sink, TopicSink, sink_of
from headrace.topology.sources import check_table_columns, read_source, record_columns_of
from headrace.topology.times import EventTimeLike
from headrace.topology.wiring import connect

__all__ = ["App"]

Function: TypeAlias = Callable[..., Any]
N = TypeVar("N", bound=Node)
S = TypeVar("S", bound=Source)

APP_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,62}")  # it names a PostgreSQL schema and a folder
NO_LATENESS = Duration(0)
SHORTEST_HEARTBEAT = Duration.of("1 second")


class App(QueueDeclarations):
    """A pipeline: its input topics, and the functions that make streams, tables and views of them."""

    view_type: ClassVar[type[View]] = View

    def __init__(self, name: str, *, prefix: str = "", state: str = "rocksdb") -> None:
        if not isinstance(name, str):
            raise InputError(f"App() takes a name, not {name!r}", next_step='write App("shop")')
        self.name = name
        self.prefix = prefix
        self.place = place_of_caller()
        self.file = self.place.file
        """From which another process can load it: where it was declared, or the file that was loaded."""
        self._nodes: list[Node] = []
        self._problems: list[Problem] = []
        declaration = Declaration(f"app {name!r}", self.place, self._problems)
        self.state = declaration.read("state", StateStore.of, state, StateStore.ROCKSDB)
        if not APP_NAME.fullmatch(name):
            declaration.problem(
                "the name is not valid as a PostgreSQL schema",
                "use at most 63 letters, digits, '_' and '-', starting with a letter",
            )
        if prefix:
            declaration.check_topic_name(prefix)

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All that was declared, in the order of declaration."""
        return tuple(self._nodes)

    def topic(
        self,
        name: str,
        schema: SchemaLike | None = None,
        *,
        key: KeyLike = None,
        event_time: EventTimeLike | None = None,
        lateness: DurationLike | None = None,
        ahead: DurationLike | None = "1 hour",
        topic: str | None = None,
        format: str = "json",
        record_columns: Sequence[str] = (),
        heartbeat: DurationLike | None = None,
    ) -> Topic:
        """An input topic, written by other programs.

        `lateness` is how far behind the newest event a row may be; a row whose event time is more than `ahead` after
        its record's timestamp is rejected. `topic` is the name of the topic, if it is not the app's prefix and the
        node's name. `record_columns` adds columns of the record: `_key`, `_topic`, `_partition`, `_offset`,
        `_timestamp`, `_headers`. When the topic has had no events for the `heartbeat`, the watermark advances with the
        clock, so that windows close.
        """
        declaration = self._declaration("topic", name)
        topic_name = self._topic_name(declaration, name, topic)
        format_ = declaration.read("format", Format.of, format, None)
        if format_ is Format.DEBEZIUM:
            declaration.problem("Debezium's envelope has the changes of a table", "declare it with app.table(...)")
        extra = declaration.read("record_columns", record_columns_of, record_columns, ())
        read = read_source(declaration, schema, format_, key, event_time, lateness, ahead, extra)
        if read.event_time is not None and read.event_time.column == "_timestamp" and "_timestamp" not in extra:
            extra = (*extra, "_timestamp")
        beat = None if heartbeat is None else declaration.read("heartbeat", Duration.of, heartbeat, None)
        if beat is not None and beat < SHORTEST_HEARTBEAT:
            declaration.problem(f"heartbeat: {beat} is too short", f'make it at least "{SHORTEST_HEARTBEAT}"')
        if heartbeat is not None and event_time is None:
            declaration.problem("heartbeat needs an event time", 'add event_time="at"')
        return self._add(
            declaration,
            Topic(
                app_name=self.name,
                name=name,
                place=declaration.place,
                schema=read.schema,
                key=read.key,
                event_time=read.event_time,
                lateness=read.lateness,
                ahead=read.ahead,
                topic_name=topic_name,
                format=format_ or Format.JSON,
                record_columns=extra,
                heartbeat=beat,
            ),
        )

    @overload
    def table(
        self,
        name: str,
        schema: SchemaLike,
        *,
        key: KeyLike = None,
        event_time: EventTimeLike | None = None,
        lateness: DurationLike | None = None,
        ahead: DurationLike | None = "1 hour",
        topic: str | None = None,
        format: str = "json",
    ) -> TableTopic: ...

    @overload
    def table(self, function: Function, /) -> TableNode: ...

    @overload
    def table(
        self,
        *,
        key: KeyLike = None,
        event_time: str | None = None,
        lateness: DurationLike | None = None,
        guarantee: str = "exactly-once",
        topic: str | None = None,
        on_error: str = "stop",
    ) -> Callable[[Function], TableNode]: ...

    def table(
        self,
        name: str | Function | None = None,
        schema: SchemaLike | None = None,
        *,
        key: KeyLike = None,
        event_time: Any = None,
        lateness: DurationLike | None = None,
        ahead: DurationLike | None = "1 hour",
        guarantee: str = "exactly-once",
        topic: str | None = None,
        on_error: str = "stop",
        format: str = "json",
    ) -> TableTopic | TableNode | Callable[[Function], TableNode]:
        """The last row of each key, kept in a changelog topic in which a null value deletes a key.

        With a name and a schema, a table that others write. As a decorator, a function whose rows are folded into
        one: the last row of a key wins, and one whose `_deleted` is true deletes it. A row is valid from its event
        time on, or from its record's timestamp where the table has no event time. `on_error="divert"` sends rows on
        which the function raises to the channel `.failed`. With `format="debezium"` the topic has a table's changes as
        Debezium writes them, with or without schemas.
        """
        if isinstance(name, str):
            return self._table_topic(name, schema, key, event_time, lateness, ahead, topic, format)

        def declare(function: Function) -> TableNode:
            name = name_of(function, "table")
            declaration = self._declaration("table", name)
            _check_has_key(declaration, "table", key)
            return self._add(
                declaration,
                TableNode(
                    app_name=self.name,
                    name=name,
                    place=declaration.place,
                    function=function,
                    parameters=parameters_of(function, declaration),
                    topic_name=self._topic_name(declaration, name, topic),
                    key=declaration.read("key", names_of, key, ()),
                    event_time=declaration.read("event_time", column_of, event_time, None),
                    lateness=None if lateness is None else declaration.read("lateness", Duration.of, lateness, None),
                    guarantee=declaration.read("guarantee", Guarantee.of, guarantee, Guarantee.EXACTLY_ONCE),
                    sink=TopicSink(),
                    on_error=declaration.read("on_error", OnError.of, on_error, OnError.STOP),
                ),
            )

        return declare if name is None else declare(name)

    def _table_topic(
        self,
        name: str,
        schema: SchemaLike | None,
        key: KeyLike,
        event_time: EventTimeLike | None,
        lateness: DurationLike | None,
        ahead: DurationLike | None,
        topic: str | None,
        format: str,
    ) -> TableTopic:
        declaration = self._declaration("table", name)
        format_ = declaration.read("format", Format.of, format, None) or Format.JSON
        if format_ not in (Format.JSON, Format.DEBEZIUM):
            declaration.problem(f"format: a table's rows are not of format {format_}", 'write "json" or "debezium"')
        if schema is None and format_ is Format.DEBEZIUM:
            declaration.problem("a table needs a schema", 'write it as "id BIGINT, name STRING"')
        # A table has no stragglers of its own: how late its rows may be matters to those who read its changes.
        late = NO_LATENESS if lateness is None and event_time is not None else lateness
        read = read_source(declaration, schema, format_, key, event_time, late, ahead, ())
        check_table_columns(declaration, read.schema)
        _check_has_key(declaration, "table", key)
        by_record = read.event_time is not None and read.event_time.column == "_timestamp"
        return self._add(
            declaration,
            TableTopic(
                app_name=self.name,
                name=name,
                place=declaration.place,
                schema=read.schema,
                key=read.key,
                event_time=read.event_time,
                lateness=read.lateness,
                ahead=read.ahead,
                topic_name=self._topic_name(declaration, name, topic),
                format=format_,
                record_columns=("_timestamp",) if by_record else (),
            ),
        )

    def capture(
        self,
        database: DatabaseLike,
        table: str,
        *,
        name: str | None = None,
        key: KeyLike = None,
        schema: SchemaLike | None = None,
        columns: KeyLike = None,
        where: str | None = None,
        mask: MaskLike = None,
        snapshot: str = "initial",
        event_time: EventTimeLike | None = None,
        lateness: DurationLike | None = None,
        ahead: DurationLike | None = "1 hour",
        topic: str | None = None,
    ) -> Capture:
        """A table of a PostgreSQL database: a table for nodes, and a topic in Debezium's envelope for everybody else.

        `database` is its address, or a `headrace.database(...)`; captures of equal ones share a slot and a publication.
        The node is called like the table unless `name` is given, and its topic `<app>.<schema>.<table>`. Its key is the
        primary key and its columns are those of the database unless `key` and `schema` are given; they are read when
        the app is planned or run. Only `columns`, and only rows for which the SQL condition `where` is true, enter the
        log; the columns in `mask` enter it as null, or with `mask={"email": "hash"}` as a hash. `snapshot="never"`
        leaves out the rows that are in the table already.
        """
        declaration = Declaration(f"capture {name or table!r}", place_of_caller(), self._problems)
        found = read_table_name(declaration, table)
        chosen = found.name if name is None else name
        declaration.check_node_name(chosen)
        whole = f"{self.prefix or f'{self.name}.'}{found.as_topic}"
        capture = read_capture(
            declaration,
            app_name=self.name,
            name=chosen,
            topic_name=self._topic_name(declaration, chosen, topic or whole),
            database=database,
            table=found,
            schema=schema,
            key=key,
            event_time=event_time,
            lateness=lateness,
            ahead=ahead,
            columns=columns,
            where=where,
            mask=mask,
            snapshot=snapshot,
        )
        return self._add(declaration, capture)

    def source(
        self,
        kind: type[S],
        name: str,
        schema: SchemaLike | None = None,
        *,
        key: KeyLike = None,
        event_time: EventTimeLike | None = None,
        lateness: DurationLike | None = None,
        **options: Any,
    ) -> S:
        """A source of any kind: a subclass of `Source` with its `options` as fields, for which an adapter is
        registered in the engine."""
        declaration = self._declaration(kind.kind, name)
        if kind.fixed_time is not None:
            event_time, lateness = kind.fixed_time, NO_LATENESS
        declared = kind.fixed_schema or schema
        read = read_source(declaration, declared, Format.JSON, key, event_time, lateness, None, None)
        node = kind(
            app_name=self.name,
            name=name,
            place=declaration.place,
            schema=read.schema,
            key=read.key,
            event_time=read.event_time,
            lateness=read.lateness,
            ahead=None,
            topic_name=self._topic_name(declaration, name, None),
            **options,
        )
        for problem, next_step in node.problems:
            declaration.problem(problem, next_step)
        return self._add(declaration, node)

    def files(
        self,
        name: str,
        schema: SchemaLike,
        *,
        path: str,
        key: KeyLike = None,
        event_time: EventTimeLike | None = None,
        lateness: DurationLike | None = None,
    ) -> Files:
        """A folder with files of JSON lines, for experiments. Each file is read once, when it appears."""
        return self.source(Files, name, schema, key=key, event_time=event_time, lateness=lateness, path=path)

    def rate(self, name: str, rows_per_second: int = 1) -> Rate:
        """Rows `timestamp TIMESTAMP, value BIGINT` at a constant rate, numbered from 0, for experiments."""
        return self.source(Rate, name, rows_per_second=rows_per_second)

    @overload
    def stream(self, function: Function, /) -> Stream: ...

    @overload
    def stream(
        self,
        *,
        key: KeyLike = None,
        event_time: str | None = None,
        lateness: DurationLike | None = None,
        channels: Sequence[str] = (),
        guarantee: str = "exactly-once",
        latency: str = "micro-batch",
        topic: str | None = None,
        to: Sequence[Sink] = (),
        on_error: str = "stop",
    ) -> Callable[[Function], Stream]: ...

    def stream(
        self,
        function: Function | None = None,
        *,
        key: KeyLike = None,
        event_time: str | None = None,
        lateness: DurationLike | None = None,
        channels: Sequence[str] = (),
        guarantee: str = "exactly-once",
        latency: str = "micro-batch",
        topic: str | None = None,
        to: Sequence[Sink] = (),
        on_error: str = "stop",
    ) -> Stream | Callable[[Function], Stream]:
        """A function whose rows become a topic; with `channels` it returns a dict of them, a topic each.

        Unless said otherwise the event time is the window's end or the upstream's column, and the lateness
        the upstream's. When the function raises on a row, the app stops; with `on_error="divert"` the row goes to the
        channel `.failed`, and the node goes on. With `to=[sink]` its rows go to that sink instead of a topic.
        """

        def declare(function: Function) -> Stream:
            name = name_of(function, "stream")
            declaration = self._declaration("stream", name)
            declared = declaration.read("channels", names_of, channels, ())
            topic_name = self._topic_name(declaration, name, topic)
            declaration.check_channel_names(declared, topic_name)
            kept = declaration.read("guarantee", Guarantee.of, guarantee, None)
            speed = declaration.read("latency", Latency.of, latency, Latency.MICRO_BATCH)
            if speed is Latency.REAL_TIME and kept not in (None, Guarantee.AT_LEAST_ONCE):
                declaration.problem(
                    f'latency="real-time" does not support {kept}: Spark\'s real-time sink is at-least-once',
                    'set guarantee="at-least-once", or omit latency',
                )
            failing = declaration.read("on_error", OnError.of, on_error, OnError.STOP)
            declaration.check_on_error(failing, speed, declared)
            sink = declaration.read("to", partial(sink_of, default=TopicSink()), to, TopicSink())
            declaration.check_sink(sink, speed, declared)
            return self._add(
                declaration,
                Stream(
                    app_name=self.name,
                    name=name,
                    place=declaration.place,
                    function=function,
                    parameters=parameters_of(function, declaration),
                    topic_name=topic_name,
                    key=declaration.read("key", names_of, key, ()),
                    event_time=declaration.read("event_time", column_of, event_time, None),
                    lateness=None if lateness is None else declaration.read("lateness", Duration.of, lateness, None),
                    channels=declared,
                    guarantee=kept or Guarantee.EXACTLY_ONCE,
                    sink=sink,
                    latency=speed,
                    on_error=failing,
                ),
            )

        return declare if function is None else declare(function)

    @overload
    def view(self, function: Function, /) -> View: ...

    @overload
    def view(
        self,
        *,
        key: KeyLike = None,
        order_by: KeyLike = None,
        guarantee: str = "exactly-once",
        to: Sequence[Sink] = (),
        on_error: str = "stop",
    ) -> Callable[[Function], View]: ...

    def view(
        self,
        function: Function | None = None,
        *,
        key: KeyLike = None,
        order_by: KeyLike = None,
        guarantee: str = "exactly-once",
        to: Sequence[Sink] = (),
        on_error: str = "stop",
    ) -> View | Callable[[Function], View]:
        """A function whose rows become the PostgreSQL table `<app>.<name>`, one row a key.

        The last row of a key wins: the last one read, or the greatest by `order_by`, whichever batch it is in. A row
        whose `_deleted` is true deletes the key. `on_error="divert"` sends rows on which the function raises to the
        channel `.failed`. With `to=[sink]` its rows go to that sink instead of PostgreSQL.
        """

        def declare(function: Function) -> View:
            name = name_of(function, "view")
            declaration = self._declaration("view", name)
            _check_has_key(declaration, "view", key)
            return self._add(
                declaration,
                self.view_type(
                    app_name=self.name,
                    name=name,
                    place=declaration.place,
                    function=function,
                    parameters=parameters_of(function, declaration),
                    topic_name=self._topic_name(declaration, name, None),
                    key=declaration.read("key", names_of, key, ()),
                    order_by=declaration.read("order_by", names_of, order_by, ()),
                    guarantee=declaration.read("guarantee", Guarantee.of, guarantee, Guarantee.EXACTLY_ONCE),
                    sink=declaration.read("to", partial(sink_of, default=PostgresSink()), to, PostgresSink()),
                    on_error=declaration.read("on_error", OnError.of, on_error, OnError.STOP),
                ),
            )

        return declare if function is None else declare(function)

    def step(self, function: Function) -> Step:
        """A function without a sink: it becomes part of the nodes that use it."""
        name = name_of(function, "step")
        declaration = self._declaration("step", name)
        return self._add(
            declaration,
            Step(
                app_name=self.name,
                name=name,
                place=declaration.place,
                function=function,
                parameters=parameters_of(function, declaration),
            ),
        )

    def problems(self) -> tuple[Problem, ...]:
        """All problems of the declarations, in the order of the file."""
        return self._connected()[1]

    def topology(self) -> Topology:
        """The graph. Raises TopologyError with all problems of the declarations."""
        topology, problems = self._connected()
        if topology is None:
            raise TopologyError(problems)
        return topology

    def _connected(self) -> tuple[Topology | None, tuple[Problem, ...]]:
        inputs, found = connect(self.nodes)
        problems = tuple(sorted((*self._problems, *found), key=lambda problem: (problem.file, problem.line)))
        if problems:
            return None, problems
        return Topology(self.name, self.nodes, inputs, self.prefix, state=self.state, file=self.file), problems

    def _declaration(self, kind: str, name: str) -> Declaration:
        declaration = Declaration(f"{kind} {name!r}", place_of_caller(), self._problems)
        declaration.check_node_name(name)
        return declaration

    def _topic_name(self, declaration: Declaration, name: str, topic: str | None) -> str:
        topic_name = self.prefix + name if topic is None else topic
        declaration.check_topic_name(topic_name)
        return topic_name

    def _add(self, declaration: Declaration, node: N) -> N:
        for other in self._nodes:
            if other.name.casefold() == node.name.casefold():
                # Checkpoints are folders named after nodes, and some file systems ignore case.
                taken = (
                    "is taken"
                    if other.name == node.name
                    else f"differs only in case from {other.name!r}, which is taken"
                )
                declaration.problem(f"the name {taken} by the {other.kind} at {other.place}", "choose another")
                break
        self._nodes.append(node)
        return node


def _check_has_key(declaration: Declaration, what: str, key: KeyLike) -> None:
    if not key and key != "":
        declaration.problem(f"a {what} needs a key", 'name the columns that identify a row: key="id"')
