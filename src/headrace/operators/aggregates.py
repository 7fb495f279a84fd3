"""Aggregates that can be computed piece by piece: lift rows to partial figures, fold those of a group, finish them.

A row and a million rows have the same partial figures, so that a window can be kept folded and be folded on. Results
are of the types that Spark's own aggregates have.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, TypeAlias

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import InputError
from headrace.operators.exact import numbers_of, overflow, words_of
from headrace.operators.grouping import Groups, Indices, array_of, grouped, in_time_order, lists_of, spread
from headrace.topology import Aggregate, AggregateKind

__all__ = ["Aggregates", "orderable", "result_type", "totals"]

MOST_DIGITS = 38
"""The precision of the widest decimal that Spark has."""

Arrays: TypeAlias = Sequence[Any]


def result_type(kind: AggregateKind, column: pa.DataType | None) -> pa.DataType:
    """The type of an aggregate of a column; None means whole rows, which can only be counted."""
    match kind:
        case AggregateKind.COUNT | AggregateKind.COUNT_DISTINCT:
            return pa.int64()
        case AggregateKind.FIRST | AggregateKind.LAST:
            return column
        case AggregateKind.COLLECT:
            return pa.list_(column)
        case AggregateKind.MIN | AggregateKind.MAX:
            if _has_map(column):
                raise InputError(f"{kind.value} of {column}: maps have no order", next_step="use a field of the map")
            return column
        case AggregateKind.SUM | AggregateKind.MEAN:
            return _number_type(kind, column)


def _number_type(kind: AggregateKind, column: pa.DataType) -> pa.DataType:
    adds = kind is AggregateKind.SUM
    if pa.types.is_decimal(column):
        more, finer = (10, 0) if adds else (4, 4)
        return pa.decimal128(min(MOST_DIGITS, column.precision + more), min(MOST_DIGITS, column.scale + finer))
    if pa.types.is_integer(column):
        return pa.int64() if adds else pa.float64()
    if pa.types.is_floating(column):
        return pa.float64()
    raise InputError(
        f"{kind.value} of {column}: the column is not a number", next_step="cast the column before the window"
    )


def _has_map(kind: pa.DataType) -> bool:
    return pa.types.is_map(kind) or any(_has_map(kind.field(number).type) for number in range(kind.num_fields))


class Partial(Protocol):
    """One aggregate's partial figures, as columns."""

    @property
    def types(self) -> Mapping[str, pa.DataType]: ...

    def lift(self, values: Any, times: Any) -> Arrays:
        """The figures of each row by itself; `values` is the aggregate's column, `times` int64."""
        ...

    def fold(self, columns: Arrays, groups: Groups) -> Arrays:
        """The figures of each group; what is of one time comes in the order of arrival."""
        ...

    def finish(self, columns: Arrays) -> Any: ...


@dataclass(frozen=True)
class Aggregates:
    """All aggregates of a window over rows of a schema. Partial figures are columns named by position."""

    wanted: tuple[tuple[str, Aggregate], ...]
    input: pa.Schema

    @cached_property
    def results(self) -> pa.Schema:
        return pa.schema([(name, result_type(one.kind, self._type_of(one))) for name, one in self.wanted])

    @cached_property
    def partials(self) -> pa.Schema:
        return pa.schema(
            [
                (f"{number}.{part}", kind)
                for number, partial in enumerate(self._parts)
                for part, kind in partial.types.items()
            ]
        )

    def lift(self, rows: pa.Table, times: Indices) -> pa.Table:
        at = pa.array(times, pa.int64())
        columns: list[Any] = []
        for (_, one), partial in zip(self.wanted, self._parts, strict=True):
            values = at if one.column is None else array_of(rows.column(one.column))
            columns.extend(partial.lift(values, at))
        return pa.Table.from_arrays(columns, schema=self.partials)

    def fold(self, partials: pa.Table, groups: Groups) -> pa.Table:
        """One row a group, in the groups' order."""
        if not len(groups):
            return self.partials.empty_table()
        columns: list[Any] = []
        for partial, mine in self._columns(partials):
            columns.extend(partial.fold(mine, groups))
        return pa.Table.from_arrays(columns, schema=self.partials)

    def finish(self, partials: pa.Table) -> pa.Table:
        columns = [partial.finish(mine) for partial, mine in self._columns(partials)]
        return pa.Table.from_arrays(columns, schema=self.results) if columns else partials

    def _columns(self, partials: pa.Table) -> list[tuple[Partial, Arrays]]:
        return [
            (partial, [array_of(partials.column(f"{number}.{part}")) for part in partial.types])
            for number, partial in enumerate(self._parts)
        ]

    @cached_property
    def _parts(self) -> list[Partial]:
        return [_partial(name, one, self._type_of(one)) for name, one in self.wanted]

    def _type_of(self, aggregate: Aggregate) -> pa.DataType | None:
        return None if aggregate.column is None else self.input.field(aggregate.column).type


