"""The rows of a batch in the driver: as Arrow, in order, and in a file on disk if there are many.

Spark hands the partitions over as they are finished, from the thread that schedules all its jobs: they are taken
in at once, and only then written to the sink.
"""

import tempfile
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from headrace.engine.spark_private.rows import collect_arrow_batches

__all__ = ["Rows", "collect"]

IN_MEMORY = 64 << 20
SLICE = 10_000
RANK = "rank"


class Rows:
    """Rows that can be read in any order, slice by slice. Close it to free memory and disk."""

    def __init__(self, batches: Sequence[pa.RecordBatch], *, spooled: bool = False) -> None:
        if not spooled and len(batches) > 1:
            # One piece: taking rows out of many costs twenty times as much.
            batches = pa.Table.from_batches(batches).combine_chunks().to_batches()
        self._pieces = [batch for batch in batches if batch.num_rows]
        self._ends = list(accumulate(piece.num_rows for piece in self._pieces))

    @classmethod
    def joined(cls, parts: "Sequence[Rows]") -> "Rows":
        """The rows of several, one after the other."""
        pieces = [piece for part in parts for piece in part._pieces]
        return cls(pieces, spooled=sum(piece.nbytes for piece in pieces) > IN_MEMORY)

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @property
    def columns(self) -> list[str]:
        return list(self._pieces[0].schema.names) if self._pieces else []

    def column(self, name: str) -> pa.ChunkedArray:
        return pa.chunked_array([piece.column(name) for piece in self._pieces])

    def sorted_by(self, name: str) -> pa.Array | None:
        """The order of the rows by a column, equals as they came; None if they are in order, or it has no values."""
        values = self.column(name)
        if values.null_count == len(values) or _ascends(values):
            return None
        return pc.sort_indices(values)

    def last_of_each(
        self, key: Sequence[str], among: pa.Array | None = None, order: Sequence[str] = ()
    ) -> pa.Array | None:
        """The places of the last row of each key, of all rows or of those that `among` names, ascending.

        The last is the greatest by the columns of `order`, nulls first, and of equals the one that came last. Where
        equality or order is the database's to judge (nulls and nested values in a key, NaN), it is `among` as it is.
        """
        keys, orders = (self._numbered_columns(names, among) for names in (key, order))
        if any(pa.types.is_nested(column.type) for column in (*keys.columns, *orders.columns)):
            return among
        if any(column.null_count for column in keys.columns) or any(map(_may_be_nan, orders.columns)):
            return among
        ranked = np.arange(len(keys))
        if order:
            # Where nulls go is said in another way by every second version of Arrow.
            sorting = pa.table(
                {
                    f"{name}{part}": values
                    for name, column in zip(orders.column_names, orders.columns, strict=True)
                    for part, values in (("known", column.is_valid()), ("value", column))
                }
            )
            ranked = pc.sort_indices(
                sorting, sort_keys=[(name, "ascending") for name in sorting.column_names]
            ).to_numpy()
        ranks = np.empty_like(ranked)
        ranks[ranked] = np.arange(len(keys))
        found = (
            keys.append_column(RANK, pa.array(ranks))
            .group_by(keys.column_names, use_threads=False)
            .aggregate([(RANK, "max")])
        )
        if len(found) == len(keys):
            return among
        last = pa.array(np.sort(ranked[found.column(f"{RANK}_max").to_numpy()]))
        return last if among is None else among.take(last)

    def _numbered_columns(self, names: Sequence[str], among: pa.Array | None) -> pa.Table:
        columns = pa.table({str(number): self.column(name) for number, name in enumerate(names)})
        return columns if among is None else columns.take(among)

    def slices(self, order: pa.Array | None = None, only: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """The rows, all or those that `order` names, in that order."""
        pieces = self._pieces if only is None else [piece.select(list(only)) for piece in self._pieces]
        if order is None:
            for piece in pieces:
                for start in range(0, piece.num_rows, SLICE):
                    yield piece.slice(start, SLICE)
            return
        for start in range(0, len(order), SLICE):
            chosen = order.slice(start, SLICE)
            yield pieces[0].take(chosen) if len(pieces) == 1 else self._gather(pieces, chosen.to_pylist())

    def close(self) -> None:
        self._pieces, self._ends = [], []

    def __enter__(self) -> "Rows":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _gather(self, pieces: Sequence[pa.RecordBatch], chosen: Sequence[int]) -> pa.RecordBatch:
        """Rows of several pieces: piece by piece, then put in order."""
        wanted: dict[int, tuple[list[int], list[int]]] = {}
        for place, index in enumerate(chosen):
            piece = bisect_right(self._ends, index)
            inside, places = wanted.setdefault(piece, ([], []))
            inside.append(index - (self._ends[piece - 1] if piece else 0))
            places.append(place)
        taken = [pieces[piece].take(pa.array(inside, pa.int64())) for piece, (inside, _) in wanted.items()]
        order = pc.sort_indices(pa.array([place for _, places in wanted.values() for place in places], pa.int64()))
        (gathered,) = pa.Table.from_batches(taken).combine_chunks().take(order).to_batches()
        return gathered


def collect(frame: DataFrame, folder: Path) -> Rows:
    """Run the frame and collect its rows, in the order of its partitions. Many rows go to a file in the folder."""
    spool = _Spool(folder)
    try:
        return spool.rows(collect_arrow_batches(frame, spool.add))
    except BaseException:
        spool.close()
        raise


class _Spool:
    """Batches in memory up to a limit, and in a file from there on."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._in_memory: list[pa.RecordBatch] = []
        self._size = 0
        self._file: Any = None
        self._writer: Any = None

    def add(self, batch: pa.RecordBatch) -> None:
        self._size += batch.nbytes
        if self._writer is None and self._size <= IN_MEMORY:
            self._in_memory.append(batch)
            return
        if self._writer is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._file = tempfile.NamedTemporaryFile(dir=self._folder, prefix="batch-", suffix=".arrow")  # noqa: SIM115
            self._writer = pa.ipc.new_file(self._file.name, batch.schema)
            for kept in self._in_memory:
                self._writer.write_batch(kept)
            self._in_memory = []
        self._writer.write_batch(batch)

    def rows(self, order: Sequence[int]) -> Rows:
        if self._writer is None:
            return Rows([self._in_memory[index] for index in order])
        self._writer.close()
        reader = pa.ipc.open_file(pa.memory_map(self._file.name))
        self._file.close()  # its name is gone, its content stays for as long as it is mapped
        return Rows([reader.get_batch(index) for index in order], spooled=True)

    def close(self) -> None:
        self._in_memory = []
        if self._file is not None:
            self._file.close()


def _may_be_nan(values: pa.ChunkedArray) -> bool:
    return bool(pa.types.is_floating(values.type))


def _ascends(values: pa.ChunkedArray) -> bool:
    if values.null_count or len(values) < 2:
        return len(values) < 2
    return bool(pc.all(pc.less_equal(values.slice(0, len(values) - 1), values.slice(1))).as_py())
