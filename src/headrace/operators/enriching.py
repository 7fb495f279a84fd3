"""As-of enrichment: each event beside the row of a table that was valid at the event's time, or is valid now.

A table's row is valid from its time on until the next one of its key; one that is deleted is valid no more. Of rows of
one time the one that was written last counts. Rows of the table that come in a step count for the events of that step;
those that come later change no answer that was given. An event is answered at once, or, where it waits for the table,
once the watermark has passed its time and the wait. One that is even older when it comes is late. Of what was valid
before the watermark less the wait, only the rows that were still valid then are kept: it is answered with such a row if
that was valid at its time already, and else with none, never with a row of a later time.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa

from headrace.operators.chunks import Chunks
from headrace.operators.grouping import Indices, array_of
from headrace.operators.history import History
from headrace.operators.keys import complete, numbered, times_of
from headrace.operators.log import Log
from headrace.operators.operator import BEGINNING, RESULTS, Output, Step
from headrace.operators.ranges import Line

__all__ = ["DELETED", "ORDER", "STREAM", "TABLE", "TIME", "Enrich"]

STREAM, TABLE = "stream", "table"
"""The names of the inputs."""
TIME, ORDER, DELETED = "_time", "_order", "_deleted"
"""What a table's rows carry beside their columns: since when they are valid, their order, whether they are deletes."""
DELETES_KEPT_US = 24 * 3600 * 1_000_000
"""How long a delete is remembered at least, so that an older row of its key which comes after it stays deleted."""
VERSIONS, WAITING = "version", "waiting"


