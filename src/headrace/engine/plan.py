"""Spark analyses the whole topology before any query starts: it gives a plan for every node, or all problems."""

import traceback
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headrace.engine.analysis import (
    APPEND,
    UPDATE,
    keeps_python_state,
    mode_problem,
    places_of,
    real_time_complaint,
    real_time_problems,
    runs_python,
    shortened,
    stateful_operators,
    stream_joins,
)
from headrace.engine.config import RunConfig
from headrace.engine.encoding import DELETED, ORDER, changelog, records
from headrace.engine.failing import Rerun, check_can_divert
from headrace.engine.heartbeats import MarkedTopic
from headrace.engine.ingestion import timestamp_types
from headrace.engine.joining import JoinUse, uses_of_joins
from headrace.engine.marks import is_window_time, output_time
from headrace.engine.outputs import Output, outputs_of, read_output
from headrace.engine.parsing import Shape
from headrace.engine.results import (
    Result,
    check_identity,
    check_key,
    late_rows,
    result_records,
    result_rows,
    revises,
    shown,
)
from headrace.engine.session import runs_here
from headrace.engine.sources import FAILED_SCHEMA, REJECTS_SCHEMA, Reading, RejectsReader, is_diverted, read
from headrace.engine.tables import Table
from headrace.engine.travel import check_packages, pack_users_code, send_headrace
from headrace.engine.windows import WINDOW_START, WindowUse, uses_of_windows
from headrace.errors import InputError, PlanError, Problem
from headrace.topology import (
    Channel,
    ColumnTime,
    Duration,
    Emit,
    Feed,
    Files,
    Format,
    FunctionNode,
    Hopping,
    IngestionTime,
    Latency,
    Node,
    QueryNode,
    Rate,
    Schema,
    Source,
    Step,
    Stream,
    TableNode,
    Topic,
    Topology,
    Tumbling,
    View,
    is_table,
    node_of,
)
from headrace.topology.nodes import FAILED, LATE, is_failed
from headrace.topology.place import users_place

__all__ = ["PlannedQuery", "RejectedFeed", "plan"]


@dataclass(frozen=True)
class RejectedFeed:
    """A feed whose unusable records a query writes to `<topic>.rejected`."""

    feed: Feed
    topic: str
    metric: str | None
    """The observed metric whose `rejected` counts the unusable records of a batch.

    None where a query reads its feed in several places, whose counts cannot be told apart: look at every batch.
    """
    reading: Reading
    config: RunConfig

    def read(
        self,
        spark: SparkSession,
        start: Mapping[str, Any] | None,
        end: Mapping[str, Any],
        log: Path | None = None,
    ) -> DataFrame:
        """The rejects of a batch as records: those between two offsets of the source, in Spark's JSON.

        `start` is None in a first batch. `log` is the folder `sources/<n>` of the checkpoint, where `<n>` is the
        source's place among the lines of `offsets/<batch>`: files alone need it, to know which they were.
        """
        return self._reader.read(spark, start, end, log)

    @cached_property
    def _reader(self) -> RejectsReader:
        return RejectsReader(self.reading, self.config, self.topic)


@dataclass(frozen=True)
class PlannedQuery:
    """A node as Spark will run it.

    `frame` streams. Of a stream it has the columns of a record (`topic STRING, key BINARY, value BINARY, headers
    ARRAY<STRUCT<key, value>>, timestamp TIMESTAMP`), those of all channels together, and `_order TIMESTAMP`, the
    event time by which a batch is sorted before it is written (null where there is none: keep the rows' order).
    `timestamp` is null where the producer's clock is meant. Of a view it has the view's columns, and `_deleted
    BOOLEAN` where the function gives it; of several rows of a key the last in the batch's own order counts, or the
    greatest by `node.order_by`, across batches.

    In real-time mode there is no batch to look at: there the rejects are among the rows of `frame`.
    """

    node: QueryNode
    frame: DataFrame
    output_schemas: Mapping[str, Schema]
    """By channel, including that of late rows; the name is empty for a node without channels."""
    output_mode: str
    feeds: tuple[Feed, ...]
    rejects: tuple[RejectedFeed, ...]
    fingerprint: Mapping[str, Any]
    marked: tuple[MarkedTopic, ...] = ()
    """The topics that are read together with their markers."""
    late_topic: str | None = None
    """Where its late rows go; None where they are dropped. They are among the rows of `frame`: of a stream as records
    like all others, of a view as a record in the column `_late`, which is null in the view's own rows."""
    explained: tuple[str, ...] = ()
    """What computes its windows, and why."""
    looked_up: tuple[QueryNode, ...] = ()
    """The nodes whose tables its events are looked up in."""
    held: Duration | None = None
    """How far behind its watermark its rows may be; None where that is not known."""
    rerun: Rerun | None = None
    """The node's function over parts of a batch; None where it keeps state, or reads what has no offsets."""
    deletes_kept: Duration | None = None
    """Of a view with `order_by`: how long after the watermark has passed a delete it is remembered; None for ever."""

    @property
    def output_schema(self) -> Schema:
        """The columns of the rows of a node without channels."""
        return self.output_schemas[""]


