"""State by slices of time, each kept as a few parts that are merged as they grow.

A batch adds a part to the slices it touches. A part is merged with the one before it as soon as it is not much smaller,
so that a slice has few parts, and small batches do not rewrite large slices.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from headrace.operators.chunks import Chunks
from headrace.operators.grouping import array_of
from headrace.operators.windowing import START

__all__ = ["Parts", "by_start"]


@dataclass(frozen=True, slots=True)
class Part:
    """One chunk: its number in its slice, and the size of its table in bytes."""

    prefix: str
    start: int
    number: int
    size: int

    def __str__(self) -> str:
        return f"{self.prefix}/{self.start}/{self.number}/{self.size}"

    @classmethod
    def named(cls, name: str) -> "Part":
        prefix, start, number, size = name.split("/")
        return cls(prefix, int(start), int(number), int(size))


@dataclass(slots=True)
class Parts:
    """The parts of all slices of one kind, by where a slice starts."""

    chunks: Chunks
    prefix: str
    fold: Callable[[pa.Table], pa.Table]
    """Merge the rows of a slice that belong together; the older ones come first."""
    parts: dict[int, list[Part]] = field(default_factory=dict)
    _read: dict[Part, pa.Table] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in self.chunks.names():
            if name.startswith(f"{self.prefix}/"):
                part = Part.named(name)
                self.parts.setdefault(part.start, []).append(part)
        for parts in self.parts.values():
            parts.sort(key=lambda part: part.number)

    def __iter__(self) -> Iterator[int]:
        return iter(self.parts)

    def read(self, start: int) -> list[pa.Table]:
        """The parts of a slice, oldest first."""
        return [self._table(part) for part in self.parts.get(start, ())]

    def add(self, rows: pa.Table) -> None:
        """Add folded rows to the slices in which they start."""
        merging: list[pa.Table] = []
        numbers: dict[int, int] = {}
        for start, mine in by_start(rows):
            older: list[pa.Table] = []
            size = mine.nbytes
            parts = self.parts.setdefault(start, [])
            while parts and parts[-1].size < 2 * size:
                part = parts.pop()
                older.insert(0, self._table(part))
                size += part.size
                numbers[start] = part.number
                self.chunks.delete(str(part))
            if older:
                merging += [*older, mine]
            else:
                self._write(start, parts[-1].number + 1 if parts else 0, mine)
        if merging:
            for start, merged in by_start(self.fold(pa.concat_tables(merging))):
                self._write(start, numbers[start], merged)

    def drop(self, start: int) -> None:
        for part in self.parts.pop(start, ()):
            self.chunks.delete(str(part))

    def _write(self, start: int, number: int, rows: pa.Table) -> None:
        part = Part(self.prefix, start, number, rows.nbytes)
        self.parts[start].append(part)
        self._read[part] = rows
        self.chunks.write(str(part), rows.drop_columns([START]))

    def _table(self, part: Part) -> pa.Table:
        table = self._read.get(part)
        if table is None:
            stored = self.chunks.read(str(part))
            assert stored is not None, f"chunk {part} was listed and is not there"
            starts = pa.array(np.full(len(stored), part.start, dtype=np.int64))
            table = self._read[part] = stored.add_column(0, START, starts)
        return table


def by_start(rows: pa.Table) -> Iterator[tuple[int, pa.Table]]:
    """The rows of each start, in order; rows of one start keep theirs."""
    starts = array_of(rows.column(START)).to_numpy()
    if not len(starts):
        return
    if starts.min() == starts.max():
        yield int(starts[0]), rows
        return
    order = np.argsort(starts, kind="stable")
    rows = rows.take(pa.array(order))
    found, firsts = np.unique(starts[order], return_index=True)
    for start, first, end in zip(found, firsts, [*firsts[1:], len(starts)], strict=True):
        yield int(start), rows.slice(first, end - first)
