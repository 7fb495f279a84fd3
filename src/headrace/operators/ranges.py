"""Aggregates over ranges of rows, all ranges at once: what a window per event is made of.

A range is [lo, hi) of rows in order; the ranges themselves are in order too (neither end ever goes back). Sums of
floating-point values are folded from pieces of 1, 2, 4, ... rows counted from the range's start: running sums would
lose what is small beside what is large, and one NaN would spoil all that follows. So a range's sum depends on its own
rows alone, bit for bit. Whole numbers and decimals are exact as differences of running sums.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from headrace.operators.decimals import decimal_mean, from_limbs, limbs_of
from headrace.operators.keys import Ints, Mask, frame_of, numbered
from headrace.topology import Aggregate, AggregateKind

__all__ = ["Line", "Ranges", "extremes", "result_type", "sums"]

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Line:
    """Rows in the order of key, time and arrival, at places on one line where the spans of two keys never touch."""

    order: Ints
    places: Ints
    since: Ints
    """Where the span of each row begins."""

    @classmethod
    def of(cls, keys: Ints, times: Ints, size: int) -> "Line":
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

    def spans(self, events: Ints) -> "Ranges":
        """The rows in the spans that end at these events, which are in order."""
        lo = np.searchsorted(self.places, self.since[events], side="left")
        return Ranges(self.order, lo, np.searchsorted(self.places, self.places[events], side="right"))


@dataclass(frozen=True, slots=True)
class Ranges:
    """Ranges over the rows of a table: row i of the order is row `order[i]` of the table."""

    order: Ints
    lo: Ints
    hi: Ints

    def aggregate(self, table: pa.Table, aggregate: Aggregate) -> pa.Array:
        """One value a range, of the aggregate's own type."""
        if aggregate.column is None:
            return pa.array(self.hi - self.lo)
        column = _joined(table[aggregate.column])
        kind = result_type(aggregate.kind, column.type)
        match aggregate.kind:
            case AggregateKind.COUNT:
                return pa.array(self._count(_valid(column)))
            case AggregateKind.SUM:
                return self._sum(column, kind)
            case AggregateKind.MEAN:
                return self._mean(column, kind)
            case AggregateKind.MIN | AggregateKind.MAX:
                return self._extreme(column, aggregate.kind is AggregateKind.MAX)
            case AggregateKind.FIRST:
                return column.take(pa.array(self.order[self.lo]))
            case AggregateKind.LAST:
                return column.take(pa.array(self.order[self.hi - 1]))
            case AggregateKind.COUNT_DISTINCT:
                return pa.array(self._distinct(column))
            case AggregateKind.COLLECT:
                return self._collect(column)

    def where(self, wanted: Mask) -> "Ranges":
        """Some of the ranges."""
        return Ranges(self.order, self.lo[wanted], self.hi[wanted])

    def among(self, kept: Mask) -> Ints:
        """How many rows of each range are kept."""
        return _difference(_running(kept), self.lo, self.hi)

    def only(self, kept: Mask) -> "Ranges":
        """The same ranges over those rows of the order that are kept."""
        before = _running(kept)
        return Ranges(self.order[kept], before[self.lo], before[self.hi])

    def _count(self, valid: Mask) -> Ints:
        return self.among(valid[self.order])

    def _sum(self, column: pa.Array, kind: pa.DataType) -> pa.Array:
        valid = _valid(column)
        empty = self._count(valid) == 0
        if pa.types.is_decimal(kind):
            limbs = [_difference(_running(limb[self.order]), self.lo, self.hi) for limb in limbs_of(column)]
            return from_limbs(limbs, empty, kind)
        if pa.types.is_floating(kind):
            values = column.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False)
            return pa.array(sums(values[self.order], self.lo, self.hi), mask=empty)
        whole = column.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
        return pa.array(_difference(_running(whole[self.order]), self.lo, self.hi), mask=empty)

    def _mean(self, column: pa.Array, kind: pa.DataType) -> pa.Array:
        counts = self._count(_valid(column))
        if pa.types.is_decimal(kind):
            total = self._sum(column, result_type(AggregateKind.SUM, column.type))
            return decimal_mean(total, pa.array(counts), kind)
        total = self._sum(column.cast(pa.float64()), kind)
        return pc.divide(total, pa.array(counts).cast(pa.float64()))

    def _extreme(self, column: pa.Array, largest: bool) -> pa.Array:
        valid = _valid(column)
        empty = self._count(valid) == 0
        ranks, restored = _ranked(column)
        limits = np.iinfo(np.int64)
        ranks = np.where(valid, ranks, limits.min if largest else limits.max)
        found = extremes(ranks[self.order], self.lo, self.hi, largest)
        return pc.if_else(pa.array(empty), pa.scalar(None, column.type), restored(np.where(empty, 0, found)))

    def _distinct(self, column: pa.Array) -> Ints:
        """A value counts where it is the first of its like in a range, so for a row of ranges: no range is walked."""
        values = self.only(_valid(column)[self.order])
        rows = values.order
        table = pa.table([column], ["value"]).take(pa.array(rows))
        codes = numbered(table, ["value"], np.ones(len(rows), np.bool_))
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

    def _collect(self, column: pa.Array) -> pa.Array:
        values = self.only(_valid(column)[self.order])
        lengths = values.hi - values.lo
        ends = np.cumsum(lengths)
        places = np.arange(int(ends[-1]) if len(ends) else 0) - np.repeat(ends - lengths - values.lo, lengths)
        offsets = pa.array(np.concatenate([[0], ends]), pa.int32())
        return pa.ListArray.from_arrays(offsets, column.take(pa.array(values.order[places])))


