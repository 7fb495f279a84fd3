"""Tumbling and hopping windows: rows are folded by slices of time, and windows out of their slices."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import gcd
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.operators.chunks import Chunks
from headrace.operators.grouping import array_of, grouped, matches
from headrace.operators.operator import RESULTS, Output, Step
from headrace.operators.parts import Parts
from headrace.operators.windowing import START, Windowing
from headrace.topology import Emit

__all__ = ["Slices"]

ROUND_BYTES = 64 * 2**20
"""How much of the state is folded into windows at once, about: many windows may fall due together."""


@dataclass(frozen=True, kw_only=True)
class Slices(Windowing):
    """Windows of one size, a new one at every interval, aligned to 1970; tumbling if both are equal.

    A row is late when all its windows are closed, and counts in those that are not.
    """

    size_us: int
    every_us: int

    @property
    def slice_us(self) -> int:
        """The longest span that every window is made of."""
        return gcd(self.size_us, self.every_us)

    def step(self, chunks: Chunks, step: Step) -> Output:
        folded = Parts(chunks, "slice", self._fold)
        stored = Parts(chunks, "told", self._latest)
        batch, late = self._taken(step)
        folded.add(batch)
        results: list[pa.Table] = []
        if self.emit is Emit.FINAL:
            due = {end for start in folded for end in self._ends(start, step.fired, step.watermark)}
            results += self._written(folded, stored, sorted(due), None)
        touched = self._touched(batch, step)
        if len(touched):
            ends = np.unique(touched.column(START).to_numpy()) + self.size_us
            results += self._written(folded, stored, ends.tolist(), touched)
        self._forget(folded, stored, step.watermark)
        return self.answer(results, late)

    def _taken(self, step: Step) -> tuple[pa.Table, pa.Table]:
        """The rows that count, folded by slice and key, and the late rows."""
        rows = self.rows_of(step.rows.get(RESULTS))
        times, known = self.times_of(rows)
        ends = times // self.every_us * self.every_us + self.size_us
        on_time = known & (ends + self.until_us > step.fired)
        late = rows.filter(pa.array(~on_time))
        if len(late):
            rows, times = rows.filter(pa.array(on_time)), times[on_time]
        starts = pa.array(times // self.slice_us * self.slice_us)
        keys = {START: starts, **self.keys_of(rows)}
        partials = self.folding.lift(rows, times)
        return self._fold(_table(keys, partials)), late

    def _fold(self, rows: pa.Table) -> pa.Table:
        """Rows of the same start and key in one."""
        groups = grouped(self.columns_of(rows), len(rows))
        first = rows.select([START, *self.keys]).take(pa.array(groups.first))
        partials = self.folding.fold(rows, groups)
        return _table(dict(zip(first.column_names, first.columns, strict=True)), partials)

    def _latest(self, rows: pa.Table) -> pa.Table:
        """The last row that was written for each window."""
        groups = grouped(self.columns_of(rows), len(rows))
        return rows.take(pa.array(groups.order[groups.starts + groups.lengths - 1]))

    def _ends(self, start: int, after: int, until: int) -> Iterable[int]:
        """The ends in (after, until] of the windows that the slice is part of."""
        first = -(-(start + self.slice_us - self.size_us) // self.every_us)
        first = max(first, (after - self.size_us) // self.every_us + 1)
        last = min(start // self.every_us, (until - self.size_us) // self.every_us)
        return range(first * self.every_us + self.size_us, last * self.every_us + self.size_us + 1, self.every_us)

    def _last_end(self, start: int) -> int:
        return start // self.every_us * self.every_us + self.size_us

    def _touched(self, batch: pa.Table, step: Step) -> pa.Table:
        """The windows, by start and key, that are written because of the batch and not because they are due."""
        places = batch.select([START, *self.keys])
        found = [places.slice(0, 0)]
        if self.revises:
            closed = step.fired - self.until_us
            slices = array_of(places.column(START)).to_numpy()
            for start in np.unique(slices).tolist():
                mine = places.filter(pa.array(slices == start))
                latest = self._last_end(start) if self.emit is Emit.CHANGES else step.fired
                for end in self._ends(start, closed, latest):
                    window = pa.array(np.full(len(mine), end - self.size_us, dtype=np.int64))
                    found.append(mine.set_column(0, START, window))
        windows = pa.concat_tables(found)
        if self.slice_us == self.size_us:
            return windows
        return windows.take(pa.array(grouped(self.columns_of(windows), len(windows)).first))

    def _written(self, folded: Parts, stored: Parts, ends: list[int], only: pa.Table | None) -> Iterator[pa.Table]:
        for windows in self._computed(folded, ends, only):
            figures = self.folding.finish(windows)
            closing = array_of(windows.column(START)).to_numpy() + self.size_us
            if not self.revises:
                yield self.results(windows, closing, figures)
                continue
            starts = np.unique(closing) - self.size_us
            before = [part for start in starts.tolist() for part in stored.read(start)]
            known = self._latest(pa.concat_tables([self.stored.empty_table(), *before]))
            results, remembered = self.revised(windows, self.figured(closing, figures), known)
            stored.add(remembered)
            yield results

    def _computed(self, folded: Parts, ends: list[int], only: pa.Table | None) -> Iterator[pa.Table]:
        """The folded rows of windows, those of some keys `only` if they are given, round by round."""
        waiting = iter(ends)
        while some := list(self._round(folded, waiting)):
            windows = pa.concat_tables(part for parts in some for part in parts)
            if only is not None:
                found = matches(self.columns_of(windows), self.columns_of(only), (len(windows), len(only)))
                windows = windows.filter(pa.array(found >= 0))
            folds = any(len(parts) > 1 for parts in some)
            yield self._fold(windows) if folds else windows

    def _round(self, folded: Parts, ends: Iterator[int]) -> Iterator[list[pa.Table]]:
        """The parts of some windows, about as many as are to be folded at once."""
        size = 0
        for end in ends:
            start = end - self.size_us
            slices = range(start, end, self.slice_us)
            parts = [part for piece in slices for part in folded.read(piece)]
            yield [_started(part, start) for part in parts]
            size += sum(part.nbytes for part in parts)
            if size > ROUND_BYTES:
                return

    def _forget(self, folded: Parts, stored: Parts, watermark: int) -> None:
        """Remove what no row can change any more."""
        for start in list(folded):
            if self._last_end(start) + self.until_us <= watermark:
                folded.drop(start)
        for start in list(stored):
            if start + self.size_us + self.until_us <= watermark:
                stored.drop(start)


def _table(keys: dict[str, Any], partials: pa.Table) -> pa.Table:
    return pa.Table.from_arrays([*keys.values(), *partials.columns], [*keys, *partials.column_names])


def _started(rows: pa.Table, start: int) -> pa.Table:
    return rows.set_column(0, START, pa.array(np.full(len(rows), start, dtype=np.int64)))
