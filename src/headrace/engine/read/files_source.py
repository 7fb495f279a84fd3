"""A folder in which files of JSON lines appear."""

from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headrace.config.run import RunConfig
from headrace.engine.adapters import SourceAdapter
from headrace.engine.read.reading import Reading, SourceOffsets
from headrace.engine.write.encoding import HEADERS
from headrace.topology import Feed, Files

__all__ = ["FilesSource"]


class FilesSource(SourceAdapter):
    place = {"headrace-topic": "topic"}  # noqa: RUF012

    def stream(
        self, spark: SparkSession, reading: Reading, config: RunConfig, query: str, *, headers: bool = False
    ) -> DataFrame:
        return spark.readStream.format("text").load(_folder(reading.feed)).select(F.col("value").cast("binary"))

    def between(self, spark: SparkSession, reading: Reading, config: RunConfig, offsets: SourceOffsets) -> DataFrame:
        """The lines of the files that Spark's log of the source (`sources/<n>` of the checkpoint) has for a batch."""
        entries = spark.read.text(str(offsets.log))
        entries = entries.select(F.from_json("value", "path STRING, batchId BIGINT").alias("entry"))
        first = -1 if offsets.start is None else int(offsets.start["logOffset"])
        listed = entries.filter(f"entry.batchId > {first} AND entry.batchId <= {int(offsets.end['logOffset'])}")
        paths = sorted({row.path for row in listed.select("entry.path").collect()})
        lines = spark.read.text(paths) if paths else spark.createDataFrame([], "value STRING")
        return lines.select(
            F.lit(None).cast("binary").alias("key"),
            F.col("value").cast("binary"),
            F.lit(None).cast("timestamp").alias("timestamp"),
            F.lit(None).cast(HEADERS).alias("headers"),
            (F.col("_metadata.file_path") if paths else F.lit("")).alias("topic"),
        )

    def has(self, feed: Feed, offsets: SourceOffsets) -> bool:
        if "logOffset" not in offsets.end:
            return False
        start = f'"path":"{Path(_folder(feed)).absolute().as_uri()}'
        return any(start in path.read_text(errors="replace") for path in offsets.log.iterdir() if path.name[0] != ".")

    def is_leaf(self, feed: Feed, leaf: Any) -> bool:
        is_relation = leaf.getClass().getSimpleName() == "StreamingRelation"
        return is_relation and bool(leaf.dataSource().options().get("path").contains(_folder(feed)))


def _folder(feed: Feed) -> str:
    assert isinstance(feed, Files)
    return feed.path
