"""Spark's source of numbered rows at a steady pace."""

from pyspark.sql import DataFrame, SparkSession

from headrace.config.run import RunConfig
from headrace.engine.adapters import SourceAdapter
from headrace.engine.read.reading import Reading
from headrace.topology import Rate

__all__ = ["RateSource"]


class RateSource(SourceAdapter):
    def stream(
        self, spark: SparkSession, reading: Reading, config: RunConfig, query: str, *, headers: bool = False
    ) -> DataFrame:
        assert isinstance(reading.feed, Rate)
        return spark.readStream.format("rate").option("rowsPerSecond", reading.feed.rows_per_second).load()
