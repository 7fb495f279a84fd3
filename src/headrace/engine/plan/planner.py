"""Spark analyses the whole topology before any query starts: it gives a plan for every node, or all problems."""

import traceback
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import Any

import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headrace.config.cluster import Cluster
from headrace.config.run import RunConfig
from headrace.engine.calls.arguments import JoinUse, uses_of_joins
from headrace.engine.calls.results import (
    Result,
    check_identity,
    check_key,
    late_rows,
    result_records,
    result_rows,
    revises,
    shown,
)
from headrace.engine.calls.windows import WINDOW_START, WindowUse, uses_of_windows
from headrace.engine.column_metadata import is_window_time, output_time
from headrace.engine.plan.analysis import (
    can_fall_due,
    keeps_python_state,
    places_of,
    runs_python,
    shortened,
    stateful_operators,
    stream_joins,
)
from headrace.engine.plan.modes import output_mode, real_time_mode
from headrace.engine.plan.outputs import Output, outputs_of, read_output
from headrace.engine.plan.shipping import check_packages, pack_users_code, send_headrace
from headrace.engine.read.parsing import Shape
from headrace.engine.read.reading import FAILED_SCHEMA, REJECTS_SCHEMA, Reading, SourceOffsets
from headrace.engine.read.sources import RejectsReader, read
from headrace.engine.read.tables import Table
from headrace.engine.run.heartbeats import MarkedTopic
from headrace.engine.run.session import runs_here
from headrace.engine.write.encoding import changelog, records
from headrace.engine.write.failed_rows import Rerun, check_can_divert
from headrace.errors import InputError, PlanError, Problem
from headrace.topology import (
    Channel,
    ColumnTime,
    Duration,
    Emit,
    Feed,
    Format,
    Hopping,
    IngestionTime,
    Node,
    QueryNode,
    Schema,
    Topology,
    Tumbling,
)
from headrace.topology.names import DELETED, LATE, ORDER, failed_topic, rejected_topic
from headrace.topology.place import users_place

__all__ = ["PlannedQuery", "RejectedFeed", "plan_topology"]


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

    def read(self, spark: SparkSession, offsets: SourceOffsets) -> DataFrame:
        """The rejects of a batch, as records."""
        return self._reader.read(spark, offsets)

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
    behind_watermark: Duration | None = None
    """How far behind its watermark its rows may be; None where that is not known."""
    rerun: Rerun | None = None
    """The node's function over parts of a batch; None where it keeps state, or reads what has no offsets."""
    can_fall_due: bool = True
    """Whether rows may come out because the watermark has moved, without another row coming in."""
    deletes_kept: Duration | None = None
    """Of a view with `order_by`: how long after the watermark has passed a delete it is remembered; None for ever."""

    @property
    def output_schema(self) -> Schema:
        """The columns of the rows of a node without channels."""
        return self.output_schemas[""]


def plan_topology(topology: Topology, spark: SparkSession, config: RunConfig) -> list[PlannedQuery]:
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


@dataclass(frozen=True, slots=True)
class _Call:
    """A call of a node's function: what it returned, and what it used."""

    returned: Any
    rejects: list[DataFrame]
    """In real-time mode: the rejected records of its feeds, as records."""
    windows: list[WindowUse]
    joins: list[JoinUse]

    @property
    def idle(self) -> Duration | None:
        """After how long a silent source no longer delays the others; None where it does not merge."""
        return next((join.idle for join in self.joins if join.idle is not None), None)


