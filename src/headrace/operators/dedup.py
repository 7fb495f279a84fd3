"""Each event once: of rows with the same key and times less than `within` apart, the first to arrive passes, at once.

A row is compared with rows that passed, not with duplicates that were dropped. A row so old that an equal one may have
been removed from the state (the watermark of the batch before has reached its time plus `within`) is late, as is one
without a time. The state is the keys and times of rows that passed, by slices of time.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headrace.operators.chunks import Chunks
from headrace.operators.grouping import Indices
from headrace.operators.history import History
from headrace.operators.keys import Mask, numbered, times_of
from headrace.operators.operator import LATE, RESULTS, Output, Step
from headrace.operators.ranges import Line
from headrace.topology import Late

__all__ = ["Dedup"]

PASSED = "passed"
ROUNDS = 8
"""How often all keys are looked at together before the few that are left are walked."""


@dataclass(frozen=True, kw_only=True)
class Dedup:
    on: tuple[str, ...]
    time: str
    within_us: int
    input: pa.Schema
    late: Late = Late.DROP
    """Dropped or diverted: there is nothing to correct."""

    @property
    def version(self) -> int:
        return 1

    @property
    def waits(self) -> bool:
        return False

    @property
    def inputs(self) -> Mapping[str, pa.Schema]:
        return {RESULTS: self.input}

    @property
    def outputs(self) -> Mapping[str, pa.Schema]:
        return {RESULTS: self.input} | ({} if self.late is Late.DROP else {LATE: self.input})

    def step(self, chunks: Chunks, step: Step) -> Output:
        kept = [name for name in self.input.names if name in (*self.on, self.time)]
        passed = History(chunks, max(-(-self.within_us // 4), 1), {PASSED: kept})
        rows = step.rows.get(RESULTS, self.input.empty_table()).combine_chunks()
        times, known = times_of(rows.column(self.time))
        on_time = known & (times + self.within_us > step.fired)
        late = rows.filter(pa.array(~on_time))
        if len(late):
            rows, times = rows.filter(pa.array(on_time)), times[on_time]
        tables = {LATE: late}
        if len(rows):
            fresh = self._fresh(passed, rows, times)
            tables[RESULTS] = rows.filter(pa.array(fresh))
            passed.append(tables[RESULTS], times[fresh])
        passed.forget(PASSED, step.watermark - 2 * self.within_us + 1)
        shown = {name: tables[name] for name in self.outputs if len(tables.get(name, ()))}
        return Output(shown, late=len(late))

    def _fresh(self, passed: History, rows: pa.Table, times: Indices) -> Mask:
        """Which rows are no duplicates."""
        near = passed.numbers(int(times.min()) - self.within_us, int(times.max()) + self.within_us)
        before = [passed.read(PASSED, number) for number in near]
        seen = pa.concat_tables([*before, rows.select(passed.parts[PASSED])]).combine_chunks()
        count = len(seen) - len(rows)
        new = np.arange(len(seen)) >= count
        keys = numbered([seen.column(name) for name in self.on], new)
        at = times_of(seen.column(self.time))[0]
        line = Line.of(keys, at, self.within_us).order
        fresh = np.zeros(len(rows), np.bool_)
        passing = ~new[line]
        for _ in range(ROUNDS):
            line = line[~self._near(keys[line], at[line], passing)]
            if not len(line):
                return fresh
            # Of rows near to nothing that passed the first of each cluster passes; others may be duplicates of it.
            starts = np.flatnonzero(self._starts(keys[line], at[line]))
            first = np.minimum.reduceat(line, starts)
            fresh[first - count] = True
            passing = line == np.repeat(first, np.diff(starts, append=len(line)))
        left = np.sort(line[~self._near(keys[line], at[line], passing)])
        fresh[left[self._one_by_one(keys[left], at[left])] - count] = True
        return fresh

    def _one_by_one(self, keys: Indices, at: Indices) -> list[int]:
        """The rows that pass, in the order of arrival: long chains of a few keys, where each waits for the one before.

        Two rows that pass are never in one span of `within`, so that a row has to be compared with three at most.
        """
        passed: dict[tuple[int, int], int] = {}
        found = []
        within = self.within_us
        for row, (key, time) in enumerate(zip(keys.tolist(), at.tolist(), strict=True)):
            span = time // within
            near = (passed.get((key, span + step)) for step in (-1, 0, 1))
            if all(other is None or abs(time - other) >= within for other in near):
                passed[key, span] = time
                found.append(row)
        return found

    def _near(self, keys: Indices, at: Indices, passing: Mask) -> Mask:
        """Which rows, in the order of key and time, pass or are duplicates of one that does."""
        places = np.arange(len(keys))
        before = np.maximum.accumulate(np.where(passing, places, -1))
        after = np.minimum.accumulate(np.where(passing, places, len(keys))[::-1])[::-1]
        near = np.zeros(len(keys), np.bool_)
        for other in (before, after):
            some = np.flatnonzero((other >= 0) & (other < len(keys)))
            there = other[some]
            near[some] |= (keys[some] == keys[there]) & (np.abs(at[some] - at[there]) < self.within_us)
        return near

    def _starts(self, keys: Indices, at: Indices) -> Mask:
        """Where a cluster begins: rows of two clusters are never duplicates of each other."""
        return np.concatenate([[True], (keys[1:] != keys[:-1]) | (at[1:] - at[:-1] >= self.within_us)])
