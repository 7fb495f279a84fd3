"""A batch in which a function raises on some rows: which records they come from, and what the others give.

Only nodes without state: there each record stands alone, so the node's function can run again over a part of the
batch's offsets. Parts that raise are halved until single records are left; parts that do not raise give the rows of
the batch. The order is that of the offsets, so a batch that is replayed gives the same rows and the same failures.

The records are read once. What Python functions raise is noted in the workers, so that no task fails: a task that does
is tried again, and costs some seconds. Errors of SQL expressions, and of a few kinds of UDFs, do fail tasks.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, reduce
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from headrace.config.run import RunConfig
from headrace.engine.calls.results import LATE_RECORD
from headrace.engine.plan.analysis import places_of, runs_users_python, stateful_operators
from headrace.engine.read.reading import Reading
from headrace.engine.read.sources import RangeReader
from headrace.engine.read.tables import Table
from headrace.engine.run.failures import Raised, is_away, raised_by
from headrace.engine.spark_private.python_functions import noted_errors
from headrace.engine.write.rows import Rows, collect
from headrace.errors import FunctionFailed, InputError
from headrace.operators.applying import reason_of
from headrace.topology import Feed
from headrace.topology.names import failed_topic
from headrace.topology.nodes import QueryNode

if TYPE_CHECKING:
    from headrace.engine.write.batch import Batch, Division

__all__ = ["MOST_FAILED", "Rerun", "check_can_divert", "collected_rows", "drain"]

MOST_FAILED = 100
"""How many records of a batch may fail. Each takes some jobs of Spark's to find; more are a fault of the code."""
LIMIT = 60.0
"""For how many seconds the record is looked for on which a function raised that stops the app."""


@dataclass(frozen=True, slots=True)
class Span:
    """Records of a partition that follow each other."""

    feed: Feed
    partition: int
    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start

    def __str__(self) -> str:
        last = "" if self.size == 1 else f"-{self.end - 1}"
        return f"{self.feed.topic_name}[{self.partition}]@{self.start}{last}"


@dataclass(frozen=True)
class Rerun:
    """A node's function over parts of its topics."""

    node: QueryNode
    readings: Mapping[Feed, Reading]
    config: RunConfig
    function: Callable[[Mapping[Feed, DataFrame | Table]], DataFrame]

    @property
    def failed_topic(self) -> str:
        return failed_topic(self.node.topic_name)

    @contextmanager
    def over(self, spark: SparkSession, spans: "Sequence[Span]") -> "Iterator[Parts]":
        """The node's function over the records of the spans, part by part. They are kept until the block ends."""
        kept = {
            feed: reader.raw(spark, {span.partition: (span.start, span.end) for span in spans if span.feed == feed})
            for feed, reader in self._readers.items()
        }
        for raw in kept.values():
            raw.persist()
        try:
            yield Parts(self, spark, kept)
        finally:
            for raw in kept.values():
                raw.unpersist()

    def frame(self, raw: Mapping[Feed, DataFrame]) -> DataFrame:
        """What the node gives for some records, as its planned frame has it."""
        return self.function({feed: self._readers[feed].rows(records) for feed, records in raw.items()})

    def failed(self, spark: SparkSession, faults: "Sequence[Fault]") -> DataFrame:
        """The records of `.failed`."""
        by_feed: dict[Feed, list[tuple[int, int, str, str]]] = {}
        for fault in faults:
            span, raised = fault.span, fault.raised
            record = (span.partition, span.start, reason_of(raised.place), raised.error)
            by_feed.setdefault(span.feed, []).append(record)
        frames = [self._readers[feed].failed(spark, found, self.failed_topic) for feed, found in by_feed.items()]
        return reduce(DataFrame.unionByName, frames)

    @cached_property
    def _readers(self) -> dict[Feed, RangeReader]:
        return {feed: RangeReader(reading, self.config) for feed, reading in self.readings.items()}


