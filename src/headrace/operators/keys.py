"""Keys of any type as small numbers: what numpy sorts and searches instead of them."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from headrace.operators.grouping import Indices, comparable

__all__ = ["Mask", "numbered", "times_of"]

Mask = npt.NDArray[np.bool_]

NUMBER = "_number"


def numbered(table: pa.Table, columns: Sequence[str], asked: Mask) -> Indices:
    """For each row the number of its key among the keys of the rows asked for, from 0; -1 where it is none of them.

    Keys are equal as Spark groups them: null equals null, NaN equals NaN, and -0.0 equals 0.0.
    """
    if not columns:
        return np.full(table.num_rows, 0 if asked.any() else -1, np.int64)
    keys = pl.DataFrame({str(place): comparable(table.column(name)) for place, name in enumerate(columns)})
    known = keys.filter(pl.Series(asked)).unique().with_row_index(NUMBER)
    found = keys.join(known, on=keys.columns, how="left", nulls_equal=True, maintain_order="left")
    return found[NUMBER].cast(pl.Int64).fill_null(-1).to_numpy()


def times_of(table: pa.Table, column: str) -> tuple[Indices, Mask]:
    """Event times in microseconds, and which rows have one."""
    times = table[column].cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    present = times.is_valid().to_numpy()
    return times.fill_null(0).to_numpy(), present
