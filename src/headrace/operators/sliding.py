"""Sliding windows: for each event, the span of its key that precedes it, itself and its peers included.

The window of an event at t has the rows in (t - size, t]. With `emit="final"` its row is written once the watermark has
passed it; with "changes" in the step in which it arrives, and again whenever a row is added to its window later. A row
is late if its time is before the watermark of the batch before, minus `until`; a row without a time is late as well.

The state is the rows by slices of time: the columns that windows need (`seen`), as long as a window can contain them;
the other columns (`rest`) as long as the event's row can be written; and how often a row was written again (`revised`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.operators.chunks import Chunks
from headrace.operators.grouping import Indices
from headrace.operators.history import History
from headrace.operators.keys import Mask, numbered
from headrace.operators.operator import RESULTS, Output, Step
from headrace.operators.ranges import Line, Ranges
from headrace.operators.windowing import Windowing, timestamps
from headrace.topology import Emit

__all__ = ["SlidingWindows"]

SEEN, REST, REVISED = "seen", "rest", "revised"


@dataclass(frozen=True, kw_only=True)
class SlidingWindows(Windowing):
    """One row for each event: its own columns, its window, and the aggregates."""

    size_us: int

    @cached_property
    def outputs(self) -> Mapping[str, pa.Schema]:
        windows: Mapping[str, pa.Schema] = super().outputs
        return {**windows, RESULTS: pa.schema([*self.input, *list(windows[RESULTS])[len(self.by) :]])}

    def step(self, chunks: Chunks, step: Step) -> Output:
        history = History(chunks, self._width(), self._parts())
        rows = self.rows_of(step.rows.get(RESULTS))
        times, known = self.times_of(rows)
        on_time = known & (times >= step.fired - self.until_us)
        late = rows.filter(pa.array(~on_time))
        if len(late):
            rows, times = rows.filter(pa.array(on_time)), times[on_time]
        history.append(rows, times)
        answers = self._answers(history, step, times)
        self._forget(history, step.watermark)
        return self.answer([] if answers is None else [answers], late)

    def _answers(self, history: History, step: Step, arrived: Indices) -> pa.Table | None:
        due = self._due(history, step, arrived)
        if not len(due):
            return None
        # The rows of later events are written again if a new row is in their windows.
        last = int(due.max()) + (self.size_us if self.revises else 0)
        seen = self._seen(history, int(due.min()) - self.size_us, last)
        if self.emit is Emit.CHANGES:
            asked, answered = seen.new, ~seen.new
        else:
            answered = ~seen.new & (seen.times < step.fired)
            asked = ~answered & (seen.times < step.watermark)
        line = Line.of(numbered([seen.table.column(name) for name in self.by], asked), seen.times, self.size_us)
        asked, answered, new = asked[line.order], answered[line.order], seen.new[line.order]
        events = np.flatnonzero(asked | answered if self.revises and len(arrived) else asked)
        spans = line.spans(events)
        if self.revises:
            altered = asked[events] | (spans.among(new) > 0)
            events, spans = events[altered], spans.where(altered)
        answers = self._rows(history, seen, line.order[events])
        figures = self._aggregated(seen.table, spans)
        if not self.revises:
            return pa.table([*answers, *figures.columns], self.outputs[RESULTS])
        again = answered[events]
        before = self._aggregated(seen.table, spans.where(again).only(~new))
        return pa.table(
            [
                *answers,
                *figures.columns,
                self._revisions(history, seen, line.order[events], again),
                pa.array(np.zeros(len(events), np.bool_)),
                self.figured(seen.times[line.order[events[again]]], before).take(_places(again)),
            ],
            self.outputs[RESULTS],
        )

    def _seen(self, history: History, first: int, last: int) -> "_Seen":
        numbers = history.numbers(first, last)
        tables = [history.read(SEEN, number) for number in numbers]
        new = [np.arange(len(rows)) >= history.known(number) for number, rows in zip(numbers, tables, strict=True)]
        starts = np.cumsum([0, *map(len, tables)])
        table = pa.concat_tables(tables).combine_chunks()
        return _Seen(numbers, starts, table, self.times_of(table)[0], np.concatenate(new))

    def _due(self, history: History, step: Step, arrived: Indices) -> Indices:
        """The times of the events whose rows are written for the first time."""
        if self.emit is Emit.CHANGES:
            return arrived
        pending = [
            times[times >= step.fired]
            for number in history.numbers(step.fired, step.watermark - 1)
            for times in [self.times_of(history.read(SEEN, number))[0]]
        ]
        due = np.concatenate([*pending, arrived])
        return due[due < step.watermark]

    def _rows(self, history: History, seen: "_Seen", rows: Indices) -> list[pa.ChunkedArray]:
        """The events' own columns, and the two ends of their windows."""
        parts = {SEEN: seen.table.select(self._parts()[SEEN]).take(pa.array(rows))}
        if REST in self._parts():
            which = np.searchsorted(seen.starts, rows, side="right") - 1
            used, ordinals = np.unique(which, return_inverse=True)
            rest = [history.read(REST, seen.numbers[place]) for place in used]
            starts = np.cumsum([0, *(table.num_rows for table in rest)])[:-1]
            places = starts[ordinals] + rows - seen.starts[which]
            parts[REST] = pa.concat_tables(rest).combine_chunks().take(pa.array(places))
        owner = {column: part for part, columns in self._parts().items() for column in columns}
        times = seen.times[rows]
        return [
            *(parts[owner[name]][name] for name in self.input.names),
            timestamps(times - self.size_us),
            timestamps(times),
        ]

    def _aggregated(self, table: pa.Table, spans: Ranges) -> pa.Table:
        columns = [spans.aggregate(table, name, aggregate) for name, aggregate in self.aggregates]
        return pa.Table.from_arrays(columns, schema=self.folding.results)

    def _revisions(self, history: History, seen: "_Seen", rows: Indices, again: Mask) -> pa.Array:
        revisions = np.zeros(len(rows), np.int32)
        which = np.searchsorted(seen.starts, rows, side="right") - 1
        for place in np.unique(which[again]):
            here = np.flatnonzero(again & (which == place))
            start = seen.starts[place]
            name = f"{REVISED}/{seen.numbers[place]}"
            counts = np.zeros(int(seen.starts[place + 1] - start), np.int32)
            known = history.chunks.read(name)
            if known is not None:
                counts[known["row"].to_numpy()] = known["revision"].to_numpy()
            counts[rows[here] - start] += 1
            revisions[here] = counts[rows[here] - start]
            revised = np.flatnonzero(counts)
            history.chunks.write(name, pa.table({"row": revised, "revision": counts[revised]}))
        return pa.array(revisions)

    def _forget(self, history: History, watermark: int) -> None:
        open_from = watermark - self.until_us
        history.forget(SEEN, open_from - self.size_us + 1)
        if REST in self._parts():
            history.forget(REST, open_from)
        for name in history.others:
            number = int(name.removeprefix(f"{REVISED}/"))
            if (number + 1) * history.width <= open_from:
                history.chunks.delete(name)

    def _parts(self) -> dict[str, list[str]]:
        needed = {*self.by, self.time, *(one.column for _, one in self.aggregates)}
        parts = {SEEN: [name for name in self.input.names if name in needed]}
        rest = [name for name in self.input.names if name not in needed]
        return parts | ({REST: rest} if rest else {})

    def _width(self) -> int:
        """Fine enough to read little beyond a window, and few enough to be listed in each step."""
        return max(-(-self.size_us // 8), -(-self.until_us // 256), 1)


@dataclass(frozen=True, slots=True)
class _Seen:
    """The rows of some slices, one slice after the other, in the order of arrival."""

    numbers: list[int]
    starts: Indices
    """Where each slice starts, and where the last one ends."""
    table: pa.Table
    times: Indices
    new: Mask
    """Whether a row arrived in this step."""


def _places(present: Mask) -> Any:
    """Where each row is found among those that are present: null for the others."""
    return pa.array(np.cumsum(present) - 1, mask=~present)
