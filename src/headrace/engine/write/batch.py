"""One batch of a query, as it is given to the sink."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from headrace.engine.adapters import source_adapter
from headrace.engine.read.reading import SourceOffsets
from headrace.engine.run.checkpoints import Checkpoint, topic_offsets
from headrace.engine.spark_private.reports import observed_number
from headrace.topology import Feed

if TYPE_CHECKING:
    from headrace.engine.plan.planner import PlannedQuery, RejectedFeed

__all__ = ["Batch", "Division"]


@dataclass(slots=True)
class Division:
    """How far the search for the records of a batch on which a function raises has come."""

    records: int = 0
    """How many records the batch has; 0 if the function does not raise."""
    checked: int = 0
    failed: int = 0

    def __str__(self) -> str:
        return (
            f"its function raises on some of {self.records:,} records: {self.checked:,} checked, {self.failed:,} failed"
        )


@dataclass(frozen=True, slots=True)
class Batch:
    number: int
    frame: DataFrame
    planned: "PlannedQuery"
    checkpoint: Checkpoint
    query: StreamingQuery
    division: Division = field(default_factory=Division)

    def drain(self) -> None:
        """Run it only for its effect on state and watermark: its rows are in the sink already."""
        self.frame.write.format("noop").mode("overwrite").save()

    def offsets(self) -> dict[str, dict[int, int]]:
        """By topic and partition, the offset at which the next batch begins."""
        return topic_offsets(source.end for source in self.checkpoint.sources(self.number))

    def watermark(self) -> datetime | None:
        """The watermark by which rows of the batch are late; None where there is none yet."""
        return self.checkpoint.watermark(self.number)

    def rejects(self, *, counted: bool = True) -> Iterator[DataFrame]:
        """The rejected records of the batch. Call it after its rows were computed, because that counts them.

        Where they were not computed as a whole, nothing is counted.
        """
        for rejected in self.planned.rejects:
            if counted and self._count(rejected) == 0:
                continue
            source = self._source_of(rejected.feed)
            if source is not None:
                yield rejected.read(self.frame.sparkSession, source)

    def _count(self, rejected: "RejectedFeed") -> int | None:
        """How many there are; None where they were not counted."""
        return None if rejected.metric is None else observed_number(self.query, rejected.metric)

    def _source_of(self, feed: Feed) -> SourceOffsets | None:
        """The source of a feed. Where several sources read it, each reads all of it in the end: take the first."""
        adapter = source_adapter(feed)
        return next((source for source in self.checkpoint.sources(self.number) if adapter.has(feed, source)), None)
