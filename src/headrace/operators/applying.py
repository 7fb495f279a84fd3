"""`.apply`: a user's function over the rows of all windows that close in a batch."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import EngineError, InputError
from headrace.operators.chunks import Chunks
from headrace.operators.event_sessions import EventSessions
from headrace.operators.grouping import array_of
from headrace.operators.operator import FAILED, LATE, RESULTS, Output, Step
from headrace.operators.sessions import Sessions
from headrace.operators.slices import Slices
from headrace.operators.windowing import WINDOW_END, WINDOW_START
from headrace.topology import Aggregate, AggregateKind, Emit, Late
from headrace.topology.place import raised_at

__all__ = ["Applying", "Closing", "reason_of"]

ROW, ROWS = "_row", "_rows"

Closing: TypeAlias = Slices | Sessions | EventSessions
"""The windows that close: those of which all rows are known at once."""


@dataclass(frozen=True, kw_only=True)
class Applying:
    """A window whose rows are collected, and passed to the function when it closes.

    The function takes one table: the `by` columns, `window_start`, `window_end`, then the other columns of the rows,
    those of a window in the order of time. It is an Arrow table, or a polars one if the function's parameter says so.
    """

    window: Closing
    """Without aggregates, and over the rows as they come."""
    function: Callable[[Any], Any]
    result: pa.Schema
    """The columns that the function returns."""
    diverts: bool = False
    """Whether the rows of windows on which the function raises come out as failed, and the others as results."""

    def __post_init__(self) -> None:
        window = self.window
        if window.late is Late.CORRECT or window.emit is Emit.CHANGES:
            asked = 'late="correct"' if window.late is Late.CORRECT else 'emit="changes"'
            raise InputError(
                f"apply() does not support {asked}: it is unknown which of the function's rows replace which",
                next_step='write late="divert" and emit="final", or use agg()',
            )
        for name in (WINDOW_START, WINDOW_END):
            if name in window.input.names:
                raise InputError(
                    f"apply(): the rows have a column {name!r}, which is a column that the window adds",
                    next_step="rename the column before the window",
                )

    @property
    def version(self) -> int:
        return self.window.version

    @property
    def waits(self) -> bool:
        return self.window.waits

    @property
    def inputs(self) -> Mapping[str, pa.Schema]:
        return self.window.inputs

    @property
    def outputs(self) -> Mapping[str, pa.Schema]:
        failed = {FAILED: self._failed} if self.diverts else {}
        return {**self.window.outputs, RESULTS: self.result, **failed}

    @cached_property
    def _failed(self) -> pa.Schema:
        row = pa.struct(list(self.window.carried))
        return pa.schema([("row", row), ("reason", pa.string()), ("error", pa.string())])

    @cached_property
    def _rest(self) -> pa.Schema:
        """The columns of a row that are not those of its window."""
        return pa.schema([column for column in self.window.carried if column.name not in self.window.by])

    @cached_property
    def _collecting(self) -> Closing:
        whole = pa.schema([*self.window.input, pa.field(ROW, pa.struct(list(self._rest)))])
        return replace(self.window, input=whole, aggregates=((ROWS, Aggregate(AggregateKind.COLLECT, ROW)),))

    def step(self, chunks: Chunks, step: Step) -> Output:
        rows = self.window.rows_of(step.rows.get(RESULTS))
        columns = [array_of(rows.column(name)) for name in self._rest.names]
        whole = pa.StructArray.from_arrays(columns, fields=list(self._rest))
        collecting = self._collecting
        given = pa.Table.from_arrays([*rows.columns, whole], schema=collecting.input)
        output = collecting.step(chunks, replace(step, rows={RESULTS: given}))
        tables = dict(output.tables)
        if LATE in tables:
            tables[LATE] = tables[LATE].select(self.window.carried.names)
        if RESULTS in tables:
            tables |= self._divided(tables[RESULTS]) if self.diverts else {RESULTS: self._called(tables[RESULTS])}
        return replace(output, tables={name: table for name, table in tables.items() if len(table)})

    def _called(self, windows: pa.Table) -> pa.Table:
        return self._applied(self._unfolded(windows))

    def _divided(self, windows: pa.Table) -> dict[str, pa.Table]:
        """What the function gives for all windows; if it raises, for each alone, and the rows on which it raises."""
        try:
            return {RESULTS: self._called(windows)}
        except Exception:
            pass  # it raises again below, on the windows that are the cause
        results, failed = [self.result.empty_table()], [self._failed.empty_table()]
        for index in range(len(windows)):
            window = windows.slice(index, 1)
            try:
                results.append(self._called(window))
            except Exception as error:
                failed.append(self._failure(self._unfolded(window), error))
        return {RESULTS: pa.concat_tables(results), FAILED: pa.concat_tables(failed)}

    def _failure(self, rows: pa.Table, error: Exception) -> pa.Table:
        place, raised = raised_at(error)
        carried = self.window.carried
        columns = [array_of(rows.column(name)) for name in carried.names]
        return pa.Table.from_arrays(
            [
                pa.StructArray.from_arrays(columns, fields=list(carried)),
                *(pa.array([text] * len(rows), pa.string()) for text in (reason_of(place), raised)),
            ],
            schema=self._failed,
        )

    def _unfolded(self, windows: pa.Table) -> pa.Table:
        """One row for each row of each window."""
        collected = array_of(windows.column(ROWS))
        lengths = pc.list_value_length(collected).to_numpy()
        owners = pa.array(np.repeat(np.arange(len(windows)), lengths))
        places = windows.select([*self.window.by, WINDOW_START, WINDOW_END]).take(owners)
        names = [*places.column_names, *self._rest.names]
        return pa.Table.from_arrays([*places.columns, *collected.flatten().flatten()], names)

    def _applied(self, rows: pa.Table) -> pa.Table:
        name = getattr(self.function, "__name__", "the function")
        made = self.function(pl.from_arrow(rows) if _takes_polars(self.function) else rows)
        if isinstance(made, pl.DataFrame):
            made = made.to_arrow()
        if not isinstance(made, pa.Table):
            raise EngineError(
                f"apply(): {name} returned {type(made).__name__}",
                next_step="return an Arrow table or a polars DataFrame",
            )
        if sorted(made.column_names) != sorted(self.result.names):
            raise EngineError(
                f"apply(): {name} returned the columns {', '.join(made.column_names)}, and its schema has "
                f"{', '.join(self.result.names)}",
                next_step="return the columns of the schema, or change schema=",
            )
        columns = []
        for column in self.result:
            given, wanted = made.column(column.name), column.type
            try:
                columns.append(given.cast(wanted))
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as problem:
                raise EngineError(
                    f"apply(): {name} returned {column.name!r} as {given.type}, not {wanted}: {problem}",
                    next_step="cast it in the function, or change schema=",
                ) from None
        return pa.Table.from_arrays(columns, schema=self.result)


def reason_of(place: str | None) -> str:
    """Why a row is among the failed."""
    return "the function raised" if place is None else f"the function raised at {place}"


def _takes_polars(function: Callable[[Any], Any]) -> bool:
    """Whether its first parameter is annotated as a polars DataFrame; an annotation can be text."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return False
    said = parameters[0].annotation if parameters else None
    return said is pl.DataFrame or (isinstance(said, str) and said.split(".")[-1] == pl.DataFrame.__name__)
