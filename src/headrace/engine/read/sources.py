"""Reads a feed as a streaming DataFrame: parses it, separates rejected records, and sets the watermark."""

import json
from collections.abc import Mapping
from functools import partial

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from headrace.config.run import RunConfig
from headrace.engine.adapters import source_adapter
from headrace.engine.column_metadata import marked_key
from headrace.engine.read.markers import marker_topic, with_markers, without_markers
from headrace.engine.read.parsing import IS_REJECTED, parse, parser, reason, rows
from headrace.engine.read.reading import PLACE_HEADERS, RAW, Failed, Ranges, Reading, SourceOffsets
from headrace.engine.read.tables import Table
from headrace.engine.read.topic_source import topic_options
from headrace.engine.write.encoding import HEADERS, TIMESTAMP, failed_headers, headers_of
from headrace.topology import Schema
from headrace.topology.names import ERROR_HEADER, REASON_HEADER, REJECTED

__all__ = ["RangeReader", "RejectsReader", "read"]


def read(
    spark: SparkSession, reading: Reading, config: RunConfig, query: str, rejects_to: str | None
) -> tuple[DataFrame | Table, DataFrame | None]:
    """The valid rows of a feed and, if `rejects_to` is given, the rejected ones as records: that reads the feed twice.

    In both cases the number of rejected records is among the observed metrics of a batch.
    """
    feed, shape = reading.feed, reading.shape
    adapter = source_adapter(feed)
    raw = adapter.stream(spark, reading, config, query, headers=rejects_to is not None)
    if feed.is_diverted:
        return raw.select(*_diverted_columns(shape.schema)), None
    if not feed.is_parsed:
        return _watermarked(raw, reading, config, query), None
    parsed = parse(raw, shape)
    rejects = None
    if rejects_to is not None:
        # Real-time mode wants a source of its own for each branch of a union.
        second = adapter.stream(spark, reading, config, query, headers=True)
        rejects = parse(second, shape).filter(IS_REJECTED).select(*_reject_columns(reading, rejects_to, adapter.place))
    # Spark moves no filter below an observation. Without it, it would, and parse every record twice.
    observed = parsed.observe(reading.metric, F.count_if(IS_REJECTED).alias(REJECTED))
    marked = _marked(observed.filter(~F.col(IS_REJECTED)).select(*rows(shape)), reading)
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
    options = topic_options(reading, config) | {
        "subscribe": marker_topic(reading.feed),
        "startingOffsets": "earliest",
        "failOnDataLoss": "false",  # old ones are deleted, and nobody misses them
    }
    reader = f"{reading.feed.node.app_name}.{query}"
    marked = with_markers(rows, time, reader, options).withWatermark(time, str(reading.lateness))
    return without_markers(marked, reading.feed)


class RejectsReader:
    """Reads a batch again and gives its rejected records, as records of `<topic>.rejected`.

    Keep it for all batches: building its expressions takes longer than reading a batch.
    """

    def __init__(self, reading: Reading, config: RunConfig, topic: str) -> None:
        self._reading = reading
        self._config = config
        self._adapter = source_adapter(reading.feed)
        self._parse = parser(reading.shape)
        self._columns = _reject_columns(reading, topic, self._adapter.place)

    def read(self, spark: SparkSession, offsets: SourceOffsets) -> DataFrame:
        """Those of one batch."""
        raw = self._adapter.between(spark, self._reading, self._config, offsets)
        return self._parse(raw).filter(IS_REJECTED).select(*self._columns)


class RangeReader:
    """Reads parts of a topic again, as rows for a node's function or as records. Keep it, like a RejectsReader."""

    def __init__(self, reading: Reading, config: RunConfig) -> None:
        self._reading = reading
        self._options = {name: value for name, value in topic_options(reading, config).items() if name != "subscribe"}
        self._parse = parser(reading.shape)
        self._columns = rows(reading.shape)

    def raw(self, spark: SparkSession, ranges: Ranges) -> DataFrame:
        """The records of the ranges."""
        if not ranges:
            return spark.createDataFrame([], RAW)
        topic = self._reading.feed.topic_name
        options = {
            "assign": json.dumps({topic: sorted(ranges)}),
            "startingOffsets": json.dumps({topic: {str(index): start for index, (start, _) in ranges.items()}}),
            "endingOffsets": json.dumps({topic: {str(index): end for index, (_, end) in ranges.items()}}),
        }
        return spark.read.format("kafka").options(**self._options, **options).load()

    def rows(self, raw: DataFrame) -> DataFrame | Table:
        """What `read` gives for records, without a watermark."""
        feed, shape = self._reading.feed, self._reading.shape
        if feed.is_diverted:
            return raw.select(*_diverted_columns(shape.schema))
        usable = self._parse(raw).filter(~F.col(IS_REJECTED)).select(*self._columns)
        marked = _marked(usable, self._reading)
        return Table(str(feed), marked, shape.key, None) if shape.is_table else marked

    def failed(self, spark: SparkSession, failed: Failed, topic: str) -> DataFrame:
        """Single records as records of `<node>.failed`, each with its reason and error."""
        ranges: dict[int, tuple[int, int]] = {}
        for partition, offset, _, _ in failed:
            start, end = ranges.get(partition, (offset, offset + 1))
            ranges[partition] = (min(start, offset), max(end, offset + 1))
        reasons = spark.createDataFrame(list(failed), "partition INT, offset BIGINT, reason STRING, error STRING")
        found = self.raw(spark, ranges).join(F.broadcast(reasons), ["partition", "offset"])
        return found.select(*_diverted(topic, failed_headers(F.col("reason"), F.col("error")), PLACE_HEADERS))


def _reject_columns(reading: Reading, topic: str, place: Mapping[str, str]) -> list[Column]:
    return _diverted(topic, {REASON_HEADER: reason(reading.shape)}, place)


def _diverted(topic: str, why: Mapping[str, Column], place: Mapping[str, str]) -> list[Column]:
    """A record as a record of another topic: as it is, and with headers that say why it is there."""
    added = dict(why) | {title: _said_of(column) for title, column in place.items()}
    own = F.coalesce(F.col("headers"), F.array().cast(HEADERS))
    return [
        F.lit(topic).alias("topic"),
        F.col("key"),
        F.col("value"),
        F.concat(own, headers_of(added)).alias("headers"),
        # Left to the producer: with the time it first had, a record could be past its retention once it is written.
        F.lit(None).cast("timestamp").alias("timestamp"),
    ]


def _said_of(column: str) -> Column:
    return F.date_format(column, TIMESTAMP) if column == "timestamp" else F.col(column).cast("string")


def _diverted_columns(schema: Schema) -> list[Column]:
    def header(name: str) -> Column:
        # The last one: a record that is rejected twice keeps its first headers.
        return F.get(F.reverse(F.filter("headers", lambda one: one.key == name)), 0).value.cast("string")

    found = {name: header(title).try_cast(schema[name].type.ddl) for title, name in PLACE_HEADERS.items()}
    found |= {"reason": header(REASON_HEADER), "error": header(ERROR_HEADER)}
    found |= {"timestamp": F.coalesce(found["timestamp"], F.col("timestamp"))}
    return [found.get(name, F.col(name)).alias(name) for name in schema.names]