def plan(topology: Topology, spark: SparkSession, config: RunConfig) -> list[PlannedQuery]:
    """Analyse every node, upstreams first; raises PlanError with the problems of all nodes. Gives those to run."""
    pack_users_code(topology)
    planner = _Planner(topology, spark, config)
    planner.check_ingestion_times()
    analysed = [query for node in topology.analysed if (query := planner.plan(node)) is not None]
    if planner.problems:
        raise PlanError(sorted(planner.problems, key=lambda problem: (problem.file, problem.line)))
    planned = [query for query in analysed if query.node in topology.queries]
    if not runs_here(spark):
        send_headrace(spark)
        if any(runs_python(query.frame) for query in planned):
            check_packages(spark, topology, any(keeps_python_state(query.frame) for query in planned))
    return planned


class _Planner:
    def __init__(self, topology: Topology, spark: SparkSession, config: RunConfig) -> None:
        self.topology = topology
        self.spark = spark
        self.config = config
        self.problems: list[Problem] = []
        self._written: dict[Feed, Shape] = {}
        self._spread: dict[Node, Duration] = {}
        self._failed: set[Node] = set()

    def check_ingestion_times(self) -> None:
        wanted = {
            node.topic_name: node
            for node in self.topology.nodes.values()
            if isinstance(node, Topic) and isinstance(node.event_time, IngestionTime)
        }
        for topic, kind in timestamp_types(wanted, self.config).items():
            if kind != "LogAppendTime":
                self._problem(
                    wanted[topic],
                    f"its timestamps are the producer's (message.timestamp.type={kind}), not the time of ingestion",
                    f"set message.timestamp.type=LogAppendTime for the topic {topic!r}, or choose another event time",
                )

    def plan(self, node: QueryNode) -> PlannedQuery | None:
        feeds = self.topology.feeds(node)
        # Where an upstream could not be planned, the problem is told there.
        if any(not is_diverted(feed) and node_of(feed) in self._failed for feed in feeds):
            self._failed.add(node)
            return None
        try:
            return self._planned(node, feeds)
        except InputError as error:
            self._problem(node, error.problem, error.next_step, error)
        except Exception as error:
            self._problem(node, _told(error), None, error)
        return None

    def _planned(self, node: QueryNode, feeds: tuple[Feed, ...]) -> PlannedQuery:
        real_time = isinstance(node, Stream) and node.latency is Latency.REAL_TIME
        # In real-time mode a batch has no end that could be bounded.
        config = replace(self.config, max_records_per_batch=None) if real_time else self.config
        rejected = self.topology.rejects_written_by(node)
        readings = {feed: replace(self._reading(feed), real_time=real_time) for feed in feeds}
        if not real_time:
            readings |= {feed: self._beating(reading) for feed, reading in readings.items()}
        returned, beside, windows, joins = self._called(node, readings, config, real_time)
        idle = next((join.idle for join in joins if join.idle is not None), None)
        if idle is not None and not real_time:
            # Now that it is known that it merges: whichever of its sources is silent must not hold back the others.
            readings = {feed: replace(reading, markers=_may_be_marked(reading)) for feed, reading in readings.items()}
            returned, beside, windows, joins = self._called(node, readings, config, real_time)
        self._spread[node] = Duration(sum(join.spread.microseconds for join in joins))
        result = returned if isinstance(returned, Result) else None
        given = outputs_of(node, returned if result is None else shown(result))
        again = any(window.emit is Emit.CHANGES for window in windows) if result is None else revises(result)
        changes = again or isinstance(node, View) or is_table(node)
        outputs = {channel: read_output(node, rows, changes) for channel, rows in given.items()}
        order_by = node.order_by if isinstance(node, View) else None
        if result is None:
            for window in windows:
                if window.revises and window.why_operator is None:
                    for rows, _, _ in outputs.values():
                        check_identity(window.identity, rows.columns, node.key, order_by, DELETED in rows.columns)
        late, late_schema, failed_topic = Channel(node, LATE, node.place), {}, f"{node.topic_name}.{FAILED}"
        if result is not None:
            check_key(result, node.key, order_by)
            if (rows_late := late_rows(result)) is not None:
                self._written[late] = Shape(rows_late.schema, key=rows_late.key, time=ColumnTime(rows_late.time))
                late_schema[LATE] = rows_late.schema
        if isinstance(node, Stream):
            written = []
            for channel, (rows, schema, time) in outputs.items():
                feed = Channel(node, channel, node.place) if channel else node
                column = None if time is None else ColumnTime(time)
                self._written[feed] = Shape(schema, key=node.key, time=column, is_table=changes)
                if result is not None:
                    written.append(
                        result_records(result, schema, feed.topic_name, node.key, time, late.topic_name, failed_topic)
                    )
                else:
                    written.append(_records(rows, schema, feed.topic_name, node.key, time, changes))
            frame = reduce(DataFrame.unionByName, written)
            if beside and stateful_operators(frame):
                raise InputError(
                    'with latency="real-time" a node with state cannot write rejected records, and it is the only '
                    f"reader of {', '.join(str(feed) for feed in rejected)}",
                    next_step="add another reader, which will write them, or move the state to the next node",
                )
            frame = reduce(DataFrame.unionByName, beside, frame)
        elif result is not None:
            frame = result_rows(result, node.key, late.topic_name, failed_topic)
        else:
            frame = outputs[""][0]
        check_can_divert(node, frame, feeds, any(window.spec.applied is not None for window in windows))
        mode = _real_time_mode(frame, windows) if real_time else _output_mode(node, frame, windows)
        return PlannedQuery(
            node=node,
            frame=frame,
            output_schemas={channel: schema for channel, (_, schema, _) in outputs.items()} | late_schema,
            output_mode=mode,
            feeds=feeds,
            rejects=() if real_time else tuple(self._rejected(readings[feed], frame) for feed in rejected),
            fingerprint=self._fingerprint(node, frame, windows, joins, mode, readings),
            marked=tuple(self._marked(reading, idle) for reading in readings.values() if reading.markers),
            late_topic=late.topic_name if late in self._written else None,
            explained=(
                *(window.explain() for window in windows),
                *(join.explained for join in joins if join.explained),
            ),
            looked_up=self._looked_up(feeds, joins),
            held=_held(node, [rows for rows, _, _ in outputs.values()], joins),
            rerun=None if real_time else self._rerun(node, frame, readings, outputs, changes),
            deletes_kept=_deletes_kept(node, outputs[""][0], windows, joins) if isinstance(node, View) else None,
        )

    def _rerun(
        self,
        node: QueryNode,
        frame: DataFrame,
        readings: Mapping[Feed, Reading],
        outputs: Mapping[str, Output],
        changes: bool,
    ) -> Rerun | None:
        if stateful_operators(frame) or any(isinstance(feed, Rate | Files) for feed in readings):
            return None

        def again(frames: Mapping[Feed, DataFrame | Table]) -> DataFrame:
            given = outputs_of(node, self._call(node, frames, {}), streaming=False)
            if not isinstance(node, Stream):
                return given[""]
            topics = {channel: Channel(node, channel, node.place) if channel else node for channel in given}
            parts = [
                _records(rows, outputs[channel][1], topics[channel].topic_name, node.key, outputs[channel][2], changes)
                for channel, rows in given.items()
            ]
            return reduce(DataFrame.unionByName, parts)

        return Rerun(node, readings, self.config, again)

    def _called(
        self, node: QueryNode, readings: Mapping[Feed, Reading], config: RunConfig, real_time: bool
    ) -> tuple[Any, list[DataFrame], list[WindowUse], list[JoinUse]]:
        """What a node's function returns, the rejects in real-time mode, and the windows and joins that it used."""
        rejected = self.topology.rejects_written_by(node)
        frames: dict[Feed, DataFrame | Table] = {}
        beside: list[DataFrame] = []
        for feed, reading in readings.items():
            rejects_to = f"{feed.topic_name}.rejected" if real_time and feed in rejected else None
            frames[feed], rejects = read(self.spark, reading, config, node.name, rejects_to)
            if rejects is not None:
                beside.append(rejects.withColumn(ORDER, F.lit(None).cast("timestamp")))
        emit = Emit.CHANGES if isinstance(node, View | TableNode) else Emit.FINAL
        with uses_of_windows(emit, diverts=node.diverts) as windows, uses_of_joins() as joins:
            returned = self._call(node, frames, {})
        return returned, beside, windows, joins

    def _beating(self, reading: Reading) -> Reading:
        # Late rows are late by the watermark of the node they come from: theirs is their own.
        is_late = isinstance(reading.feed, Channel) and reading.feed.name == LATE
        beats = self.topology.beats(reading.feed) and not reading.shape.is_table and not is_late
        return replace(reading, markers=_may_be_marked(reading) and (self.config.markers or beats))

    def _marked(self, reading: Reading, idle: Duration | None) -> MarkedTopic:
        upstream = node_of(reading.feed)
        return MarkedTopic(
            topic=reading.feed.topic_name,
            lateness=reading.lateness,
            heartbeat=upstream.heartbeat if isinstance(upstream, Topic) else None,
            idle=idle,
            writer=upstream.name if isinstance(upstream, Stream) else None,
        )

    def _looked_up(self, feeds: tuple[Feed, ...], joins: list[JoinUse]) -> tuple[QueryNode, ...]:
        if not any("enrich" in join.described for join in joins):
            return ()
        tables = [feed for feed in feeds if feed in self._written and self._written[feed].is_table]
        return tuple(node for feed in tables if isinstance(node := node_of(feed), QueryNode))

    def _rejected(self, reading: Reading, frame: DataFrame) -> RejectedFeed:
        metric = reading.metric if places_of(frame, reading.feed) == 1 else None
        return RejectedFeed(reading.feed, f"{reading.feed.topic_name}.rejected", metric, reading, self.config)

    def _fingerprint(
        self,
        node: QueryNode,
        frame: DataFrame,
        windows: list[WindowUse],
        joins: list[JoinUse],
        mode: str,
        readings: Mapping[Feed, Reading],
    ) -> dict[str, Any]:
        described = self.topology.describe(node, self._spread)
        # Spark keeps the offsets of its sources by their number.
        described["sources"] |= {
            f"markers of topic {feed.topic_name}": {} for feed, reading in readings.items() if reading.markers
        }
        operators = stateful_operators(frame)
        if operators:
            described |= {
                "windows": [window.describe() for window in windows],
                "joins": [join.described for join in joins],
                "operators": operators,
                "output_mode": mode,
                "partitions": self.config.state_partitions,
            }
        return described

    def _reading(self, feed: Feed) -> Reading:
        node = node_of(feed)
        lateness = self.topology.lateness(node, self._spread)
        if is_diverted(feed):
            return Reading(feed, Shape(FAILED_SCHEMA if is_failed(feed) else REJECTS_SCHEMA, Format.BYTES), lateness)
        if isinstance(feed, Channel) and feed.name == LATE and feed not in self._written:
            raise InputError(
                f"nothing writes {feed}: {node.name!r} diverts no late rows",
                next_step='add late="divert" to its window, or read the node itself',
            )
        if feed in self._written:
            shape = self._written[feed]
            if shape.is_table and not shape.key:
                raise InputError(
                    f"the output of {feed} is a changelog, so {feed} needs a key",
                    next_step=f"give {feed} a key",
                )
            return Reading(feed, shape, lateness)
        assert isinstance(node, Source)
        shape = Shape(node.schema, key=node.key, time=node.event_time, ahead=node.ahead)
        if isinstance(node, Topic):
            shape = Shape(
                node.schema, node.format, node.key, node.event_time, node.ahead, node.record_columns, is_table(node)
            )
        return Reading(feed, shape, lateness)

    def _call(self, node: Node, frames: Mapping[Feed, DataFrame | Table], steps: dict[Step, Any]) -> Any:
        assert isinstance(node, FunctionNode)
        given: dict[str, Any] = {}
        for name, feed in self.topology.inputs(node).items():
            if isinstance(feed, Step):
                if feed not in steps:
                    steps[feed] = self._call(feed, frames, steps)
                given[name] = steps[feed]
            else:
                given[name] = frames[feed]
        return node(**given)

    def _problem(
        self, node: Node, message: str, next_step: str | None = None, error: BaseException | None = None
    ) -> None:
        self._failed.add(node)
        file, line = node.place.shown_file, node.place.line
        if error is not None:
            lines = ((frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__))
            if (found := users_place(lines)) is not None:
                file, line = found.shown_file, found.line
        self.problems.append(Problem(f"{node.kind} {node.name!r}: {message}", file, line, next_step))


