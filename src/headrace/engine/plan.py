"""The whole topology analysed by Spark before any query starts: every node's rows, or every problem there is."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from headrace.engine.config import RunConfig
from headrace.engine.encoding import check_can_be_carried, records
from headrace.engine.parsing import Shape
from headrace.engine.sources import REJECTS_SCHEMA, Reading, is_rejects, read, read_rejects
from headrace.errors import InputError, PlanError, Problem
from headrace.topology import (
    Channel,
    ColumnTime,
    Feed,
    Format,
    Node,
    QueryNode,
    Schema,
    Source,
    Step,
    Stream,
    Topic,
    Topology,
    node_of,
)

__all__ = ["PlannedQuery", "RejectedFeed", "plan"]

DELETED = "_deleted"
WATERMARK_METADATA = "spark.watermarkDelayMs"


@dataclass(frozen=True)
class RejectedFeed:
    """A feed whose unusable records a query writes to `<topic>.rejected`."""

    feed: Feed
    topic: str
    metric: str
    """The name of the observed metric whose `rejected` counts the unusable records of a batch."""
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
        return read_rejects(spark, self.reading, self.config, self.topic, start, end, log)


@dataclass(frozen=True)
class PlannedQuery:
    """A node as Spark will run it.

    `frame` streams. Of a stream it has the columns of a record (`topic STRING, key BINARY, value BINARY, headers
    ARRAY<STRUCT<key, value>>, timestamp TIMESTAMP`), those of all channels together, and `_order TIMESTAMP`, the
    event time by which a batch is sorted before it is written (null where there is none: keep the rows' order).
    `timestamp` is null where the producer's clock is meant. Of a view it has the view's columns, and `_deleted
    BOOLEAN` where the function gives it.
    """

    node: QueryNode
    frame: DataFrame
    output_schemas: Mapping[str, Schema]
    """By channel; without channels, by the empty name."""
    output_mode: str
    feeds: tuple[Feed, ...]
    rejects: tuple[RejectedFeed, ...]
    fingerprint: Mapping[str, Any]

    @property
    def output_schema(self) -> Schema:
        """The columns of the rows of a node without channels."""
        return self.output_schemas[""]


@dataclass(frozen=True, slots=True)
class _Output:
    """What a node downstream needs to know of a stream or one of its channels."""

    schema: Schema
    time: ColumnTime | None


def plan(topology: Topology, spark: SparkSession, config: RunConfig) -> list[PlannedQuery]:
    """Analyse every node, upstreams first; raises PlanError with the problems of all nodes."""
    planner = _Planner(topology, spark, config)
    planned = [query for node in topology.queries if (query := planner.plan(node)) is not None]
    if planner.problems:
        raise PlanError(sorted(planner.problems, key=lambda problem: (problem.file, problem.line)))
    return planned


class _Planner:
    def __init__(self, topology: Topology, spark: SparkSession, config: RunConfig) -> None:
        self.topology = topology
        self.spark = spark
        self.config = config
        self.problems: list[Problem] = []
        self._outputs: dict[Feed, _Output] = {}

    def plan(self, node: QueryNode) -> PlannedQuery | None:
        feeds = self.topology.feeds(node)
        if any(
            isinstance(node_of(feed), Stream) and not is_rejects(feed) and feed not in self._outputs for feed in feeds
        ):
            return None  # its upstream has the problem
        try:
            return self._planned(node, feeds)
        except InputError as error:
            self._problem(node, error.problem, error.next_step)
        except PySparkException as error:
            self._problem(node, str(error).splitlines()[0])
        return None

    def _planned(self, node: QueryNode, feeds: tuple[Feed, ...]) -> PlannedQuery:
        writes = self.topology.rejects_written_by(node)
        readings = {feed: self._reading(feed) for feed in feeds}
        frames = {
            feed: read(self.spark, reading, self.config, node.name, counted=feed in writes)
            for feed, reading in readings.items()
        }
        returned = self._call(node, frames, {})
        outputs: dict[str, DataFrame] = returned if isinstance(node, Stream) and node.channels else {"": returned}
        schemas = {channel: self._schema(frame) for channel, frame in outputs.items()}
        if isinstance(node, Stream):
            frame = self._records(node, outputs, schemas)
        else:
            frame = outputs[""]
        return PlannedQuery(
            node=node,
            frame=frame,
            output_schemas=schemas,
            output_mode="append",
            feeds=feeds,
            rejects=tuple(
                RejectedFeed(feed, f"{feed.topic_name}.rejected", readings[feed].metric, readings[feed], self.config)
                for feed in writes
            ),
            fingerprint=self.topology.describe(node) | {"partitions": self.config.state_partitions},
        )

    def _records(self, node: Stream, outputs: Mapping[str, DataFrame], schemas: Mapping[str, Schema]) -> DataFrame:
        encoded = []
        for channel, frame in outputs.items():
            feed: Feed = Channel(node, channel, node.place) if channel else node
            time = self._event_time(node, frame)
            self._outputs[feed] = _Output(schemas[channel], None if time is None else ColumnTime(time))
            encoded.append(records(frame, schemas[channel], feed.topic_name, node.key, time))
        united = encoded[0]
        for more in encoded[1:]:
            united = united.unionByName(more)
        return united

    def _event_time(self, node: Stream, frame: DataFrame) -> str | None:
        if node.event_time is not None:
            return node.event_time
        return next((field.name for field in frame.schema if WATERMARK_METADATA in field.metadata), None)

    def _schema(self, frame: DataFrame) -> Schema:
        schema = Schema.of(frame.drop(DELETED).schema)
        check_can_be_carried(schema)
        return schema

    def _reading(self, feed: Feed) -> Reading:
        node = node_of(feed)
        lateness = self.topology.lateness(node)
        if is_rejects(feed):
            return Reading(feed, Shape(REJECTS_SCHEMA, Format.BYTES), lateness)
        if isinstance(node, Source):
            topic = node if isinstance(node, Topic) else None
            return Reading(
                feed,
                Shape(
                    node.schema,
                    format=topic.format if topic else Format.JSON,
                    key=node.key,
                    time=node.event_time,
                    ahead=node.ahead,
                    record_columns=topic.record_columns if topic else (),
                ),
                lateness,
            )
        output = self._outputs[feed]
        key = node.key if isinstance(node, Stream) else ()
        return Reading(feed, Shape(output.schema, key=key, time=output.time), lateness)

    def _call(self, node: Node, frames: Mapping[Feed, DataFrame], steps: dict[Step, Any]) -> Any:
        given: dict[str, Any] = {}
        for name, feed in self.topology.inputs(node).items():
            if isinstance(feed, Step):
                if feed not in steps:
                    steps[feed] = self._call(feed, frames, steps)
                given[name] = steps[feed]
            else:
                given[name] = frames[feed]
        return node(**given)  # type: ignore[operator]

    def _problem(self, node: Node, message: str, next_step: str | None = None) -> None:
        said = f"{node.kind} {node.name!r}: {message}"
        self.problems.append(Problem(said, node.place.shown_file, node.place.line, next_step))
