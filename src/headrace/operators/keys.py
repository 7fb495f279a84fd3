"""Keys of any type as small numbers: what numpy sorts and searches instead of them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from headrace.operators.grouping import Indices, array_of, comparable

__all__ = ["Mask", "complete", "last_rows", "numbered", "times_of"]

Mask = npt.NDArray[np.bool_]

NUMBER = "_number"


def numbered(columns: Sequence[Any], asked: Mask) -> Indices:
    """For each row the number of its key among the keys of the rows asked for, from 0; -1 where it is none of them.

    Keys are equal as Spark groups them: null equals null, NaN equals NaN, and -0.0 equals 0.0.
    """
    if not columns:
        return np.full(len(asked), 0 if asked.any() else -1, np.int64)
    keys = pl.DataFrame({str(place): comparable(column) for place, column in enumerate(columns)})
    known = keys.filter(pl.Series(asked)).unique().with_row_index(NUMBER)
    found = keys.join(known, on=keys.columns, how="left", nulls_equal=True, maintain_order="left")
    return found[NUMBER].cast(pl.Int64).fill_null(-1).to_numpy()


def last_rows(numbers: Indices) -> Indices:
    """For each number from 0 on the last row that has it; -1 where none does. Rows of no key have a negative number."""
    rows = np.flatnonzero(numbers >= 0)
    last = np.full(int(numbers.max(initial=-1)) + 1, -1, np.int64)
    last[numbers[rows]] = rows
    return last


def times_of(column: Any) -> tuple[Indices, Mask]:
    """Times in microseconds, and which rows have one."""
    times = array_of(column)
    known: Mask = times.is_valid().to_numpy(zero_copy_only=False)
    micros = times.cast(pa.timestamp("us", times.type.tz)).view(pa.int64())
    return micros.fill_null(0).to_numpy(zero_copy_only=False), known


def complete(columns: Sequence[Any]) -> Mask:
    """Which rows have a value in each of the columns: in a join, null equals nothing."""
    known = np.ones(len(columns[0]), np.bool_)
    for column in columns:
        known &= array_of(column).is_valid().to_numpy(zero_copy_only=False)
    return known
