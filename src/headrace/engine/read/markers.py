"""Markers: records of a side topic, `<topic>.markers`, that move a feed's watermark and leave no other trace.

They join the feed's rows below the watermark and leave them above it. Spark pushes filters below a watermark, ours
and those of a node's function, where the markers would go unseen: what it never pushes a filter through is a place
at which metrics are observed, so there is one in between.

The value of a marker is a time; its key is the app and node it is meant for, or null where it is for all. Who writes
them, and when, is in `heartbeats`; tests write their own.
"""

from collections.abc import Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from headrace.engine.run.heartbeats import markers_of
from headrace.topology import Feed

__all__ = ["marker_topic", "with_markers", "without_markers"]

MARKER = "_marker"


def marker_topic(feed: Feed) -> str:
    return markers_of(feed.topic_name)


def with_markers(rows: DataFrame, time: str, reader: str, options: Mapping[str, str]) -> DataFrame:
    """Rows and the markers for a reader together; `options` are those to read the markers' topic with."""
    moment = F.col("value").cast("string").cast("timestamp")
    columns = [
        (moment if field.name == time else F.lit(None).cast(field.dataType)).alias(field.name) for field in rows.schema
    ]
    read = rows.sparkSession.readStream.format("kafka").options(**options).load()
    meant = F.col("key").isNull() | (F.col("key").cast("string") == reader)
    markers = read.filter(meant).select(*columns, F.lit(True).alias(MARKER))
    return rows.withColumn(MARKER, F.lit(False)).unionByName(markers)


def without_markers(rows: DataFrame, feed: Feed) -> DataFrame:
    """The rows alone, once the watermark has seen the markers."""
    seen = rows.observe(f"headrace markers of {feed}", F.count_if(MARKER).alias("markers"))
    return seen.filter(~F.col(MARKER)).drop(MARKER)
