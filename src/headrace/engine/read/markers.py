"""Markers: records of a topic of their own, `<topic>.markers`, that move a feed's watermark and do nothing else.

They are added to the feed's rows below the watermark and removed above it. Spark pushes filters below a watermark, ours
and those of a node's function, and the watermark would not see the markers. Spark never pushes a filter through a place
at which metrics are observed, so there is one in between.

The value of a marker is a time; its key is the app and node it is meant for, or null if it is for all. `heartbeats`
decides when they are written; tests write their own.
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
    """The rows without the markers, after the watermark has seen them."""
    seen = rows.observe(f"headrace markers of {feed}", F.count_if(MARKER).alias("markers"))
    return seen.filter(~F.col(MARKER)).drop(MARKER)
