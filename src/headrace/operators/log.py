"""Rows kept by key and not by time: a few chunks that are folded together as they grow.

New rows are a chunk of their own; it is folded with the one before as soon as that is not much larger. So there are
few chunks, and a change to a large table rewrites little of it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import pyarrow as pa

from headrace.operators.chunks import Chunks

__all__ = ["Log"]


@dataclass(slots=True)
class Log:
    chunks: Chunks
    prefix: str
    fold: Callable[[pa.Table, bool], pa.Table]
    """What is still needed of some rows, the oldest first, and whether there are no older ones beside them."""
    _extents: list[tuple[int, int]] = field(default_factory=list)
    _tables: dict[int, pa.Table] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in self.chunks.names():
            prefix, *numbers = name.split("/")
            if prefix == self.prefix:
                number, size = map(int, numbers)
                self._extents.append((number, size))
        self._extents.sort()

    def read(self) -> list[pa.Table]:
        """All rows, the oldest first."""
        return [self._read(number, size) for number, size in self._extents]

    def add(self, rows: pa.Table) -> None:
        size, joined = len(rows), [rows]
        while self._extents and self._extents[-1][1] <= 2 * size:
            number, before = self._extents.pop()
            joined.insert(0, self._read(number, before))
            self.chunks.delete(self._name(number, before))
            size += before
        folded = self.fold(pa.concat_tables(joined, promote_options="default"), not self._extents)
        if len(folded):
            number = self._extents[-1][0] + 1 if self._extents else 0
            self._extents.append((number, len(folded)))
            self._tables[number] = folded
            self.chunks.write(self._name(number, len(folded)), folded)

    def _name(self, number: int, size: int) -> str:
        return f"{self.prefix}/{number}/{size}"

    def _read(self, number: int, size: int) -> pa.Table:
        table = self._tables.get(number)
        if table is None:
            table = self._tables[number] = self.chunks.read(self._name(number, size))
        return table