@dataclass(frozen=True)
class Parts:
    """The records of a batch, over parts of which a node's function can be run."""

    rerun: Rerun
    spark: SparkSession
    kept: Mapping[Feed, DataFrame]

    def raised(self, spans: Sequence[Span], run: Callable[[DataFrame], None]) -> Raised | None:
        """What the function raises on the records of the spans; None if it does not. `run` runs a frame."""
        try:
            with noted_errors(self.spark) as noted:
                run(self.rerun.frame({feed: raw.filter(_is_within(feed, spans)) for feed, raw in self.kept.items()}))
        except Exception as error:
            return _raised_in(error)
        return Raised(noted[0][1], noted[0][0]) if noted else None


@dataclass(frozen=True, slots=True)
class Fault:
    """A record on which a function raised, and what it raised."""

    span: Span
    raised: Raised


def check_can_divert(node: QueryNode, frame: DataFrame, feeds: Sequence[Feed], applies: bool) -> None:
    """Refuse `on_error="divert"` where a row that fails cannot be told from the others.

    `applies` says whether one of Headrace's own operators calls a function, which diverts by itself.
    """
    if not node.diverts:
        return
    asked = 'on_error="divert"'
    apart = "call the function in a node of its own, without state"
    state = [described.partition(":")[0] for described in stateful_operators(frame)]
    if state:
        if applies and not runs_users_python(frame):
            return
        what = "calls a Python function beside state" if runs_users_python(frame) else "keeps state"
        raise InputError(
            f"{asked}: it {what} ({', '.join(dict.fromkeys(state))}), and Spark cannot run part of such a batch again",
            next_step=f"{apart}, or leave on_error out",
        )
    for feed in feeds:
        if not feed.has_topic:
            raise InputError(
                f"{asked}: it reads {feed.node.kind} {feed.node.name!r}, whose rows cannot be read again by offset",
                next_step="read a topic, or leave on_error out",
            )
        if places_of(frame, feed) != 1:
            raise InputError(
                f"{asked}: it reads {str(feed)!r} in several places, each of which has its own offsets", next_step=apart
            )


def collected_rows(
    batch: "Batch", spool: Path, write: Callable[[DataFrame], None] | None = None
) -> tuple[Rows, Rows | None]:
    """The rows of a batch and, where its function raised on some and the node diverts them, their records.

    With `write`, the rows are written by that instead, unless the function raises.
    """
    try:
        if write is None:
            rows = collect(batch.frame, spool)
            batch.division.failed = _count_failed(rows, batch)
            return rows, None
        write(batch.frame)
        return Rows([]), None
    except Exception as error:
        raised, rerun = raised_by(error), batch.planned.rerun
        if raised is None or rerun is None or is_away(error):
            raise
        spans = _spans(batch, rerun)
        if not spans:
            raise
        spark = batch.frame.sparkSession
        with rerun.over(spark, spans) as parts:
            if not batch.planned.node.diverts:
                raise _explained(parts, spans, raised) from error
            rows, faults = _divided(parts, spans, spool, batch.division)
        return rows, collect(rerun.failed(spark, faults), spool) if faults else None


def _count_failed(rows: Rows, batch: "Batch") -> int:
    """How many rows one of Headrace's own operators diverted: they are among those of the batch."""
    node, column = batch.planned.node, "topic" if batch.planned.node.sink.takes_records else LATE_RECORD
    if not node.diverts or column not in rows.columns:
        return 0
    topics = rows.column(column)
    topics = topics if node.sink.takes_records else pc.struct_field(topics, "topic")
    return pc.sum(pc.equal(topics, failed_topic(node.topic_name))).as_py() or 0


def drain(batch: "Batch") -> None:
    """Run a batch whose rows are in the sink already. Rows that fail are there too, and must not stop it."""
    try:
        batch.drain()
    except Exception as error:
        if raised_by(error) is None or batch.planned.rerun is None or not batch.planned.node.diverts:
            raise


def _spans(batch: "Batch", rerun: Rerun) -> list[Span]:
    """What a batch covers of its topics. Where one is read in several places, all that any of them covers."""
    found: dict[tuple[Feed, int], Span] = {}
    by_topic = {feed.topic_name: feed for feed in rerun.readings}
    for source in batch.checkpoint.sources(batch.number):
        for topic, ends in source.end.items():
            if topic not in by_topic or not isinstance(ends, Mapping):
                continue
            starts = (source.start or {}).get(topic, {})
            for partition, end in ends.items():
                key, start = (by_topic[topic], int(partition)), int(starts.get(partition, 0))
                known = found.get(key)
                if known is not None:
                    start, end = min(start, known.start), max(int(end), known.end)
                found[key] = Span(*key, start, int(end))
    return [span for span in found.values() if span.size]


