"""A kind of source that Headrace does not have: CSV files in a folder, read by Spark's own reader."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.engine import SourceAdapter, register_source
from headrace.topology import Source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headrace.config.run import RunConfig
    from headrace.engine.read.reading import Reading


@dataclass(frozen=True, eq=False, kw_only=True)
class CsvFiles(Source):
    kind = "csv"

    folder: str
    separator: str = ","

    @property
    def origin(self) -> str:
        return f"CSV files in {self.folder}"

    @property
    def problems(self) -> Iterator[tuple[str, str]]:
        if len(self.separator) != 1:
            yield f"separator {self.separator!r} is not one character", 'write separator=";"'

    @property
    def drawing_facts(self) -> Iterator[str]:
        yield f"in {self.folder}"


class CsvAdapter(SourceAdapter):
    def stream(
        self, spark: SparkSession, reading: Reading, config: RunConfig, query: str, *, headers: bool = False
    ) -> DataFrame:
        feed: Any = reading.feed
        return spark.readStream.schema(feed.schema.ddl).option("sep", feed.separator).csv(feed.folder)


register_source(CsvFiles, CsvAdapter())