def _records(
    rows: DataFrame, schema: Schema, topic: str, key: tuple[str, ...], time: str | None, changes: bool
) -> DataFrame:
    if not changes:
        return records(rows, schema, topic, key, time)
    # The last row of a key is the table's, so they keep their order; all of a window have one time.
    return changelog(rows, schema, topic, key, time, time if is_window_time(rows, time) else None)


def _may_be_marked(reading: Reading) -> bool:
    return reading.shape.time is not None and not isinstance(reading.feed, Rate | Files)


def _deletes_kept(node: View, rows: DataFrame, windows: list[WindowUse], joins: list[JoinUse]) -> Duration | None:
    """How far behind the watermark the order values of a view's rows may be: known where they are event times."""
    if not node.order_by or stream_joins(rows) > sum("join" in join.described for join in joins):
        return None
    first = node.order_by[0]
    spans = [window.spec.window.size for window in windows if isinstance(window.spec.window, Tumbling | Hopping)]
    starts = first == WINDOW_START and len(spans) == len(windows) > 0
    if first != output_time(rows) and not starts:
        return None
    parts = [*spans, *(window.spec.until for window in windows), *(join.spread for join in joins)]
    return Duration(sum(part.microseconds for part in parts))


def _held(node: QueryNode, outputs: list[DataFrame], joins: list[JoinUse]) -> Duration | None:
    """How far behind a node's watermark its rows may be; None unless Headrace itself set their event time."""
    ours = sum("join" in join.described for join in joins)
    for rows in outputs:
        own_time = isinstance(node, Stream) and node.event_time in (None, output_time(rows))
        if is_table(node) or not own_time or stream_joins(rows) > ours:
            return None
    return Duration(sum(join.held.microseconds for join in joins))


