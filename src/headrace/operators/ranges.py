"""Aggregates over ranges of rows, all ranges at once: what a window per event is made of.

A range is [lo, hi) of rows in order; the ranges themselves are in order too (neither end ever goes back). Sums of
floating-point values are folded from pieces of 1, 2, 4, ... rows counted from the range's start: running sums would
lose what is small beside what is large, and one NaN would spoil all that follows. So a range's sum depends on its own
rows alone, bit for bit. Whole numbers and decimals are exact as differences of running sums.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.operators.aggregates import Mean, Sum, orderable, result_type
from headrace.operators.exact import numbers_of, words_of
from headrace.operators.grouping import Indices, array_of, lists_of, spread
from headrace.operators.keys import Mask, numbered
from headrace.topology import Aggregate, AggregateKind

__all__ = ["Line", "Ranges", "extremes", "sums"]

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Line:
    """Rows in the order of key, time and arrival, at places on one line where the spans of two keys never touch."""

    order: Indices
    places: Indices
    since: Indices
    """Where the span of each row begins."""

    @classmethod
    def of(cls, keys: Indices, times: Indices, size: int) -> "Line":
        """The rows whose key is not negative, and the spans (time - size, time] that end at them."""
        rows = np.flatnonzero(keys >= 0)
        keys, times = keys[rows], times[rows]
        first, last = int(times.min(initial=0)), int(times.max(initial=0))
        length = last - first + size + 1
        if (int(keys.max(initial=0)) + 1) * length < 2**62:
            places = keys * length + (times - first)
            since = places - (size - 1)
        else:  # Spans of centuries: the times' ranks stand for them, and they always fit.
            distinct, ranks = np.unique(times, return_inverse=True)
            places = keys * len(distinct) + ranks
            since = keys * len(distinct) + np.searchsorted(distinct, distinct - size, side="right")[ranks]
        order = np.argsort(places, kind="stable")
        return cls(rows[order], places[order], since[order])

    def spans(self, events: Indices) -> "Ranges":
        """The rows in the spans that end at these events, which are in order."""
        lo = np.searchsorted(self.places, self.since[events], side="left")
        return Ranges(self.order, lo, np.searchsorted(self.places, self.places[events], side="right"))


@dataclass(frozen=True, slots=True)
class Ranges:
    """Ranges over the rows of a table: row i of the order is row `order[i]` of the table."""

    order: Indices
    lo: Indices
    hi: Indices

    def aggregate(self, table: pa.Table, name: str, aggregate: Aggregate) -> Any:
        """One value a range, of the aggregate's own type; the name is for errors."""
        if aggregate.column is None:
            return pa.array(self.hi - self.lo)
        column = array_of(table.column(aggregate.column))
        match aggregate.kind:
            case AggregateKind.COUNT:
                return pa.array(self._count(_valid(column)))
            case AggregateKind.SUM:
                return self._sum(column, name, result_type(aggregate.kind, column.type))
            case AggregateKind.MEAN:
                return self._mean(column, name, result_type(aggregate.kind, column.type))
            case AggregateKind.MIN | AggregateKind.MAX:
                return self._extreme(column, aggregate.kind is AggregateKind.MAX)
            case AggregateKind.FIRST:
                return column.take(pa.array(self.order[self.lo]))
            case AggregateKind.LAST:
                return column.take(pa.array(self.order[self.hi - 1]))
            case AggregateKind.COUNT_DISTINCT:
                return pa.array(self._distinct(column))
            case AggregateKind.COLLECT:
                values = self.only(_valid(column)[self.order])
                lengths = values.hi - values.lo
                return lists_of(column.take(pa.array(values.order[spread(values.lo, lengths)])), lengths)

    def where(self, wanted: Mask) -> "Ranges":
        """Some of the ranges."""
        return Ranges(self.order, self.lo[wanted], self.hi[wanted])

    def among(self, kept: Mask) -> Indices:
        """How many rows of each range are kept."""
        return _difference(_running(kept), self.lo, self.hi)

    def only(self, kept: Mask) -> "Ranges":
        """The same ranges over those rows of the order that are kept."""
        before = _running(kept)
        return Ranges(self.order[kept], before[self.lo], before[self.hi])

    def _count(self, valid: Mask) -> Indices:
        return self.among(valid[self.order])

    def _sum(self, column: Any, name: str, kind: pa.DataType) -> Any:
        empty = self._count(_valid(column)) == 0
        if not pa.types.is_decimal(kind):
            values = column.cast(kind).fill_null(0).to_numpy(zero_copy_only=False)
            if pa.types.is_floating(kind):
                return pa.array(sums(values[self.order], self.lo, self.hi), mask=empty)
            longest = int((self.hi - self.lo).max(initial=0))
            if max(int(values.max(initial=0)), -int(values.min(initial=0))) * longest < 2**63:
                return pa.array(_difference(_running(values[self.order]), self.lo, self.hi), mask=empty)
        words = words_of(column.cast(kind) if pa.types.is_integer(kind) else column)
        return numbers_of(_difference(_running(words[self.order]), self.lo, self.hi), empty, kind, name)

    def _mean(self, column: Any, name: str, kind: pa.DataType) -> Any:
        added = column if pa.types.is_decimal(kind) else column.cast(pa.float64())
        total = Sum(name, result_type(AggregateKind.SUM, added.type))
        figures = [self._sum(added, name, total.type), pa.array(self._count(_valid(column)))]
        return Mean(total, kind).finish(figures)

    def _extreme(self, column: Any, largest: bool) -> Any:
        valid = _valid(column)
        empty = self._count(valid) == 0
        ranks, restored = _ranked(column)
        limits = np.iinfo(np.int64)
        ranks = np.where(valid, ranks, limits.min if largest else limits.max)
        found = extremes(ranks[self.order], self.lo, self.hi, largest)
        return pc.if_else(pa.array(empty), pa.scalar(None, column.type), restored(np.where(empty, 0, found)))

    def _distinct(self, column: Any) -> Indices:
        """A value counts where it is the first of its like in a range, so for a row of ranges: no range is walked."""
        values = self.only(_valid(column)[self.order])
        rows = values.order
        codes = numbered([column.take(pa.array(rows))], np.ones(len(rows), np.bool_))
        by_code = np.argsort(codes, kind="stable")
        previous = np.full(len(rows), -1, np.int64)
        again = codes[by_code[1:]] == codes[by_code[:-1]]
        previous[by_code[1:][again]] = by_code[:-1][again]
        places = np.arange(len(rows))
        begins = np.maximum(
            np.searchsorted(values.hi, places, side="right"), np.searchsorted(values.lo, previous, side="right")
        )
        ends = np.searchsorted(values.lo, places, side="right")
        counted = begins < ends
        size = len(self.lo) + 1
        steps = np.bincount(begins[counted], minlength=size) - np.bincount(ends[counted], minlength=size)
        return np.cumsum(steps)[:-1].astype(np.int64)


