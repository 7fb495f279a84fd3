"""The progress of the nodes of a running app, as a live table, a log line or the console shows it."""

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from threading import Lock
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery

from headrace.config.run import Offsets
from headrace.engine.run.checkpoints import topic_offsets
from headrace.engine.spark_private.reports import (
    GROUP_COUNTING_OPERATORS,
    PYTHON_STATE_OPERATOR,
    ReportId,
    reports_since,
)
from headrace.operators.hosting import METRIC, number_of_metric
from headrace.topology.names import REJECTED

__all__ = ["NodeProgress", "NodeState", "Tracker"]

RATE_OVER = 10.0
NO_WATERMARK = "1970-01-01T00:00:00.000Z"


class NodeState(StrEnum):
    STARTING = "starting"
    RUNNING = "running"
    RESTARTING = "restarting"
    """It failed and will be restarted."""
    FAILED = "failed"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeProgress:
    """One node, now. Counts are since the app started."""

    node: str
    kind: str
    state: NodeState
    batch: int | None
    """The last batch that was finished."""
    rows: int
    rows_per_second: float
    """Rows read, over the last ten seconds."""
    lag: int | None
    """Records it has not read yet, up to the high watermark; None while Kafka is unavailable."""
    watermark: datetime | None
    late: int
    """Rows that were late, dropped or not. See `late_is_minimum`."""
    rejected: int
    state_rows: int
    state_bytes: int
    """Spark's own operators: the memory. Headrace's: the size of the buckets that a batch has touched."""
    batch_seconds: float | None
    errors: int
    last_error: str | None
    late_is_minimum: bool = False
    """Whether more rows may have been late: Spark's own windows count groups of late rows, not rows."""
    unmatched: int = 0
    """Events that found no row in the table that hr.enrich looked them up in."""
    failed: int = 0
    """Rows on which the node's function raised, and which were diverted."""
    activity: str | None = None
    """What delays the batch that is running, if anything does: the search for rows on which the function raises."""
    hints: tuple[str, ...] = ()
    """What is likely not as it was meant, each with what to do. Their number only grows."""