class _Planner:
    def __init__(self, topology: Topology, spark: SparkSession, config: RunConfig) -> None:
        self.topology = topology
        self.spark = spark
        self.config = config
        self.problems: list[Problem] = []
        self._written: dict[Feed, Shape] = {}
        self._added_disorder: dict[Node, Duration] = {}
        self._failed: set[Node] = set()

    def check_ingestion_times(self) -> None:
        wanted = {
            node.topic_name: node
            for node in self.topology.sources()
            if node.is_input and isinstance(node.event_time, IngestionTime)
        }
        if not wanted:
            return
        for topic, kind in Cluster(self.config).topic_setting("message.timestamp.type", wanted).items():
            if kind != "LogAppendTime":
                self._problem(
                    wanted[topic],
                    f"its timestamps are the producer's (message.timestamp.type={kind}), not the time of ingestion",
                    f"set message.timestamp.type=LogAppendTime for the topic {topic!r}, or choose another event time",
                )

    def plan(self, node: QueryNode) -> PlannedQuery | None:
        feeds = self.topology.feeds(node)
        # Where an upstream could not be planned, the problem is told there.
        if any(not feed.is_diverted and feed.node in self._failed for feed in feeds):
            self._failed.add(node)
            return None
        try:
            return self._planned(node, feeds)
        except InputError as error:
            self._problem(node, error.problem, error.next_step, error)
        except Exception as error:
            self._problem(node, _message_of(error), None, error)
        return None

    def _planned(self, node: QueryNode, feeds: tuple[Feed, ...]) -> PlannedQuery:
        real_time = node.is_real_time
        # In real-time mode a batch has no end that could be bounded.
        config = replace(self.config, max_records_per_batch=None) if real_time else self.config
        rejected = self.topology.rejects_written_by(node)
        readings = {feed: replace(self._reading(feed), real_time=real_time) for feed in feeds}
        if not real_time:
            readings |= {feed: self._beating(reading) for feed, reading in readings.items()}
        call = self._call(node, readings, config, real_time)
        if call.idle is not None and not real_time:
            # Only the call shows that the function merges: whichever of its sources is silent must not hold back the
            # others. Markers are read below the watermark, which the function's rows have from the start, so they
            # cannot be added to what it returned: it is called with other rows.
            readings = {feed: replace(reading, markers=_may_be_marked(reading)) for feed, reading in readings.items()}
            call = self._call(node, readings, config, real_time)
        windows, joins = call.windows, call.joins
        self._added_disorder[node] = Duration(sum(join.added_disorder.microseconds for join in joins))
        result = call.returned if isinstance(call.returned, Result) else None
        given = outputs_of(node, call.returned if result is None else shown(result))
        revised = any(window.emit is Emit.CHANGES for window in windows) if result is None else revises(result)
        changes = revised or node.holds_table
        outputs = {channel: read_output(node, rows, changes) for channel, rows in given.items()}
        order_by = None if node.sink.takes_records else node.order_by
        if result is None:
            for window in windows:
                if window.revises and window.why_operator is None:
                    for output in outputs.values():
                        names = output.rows.columns
                        check_identity(window.identity, names, node.key, order_by, DELETED in names)
        late, late_schema, failed_to = Channel(node, LATE, node.place), {}, failed_topic(node.topic_name)
        if result is not None:
            check_key(result, node.key, order_by)
            if (rows_late := late_rows(result)) is not None:
                self._written[late] = Shape(rows_late.schema, key=rows_late.key, time=ColumnTime(rows_late.time))
                late_schema[LATE] = rows_late.schema
        if node.sink.takes_records:
            written = []
            for channel, output in outputs.items():
                feed = Channel(node, channel, node.place) if channel else node
                schema, time = output.schema, output.event_time
                column = None if time is None else ColumnTime(time)
                self._written[feed] = Shape(schema, key=node.key, time=column, is_table=changes)
                if result is not None:
                    written.append(
                        result_records(result, schema, feed.topic_name, node.key, time, late.topic_name, failed_to)
                    )
                else:
                    written.append(_records(output.rows, output, feed.topic_name, node.key, changes))
            frame = reduce(DataFrame.unionByName, written)
            if call.rejects and stateful_operators(frame):
                raise InputError(
                    'with latency="real-time" a node with state cannot write rejected records, and it is the only '
                    f"reader of {', '.join(str(feed) for feed in rejected)}",
                    next_step="add another reader, which will write them, or move the state to the next node",
                )
            frame = reduce(DataFrame.unionByName, call.rejects, frame)
        elif result is not None:
            frame = result_rows(result, node.key, late.topic_name, failed_to)
        else:
            frame = outputs[""].rows
        check_can_divert(node, frame, feeds, any(window.spec.applied is not None for window in windows))
        mode = real_time_mode(frame, windows) if real_time else output_mode(node, frame, windows)
        return PlannedQuery(
            node=node,
            frame=frame,
            output_schemas={channel: output.schema for channel, output in outputs.items()} | late_schema,
            output_mode=mode,
            feeds=feeds,
            rejects=() if real_time else tuple(self._rejected(readings[feed], frame) for feed in rejected),
            fingerprint=self._fingerprint(node, frame, windows, joins, mode, readings),
            marked=tuple(self._marked(reading, call.idle) for reading in readings.values() if reading.markers),
            late_topic=late.topic_name if late in self._written else None,
            explained=(
                *(window.explain() for window in windows),
                *(join.explained for join in joins if join.explained),
            ),
            looked_up=self._looked_up(feeds, joins),
            behind_watermark=_behind_watermark(node, [output.rows for output in outputs.values()], joins),
            rerun=None if real_time else self._rerun(node, frame, readings, outputs, changes),
            can_fall_due=can_fall_due(frame, mode),
            deletes_kept=_deletes_kept(node, outputs[""].rows, windows, joins) if node.order_by else None,
        )

    def _rerun(
        self,
        node: QueryNode,
        frame: DataFrame,
        readings: Mapping[Feed, Reading],
        outputs: Mapping[str, Output],
        changes: bool,
    ) -> Rerun | None:
        if stateful_operators(frame) or not all(feed.has_topic for feed in readings):
            return None

        def rerun(frames: Mapping[Feed, DataFrame | Table]) -> DataFrame:
            given = outputs_of(node, self.topology.call(node, frames), streaming=False)
            if not node.sink.takes_records:
                return given[""]
            topics = {channel: Channel(node, channel, node.place) if channel else node for channel in given}
            parts = [
                _records(rows, outputs[channel], topics[channel].topic_name, node.key, changes)
                for channel, rows in given.items()
            ]
            return reduce(DataFrame.unionByName, parts)

        return Rerun(node, readings, self.config, rerun)

    def _call(self, node: QueryNode, readings: Mapping[Feed, Reading], config: RunConfig, real_time: bool) -> _Call:
        """Call a node's function with the rows of its feeds."""
        rejected = self.topology.rejects_written_by(node)
        frames: dict[Feed, DataFrame | Table] = {}
        rejected_records: list[DataFrame] = []
        for feed, reading in readings.items():
            rejects_to = rejected_topic(feed.topic_name) if real_time and feed in rejected else None
            frames[feed], rejects = read(self.spark, reading, config, node.name, rejects_to)
            if rejects is not None:
                rejected_records.append(rejects.withColumn(ORDER, F.lit(None).cast("timestamp")))
        emit = Emit.CHANGES if node.holds_table else Emit.FINAL
        with uses_of_windows(emit, diverts=node.diverts) as windows, uses_of_joins() as joins:
            returned = self.topology.call(node, frames)
        return _Call(returned, rejected_records, windows, joins)

    def _beating(self, reading: Reading) -> Reading:
        # Late rows are late by the watermark of the node they come from: theirs is their own.
        beats = self.topology.beats(reading.feed) and not reading.shape.is_table and not reading.feed.is_late
        return replace(reading, markers=_may_be_marked(reading) and (self.config.markers or beats))

    def _marked(self, reading: Reading, idle: Duration | None) -> MarkedTopic:
        upstream = reading.feed.node
        return MarkedTopic(
            topic=reading.feed.topic_name,
            lateness=reading.lateness,
            heartbeat=upstream.heartbeat_after,
            idle=idle,
            writer=upstream.name if upstream.is_query else None,
        )

    def _looked_up(self, feeds: tuple[Feed, ...], joins: list[JoinUse]) -> tuple[QueryNode, ...]:
        if not any(join.looks_up_table for join in joins):
            return ()
        tables = [feed for feed in feeds if feed in self._written and self._written[feed].is_table]
        return tuple(query for query in self.topology.analysed if any(feed.node is query for feed in tables))

    def _rejected(self, reading: Reading, frame: DataFrame) -> RejectedFeed:
        metric = reading.metric if places_of(frame, reading.feed) == 1 else None
        return RejectedFeed(reading.feed, rejected_topic(reading.feed.topic_name), metric, reading, self.config)

    def _fingerprint(
        self,
        node: QueryNode,
        frame: DataFrame,
        windows: list[WindowUse],
        joins: list[JoinUse],
        mode: str,
        readings: Mapping[Feed, Reading],
    ) -> dict[str, Any]:
        described = self.topology.describe(node, self._added_disorder)
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
        node = feed.node
        lateness = self.topology.lateness(node, self._added_disorder)
        if feed.is_diverted:
            return Reading(feed, Shape(FAILED_SCHEMA if feed.is_failed else REJECTS_SCHEMA, Format.BYTES), lateness)
        if feed.is_late and feed not in self._written:
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
        source = self.topology.source(feed)
        if not source.is_described:
            raise InputError(
                f"the columns of {source} are not known: nobody has read them from its database",
                next_step="give schema= and key= where it is declared",
            )
        shape = Shape(
            source.schema,
            source.format,
            source.key,
            source.event_time,
            source.ahead,
            source.record_columns,
            source.is_table,
            source.is_captured,
        )
        return Reading(feed, shape, lateness)

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


