"""Markers: records of a side topic, `<topic>.markers`, that move a feed's watermark and leave no other trace.

They join the feed's rows below the watermark and leave them above it. Spark pushes filters below a watermark, ours
and those of a node's function, where the markers would go unseen: what it never pushes a filter through is a place
at which metrics are observed, so there is one in between. The value of a marker is a time.
"""

from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headrace.topology import Feed

__all__ = ["marker_topic", "with_markers", "without_markers"]

MARKER = "_marker"


def marker_topic(feed: Feed) -> str:
    return f"{feed.topic_name}.markers"


def with_markers(spark: SparkSession, rows: DataFrame, time: str, options: Mapping[str, str]) -> DataFrame:
    """Rows and markers together; `options` are those to read the markers' topic with."""
    moment = F.col("value").cast("string").cast("timestamp")
    columns = [
        (moment if field.name == time else F.lit(None).cast(field.dataType)).alias(field.name) for field in rows.schema
    ]
    markers = spark.readStream.format("kafka").options(**options).load().select(*columns, F.lit(True).alias(MARKER))
    return rows.withColumn(MARKER, F.lit(False)).unionByName(markers)


def without_markers(rows: DataFrame, feed: Feed) -> DataFrame:
    """The rows alone, once the watermark has seen the markers."""
    seen = rows.observe(f"headrace markers of {feed}", F.count_if(MARKER).alias("markers"))
    return seen.filter(~F.col(MARKER)).drop(MARKER)