class Tracker:
    """Reads Spark's progress reports of a query, each once."""

    def __init__(self, node: str, kind: str, topics: list[str], positions: Offsets) -> None:
        self.node = node
        self.kind = kind
        self.topics = topics
        self._lock = Lock()
        self._positions: dict[str, dict[int, int]] = {topic: dict(found) for topic, found in positions.items()}
        self._ends: Offsets | None = None
        self._seen: ReportId | None = None
        self._rates: deque[tuple[float, int]] = deque()
        self._started = time.monotonic()
        self._batch: int | None = None
        self._rows = self._late = self._rejected = self._unmatched = self._failed = 0
        self._late_is_minimum = False
        self._early: dict[str, int] = {}
        self._state = (0, 0)
        self._buckets: dict[tuple[int, int], tuple[int, int]] = {}
        """By operator of the query and bucket: rows and bytes."""
        self._watermark: datetime | None = None
        self._newest: datetime | None = None
        self._seconds: float | None = None
        self._sizes_taken = True

    def restore(self, watermark: datetime | None, sizes: Mapping[str, Any]) -> None:
        """Begin with what an earlier run left: its last watermark, and what its `state_sizes()` returned."""
        self._watermark = watermark
        try:
            self._state = (int(sizes["rows"]), int(sizes["bytes"]))
            self._buckets = {(index, bucket): (rows, size) for index, bucket, rows, size in sizes["buckets"]}
        except (KeyError, TypeError, ValueError):
            pass  # there is none yet, or it cannot be read: it is only shown, and the first batch corrects it

    def state_sizes(self) -> dict[str, Any] | None:
        """The state's size in numbers for `restore`; None if no batch has finished since the last call."""
        with self._lock:
            if self._sizes_taken:
                return None
            self._sizes_taken = True
            rows, size = self._state
            return {"rows": rows, "bytes": size, "buckets": [[*key, *value] for key, value in self._buckets.items()]}

    def read(self, query: StreamingQuery) -> None:
        """Read the reports since the last call."""
        with self._lock:
            reports, self._seen = reports_since(query, self._seen)
            for report in reports:
                self._take(report)

    def watermark_is(self, watermark: datetime | None) -> None:
        """Where the checkpoint knows of a later one than Spark has reported."""
        with self._lock:
            if watermark is not None:
                self._watermark = watermark

    def ends_are(self, ends: Offsets) -> None:
        """Where the topics end; empty if Kafka is unavailable."""
        with self._lock:
            self._ends = ends or None

    @property
    def watermark(self) -> datetime | None:
        return self._watermark

    @property
    def newest(self) -> datetime | None:
        """The newest event time read since the app started."""
        return self._newest

    def position(self, topic: str) -> dict[int, int]:
        """The next offset to read of a topic, by partition."""
        with self._lock:
            return dict(self._positions.get(topic, {}))

    @property
    def last_batch(self) -> int | None:
        return self._batch

    def add_failed(self, rows: int) -> None:
        with self._lock:
            self._failed += rows

    def shown(self, state: NodeState, errors: int, last_error: str | None, activity: str | None = None) -> NodeProgress:
        with self._lock:
            return NodeProgress(
                node=self.node,
                kind=self.kind,
                state=state,
                batch=self._batch,
                rows=self._rows,
                rows_per_second=self._rate(),
                lag=self._lag(),
                watermark=self._watermark,
                late=self._late,
                rejected=self._rejected,
                state_rows=self._state[0] + sum(rows for rows, _ in self._buckets.values()),
                state_bytes=self._state[1] + sum(size for _, size in self._buckets.values()),
                batch_seconds=self._seconds,
                errors=errors,
                last_error=last_error,
                late_is_minimum=self._late_is_minimum,
                unmatched=self._unmatched,
                failed=self._failed,
                activity=activity,
                hints=tuple(f"{count:,} {hint}" for hint, count in self._early.items()),
            )

    def _take(self, progress: Mapping[str, Any]) -> None:
        operators = progress.get("stateOperators", ())
        ends = [source["endOffset"] for source in progress["sources"] if isinstance(source.get("endOffset"), dict)]
        reached: dict[str, dict[int, int]] = {}
        for end in ends:
            for topic, partitions in topic_offsets(iter([end])).items():
                # If a topic is read in several places, the offset that all of them have reached.
                known = reached.setdefault(topic, partitions)
                known.update({index: min(offset, known.get(index, offset)) for index, offset in partitions.items()})
        for topic, partitions in reached.items():
            self._positions.setdefault(topic, {}).update(partitions)
        times = progress.get("eventTime", {})
        watermark, newest = times.get("watermark"), times.get("max")
        if watermark is not None and watermark != NO_WATERMARK:
            self._watermark = datetime.fromisoformat(watermark)
        if newest is not None:
            moment = datetime.fromisoformat(newest)
            self._newest = moment if self._newest is None else max(self._newest, moment)
        # A row in the state of Headrace's operators is a chunk of rows: those are counted by their own metrics.
        native = [operator for operator in operators if operator["operatorName"] != PYTHON_STATE_OPERATOR]
        if operators:  # Spark lists them from the first batch on
            self._state = (
                sum(operator["numRowsTotal"] for operator in native),
                sum(operator["memoryUsedBytes"] for operator in native),
            )
        if "addBatch" not in progress["durationMs"]:
            return  # no batch ran: Spark reports now and then that it is idle
        self._sizes_taken = False
        self._batch = int(progress["batchId"])
        self._seconds = progress["durationMs"].get("triggerExecution", 0) / 1000
        self._rows += progress["numInputRows"]
        self._rates.append((time.monotonic(), progress["numInputRows"]))
        self._late += sum(operator["numRowsDroppedByWatermark"] for operator in operators)
        self._late_is_minimum |= any(
            operator["numRowsDroppedByWatermark"] and operator["operatorName"] in GROUP_COUNTING_OPERATORS
            for operator in operators
        )
        observed = progress.get("observedMetrics", {})
        self._rejected += sum(metrics.get(REJECTED, 0) for metrics in observed.values())
        # The numbers in their names differ from run to run, their order does not.
        hosted = sorted((name for name in observed if name.startswith(METRIC)), key=number_of_metric)
        for index, name in enumerate(hosted):
            counted = observed[name]
            self._late += counted["late"] or 0
            self._unmatched += counted["unmatched"] or 0
            if counted["early"]:
                self._early[counted["hint"]] = self._early.get(counted["hint"], 0) + counted["early"]
            for size in counted["state"]:
                self._buckets[index, size["bucket"]] = (size["state_rows"], size["state_bytes"])

    def _rate(self) -> float:
        now = time.monotonic()
        while self._rates and self._rates[0][0] < now - RATE_OVER:
            self._rates.popleft()
        return sum(rows for _, rows in self._rates) / max(1.0, min(RATE_OVER, now - self._started))

    def _lag(self) -> int | None:
        if not self.topics:
            return 0
        if self._ends is None:
            return None
        lag = 0
        for topic in self.topics:
            read = self._positions.get(topic, {})
            lag += sum(max(0, end - read.get(index, 0)) for index, end in self._ends.get(topic, {}).items())
        return lag