def _real_time_mode(frame: DataFrame, windows: list[WindowUse]) -> str:
    if any(window.emit is not Emit.CHANGES for window in windows):
        raise InputError(
            'latency="real-time" emits a window\'s row whenever it changes, and cannot wait for the final one',
            next_step='add emit="changes" to the window, or leave latency out',
        )
    problems = real_time_problems(frame)
    if problems:
        raise InputError(
            f'latency="real-time" cannot run {", ".join(problems)}',
            next_step="leave latency out, or move that to the next node",
        )
    complaint = real_time_complaint(frame)
    if complaint is not None:
        raise InputError(f'latency="real-time" cannot run it: {complaint}', next_step="leave latency out")
    return UPDATE


def _output_mode(node: QueryNode, frame: DataFrame, windows: list[WindowUse]) -> str:
    """The output mode that `emit` asks for; otherwise that of the sink, or the other one if Spark refuses it."""
    native = [window for window in windows if window.why_operator is None]
    if keeps_python_state(frame):
        if any(window.emit is Emit.CHANGES for window in native):
            raise InputError(
                'it has a native Spark window with emit="changes" and an operator of Headrace, '
                "and a query has one output mode",
                next_step="move one of them to another node",
            )
        native = []
    emits = {window.emit for window in native if window.emit is not None}
    if len(emits) > 1:
        raise InputError(
            'windows of one node emit "final" and "changes", and a query has one output mode',
            next_step="move one of them to another node",
        )
    if emits:
        modes = [UPDATE if emits == {Emit.CHANGES} else APPEND]
    else:
        modes = [UPDATE, APPEND] if isinstance(node, View | TableNode) else [APPEND, UPDATE]
    if keeps_python_state(frame):
        modes = [APPEND]
    complaints = []
    for mode in modes:
        complaint = mode_problem(frame, mode)
        if complaint is None:
            return mode
        complaints.append(complaint)
    raise InputError(complaints[0])


def _told(error: Exception) -> str:
    said = shortened(error)
    return said if isinstance(error, pyspark.errors.PySparkException) else f"{type(error).__name__}: {said}"
