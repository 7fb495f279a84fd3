"""What all windows with aggregates have in common: their values, their outputs, and rows that are written again."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.operators.aggregates import Aggregates
from headrace.operators.grouping import Indices, array_of, matches
from headrace.operators.keys import times_of
from headrace.operators.operator import LATE, RESULTS, Output
from headrace.topology import Aggregate, Emit, Late
from headrace.topology.names import DELETED

__all__ = ["BEFORE", "REVISION", "START", "TIME", "WINDOW_END", "WINDOW_START", "Windowing", "timestamps"]

WINDOW_START, WINDOW_END = "window_start", "window_end"
REVISION, BEFORE = "revision", "_before"
START = "start"
"""In tables of state and on the way there: where a row's slice, window or session begins, in microseconds."""
TIME = pa.timestamp("us", tz="UTC")


@dataclass(frozen=True, kw_only=True)
class Windowing:
    """The values of a window's operator. Inside, the `by` columns are named by position, and times are int64."""

    by: tuple[str, ...]
    time: str
    aggregates: tuple[tuple[str, Aggregate], ...]
    input: pa.Schema
    late: Late = Late.DROP
    until_us: int = 0
    """How long after its end a window can still be corrected; 0 unless late rows correct."""
    emit: Emit = Emit.FINAL

    @property
    def version(self) -> int:
        return 1

    @property
    def waits(self) -> bool:
        return self.emit is Emit.FINAL

    @property
    def inputs(self) -> Mapping[str, pa.Schema]:
        return {RESULTS: self.input}

    @cached_property
    def outputs(self) -> Mapping[str, pa.Schema]:
        fields = [self.input.field(name) for name in self.by]
        fields += [pa.field(WINDOW_START, TIME), pa.field(WINDOW_END, TIME), *self.folding.results]
        if self.revises:
            fields += [pa.field(REVISION, pa.int32()), pa.field(DELETED, pa.bool_()), pa.field(BEFORE, self.figures)]
        late = {} if self.late is Late.DROP else {LATE: self.carried}
        return {RESULTS: pa.schema(fields), **late}

    @property
    def carried(self) -> pa.Schema:
        """The columns of a late row."""
        return self.input

    @property
    def revises(self) -> bool:
        """Whether a window's row can be written more than once."""
        return self.emit is Emit.CHANGES or self.late is Late.CORRECT

    @cached_property
    def folding(self) -> Aggregates:
        return Aggregates(self.aggregates, self.input)

    @cached_property
    def figures(self) -> pa.DataType:
        """The columns of a window's row beside its key, as one value."""
        return pa.struct([pa.field(WINDOW_END, TIME), *self.folding.results])

    @cached_property
    def keys(self) -> list[str]:
        """The names of the `by` columns in state."""
        return [f"by.{number}" for number in range(len(self.by))]

    @cached_property
    def stored(self) -> pa.Schema:
        """Rows that were written, as they are stored if they can be written again."""
        fields = [pa.field(key, self.input.field(name).type) for key, name in zip(self.keys, self.by, strict=True)]
        return pa.schema([(START, pa.int64()), *fields, (REVISION, pa.int32()), (BEFORE, self.figures)])

    def rows_of(self, table: pa.Table | None) -> pa.Table:
        return self.input.empty_table() if table is None else table.combine_chunks()

    def times_of(self, rows: pa.Table) -> tuple[Indices, Any]:
        """The rows' times, and which rows have one: a row without a time is in no window, so it is late."""
        return times_of(rows.column(self.time))

    def keys_of(self, rows: pa.Table) -> dict[str, Any]:
        return {key: array_of(rows.column(name)) for key, name in zip(self.keys, self.by, strict=True)}

    def columns_of(self, table: pa.Table) -> list[Any]:
        """The columns that identify a window: where it begins, and its `by` columns."""
        return [table.column(name) for name in (START, *self.keys)]

    def answer(self, results: Sequence[pa.Table], late: pa.Table) -> Output:
        schema = self.outputs[RESULTS]
        tables = {RESULTS: pa.concat_tables([schema.empty_table(), *results])}
        if LATE in self.outputs:
            tables[LATE] = late.select(self.carried.names)
        return Output({name: table for name, table in tables.items() if len(table)}, len(late))

    def results(self, windows: pa.Table, ends: Indices, figures: pa.Table) -> pa.Table:
        """Rows that are written once, and have no revision."""
        columns = [*self._places(windows, ends), *figures.columns]
        return pa.Table.from_arrays(columns, schema=self.outputs[RESULTS])

    def figured(self, ends: Indices, figures: pa.Table) -> Any:
        columns = [timestamps(ends), *map(array_of, figures.columns)]
        return pa.StructArray.from_arrays(columns, fields=list(self.figures))

    def revised(self, windows: pa.Table, figures: Any, stored: pa.Table) -> tuple[pa.Table, pa.Table]:
        """Rows that are written, perhaps again: the results, and what to store of them.

        `stored` is what was stored of the same windows, at most one row for each.
        """
        found = matches(self.columns_of(windows), self.columns_of(stored), (len(windows), len(stored)))
        taken = pa.array(found, mask=found < 0)
        revisions = pc.add(array_of(stored.column(REVISION)).take(taken), 1).fill_null(0)
        before = array_of(stored.column(BEFORE)).take(taken)
        remembered = pa.Table.from_arrays([*self.columns_of(windows), revisions, figures], schema=self.stored)
        return self.revisions(remembered, before), remembered

    def revisions(self, stored: pa.Table, before: Any, deleted: bool = False) -> pa.Table:
        """The results of rows as they are stored; deleted rows have only their key and their previous columns."""
        figures = array_of(stored.column(BEFORE))
        ends = figures.field(WINDOW_END).view(pa.int64()).to_numpy(zero_copy_only=False)
        shown = figures.flatten()[1:]
        if deleted:
            shown = [pa.nulls(len(stored), column.type) for column in shown]
        gone = pa.array(np.full(len(stored), deleted))
        columns = [*self._places(stored, ends), *shown, stored.column(REVISION), gone, before]
        return pa.Table.from_arrays(columns, schema=self.outputs[RESULTS])

    def _places(self, windows: pa.Table, ends: Indices) -> list[Any]:
        starts = array_of(windows.column(START)).to_numpy()
        return [*(windows.column(key) for key in self.keys), timestamps(starts), timestamps(ends)]


def timestamps(times: Indices) -> Any:
    return pa.array(times, pa.int64()).view(TIME)
