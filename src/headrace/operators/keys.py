"""Keys of any type as small numbers: what numpy sorts and searches instead of them."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

__all__ = ["Ints", "Mask", "frame_of", "numbered", "times_of"]

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

NUMBER = "_number"


def frame_of(table: pa.Table, columns: Sequence[str]) -> pl.DataFrame:
    """The columns by their position, so that no name of a user's meets one of ours."""
    named = table.select(list(columns)).rename_columns([str(place) for place in range(len(columns))])
    frame = pl.from_arrow(named)
    assert isinstance(frame, pl.DataFrame)
    return frame


def numbered(table: pa.Table, columns: Sequence[str], asked: Mask) -> Ints:
    """For each row the number of its key among the keys of the rows asked for, from 0; -1 where it is none of them.

    Keys are equal as Spark groups them: null equals null, NaN equals NaN, and -0.0 equals 0.0.
    """
    if not columns:
        return np.full(table.num_rows, 0 if asked.any() else -1, np.int64)
    keys = frame_of(table, columns)
    known = keys.filter(pl.Series(asked)).unique().with_row_index(NUMBER)
    found = keys.join(known, on=keys.columns, how="left", nulls_equal=True, maintain_order="left")
    return found[NUMBER].cast(pl.Int64).fill_null(-1).to_numpy()


def times_of(table: pa.Table, column: str) -> tuple[Ints, Mask]:
    """Event times in microseconds, and which rows have one."""
    times = table[column].cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    present = times.is_valid().to_numpy()
    return times.fill_null(0).to_numpy(), present
