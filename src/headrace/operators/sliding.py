"""Sliding windows: for each event, the span of its key that precedes it, itself and its peers included.

An event at t sees the rows in (t - size, t]. With `emit="final"` it is answered once the watermark has passed it; with
"changes" in the step in which it comes, and again whenever a row comes into its window later. A row is late if its
time lies before the watermark that the bucket acted on last, less the horizon of corrections; a row without a time can
be in no window and is late as well.

The state is the rows by slices of time: what the windows need (`seen`), for as long as a window can reach them; the
rest of their columns (`rest`) until the event can be answered no more; and how often an event was answered again
(`revised`), for those that were.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headrace.operators.chunks import Chunks
from headrace.operators.history import History
from headrace.operators.keys import Ints, Mask, numbered, times_of
from headrace.operators.operator import LATE, RESULTS, Output, Step
from headrace.operators.ranges import Line, Ranges, result_type
from headrace.topology import Aggregate, Emit, Late

__all__ = ["SlidingWindows"]

SEEN, REST, REVISED = "seen", "rest", "revised"
END = 2**62
MOMENT = pa.timestamp("us", "UTC")


@dataclass(frozen=True, slots=True)
class SlidingWindows:
    by: tuple[str, ...]
    time: str
    size_us: int
    aggregates: tuple[tuple[str, Aggregate], ...]
    late: Late
    until_us: int
    emit: Emit
    input: pa.Schema

    @property
    def version(self) -> int:
        return 1

    @property
    def inputs(self) -> Mapping[str, pa.Schema]:
        return {RESULTS: self.input}

    @property
    def outputs(self) -> Mapping[str, pa.Schema]:
        fields = [*self.input, pa.field("window_start", MOMENT), pa.field("window_end", MOMENT), *self._figures()]
        if self._revises():
            before = pa.struct([pa.field("window_end", MOMENT), *self._figures()])
            fields += [pa.field("revision", pa.int32()), pa.field("_deleted", pa.bool_()), pa.field("_before", before)]
        return {RESULTS: pa.schema(fields)} | ({} if self.late is Late.DROP else {LATE: self.input})

    def step(self, chunks: Chunks, step: Step) -> Output:
        history = History(chunks, self._width(), self._parts())
        tables, late = {}, 0
        rows, times = step.rows.get(RESULTS), np.zeros(0, np.int64)
        if rows is not None and rows.num_rows:
            times, present = times_of(rows, self.time)
            on_time = present & (times >= step.fired - self.until_us)
            late = rows.num_rows - int(on_time.sum())
            if late:
                tables[LATE] = rows.filter(pa.array(~on_time))
                rows, times = rows.filter(pa.array(on_time)), times[on_time]
            history.append(rows, times)
        tables[RESULTS] = self._answers(history, step, times)
        self._forget(history, step.watermark)
        shown = {name: tables[name] for name in self.outputs if tables.get(name)}
        return Output(shown, self._wake(history, step.watermark), late)

    def _answers(self, history: History, step: Step, arrived: Ints) -> pa.Table | None:
        due = self._due(history, step, arrived)
        if not len(due):
            return None
        # Rows that came into the windows of later events are what those are answered again for.
        last = int(due.max()) + (self.size_us if self._revises() else 0)
        seen = _Seen.read(history, int(due.min()) - self.size_us, last, self.time)
        if self.emit is Emit.CHANGES:
            asked, answered = seen.new, ~seen.new
        else:
            answered = ~seen.new & (seen.times < step.fired)
            asked = ~answered & (seen.times < step.watermark)
        line = Line.of(numbered(seen.table, self.by, asked), seen.times, self.size_us)
        asked, answered, new = asked[line.order], answered[line.order], seen.new[line.order]
        events = np.flatnonzero(asked | answered if self._revises() and len(arrived) else asked)
        spans = line.spans(events)
        if self._revises():
            altered = asked[events] | (spans.among(new) > 0)
            events, spans = events[altered], spans.where(altered)
        answers = self._rows(history, seen, line.order[events])
        figures = self._aggregated(seen.table, spans)
        if not self._revises():
            return pa.table([*answers, *figures], self.outputs[RESULTS])
        again = answered[events]
        before = self._aggregated(seen.table, spans.where(again).only(~new))
        ends = answers[-1].filter(pa.array(again))
        return pa.table(
            [
                *answers,
                *figures,
                self._revisions(history, seen, line.order[events], again),
                pa.array(np.zeros(len(events), np.bool_)),
                _spread([ends, *before], again, self.outputs[RESULTS].field("_before").type),
            ],
            self.outputs[RESULTS],
        )

    def _due(self, history: History, step: Step, arrived: Ints) -> Ints:
        """The times of the events that are to be answered for the first time."""
        if self.emit is Emit.CHANGES:
            return arrived
        pending = [
            times[times >= step.fired]
            for number in history.numbers(step.fired, step.watermark - 1)
            for times in [times_of(history.read(SEEN, number), self.time)[0]]
        ]
        due = np.concatenate([*pending, arrived])
        return due[due < step.watermark]

    def _rows(self, history: History, seen: "_Seen", rows: Ints) -> list[pa.ChunkedArray]:
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
            _moments(times - self.size_us),
            _moments(times),
        ]

    def _aggregated(self, table: pa.Table, spans: Ranges) -> list[pa.Array]:
        return [
            spans.aggregate(table, aggregate).cast(figure.type)
            for (_, aggregate), figure in zip(self.aggregates, self._figures(), strict=True)
        ]

    def _revisions(self, history: History, seen: "_Seen", rows: Ints, again: Mask) -> pa.Array:
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

    def _wake(self, history: History, watermark: int) -> int | None:
        if self.emit is Emit.CHANGES:
            return None
        for number in history.numbers(watermark, END):
            times = times_of(history.read(SEEN, number), self.time)[0]
            times = times[times >= watermark]
            if len(times):
                return int(times.min()) + 1
        return None

    def _revises(self) -> bool:
        return self.emit is Emit.CHANGES or self.late is Late.CORRECT

    def _figures(self) -> list[pa.Field]:
        return [
            pa.field(
                name, pa.int64() if one.column is None else result_type(one.kind, self.input.field(one.column).type)
            )
            for name, one in self.aggregates
        ]

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
    starts: Ints
    """Where each slice starts, and where the last one ends."""
    table: pa.Table
    times: Ints
    new: Mask
    """Whether a row came in this step."""

    @classmethod
    def read(cls, history: History, first: int, last: int, time: str) -> "_Seen":
        numbers = history.numbers(first, last)
        tables = [history.read(SEEN, number) for number in numbers]
        new = [
            np.arange(table.num_rows) >= history.known(number) for number, table in zip(numbers, tables, strict=True)
        ]
        starts = np.cumsum([0, *(table.num_rows for table in tables)])
        table = pa.concat_tables(tables).combine_chunks()
        return cls(numbers, starts, table, times_of(table, time)[0], np.concatenate(new))


def _moments(times: Ints) -> pa.Array:
    return pa.array(times).cast(MOMENT)


def _spread(columns: list[pa.Array], present: Mask, kind: pa.DataType) -> pa.Array:
    """Rows of a struct put where they belong, null elsewhere."""
    structs = pa.StructArray.from_arrays(columns, fields=list(kind))
    return structs.take(pa.array(np.cumsum(present) - 1, mask=~present))
