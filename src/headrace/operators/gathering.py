"""Fan-in: the parts of one event from several inputs as one row, once all have arrived or the wait has ended.

Parts with the same key belong together; null is a key like any other. A row is written in the step that completes it,
at the latest when the watermark reaches the time of its earliest part plus `within`; then it says which parts are
missing. Of a part that arrives twice before that, the last to arrive counts. A part is late if it arrives after its row
was written (which is remembered as long as a part can arrive that is not too old), or if the watermark of the batch
before has reached its time plus `within`, or if it has no time.

The state is a log of rows by key, of which the last one of a key is valid.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.operators.chunks import Chunks
from headrace.operators.grouping import Indices, array_of, lists_of
from headrace.operators.history import END
from headrace.operators.keys import Mask, last_rows, numbered, times_of
from headrace.operators.log import Log
from headrace.operators.operator import RESULTS, Output, Step
from headrace.operators.windowing import TIME, timestamps

__all__ = ["GATHERED_AT", "MISSING", "Gather"]

GATHERED_AT, MISSING = "gathered_at", "missing"
"""The event time of a row: that of its latest part, or the end of the wait; and the names of the missing parts."""
START, LATEST, ENDED = "start", "latest", "ended"


@dataclass(frozen=True, kw_only=True)
class Gather:
    """In the results a part is one column, named as its input: a struct of its columns but those of the key."""

    parts: tuple[tuple[str, pa.Schema], ...]
    times: tuple[str, ...]
    """The column of the event time in each part."""
    on: tuple[str, ...]
    within_us: int

    @property
    def version(self) -> int:
        return 1

    @property
    def waits(self) -> bool:
        return True

    @property
    def inputs(self) -> Mapping[str, pa.Schema]:
        return dict(self.parts)

    @cached_property
    def outputs(self) -> Mapping[str, pa.Schema]:
        parts = [pa.field(name, kind) for (name, _), kind in zip(self.parts, self._structs, strict=True)]
        missing = pa.field(MISSING, pa.list_(pa.string()))
        return {RESULTS: pa.schema([*self._keys, pa.field(GATHERED_AT, TIME), *parts, missing])}

    def step(self, chunks: Chunks, step: Step) -> Output:
        log = Log(chunks, "gathered", lambda rows, whole: self._needed(rows, whole, step.fired))
        known = pa.concat_tables([self._state.empty_table(), *log.read()]).combine_chunks()
        came = [_Part.on_time(step, name, schema, time, self) for (name, schema), time in self._named_times()]
        results, changed, after_the_end = self._gathered(known, came, step)
        if len(changed):
            log.add(changed)
        late = sum(part.late for part in came) + after_the_end
        return Output({RESULTS: results} if len(results) else {}, late)

    def _gathered(self, known: pa.Table, came: "list[_Part]", step: Step) -> tuple[pa.Table, pa.Table, int]:
        """The rows to write, the new state, and how many parts arrived after their row was written."""
        keys = [
            pa.chunked_array([array_of(known.column(place)), *(part.keys[place] for part in came)])
            for place in range(len(self.on))
        ]
        starts = known.column(START).to_numpy()
        waiting = ~known.column(ENDED).to_numpy()
        is_due = waiting & (starts + self.within_us <= step.watermark)
        codes = numbered(keys, np.concatenate([is_due, *(np.ones(len(part.times), np.bool_) for part in came)]))
        held = _padded(last_rows(codes[: len(known)]), codes)
        is_open = _of(held, waiting)
        closed = _of(held, ~waiting & (starts + 2 * self.within_us > step.fired))

        start, latest = np.full(len(held), END), np.full(len(held), -END)
        start[is_open], latest[is_open] = starts[held[is_open]], known.column(LATEST).to_numpy()[held[is_open]]
        offset, after_the_end, there, taken = len(known), 0, [], []
        touched = np.zeros(len(held), np.bool_)
        for place, part in enumerate(came):
            mine = codes[offset : offset + len(part.times)]
            offset += len(part.times)
            counted = ~closed[mine]
            after_the_end += int((~counted).sum())
            np.minimum.at(start, mine[counted], part.times[counted])
            np.maximum.at(latest, mine[counted], part.times[counted])
            new = _padded(last_rows(np.where(counted, mine, -1)), codes)
            touched |= new >= 0
            before = array_of(known.column(len(self.on) + place))
            old = is_open & _of(held, before.is_valid().to_numpy(zero_copy_only=False))
            there.append((new >= 0) | old)
            taken.append((pa.chunked_array([before, part.values]), np.where(new >= 0, len(known) + new, held)))
        whole = np.logical_and.reduce(there)
        out = (is_open | touched) & (whole | (start + self.within_us <= step.watermark))
        changed = touched | out

        def shown(codes_shown: Mask, present: Mask) -> tuple[list[Any], list[Any]]:
            rows = pa.array(last_rows(codes)[codes_shown])
            values = [
                column.take(pa.array(index[codes_shown], mask=~(has & present)[codes_shown]))
                for has, (column, index) in zip(there, taken, strict=True)
            ]
            return [key.take(rows) for key in keys], values

        names, parts = shown(out, out)
        at = timestamps(np.where(whole, latest, start + self.within_us)[out])
        lacking = self._missing(np.column_stack(there)[out])
        results = pa.table([*names, at, *parts, lacking], self.outputs[RESULTS])
        names, parts = shown(changed, ~out)
        marks = [pa.array(column[changed]) for column in (start, latest, out)]
        return results, pa.table([*names, *parts, *marks], self._state), after_the_end

    def _missing(self, there: Any) -> Any:
        names = pa.array([name for name, _ in self.parts])
        return lists_of(names.take(pa.array(np.nonzero(~there)[1])), (~there).sum(axis=1))

    def _needed(self, rows: pa.Table, whole: bool, fired: int) -> pa.Table:
        """The last row of each key, unless it was written so long ago that all its parts would be too old."""
        keys = [rows.column(place) for place in range(len(self.on))]
        last = last_rows(numbered(keys, np.ones(len(rows), np.bool_)))
        if whole:
            over = rows.column(ENDED).to_numpy() & (rows.column(START).to_numpy() + 2 * self.within_us <= fired)
            last = last[~over[last]]
        return rows.take(pa.array(np.sort(last))).combine_chunks()

    def _named_times(self) -> list[tuple[tuple[str, pa.Schema], str]]:
        return list(zip(self.parts, self.times, strict=True))

    @cached_property
    def _keys(self) -> list[pa.Field]:
        return [self.parts[0][1].field(name) for name in self.on]

    @cached_property
    def _structs(self) -> list[pa.DataType]:
        return [pa.struct([one for one in schema if one.name not in self.on]) for _, schema in self.parts]

    @cached_property
    def _state(self) -> pa.Schema:
        keys = [pa.field(f"on.{place}", key.type) for place, key in enumerate(self._keys)]
        parts = [pa.field(f"part.{place}", kind) for place, kind in enumerate(self._structs)]
        marks = [pa.field(START, pa.int64()), pa.field(LATEST, pa.int64()), pa.field(ENDED, pa.bool_())]
        return pa.schema([*keys, *parts, *marks])


@dataclass(frozen=True, slots=True)
class _Part:
    """The rows of one input that are not too old, and how many are."""

    keys: list[Any]
    values: Any
    times: Indices
    late: int

    @classmethod
    def on_time(cls, step: Step, name: str, schema: pa.Schema, time: str, gather: Gather) -> "_Part":
        rows = step.rows.get(name, schema.empty_table()).combine_chunks()
        times, known = times_of(rows.column(time))
        taken = known & (times + gather.within_us > step.fired)
        rows = rows.filter(pa.array(taken)).combine_chunks()
        keys = [array_of(rows.column(key)).cast(field.type) for key, field in zip(gather.on, gather._keys, strict=True)]
        kind = gather._structs[[part for part, _ in gather.parts].index(name)]
        columns = [array_of(rows.column(field.name)) for field in kind]
        values = pa.StructArray.from_arrays(columns, fields=list(kind)) if columns else _empty_structs(len(rows))
        return cls(keys, values, times[taken], int((~taken).sum()))


def _of(rows: Indices, values: Mask) -> Mask:
    """The values of rows, false where there is no row."""
    found = rows >= 0
    found[found] = values[rows[found]]
    return found


def _padded(rows: Indices, codes: Indices) -> Indices:
    """As many rows as there are codes, -1 for those at the end that have none."""
    return np.pad(rows, (0, int(codes.max(initial=-1)) + 1 - len(rows)), constant_values=-1)


def _empty_structs(rows: int) -> Any:
    return pa.array([{}] * rows, pa.struct([]))