def sums(values: Floats, lo: Ints, hi: Ints) -> Floats:
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


def extremes(values: Ints, lo: Ints, hi: Ints, largest: bool) -> Ints:
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


def _ranked(column: pa.Array) -> tuple[Ints, Callable[[Ints], pa.Array]]:
    """Numbers in the order of the values as Spark sorts them, and the way back."""
    kind = column.type
    if pa.types.is_floating(kind):
        values = column.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False) + 0.0
        bits = np.where(np.isnan(values), np.nan, values).view(np.int64)
        return _turned(bits), lambda ranks: pa.array(_turned(ranks).view(np.float64)).cast(kind)
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return (
            column.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False),
            lambda ranks: pa.array(ranks).cast(kind),
        )
    ranks = frame_of(pa.table([column], ["value"]), ["value"]).to_series().rank("dense").fill_null(0)
    numbers = ranks.cast(pl.Int64).to_numpy()
    rows = np.zeros(int(numbers.max(initial=0)) + 1, np.int64)
    rows[numbers] = np.arange(len(numbers))
    return numbers, lambda found: column.take(pa.array(rows[found]))


def _turned(bits: Ints) -> Ints:
    """The bits of floating-point numbers as whole numbers of the same order, and back: it is its own inverse."""
    return bits ^ ((bits >> 63) & np.int64(2**63 - 1))


def _valid(column: pa.Array) -> Mask:
    valid: Mask = column.is_valid().to_numpy(zero_copy_only=False)
    return valid


def _joined(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _running(values: Ints | Mask) -> Ints:
    """What comes before each place: one longer than the values, from 0."""
    running = np.zeros(len(values) + 1, np.int64)
    np.cumsum(values, dtype=np.int64, out=running[1:])
    return running


def _difference(running: Ints, lo: Ints, hi: Ints) -> Ints:
    return running[hi] - running[lo]


def result_type(kind: AggregateKind, column: pa.DataType) -> pa.DataType:
    match kind:
        case AggregateKind.COUNT | AggregateKind.COUNT_DISTINCT:
            return pa.int64()
        case AggregateKind.SUM if pa.types.is_decimal(column):
            return pa.decimal128(min(column.precision + 10, 38), column.scale)
        case AggregateKind.MEAN if pa.types.is_decimal(column):
            return pa.decimal128(min(column.precision + 4, 38), min(column.scale + 4, 38))
        case AggregateKind.SUM:
            return pa.int64() if pa.types.is_integer(column) else pa.float64()
        case AggregateKind.MEAN:
            return pa.float64()
        case AggregateKind.COLLECT:
            return pa.list_(column)
        case _:
            return column
