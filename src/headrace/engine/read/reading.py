"""How a query reads one of its feeds, as plain values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from headrace.engine.read.parsing import Shape
from headrace.engine.spark_private.checkpoint_files import SourceOffsets
from headrace.engine.write.encoding import HEADERS
from headrace.topology import Duration, Feed, Schema
from headrace.topology.names import OFFSET_HEADER, PARTITION_HEADER, TIMESTAMP_HEADER, TOPIC_HEADER

__all__ = ["FAILED_SCHEMA", "PLACE_HEADERS", "RAW", "REJECTS_SCHEMA", "Failed", "Ranges", "Reading", "SourceOffsets"]

PLACE_HEADERS = {
    TOPIC_HEADER: "topic",
    PARTITION_HEADER: "partition",
    OFFSET_HEADER: "offset",
    TIMESTAMP_HEADER: "timestamp",
}
"""Of a rejected or failed record: the headers that say where it was, and the columns they are taken from."""
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