def sums(values: Floats, lo: Indices, hi: Indices) -> Floats:
    """The sum of each range, from pieces of 1, 2, 4, ... rows: about one pass for each doubling of the longest."""
    total, place, left = np.zeros(len(lo)), lo.copy(), hi - lo
    pieces, size = values, 1
    longest = int(left.max(initial=0))
    with np.errstate(invalid="ignore", over="ignore"):
        while size <= longest:
            taken = np.flatnonzero(left & size)
            total[taken] += pieces[place[taken]]
            place[taken] += size
            pieces = pieces[:-size] + pieces[size:] if size < len(pieces) else pieces[:0]
            size *= 2
    return total


def extremes(values: Indices, lo: Indices, hi: Indices, largest: bool) -> Indices:
    """The smallest or largest of each range, from two pieces that cover it; an empty range gives 0."""
    better = np.maximum if largest else np.minimum
    found, length = np.zeros(len(lo), np.int64), hi - lo
    pieces, size = values, 1
    longest = int(length.max(initial=0))
    while size <= longest:
        here = np.flatnonzero((length >= size) & (length < 2 * size))
        found[here] = better(pieces[lo[here]], pieces[hi[here] - size])
        pieces = better(pieces[:-size], pieces[size:]) if size < len(pieces) else pieces[:0]
        size *= 2
    return found


def _ranked(column: Any) -> tuple[Indices, Callable[[Indices], Any]]:
    """Whole numbers in the order of the values as Spark sorts them, and the way back."""
    kind, ranks = column.type, orderable(column)
    if pa.types.is_floating(kind):
        # The bits of a double become a whole number and that becomes the bits again by the same turn.
        turn = np.int64(2**63 - 1)
        return ranks, lambda found: pa.array((found ^ ((found >> 63) & turn)).view(np.float64)).cast(kind)
    if pa.types.is_integer(kind) or pa.types.is_timestamp(kind):
        return ranks, lambda found: pa.array(found).cast(kind)
    rows = np.empty(len(ranks), np.int64)
    rows[ranks] = np.arange(len(ranks))
    return ranks, lambda found: column.take(pa.array(rows[found]))


def _valid(column: Any) -> Mask:
    valid: Mask = column.is_valid().to_numpy(zero_copy_only=False)
    return valid


def _running(values: Indices | Mask) -> Indices:
    """What comes before each place: one longer than the values, from 0."""
    running = np.zeros((len(values) + 1, *values.shape[1:]), np.int64)
    np.cumsum(values, axis=0, dtype=np.int64, out=running[1:])
    return running


def _difference(running: Indices, lo: Indices, hi: Indices) -> Indices:
    return running[hi] - running[lo]
