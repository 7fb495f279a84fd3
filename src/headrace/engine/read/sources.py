"""Reads a feed as a streaming DataFrame: parses it, separates rejected records, and sets the watermark."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from headrace.config.run import RunConfig
from headrace.engine.column_marks import marked_key
from headrace.engine.read.markers import marker_topic, with_markers, without_markers
from headrace.engine.read.parsing import REJECTED, Shape, parse, parser, reason, rows
from headrace.engine.read.tables import Table
from headrace.engine.write.encoding import ERROR_HEADER, HEADERS, REASON_HEADER, TIMESTAMP, failed_headers, headers_of
from headrace.topology import Channel, Duration, Feed, Files, Rate, Schema, node_of
from headrace.topology.nodes import REJECTED as REJECTED_CHANNEL
from headrace.topology.nodes import is_failed

__all__ = [
    "FAILED_SCHEMA",
    "REASON_HEADER",
    "REJECTS_SCHEMA",
    "RangeReader",
    "Reading",
    "RejectsReader",
    "is_diverted",
    "read",
]

_PLACE = {
    "headrace-topic": "topic",
    "headrace-partition": "partition",
    "headrace-offset": "offset",
    "headrace-timestamp": "timestamp",
}
_FILE = {"headrace-topic": "topic"}

_RECORD = "topic STRING, partition INT, offset BIGINT, key BINARY, value BINARY, timestamp TIMESTAMP"
REJECTS_SCHEMA = Schema.of(f"reason STRING, {_RECORD}")
"""What a node that reads `payments.rejected` gets: the record, its place, and the reason."""
FAILED_SCHEMA = Schema.of(f"reason STRING, error STRING, {_RECORD}")
"""What a node that reads `bursts.failed` gets: the same, and the last line of the traceback."""
RAW = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, timestampType INT, "
    f"headers {HEADERS}"
)
"""What Spark's connector gives of a record."""


Ranges: TypeAlias = Mapping[int, tuple[int, int]]
"""By partition, the first offset and the one after the last."""
Failed: TypeAlias = Sequence[tuple[int, int, str, str]]
"""Partition, offset, reason and error of records."""


@dataclass(frozen=True, slots=True)
class Reading:
    """How a query reads one of its feeds."""

    feed: Feed
    shape: Shape
    lateness: Duration
    markers: bool = False
    """Whether markers advance its watermark too."""
    real_time: bool = False
    """Whether the query runs in real-time mode, and not batch by batch."""

    @property
    def metric(self) -> str:
        """The observed metric whose `rejected` counts the unusable records of a batch."""
        return f"headrace rejects of {self.feed}"


def read(
    spark: SparkSession, reading: Reading, config: RunConfig, query: str, rejects_to: str | None
) -> tuple[DataFrame | Table, DataFrame | None]:
    """The valid rows of a feed and, if `rejects_to` is given, the rejected ones as records: that reads the feed twice.

    In both cases the number of rejected records is among the observed metrics of a batch.
    """
    feed, shape = reading.feed, reading.shape
    if isinstance(feed, Rate):
        numbered = spark.readStream.format("rate").option("rowsPerSecond", feed.rows_per_second).load()
        return numbered.withWatermark("timestamp", str(reading.lateness)), None
    if isinstance(feed, Files):
        raw = spark.readStream.format("text").load(feed.path).select(F.col("value").cast("binary"))
    else:
        options = _stream_options(reading, config, query, headers=rejects_to is not None)
        raw = spark.readStream.format("kafka").options(**options).load()
        if is_diverted(feed):
            return raw.select(*_diverted_columns(shape.schema)), None
    parsed = parse(raw, shape)
    rejects = None
    if rejects_to is not None:
        # Real-time mode wants a source of its own for each branch of a union.
        again = spark.readStream.format("kafka").options(**options).load()
        rejects = parse(again, shape).filter(REJECTED).select(*_reject_columns(reading, rejects_to, _PLACE))
    # Spark moves no filter below an observation. Without it, it would, and parse every record twice.
    observed = parsed.observe(reading.metric, F.count_if(REJECTED).alias("rejected"))
    marked = _marked(observed.filter(~F.col(REJECTED)).select(*rows(shape)), reading)
    if shape.is_table:
        watermarked = partial(_watermarked, reading=reading, config=config, query=query)
        return Table(str(feed), marked, shape.key, None if shape.time is None else watermarked), rejects
    return _watermarked(marked, reading, config, query), rejects


