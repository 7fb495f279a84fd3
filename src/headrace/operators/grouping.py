"""Rows that belong together, found by the values of some columns, whatever their types."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["Groups", "Indices", "array_of", "comparable", "grouped", "in_time_order", "lists_of", "matches", "spread"]

Indices: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Groups:
    """Groups in the order in which they first appear."""

    order: Indices
    """The rows, one group after the other, those of a group in their own order."""
    starts: Indices
    """Where in `order` each group begins: what numpy's reduceat takes."""

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def lengths(self) -> Indices:
        return np.diff(self.starts, append=len(self.order))

    @property
    def first(self) -> Indices:
        """The first row of each group."""
        return self.order[self.starts]

    @property
    def of_rows(self) -> Indices:
        """The number of each row's group."""
        numbers = np.empty(len(self.order), dtype=np.int64)
        numbers[self.order] = np.repeat(np.arange(len(self)), self.lengths)
        return numbers


def grouped(columns: Sequence[Any], rows: int) -> Groups:
    """Group rows by columns of any type: null equals null, NaN equals NaN, and -0.0 equals 0.0, as in Spark.

    Without columns all rows are one group.
    """
    if not rows:
        return Groups(np.empty(0, np.int64), np.empty(0, np.int64))
    if not columns:
        return Groups(np.arange(rows), np.zeros(1, np.int64))
    frame = pl.DataFrame({str(number): comparable(column) for number, column in enumerate(columns)})
    found = frame.with_row_index("row").group_by(frame.columns, maintain_order=True).agg("row").get_column("row")
    lengths = found.list.len().to_numpy()
    starts = np.concatenate([[0], np.cumsum(lengths[:-1], dtype=np.int64)])
    return Groups(found.explode().to_numpy().astype(np.int64), starts)


def matches(sought: Sequence[Any], among: Sequence[Any], rows: tuple[int, int]) -> Indices:
    """For each row of `sought`, the first row with equal values in `among`; -1 where there is none."""
    both = [pa.chunked_array([array_of(there), array_of(here)]) for here, there in zip(sought, among, strict=True)]
    groups = grouped(both, sum(rows))
    found = groups.first[groups.of_rows[rows[1] :]]
    return np.where(found < rows[1], found, -1)


def array_of(column: Any) -> Any:
    """A column of a table as one array."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks or [pa.nulls(0, column.type)])


def spread(starts: Indices, lengths: Indices) -> Indices:
    """All numbers of all ranges, one range after the other."""
    ends = np.cumsum(lengths)
    return np.repeat(starts - (ends - lengths), lengths) + np.arange(ends[-1] if len(ends) else 0)


def lists_of(values: Any, lengths: Indices) -> Any:
    """An array of lists out of all their values and how many each has."""
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), values, type=pa.list_(values.type))


def in_time_order(groups: Indices, times: Indices) -> Indices:
    """The rows by group and time; what is equal in both stays in its order."""
    return np.lexsort((times, groups))


def comparable(column: Any) -> pl.Series:
    """A column as polars compares it: for each type, what is equal in Spark is equal there."""
    return pl.Series(values=pl.from_arrow(_with_sorted_maps(array_of(column))))


def _has_map(kind: pa.DataType) -> bool:
    return pa.types.is_map(kind) or any(_has_map(kind.field(number).type) for number in range(kind.num_fields))


def _with_sorted_maps(values: Any) -> Any:
    """The entries of maps have no order of their own: the same entries are to be the same value."""
    kind = values.type
    if not _has_map(kind):
        return values
    if pa.types.is_struct(kind):
        fields = [_with_sorted_maps(part) for part in values.flatten()]
        named = list(zip(kind.names, fields, strict=True))
        inner = pa.struct([(name, part.type) for name, part in named])
        return pa.StructArray.from_arrays(fields, fields=list(inner), mask=pc.is_null(values))
    lengths = np.diff(values.offsets.to_numpy())
    begin, end = values.offsets[0].as_py(), values.offsets[-1].as_py()
    if pa.types.is_map(kind):
        keys = _with_sorted_maps(values.keys.slice(begin, end - begin))
        items = _with_sorted_maps(values.items.slice(begin, end - begin))
        ranks = np.empty(len(keys), dtype=np.int64)
        ranks[pl.Series(values=pl.from_arrow(keys)).arg_sort().to_numpy()] = np.arange(len(keys))
        order = pa.array(in_time_order(np.repeat(np.arange(len(lengths)), lengths), ranks))
        flat = pa.StructArray.from_arrays([keys.take(order), items.take(order)], ["key", "value"])
    else:
        flat = _with_sorted_maps(values.values.slice(begin, end - begin))
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
    return pa.ListArray.from_arrays(offsets, flat, mask=pc.is_null(values))
