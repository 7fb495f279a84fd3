"""A folder in which files of JSON lines appear."""

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headrace.config.run import RunConfig
from headrace.engine.adapters import SourceAdapter
from headrace.engine.read.reading import Reading, SourceOffsets
from headrace.engine.spark_private.checkpoint_files import files_of_batch, lists_files_of
from headrace.engine.spark_private.plans import PlanNode
from headrace.engine.write.encoding import HEADERS
from headrace.topology import Feed, Files
from headrace.topology.names import TOPIC_HEADER

__all__ = ["FilesSource"]


class FilesSource(SourceAdapter):
    place = {TOPIC_HEADER: "topic"}  # noqa: RUF012

    def stream(
        self, spark: SparkSession, reading: Reading, config: RunConfig, query: str, *, headers: bool = False
    ) -> DataFrame:
        return spark.readStream.format("text").load(_folder(reading.feed)).select(F.col("value").cast("binary"))

    def between(self, spark: SparkSession, reading: Reading, config: RunConfig, offsets: SourceOffsets) -> DataFrame:
        """The lines of the files that Spark has read in a batch."""
        paths = files_of_batch(spark, offsets)
        lines = spark.read.text(paths) if paths else spark.createDataFrame([], "value STRING")
        return lines.select(
            F.lit(None).cast("binary").alias("key"),
            F.col("value").cast("binary"),
            F.lit(None).cast("timestamp").alias("timestamp"),
            F.lit(None).cast(HEADERS).alias("headers"),
            (F.col("_metadata.file_path") if paths else F.lit("")).alias("topic"),
        )

    def has(self, feed: Feed, offsets: SourceOffsets) -> bool:
        return lists_files_of(offsets, _folder(feed))

    def is_leaf(self, feed: Feed, leaf: PlanNode) -> bool:
        return leaf.reads_files(_folder(feed))


def _folder(feed: Feed) -> str:
    assert isinstance(feed, Files)
    return feed.path