def _marked(usable: DataFrame, reading: Reading) -> DataFrame:
    """Rows whose columns say which of them are the feed's key and event time."""
    shape, feed = reading.shape, str(reading.feed)
    time = None if shape.time is None else shape.time.column
    return usable.select(*(marked_key(name, shape.key, feed if name == time else None) for name in usable.columns))


def _watermarked(rows: DataFrame, reading: Reading, config: RunConfig, query: str) -> DataFrame:
    """Rows whose event time, if they have one, moves the watermark."""
    time = None if reading.shape.time is None else reading.shape.time.column
    if time is None or time not in rows.columns:
        return rows
    if not reading.markers:
        return rows.withWatermark(time, str(reading.lateness))
    options = _topic_options(reading, config) | {
        "subscribe": marker_topic(reading.feed),
        "startingOffsets": "earliest",
        "failOnDataLoss": "false",  # old ones are deleted, and nobody misses them
    }
    reader = f"{node_of(reading.feed).app_name}.{query}"
    marked = with_markers(rows, time, reader, options).withWatermark(time, str(reading.lateness))
    return without_markers(marked, reading.feed)


class RejectsReader:
    """Reads a batch again and gives its rejected records, as records of `<topic>.rejected`.

    Keep it for all batches: building its expressions takes longer than reading a batch.
    """

    def __init__(self, reading: Reading, config: RunConfig, topic: str) -> None:
        self._feed = reading.feed
        self._options = _topic_options(reading, config)
        self._parse = parser(reading.shape)
        self._columns = _reject_columns(reading, topic, _FILE if isinstance(reading.feed, Files) else _PLACE)

    def read(
        self, spark: SparkSession, start: Mapping[str, Any] | None, end: Mapping[str, Any], log: Path | None
    ) -> DataFrame:
        """Those between two offsets of the source."""
        if isinstance(self._feed, Files):
            raw = _lines_between(spark, start, end, log)
        else:
            options = self._options | _offset_options(self._feed.topic_name, start, end)
            raw = spark.read.format("kafka").options(**options).load()
        return self._parse(raw).filter(REJECTED).select(*self._columns)


class RangeReader:
    """Reads parts of a topic again, as rows for a node's function or as records. Keep it, like a RejectsReader."""

    def __init__(self, reading: Reading, config: RunConfig) -> None:
        self._reading = reading
        self._options = {name: value for name, value in _topic_options(reading, config).items() if name != "subscribe"}
        self._parse = parser(reading.shape)
        self._columns = rows(reading.shape)

    def rows(self, spark: SparkSession, ranges: Ranges) -> DataFrame | Table:
        """What `read` gives, without a watermark."""
        raw, feed, shape = self._raw(spark, ranges), self._reading.feed, self._reading.shape
        if is_diverted(feed):
            return raw.select(*_diverted_columns(shape.schema))
        usable = self._parse(raw).filter(~F.col(REJECTED)).select(*self._columns)
        marked = _marked(usable, self._reading)
        return Table(str(feed), marked, shape.key, None) if shape.is_table else marked

    def failed(self, spark: SparkSession, failed: Failed, topic: str) -> DataFrame:
        """Single records as records of `<node>.failed`, each with its reason and error."""
        ranges: dict[int, tuple[int, int]] = {}
        for partition, offset, _, _ in failed:
            start, end = ranges.get(partition, (offset, offset + 1))
            ranges[partition] = (min(start, offset), max(end, offset + 1))
        told = spark.createDataFrame(list(failed), "partition INT, offset BIGINT, reason STRING, error STRING")
        found = self._raw(spark, ranges).join(F.broadcast(told), ["partition", "offset"])
        return found.select(*_diverted(topic, failed_headers(F.col("reason"), F.col("error")), _PLACE))

    def _raw(self, spark: SparkSession, ranges: Ranges) -> DataFrame:
        if not ranges:
            return spark.createDataFrame([], RAW)
        topic = self._reading.feed.topic_name
        options = {
            "assign": json.dumps({topic: sorted(ranges)}),
            "startingOffsets": json.dumps({topic: {str(index): start for index, (start, _) in ranges.items()}}),
            "endingOffsets": json.dumps({topic: {str(index): end for index, (_, end) in ranges.items()}}),
        }
        return spark.read.format("kafka").options(**self._options, **options).load()


def _reject_columns(reading: Reading, topic: str, place: Mapping[str, str]) -> list[Column]:
    return _diverted(topic, {REASON_HEADER: reason(reading.shape)}, place)