@dataclass(frozen=True, kw_only=True)
class Enrich:
    on: tuple[tuple[str, str], ...]
    """Pairs of a column of the stream and the column of the table's key that it equals."""
    time: str
    stream: pa.Schema
    table: pa.Schema
    as_of: Literal["event", "now"] = "event"
    how: Literal["inner", "left"] = "left"
    wait_us: int = 0

    @property
    def version(self) -> int:
        return 1

    @property
    def inputs(self) -> Mapping[str, pa.Schema]:
        return {STREAM: self.stream, TABLE: self.table}

    @property
    def outputs(self) -> Mapping[str, pa.Schema]:
        return {RESULTS: pa.schema([*self.stream, *(self.table.field(name) for name in self._added())])}

    def step(self, chunks: Chunks, step: Step) -> Output:
        versions = Log(chunks, VERSIONS, lambda rows, whole: self._needed(rows, whole, step.fired - self.wait_us))
        changes = step.rows.get(TABLE)
        if changes is not None and len(changes):
            versions.add(changes.combine_chunks())
        rows = step.rows.get(STREAM, self.stream.empty_table()).combine_chunks()
        times = self._moments(rows, self.time)
        oldest = step.fired - self.wait_us
        late = int((times < oldest).sum()) if self.as_of == "event" else 0
        if self.wait_us:
            rows, times = self._waited(chunks, step, rows, times)
        results = self._enriched(rows, times, oldest, versions) if len(rows) else rows
        return Output({RESULTS: results} if len(results) else {}, late)

    def _waited(self, chunks: Chunks, step: Step, rows: pa.Table, times: Indices) -> tuple[pa.Table, Indices]:
        """The events that have waited long enough, those that came too late for it first; the others are kept."""
        waiting = History(chunks, max(-(-self.wait_us // 8), 1), {WAITING: self.stream.names})
        oldest, due_before = step.fired - self.wait_us, step.watermark - self.wait_us
        tardy = times < oldest
        answered = [rows.filter(pa.array(tardy))]
        waiting.append(rows.filter(pa.array(~tardy)), times[~tardy])
        for number in waiting.numbers(oldest, due_before):
            held = waiting.read(WAITING, number)
            at = self._moments(held, self.time)
            answered.append(held.filter(pa.array((at >= oldest) & (at < due_before))))
        waiting.forget(WAITING, due_before)
        rows = pa.concat_tables(answered).combine_chunks()
        return rows, self._moments(rows, self.time)

    def _enriched(self, rows: pa.Table, times: Indices, oldest: int, log: Log) -> pa.Table:
        versions = pa.concat_tables([self.table.empty_table(), *log.read()]).combine_chunks()
        found = self._found(versions, rows, times, oldest)
        if self.how == "inner":
            rows, found = rows.filter(pa.array(found >= 0)), found[found >= 0]
        valid = versions.select(self._added()).take(pa.array(found, mask=found < 0))
        return pa.table([*rows.columns, *valid.columns], self.outputs[RESULTS])

    def _found(self, versions: pa.Table, rows: pa.Table, times: Indices, oldest: int) -> Indices:
        """For each event the version that was valid, -1 where there was none."""
        count = len(versions)
        keys = [rows.column(name) for name, _ in self.on]
        asked = np.concatenate([np.zeros(count, np.bool_), complete(keys)])
        both = [
            pa.chunked_array([array_of(versions.column(there)).cast(key.type), array_of(key)])
            for (_, there), key in zip(self.on, keys, strict=True)
        ]
        codes = numbered(both, asked)
        since, written = self._places(versions)
        # Versions that no event in time can see are there until they are forgotten, which must not alter an answer.
        seen_at = np.maximum(times, oldest) if self.as_of == "event" else np.zeros_like(times)
        # Events come after the versions of their time, so that the version before an event is the one it sees.
        line = _lined(
            codes,
            np.concatenate([since, seen_at]),
            np.concatenate([written, np.full(len(rows), np.iinfo(np.int64).max)]),
        )
        is_event = line >= count
        before = np.maximum.accumulate(np.where(is_event, -1, np.arange(len(line))))[is_event]
        events, version = line[is_event], line[before]
        deleted = versions.column(DELETED).to_numpy()
        valid = (before >= 0) & (codes[version] == codes[events])
        if self.as_of == "event":
            valid[valid] = since[version[valid]] <= times[events[valid] - count]
        valid[valid] = ~deleted[version[valid]]
        found = np.full(len(rows), -1, np.int64)
        found[events[valid] - count] = version[valid]
        return found

    def _needed(self, versions: pa.Table, whole: bool, bound: int) -> pa.Table:
        """The versions that events at the bound or later can see."""
        keys = [versions.column(there) for _, there in self.on]
        codes = numbered(keys, complete(keys))
        since, written = self._places(versions)
        line = _lined(codes, since, written)
        ordered, at = codes[line], since[line]
        passed = at <= bound if self.as_of == "event" else np.ones(len(line), np.bool_)
        kept = np.ones(len(line), np.bool_)
        kept[:-1] = ~((ordered[1:] == ordered[:-1]) & passed[1:])
        if whole:
            forgettable = passed if self.as_of == "now" else at <= bound - DELETES_KEPT_US
            kept &= ~(forgettable & versions.column(DELETED).to_numpy()[line])
        return versions.take(pa.array(np.sort(line[kept])))

    def _places(self, versions: pa.Table) -> tuple[Indices, Indices]:
        """Since when each version is valid, as far as time counts, and the order in which they were written."""
        written: Indices = array_of(versions.column(ORDER)).to_numpy()
        if self.as_of == "now":
            return np.zeros(len(versions), np.int64), written
        return self._moments(versions, TIME), written

    def _moments(self, rows: pa.Table, column: str) -> Indices:
        times, known = times_of(rows.column(column))
        return np.where(known, times, BEGINNING)

    def _added(self) -> list[str]:
        aside = {TIME, ORDER, DELETED, *(there for _, there in self.on)}
        return [name for name in self.table.names if name not in aside]


def _lined(codes: Indices, times: Indices, written: Indices) -> Indices:
    """The rows that have a key, in the order of key, time, writing and arrival."""
    rows = np.flatnonzero(codes >= 0)
    rows = rows[np.argsort(written[rows], kind="stable")]
    return rows[Line.of(codes[rows], times[rows], 1).order]