def _divided(parts: Parts, spans: list[Span], spool: Path, division: "Division") -> tuple[Rows, list[Fault]]:
    """The rows of all records on which the function does not raise, and the others."""
    good: list[Rows] = []
    faults: list[Fault] = []
    division.records = _size(spans)

    def run(part: list[Span]) -> Raised | None:
        given: list[Rows] = []
        raised = parts.raised(part, lambda frame: given.append(collect(frame, spool)))
        if raised is None:
            good.extend(given)
            division.checked += _size(part)
        return raised

    def divide(part: list[Span]) -> None:
        """Run the halves of a part in which the function raises."""
        if _size(part) == 1:
            if (raised := run(part)) is not None:
                faults.append(Fault(part[0], raised))
                division.checked, division.failed = division.checked + 1, len(faults)
                _check_not_too_many(faults)
            return
        first, second = _halves(part)
        passed = _size(first) > 1 and run(first) is None
        before = len(faults)
        if not passed:
            divide(first)
        # A half that must fail is divided at once.
        if len(faults) == before or (_size(second) == 1 or run(second) is not None):
            divide(second)

    divide(spans)
    return Rows.joined(good), faults


def _check_not_too_many(faults: Sequence[Fault]) -> None:
    if len(faults) <= MOST_FAILED:
        return
    span, raised = faults[-1].span, faults[-1].raised
    raise FunctionFailed(
        f"its function raises on more than {MOST_FAILED} records of the batch, the last of them {span}: {raised}",
        next_step="fix the function and restart; processing resumes with this batch",
        record=str(span),
        place=raised.place,
        raised=raised.error,
    )


def _explained(parts: Parts, spans: list[Span], raised: Raised) -> FunctionFailed:
    """The error for a node that stops: with the first record on which its function raises."""
    deadline = time.monotonic() + LIMIT
    part, passed = spans, False
    while _size(part) > 1 and time.monotonic() < deadline:
        first, second = _halves(part)
        found = parts.raised(first, _run)
        if found is None:
            part, passed = second, True
        else:
            part, raised = first, found
    alone = parts.raised(part, _run) if _size(part) == 1 else None
    raised = alone or raised
    where = ", ".join(map(str, part))
    record = where if alone is not None else None
    if alone is None:
        where = f"one of the records {where}" if _size(part) > 1 else "records that it does not raise on one by one"
    rerun = parts.rerun
    return FunctionFailed(
        f"{raised}, on {where}",
        next_step="fix the function and restart; processing resumes with this batch. "
        f'Or divert such rows to {rerun.failed_topic} with @app.{rerun.node.kind}(..., on_error="divert")',
        record=record,
        place=raised.place,
        raised=raised.error,
        # If no part passed, the cause may be outside of the rows, such as a service that is unavailable.
        certain=alone is not None and (passed or alone.is_certain),
    )


def _run(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _is_within(feed: Feed, spans: Sequence[Span]) -> Column:
    partition, offset = F.col("partition"), F.col("offset")
    inside = [
        (partition == span.partition) & (offset >= span.start) & (offset < span.end)
        for span in spans
        if span.feed == feed
    ]
    return reduce(Column.__or__, inside, F.lit(False))


def _raised_in(error: Exception) -> Raised:
    """What a function raised on a row; an error that has another cause is raised again."""
    raised = raised_by(error)
    if raised is None or is_away(error):
        raise error
    return raised


def _size(spans: Sequence[Span]) -> int:
    return sum(span.size for span in spans)


def _halves(spans: Sequence[Span]) -> list[list[Span]]:
    middle = _size(spans) // 2
    return [list(_cut(spans, 0, middle)), list(_cut(spans, middle, _size(spans)))]


def _cut(spans: Sequence[Span], start: int, end: int) -> Iterator[Span]:
    """The records from one place among all of the spans to another."""
    before = 0
    for span in spans:
        first, last = max(start - before, 0), min(end - before, span.size)
        if first < last:
            yield Span(span.feed, span.partition, span.start + first, span.start + last)
        before += span.size
