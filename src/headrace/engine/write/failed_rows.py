"""A batch in which a function raises on some rows: which records they come from, and what the others give.

Only nodes without state: there each record stands alone, so the node's function can run again over a part of the
batch's offsets. Parts that raise are halved until single records are left; parts that do not raise give the rows of
the batch. The order is that of the offsets, so a batch that is replayed gives the same rows and the same failures.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, SparkSession

from headrace.config.run import RunConfig
from headrace.engine.plan.analysis import places_of, runs_users_python, stateful_operators
from headrace.engine.read.reading import Reading
from headrace.engine.read.sources import RangeReader
from headrace.engine.read.tables import Table
from headrace.engine.run.failures import Raised, is_away, raised_by
from headrace.engine.write.rows import Rows, collect
from headrace.errors import FunctionFailed, InputError
from headrace.operators.applying import reason_of
from headrace.topology import Feed
from headrace.topology.names import failed_topic
from headrace.topology.nodes import QueryNode

if TYPE_CHECKING:
    from headrace.engine.write.batch import Batch

__all__ = ["MOST_FAILED", "Rerun", "check_can_divert", "collected_rows", "drain"]

MOST_FAILED = 100
"""How many records of a batch may fail. Each takes a few jobs of Spark's to find; more are a fault of the code."""
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

    def frame(self, spark: SparkSession, spans: Sequence[Span]) -> DataFrame:
        """What the node gives for some records, as its planned frame has it."""
        ranges: dict[Feed, dict[int, tuple[int, int]]] = {feed: {} for feed in self.readings}
        for span in spans:
            ranges[span.feed][span.partition] = (span.start, span.end)
        return self.function({feed: self._readers[feed].rows(spark, found) for feed, found in ranges.items()})

    def failed(self, spark: SparkSession, faults: "Sequence[Fault]") -> DataFrame:
        """The records of `.failed`."""
        by_feed: dict[Feed, list[tuple[int, int, str, str]]] = {}
        for fault in faults:
            span, raised = fault.span, fault.raised
            told = (span.partition, span.start, reason_of(raised.place), raised.error)
            by_feed.setdefault(span.feed, []).append(told)
        frames = [self._readers[feed].failed(spark, found, self.failed_topic) for feed, found in by_feed.items()]
        return reduce(DataFrame.unionByName, frames)

    @cached_property
    def _readers(self) -> dict[Feed, RangeReader]:
        return {feed: RangeReader(reading, self.config) for feed, reading in self.readings.items()}


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
            return collect(batch.frame, spool), None
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
        if not batch.planned.node.diverts:
            raise _explained(rerun, spark, spans, raised) from error
        rows, faults = _divided(rerun, spark, spans, spool)
        return rows, collect(rerun.failed(spark, faults), spool) if faults else None


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


def _divided(rerun: Rerun, spark: SparkSession, spans: list[Span], spool: Path) -> tuple[Rows, list[Fault]]:
    """The rows of all records on which the function does not raise, and the others."""
    good: list[Rows] = []
    faults: list[Fault] = []

    def run(part: list[Span]) -> Raised | None:
        try:
            good.append(collect(rerun.frame(spark, part), spool))
        except Exception as error:
            return _raised_in(error)
        return None

    def divide(part: list[Span]) -> None:
        """Run the halves of a part in which the function raises."""
        if _size(part) == 1:
            if (raised := run(part)) is not None:
                faults.append(Fault(part[0], raised))
                _check_not_too_many(faults)
            return
        first, second = _halves(part)
        passed = _size(first) > 1 and run(first) is None
        before = len(faults)
        if not passed:
            divide(first)
        # A job that fails costs more than one that does not: a half that must fail is divided at once.
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


def _explained(rerun: Rerun, spark: SparkSession, spans: list[Span], raised: Raised) -> FunctionFailed:
    """The error for a node that stops: with the first record on which its function raises."""
    deadline = time.monotonic() + LIMIT
    part, passed = spans, False
    while _size(part) > 1 and time.monotonic() < deadline:
        first, second = _halves(part)
        found = _raises(rerun, spark, first)
        if found is None:
            part, passed = second, True
        else:
            part, raised = first, found
    alone = _raises(rerun, spark, part) if _size(part) == 1 else None
    raised = alone or raised
    where = ", ".join(map(str, part))
    record = where if alone is not None else None
    if alone is None:
        where = f"one of the records {where}" if _size(part) > 1 else "records that it does not raise on one by one"
    node = rerun.node
    return FunctionFailed(
        f"{raised}, on {where}",
        next_step="fix the function and restart; processing resumes with this batch. "
        f'Or divert such rows to {rerun.failed_topic} with @app.{node.kind}(..., on_error="divert")',
        record=record,
        place=raised.place,
        raised=raised.error,
        # If no part passed, the cause may be outside of the rows, such as a service that is unavailable.
        certain=alone is not None and (passed or alone.is_certain),
    )


def _raises(rerun: Rerun, spark: SparkSession, part: list[Span]) -> Raised | None:
    try:
        rerun.frame(spark, part).write.format("noop").mode("overwrite").save()
    except Exception as error:
        return _raised_in(error)
    return None


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