def _diverted(topic: str, why: Mapping[str, Column], place: Mapping[str, str]) -> list[Column]:
    """A record as a record of another topic: as it is, and with headers that say why it is there."""
    told = dict(why) | {title: _said_of(column) for title, column in place.items()}
    own = F.coalesce(F.col("headers"), F.array().cast(HEADERS))
    return [
        F.lit(topic).alias("topic"),
        F.col("key"),
        F.col("value"),
        F.concat(own, headers_of(told)).alias("headers"),
        # Left to the producer: with the time it first had, a record could be past its retention once it is written.
        F.lit(None).cast("timestamp").alias("timestamp"),
    ]


def _said_of(column: str) -> Column:
    return F.date_format(column, TIMESTAMP) if column == "timestamp" else F.col(column).cast("string")


def is_diverted(feed: Feed) -> bool:
    """Whether its records are those of another topic, with the reason why they are here in their headers."""
    return is_failed(feed) or (isinstance(feed, Channel) and feed.name == REJECTED_CHANNEL)


def _topic_options(reading: Reading, config: RunConfig) -> dict[str, str]:
    options = {
        **config.connector_options(),
        "kafka.isolation.level": "read_committed",
        "subscribe": reading.feed.topic_name,
        "includeHeaders": "true",
    }
    if not reading.real_time:
        # The default half a second would be waited out in every small batch.
        options["kafka.fetch.max.wait.ms"] = "10"
    return options


def _stream_options(reading: Reading, config: RunConfig, query: str, headers: bool) -> dict[str, str]:
    topic = reading.feed.topic_name
    is_table = reading.shape.is_table
    # A table is read whole, before the first event that may need it, wherever events are read from.
    given = None if is_table else config.starting_offsets.get(query, {}).get(topic)
    cap = None if is_table else config.max_records_per_batch
    needs_headers = headers or is_table or "_headers" in reading.shape.record_columns or is_diverted(reading.feed)
    return _topic_options(reading, config) | {
        "startingOffsets": "earliest" if given is None else json.dumps({topic: given}),
        "includeHeaders": str(needs_headers).lower(),
        **({} if cap is None else {"maxOffsetsPerTrigger": str(cap)}),
    }


def _offset_options(topic: str, start: Mapping[str, Any] | None, end: Mapping[str, Any]) -> dict[str, str]:
    """Spark's offsets of a batch as those of a batch read; a partition that is new starts at its beginning."""
    until = end[topic]
    since = (start or {}).get(topic, {})
    return {
        "startingOffsets": json.dumps({topic: {partition: since.get(partition, -2) for partition in until}}),
        "endingOffsets": json.dumps({topic: until}),
    }


def _lines_between(
    spark: SparkSession, start: Mapping[str, Any] | None, end: Mapping[str, Any], log: Path | None
) -> DataFrame:
    """The lines of the files that Spark's log of the source (`sources/<n>` of the checkpoint) has for a batch."""
    if log is None:
        raise ValueError("files are found by the log of their source")
    entries = spark.read.text(str(log)).select(F.from_json("value", "path STRING, batchId BIGINT").alias("entry"))
    first = -1 if start is None else int(start["logOffset"])
    listed = entries.filter(f"entry.batchId > {first} AND entry.batchId <= {int(end['logOffset'])}")
    paths = sorted({row.path for row in listed.select("entry.path").collect()})
    lines = spark.read.text(paths) if paths else spark.createDataFrame([], "value STRING")
    return lines.select(
        F.lit(None).cast("binary").alias("key"),
        F.col("value").cast("binary"),
        F.lit(None).cast("timestamp").alias("timestamp"),
        F.lit(None).cast(HEADERS).alias("headers"),
        (F.col("_metadata.file_path") if paths else F.lit("")).alias("topic"),
    )


def _diverted_columns(schema: Schema) -> list[Column]:
    def header(name: str) -> Column:
        # The last one: a record that is rejected twice keeps its first headers.
        return F.get(F.reverse(F.filter("headers", lambda one: one.key == name)), 0).value.cast("string")

    found = {name: header(title).try_cast(schema[name].type.ddl) for title, name in _PLACE.items()}
    found |= {"reason": header(REASON_HEADER), "error": header(ERROR_HEADER)}
    found |= {"timestamp": F.coalesce(found["timestamp"], F.col("timestamp"))}
    return [found.get(name, F.col(name)).alias(name) for name in schema.names]