def _partial(name: str, aggregate: Aggregate, column: pa.DataType | None) -> Partial:
    kind = aggregate.kind
    match kind:
        case AggregateKind.COUNT:
            return Count()
        case AggregateKind.SUM:
            return Sum(name, result_type(kind, column))
        case AggregateKind.MEAN:
            # Whole numbers are added up as doubles, as Spark does for a mean: they cannot overflow.
            added = pa.float64() if pa.types.is_integer(column) else result_type(AggregateKind.SUM, column)
            return Mean(Sum(name, added), result_type(kind, column))
        case AggregateKind.MIN | AggregateKind.MAX:
            return Extreme(column, largest=kind is AggregateKind.MAX)
        case AggregateKind.FIRST | AggregateKind.LAST:
            return Edge(column, last=kind is AggregateKind.LAST)
        case AggregateKind.COUNT_DISTINCT:
            return Distinct(column)
        case AggregateKind.COLLECT:
            return Collect(column)


@dataclass(frozen=True, slots=True)
class Count:
    types = {"count": pa.int64()}  # noqa: RUF012

    def lift(self, values: Any, times: Any) -> Arrays:
        return [pc.cast(pc.is_valid(values), pa.int64())]

    def fold(self, columns: Arrays, groups: Groups) -> Arrays:
        return [pa.array(np.add.reduceat(columns[0].to_numpy()[groups.order], groups.starts))]

    def finish(self, columns: Arrays) -> Any:
        return columns[0]


@dataclass(frozen=True, slots=True)
class Sum:
    name: str
    type: pa.DataType

    @property
    def types(self) -> Mapping[str, pa.DataType]:
        return {"sum": self.type}

    def lift(self, values: Any, times: Any) -> Arrays:
        return [pc.cast(values, self.type)]

    def fold(self, columns: Arrays, groups: Groups) -> Arrays:
        return [totals(columns[0], groups, self.name)]

    def finish(self, columns: Arrays) -> Any:
        return columns[0]


@dataclass(frozen=True, slots=True)
class Mean:
    sum: Sum
    type: pa.DataType

    @property
    def types(self) -> Mapping[str, pa.DataType]:
        return {**self.sum.types, **Count.types}

    def lift(self, values: Any, times: Any) -> Arrays:
        return [*self.sum.lift(values, times), *Count().lift(values, times)]

    def fold(self, columns: Arrays, groups: Groups) -> Arrays:
        return [*self.sum.fold(columns[:1], groups), *Count().fold(columns[1:], groups)]

    def finish(self, columns: Arrays) -> Any:
        total, count = columns
        # Where there are no values the sum is null, and so is the mean; its divisor only must not be zero.
        count = pc.max_element_wise(count, 1)
        if pa.types.is_floating(self.type):
            return pc.divide(total, pc.cast(count, pa.float64()))
        divisor = pc.cast(count, pa.decimal256(19, 0))
        quotient = pc.divide(pc.cast(total, pa.decimal256(MOST_DIGITS, self.sum.type.scale)), divisor)
        # Away from zero, as Spark rounds; the quotient was cut off behind more digits than are kept.
        rounded = pc.round(quotient, self.type.scale, round_mode="half_towards_infinity")
        try:
            return pc.cast(rounded, self.type)
        except pa.ArrowInvalid:
            raise overflow(self.sum.name, self.type) from None


@dataclass(frozen=True, slots=True)
class Extreme:
    """The smallest or the largest value; NaN is larger than all, as in Spark."""

    type: pa.DataType
    largest: bool

    @property
    def types(self) -> Mapping[str, pa.DataType]:
        return {"extreme": self.type}

    def lift(self, values: Any, times: Any) -> Arrays:
        return [values]

    def fold(self, columns: Arrays, groups: Groups) -> Arrays:
        values = columns[0]
        valid = values.is_valid().to_numpy(zero_copy_only=False)
        winners = _winners(orderable(values), valid, groups, largest=self.largest)
        return [values.take(pa.array(winners))]

    def finish(self, columns: Arrays) -> Any:
        return columns[0]


@dataclass(frozen=True, slots=True)
class Edge:
    """The value of the earliest or the latest row, null or not."""

    type: pa.DataType
    last: bool

    @property
    def types(self) -> Mapping[str, pa.DataType]:
        return {"value": self.type, "at": pa.int64()}

    def lift(self, values: Any, times: Any) -> Arrays:
        return [values, times]

    def fold(self, columns: Arrays, groups: Groups) -> Arrays:
        values, times = columns
        winners = pa.array(_winners(times.to_numpy(), None, groups, largest=self.last))
        return [values.take(winners), times.take(winners)]

    def finish(self, columns: Arrays) -> Any:
        return columns[0]


