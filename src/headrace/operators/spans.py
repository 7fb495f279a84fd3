"""State of rows with a start and an end: divided by their ends, so that a step reads only what it needs."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.operators.chunks import Chunks
from headrace.operators.grouping import Indices, array_of
from headrace.operators.windowing import START

__all__ = ["END", "Part", "Spans", "ends_of"]

END = "end"
"""In state: where a session ends, in microseconds, itself outside."""


@dataclass(frozen=True, slots=True)
class Part:
    """A chunk, with the times that say whether a step needs it."""

    prefix: str
    number: int
    first_start: int
    first_end: int
    last_end: int

    def __str__(self) -> str:
        return f"{self.prefix}/{self.number}/{self.first_start}/{self.first_end}/{self.last_end}"

    @classmethod
    def named(cls, name: str) -> "Part":
        prefix, *numbers = name.split("/")
        return cls(prefix, *map(int, numbers))

    def meets(self, times: Indices, reach: int = 0) -> bool:
        """Whether one of the sorted times may be in a row's span, or less than `reach` before it."""
        nearest = np.searchsorted(times, self.first_start - reach, side="right" if reach else "left")
        return bool(nearest < len(times) and times[nearest] < self.last_end)


@dataclass(slots=True)
class Spans:
    """Rows with a start and an end. A step reads some parts, once, and then says which of their rows stay."""

    chunks: Chunks
    prefix: str
    schema: pa.Schema
    width: int
    """Rows whose ends are about this near to each other are kept together."""
    parts: list[Part] = field(default_factory=list)
    _read: list[tuple[Part, pa.Table]] = field(default_factory=list)

    def __post_init__(self) -> None:
        names = [name for name in self.chunks.names() if name.startswith(f"{self.prefix}/")]
        self.parts = sorted((Part.named(name) for name in names), key=lambda part: part.number)

    def read(self, concerns: Callable[[Part], bool]) -> pa.Table:
        for part in filter(concerns, self.parts):
            table = self.chunks.read(str(part))
            assert table is not None, f"chunk {part} was listed and is not there"
            self._read.append((part, table))
        return pa.concat_tables([self.schema.empty_table(), *(table for _, table in self._read)]).combine_chunks()

    def write(self, stays: Any, changed: pa.Table) -> None:
        """Keep the rows of what was read that stay, and add others; a part that loses none is not rewritten,

        unless it is not much larger than what is added beside it: so parts stay few.
        """
        lots: dict[int, list[pa.Table]] = {}
        places = self._places(ends_of(changed))
        for place in np.unique(places).tolist():
            lots[place] = [changed.filter(pa.array(places == place))]
        begin = 0
        whole: list[tuple[Part, pa.Table]] = []
        for part, table in self._read:
            mine = stays[begin : begin + len(table)]
            begin += len(table)
            if mine.all():
                whole.append((part, table))
            else:
                lots.setdefault(self._place(part), []).append(table.filter(pa.array(mine)))
                self.chunks.delete(str(part))
        for part, table in sorted(whole, key=lambda one: one[1].nbytes):
            lot = lots.get(self._place(part))
            if lot is not None and table.nbytes < 2 * sum(other.nbytes for other in lot):
                lot.append(table)
                self.chunks.delete(str(part))
        number = max((part.number for part in self.parts), default=-1)
        for lot in lots.values():
            table = pa.concat_tables(lot).combine_chunks()
            if len(table):
                number += 1
                starts, ends = array_of(table.column(START)).to_numpy(), ends_of(table)
                part = Part(self.prefix, number, int(starts.min()), int(ends.min()), int(ends.max()))
                self.chunks.write(str(part), table)

    def _places(self, ends: Indices) -> Indices:
        return ends // max(1, self.width)

    def _place(self, part: Part) -> int:
        return part.first_end // max(1, self.width)


def ends_of(rows: pa.Table) -> Indices:
    ends: Indices = array_of(rows.column(END)).to_numpy()
    return ends