def _records(rows: DataFrame, output: Output, topic: str, key: tuple[str, ...], changes: bool) -> DataFrame:
    """Rows with the columns of an output, as records."""
    schema, time = output.schema, output.event_time
    if not changes:
        return records(rows, schema, topic, key, time)
    # The last row of a key is the table's, so they keep their order; all of a window have one time.
    return changelog(rows, schema, topic, key, time, time if is_window_time(rows, time) else None)


def _may_be_marked(reading: Reading) -> bool:
    return reading.shape.time is not None and reading.feed.has_topic


def _deletes_kept(node: QueryNode, rows: DataFrame, windows: list[WindowUse], joins: list[JoinUse]) -> Duration | None:
    """How far behind the watermark the order values of a view's rows may be: known where they are event times."""
    if not node.order_by or stream_joins(rows) > sum(join.joins_streams for join in joins):
        return None
    first = node.order_by[0]
    spans = [window.spec.window.size for window in windows if isinstance(window.spec.window, Tumbling | Hopping)]
    starts = first == WINDOW_START and len(spans) == len(windows) > 0
    if first != output_time(rows) and not starts:
        return None
    parts = [*spans, *(window.spec.until for window in windows), *(join.added_disorder for join in joins)]
    return Duration(sum(part.microseconds for part in parts))


def _behind_watermark(node: QueryNode, outputs: list[DataFrame], joins: list[JoinUse]) -> Duration | None:
    """How far behind a node's watermark its rows may be; None unless Headrace itself set their event time."""
    ours = sum(join.joins_streams for join in joins)
    for rows in outputs:
        own_time = node.sink.takes_records and node.event_time in (None, output_time(rows))
        if node.is_table or not own_time or stream_joins(rows) > ours:
            return None
    return Duration(sum(join.behind_watermark.microseconds for join in joins))


def _message_of(error: Exception) -> str:
    said = shortened(error)
    return said if isinstance(error, pyspark.errors.PySparkException) else f"{type(error).__name__}: {said}"