@dataclass(frozen=True, slots=True)
class Distinct:
    """The values met so far, each once."""

    type: pa.DataType

    @property
    def types(self) -> Mapping[str, pa.DataType]:
        return {"values": pa.list_(self.type)}

    def lift(self, values: Any, times: Any) -> Arrays:
        return [_as_lists(values, values)]

    def fold(self, columns: Arrays, groups: Groups) -> Arrays:
        values, lengths, places = _joined(columns[0], groups)
        values = values.take(pa.array(places))
        owners = np.repeat(np.arange(len(groups)), lengths)
        different = grouped([pa.array(owners), values], len(values)).first
        return [lists_of(values.take(pa.array(different)), np.bincount(owners[different], minlength=len(groups)))]

    def finish(self, columns: Arrays) -> Any:
        return pc.cast(pc.list_value_length(columns[0]), pa.int64())


@dataclass(frozen=True, slots=True)
class Collect:
    """All values with their times, in the order of arrival; finished in the order of time."""

    type: pa.DataType

    @property
    def types(self) -> Mapping[str, pa.DataType]:
        return {"values": pa.list_(self.type), "times": pa.list_(pa.int64())}

    def lift(self, values: Any, times: Any) -> Arrays:
        return [_as_lists(values, values), _as_lists(times, values)]

    def fold(self, columns: Arrays, groups: Groups) -> Arrays:
        values, lengths, places = _joined(columns[0], groups)
        taken = pa.array(places)
        return [lists_of(values.take(taken), lengths), lists_of(columns[1].flatten().take(taken), lengths)]

    def finish(self, columns: Arrays) -> Any:
        values, lengths = columns[0].flatten(), pc.list_value_length(columns[0]).to_numpy()
        times = columns[1].flatten().to_numpy()
        order = in_time_order(np.repeat(np.arange(len(lengths)), lengths), times)
        return lists_of(values.take(pa.array(order)), lengths)


def totals(values: Any, groups: Groups, name: str) -> Any:
    """The sum of each group's values that are not null, null where there are none; one too large is an error."""
    valid = values.is_valid().to_numpy(zero_copy_only=False)
    some = np.logical_or.reduceat(valid[groups.order], groups.starts)
    numbers = None if pa.types.is_decimal(values.type) else values.fill_null(0).to_numpy(zero_copy_only=False)
    if numbers is not None and (pa.types.is_floating(values.type) or _cannot_overflow(numbers)):
        # What infinities of both signs add up to is not a number, and no reason to warn.
        with np.errstate(invalid="ignore"):
            return pa.array(np.add.reduceat(numbers[groups.order], groups.starts), values.type, mask=~some)
    sums = np.add.reduceat(words_of(values)[groups.order], groups.starts, axis=0)
    return numbers_of(sums, ~some, values.type, name)


def _cannot_overflow(numbers: Any) -> bool:
    return max(int(numbers.max()), -int(numbers.min())) * len(numbers) < 2**63


def orderable(values: Any) -> Indices:
    """Whole numbers in the same order as the values; what stands for a null has no meaning."""
    kind = values.type
    if pa.types.is_timestamp(kind):
        values = values.view(pa.int64())
    elif pa.types.is_floating(kind):
        numbers = pc.cast(values, pa.float64()).fill_null(0).to_numpy(zero_copy_only=False) + 0.0
        bits = np.where(np.isnan(numbers), np.nan, numbers).view(np.int64)
        # The bits of positive doubles are ordered as whole numbers are, those of negative ones the other way round.
        return bits ^ ((bits >> 63) & 0x7FFF_FFFF_FFFF_FFFF)
    elif not pa.types.is_integer(kind):
        ranks = np.empty(len(values), dtype=np.int64)
        ranks[pl.Series(values=pl.from_arrow(values)).arg_sort().to_numpy()] = np.arange(len(values))
        return ranks
    return np.asarray(values.fill_null(0).to_numpy(zero_copy_only=False), dtype=np.int64)


def _winners(ranks: Indices, valid: Any | None, groups: Groups, *, largest: bool) -> Indices:
    """The row of each group that is first or last in order, of equals the first or last to arrive; any if none is."""
    best, limits = (np.maximum, np.iinfo(np.int64).min) if largest else (np.minimum, np.iinfo(np.int64).max)
    ranks = (ranks if valid is None else np.where(valid, ranks, limits))[groups.order]
    leads = ranks == np.repeat(best.reduceat(ranks, groups.starts), groups.lengths)
    if valid is not None:
        leads &= valid[groups.order]
    places = np.where(leads, np.arange(len(ranks)), -1 if largest else len(ranks))
    won = best.reduceat(places, groups.starts)
    return groups.order[np.where((won < 0) | (won == len(ranks)), groups.starts, won)]


def _as_lists(values: Any, presence: Any) -> Any:
    """Each value as a list of one, and of none where there is nothing."""
    valid = presence.is_valid()
    return lists_of(values.filter(valid), valid.to_numpy(zero_copy_only=False).astype(np.int64))


def _joined(lists: Any, groups: Groups) -> tuple[Any, Indices, Indices]:
    """All values of all lists; how many of them each group has, and where they are, group after group."""
    sizes = pc.list_value_length(lists).to_numpy().astype(np.int64)
    places = spread((np.cumsum(sizes) - sizes)[groups.order], sizes[groups.order])
    return lists.flatten(), np.add.reduceat(sizes[groups.order], groups.starts), places
