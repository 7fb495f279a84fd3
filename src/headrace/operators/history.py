"""The rows of a bucket by slices of event time: appended in the order of arrival, read and removed by slice.

A slice is a list of chunks, and a row is identified by its slice and its place there as long as it is kept. Small
chunks at the end of a slice are merged once together they are as large as the next, so that a slice has
few chunks however many batches wrote to it, and a row is rewritten only a few times.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from headrace.operators.chunks import Chunks
from headrace.operators.grouping import Indices

__all__ = ["END", "History"]

END = 2**62
"""A time after all others, in microseconds."""


class History:
    """The columns of a row can be kept in several parts, of which all but the first can be removed earlier."""

    def __init__(self, chunks: Chunks, width: int, parts: Mapping[str, Sequence[str]]) -> None:
        self.chunks, self.width, self.parts = chunks, width, parts
        self._extents: dict[str, dict[int, list[tuple[int, int]]]] = {part: defaultdict(list) for part in parts}
        self._tables: dict[str, pa.Table] = {}
        self.others: list[str] = []
        for name in chunks.names():
            part, *numbers = name.split("/")
            if part in self._extents:
                number, start, end = map(int, numbers)
                self._extents[part][number].append((start, end))
            else:
                self.others.append(name)
        for by_slice in self._extents.values():
            for extents in by_slice.values():
                extents.sort()
        self._lead = next(iter(parts))
        self._known = {number: extents[-1][1] for number, extents in self._extents[self._lead].items()}

    def numbers(self, first: int, last: int) -> list[int]:
        """The slices that may hold rows of these times, both included; the earliest first."""
        low, high = first // self.width, last // self.width
        return sorted(number for number in self._extents[self._lead] if low <= number <= high)

    def known(self, number: int) -> int:
        """How many rows of the slice were there before this step."""
        return self._known.get(number, 0)

    def append(self, rows: pa.Table, times: Indices) -> None:
        for number, piece in _split(rows, times // self.width):
            place = self._extents[self._lead][number]
            start = place[-1][1] if place else 0
            for part, columns in self.parts.items():
                self._append(part, number, start, piece.select(list(columns)))

    def read(self, part: str, number: int) -> pa.Table:
        """All rows of a slice, the earliest to arrive first."""
        tables = [self._read(_name(part, number, *extent)) for extent in self._extents[part][number]]
        return tables[0] if len(tables) == 1 else pa.concat_tables(tables)

    def forget(self, part: str, until: int) -> None:
        """Remove a part of all slices that have no time at or after `until`."""
        by_slice = self._extents[part]
        for number in [number for number in by_slice if (number + 1) * self.width <= until]:
            for extent in by_slice.pop(number):
                self.chunks.delete(_name(part, number, *extent))

    def _append(self, part: str, number: int, start: int, rows: pa.Table) -> None:
        extents = self._extents[part][number]
        end = start + rows.num_rows
        joined = [rows]
        while extents and extents[-1][1] - extents[-1][0] <= 2 * (end - start):
            start, before = extents.pop()
            name = _name(part, number, start, before)
            joined.insert(0, self._read(name))
            self.chunks.delete(name)
        extents.append((start, end))
        name = _name(part, number, start, end)
        table = pa.concat_tables(joined).combine_chunks()
        self._tables[name] = table
        self.chunks.write(name, table)

    def _read(self, name: str) -> pa.Table:
        table = self._tables.get(name)
        if table is None:
            table = self.chunks.read(name)
            self._tables[name] = table
        return table


def _name(part: str, number: int, start: int, end: int) -> str:
    return f"{part}/{number}/{start}/{end}"


def _split(rows: pa.Table, numbers: Indices) -> Iterator[tuple[int, pa.Table]]:
    if not len(numbers):
        return
    if numbers.min() == numbers.max():
        yield int(numbers[0]), rows
        return
    order = np.argsort(numbers, kind="stable")
    in_order, sorted_rows = numbers[order], rows.take(pa.array(order))
    starts = np.flatnonzero(np.diff(in_order, prepend=in_order[0] - 1))
    for start, end in zip(starts, [*starts[1:], len(order)], strict=True):
        yield int(in_order[start]), sorted_rows.slice(start, end - start)
