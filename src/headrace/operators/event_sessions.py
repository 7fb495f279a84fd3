"""Sessions from an event that opens them to one that closes them, or to a timeout.

Whether a row opens, belongs or closes depends on the rows before it. So rows are held until the watermark has passed
them, and processed in the order of time: after that a session only changes if late rows correct it.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.operators.chunks import Chunks
from headrace.operators.grouping import Groups, Indices, array_of, grouped, matches, spread
from headrace.operators.operator import RESULTS, Output, Step
from headrace.operators.parts import Parts
from headrace.operators.spans import END, Spans, ends_of
from headrace.operators.windowing import BEFORE, REVISION, START, Windowing
from headrace.topology import Emit, Late, Since

__all__ = ["CLOSES", "OPENS", "EventSessions"]

OPENS, CLOSES = "_opens", "_closes"
"""The columns of the input that say what a row does to a session."""
AT = "at"
"""In state: the time of a row, or that of the row of a session from which its timeout counts."""


@dataclass(frozen=True, kw_only=True)
class EventSessions(Windowing):
    """A session begins with the time of the row that opens it, and ends a microsecond after the row that closes it, so
    that the row is inside, or with the timeout since its first or last row.

    Another row that opens belongs to the session that is open. A session that is closed at the very time at which it
    began goes on if a row of that time opens again: no two sessions of a key begin at once. Rows outside of any session
    are in none, and not late. With `emit="changes"` a session is written whenever rows are added to it, with the end
    that it has if no more rows arrive.
    """

    timeout_us: int
    since: Since
    slice_us: int = 10_000_000
    """How finely rows are cut that are held: a matter of speed alone."""

    @property
    def waits(self) -> bool:
        return True  # a row is taken when the watermark is behind it, whatever is emitted

    @property
    def carried(self) -> pa.Schema:
        return pa.schema([column for column in self.input if column.name not in (OPENS, CLOSES)])

    @cached_property
    def sessions(self) -> pa.Schema:
        """Sessions that are open."""
        keys = [self.stored.field(name) for name in (START, *self.keys)]
        return pa.schema([*keys, pa.field(END, pa.int64()), *self.folding.partials])

    @cached_property
    def pieces(self) -> pa.Schema:
        """What sessions are made of: rows, or one that was open already and goes on."""
        keys = [self.stored.field(name) for name in (START, *self.keys)]
        flags = [pa.field(AT, pa.int64()), pa.field(OPENS, pa.bool_()), pa.field(CLOSES, pa.bool_())]
        return pa.schema([*keys, *flags, *self.folding.partials])

    def step(self, chunks: Chunks, step: Step) -> Output:
        settled_to, settles_to = step.fired - self.until_us, step.watermark - self.until_us
        fresh, late = self._taken(step, settled_to)
        held = Parts(chunks, "held", lambda rows: rows)
        held.add(fresh)
        opened = Spans(chunks, "open", self.sessions, self.timeout_us // 2)
        late_for_some = fresh.filter(pa.array(_column(fresh, AT) < step.fired))
        passing = self._held(held, step.fired, step.watermark)
        arrivals = np.sort(_column(passing, AT))
        correcting = len(late_for_some) > 0
        known = opened.read(
            lambda part: correcting or part.first_end <= step.watermark or part.meets(arrivals, self.timeout_us)
        )
        corrected = self._of(known, late_for_some)
        passing = passing.filter(pa.array(~self._of(passing, late_for_some)))
        goes_on = ~corrected & (self._of(known, passing) | (ends_of(known) <= step.watermark))
        made, ended = self._made(known.filter(pa.array(goes_on)), passing, step.watermark)
        if self.late is Late.CORRECT:
            settled = Spans(chunks, "settled", self.sessions, self.timeout_us // 2)
            before = settled.read(lambda _: True)
            if correcting:
                rows = self._held(held, settled_to, step.watermark)
                again = before.filter(pa.array(self._of(before, late_for_some)))
                more = self._made(again, rows.filter(pa.array(self._of(rows, late_for_some))), step.watermark)
                made, ended = pa.concat_tables([made, more[0]]), np.concatenate([ended, more[1]])
            self._settle(settled, before, self._held(held, settled_to, settles_to), settles_to)
        opening = made.filter(pa.array(~ended))
        stays = ~(corrected | goes_on)
        opened.write(stays, opening)
        results = self._results(chunks, made, ended, late_for_some, settles_to)
        for start in list(held):
            if start + self.slice_us <= settles_to:
                held.drop(start)
        return self.answer(results, late)

    def _taken(self, step: Step, settled_to: int) -> tuple[pa.Table, pa.Table]:
        """The rows of the step as pieces, and the late rows."""
        rows = self.rows_of(step.rows.get(RESULTS))
        times, known = self.times_of(rows)
        on_time = known & (times >= settled_to)
        late = rows.filter(pa.array(~on_time))
        rows, times = rows.filter(pa.array(on_time)), times[on_time]
        flags = [_flags(rows, OPENS), _flags(rows, CLOSES)]
        columns = [pa.array(times // self.slice_us * self.slice_us), *self.keys_of(rows).values(), pa.array(times)]
        return pa.Table.from_arrays(
            [*columns, *flags, *self.folding.lift(rows, times).columns], schema=self.pieces
        ), late

    def _held(self, held: Parts, begin: int, end: int) -> pa.Table:
        """The rows of [begin, end), those of one time in their order of arrival."""
        slices = sorted(start for start in held if start < end and start + self.slice_us > begin)
        rows = pa.concat_tables([self.pieces.empty_table(), *(part for start in slices for part in held.read(start))])
        times = _column(rows, AT)
        return rows.filter(pa.array((times >= begin) & (times < end))).combine_chunks()

    def _of(self, rows: pa.Table, others: pa.Table) -> Any:
        """Which rows have a key that is among those of the others."""
        if not len(others) or not len(rows):
            return np.zeros(len(rows), dtype=bool)
        columns = [[table.column(key) for key in self.keys] for table in (rows, others)]
        return matches(columns[0], columns[1], (len(rows), len(others))) >= 0

    def _made(self, known: pa.Table, rows: pa.Table, watermark: int) -> tuple[pa.Table, Any]:
        """The sessions out of those that are open and the rows that come next, and which of them have ended."""
        pieces = pa.concat_tables([self._as_pieces(known), rows.set_column(0, self.pieces.field(START), rows[AT])])
        pieces = pieces.combine_chunks()
        if not len(pieces):
            return self.sessions.empty_table(), np.zeros(0, dtype=bool)
        owners = grouped([pieces.column(key) for key in self.keys], len(pieces)).of_rows
        order = np.lexsort((_column(pieces, AT), owners))
        owners, times, starts = owners[order], _column(pieces, AT)[order], _column(pieces, START)[order]
        opening = np.flatnonzero(_column(pieces, OPENS)[order])
        closing = np.flatnonzero(_column(pieces, CLOSES)[order])
        stops = np.minimum(self._timeouts(opening, owners, times, starts), np.searchsorted(owners, owners[opening] + 1))
        settled = opening[_last_of_run(owners[opening], times[opening])]
        closes = np.append(closing, len(order))[np.searchsorted(closing, settled)]
        closed = closes < stops
        stops = np.where(closed, closes + 1, stops)
        begun = _reached(owners[opening], np.searchsorted(opening, stops))
        opening, stops, closed = opening[begun], stops[begun], closed[begun]
        if not len(opening):
            return self.sessions.empty_table(), np.zeros(0, dtype=bool)
        lengths = stops - opening
        groups = Groups(order[spread(opening, lengths)], np.cumsum(lengths) - lengths)
        last = times[stops - 1]
        counted = starts[opening] if self.since is Since.FIRST else last
        ends = np.where(closed, last + 1, counted + self.timeout_us)
        keys = pieces.select([START, *self.keys]).take(pa.array(order[opening]))
        columns = [*keys.columns, pa.array(ends), *self.folding.fold(pieces, groups).columns]
        return pa.Table.from_arrays(columns, schema=self.sessions), closed | (ends <= watermark)

    def _as_pieces(self, known: pa.Table) -> pa.Table:
        starts = _column(known, START)
        at = starts if self.since is Since.FIRST else ends_of(known) - self.timeout_us
        flags = [pa.array(np.full(len(known), flag)) for flag in (True, False)]
        keys = known.select([START, *self.keys]).columns
        partials = known.select(self.folding.partials.names).columns
        return pa.Table.from_arrays([*keys, pa.array(at), *flags, *partials], schema=self.pieces)

    def _timeouts(self, opening: Indices, owners: Indices, times: Indices, starts: Indices) -> Indices:
        """Where, in the rows by key and time, the sessions that would open have timed out; maybe at another key."""
        if self.since is Since.LAST:
            pauses = np.flatnonzero(np.diff(times, prepend=times[0]) >= self.timeout_us)
            return np.append(pauses, len(times))[np.searchsorted(pauses, opening, side="right")]
        # Times by rank, so that a key's place can stand before them.
        ranks = np.sort(times)
        places = owners * (len(times) + 1) + np.searchsorted(ranks, times)
        limits = np.searchsorted(ranks, starts[opening] + self.timeout_us)
        return np.searchsorted(places, owners[opening] * (len(times) + 1) + limits)

    def _settle(self, settled: Spans, before: pa.Table, rows: pa.Table, settles_to: int) -> None:
        """Process rows finally that are too old to be corrected."""
        goes_on = self._of(before, rows) | (ends_of(before) <= settles_to)
        made, ended = self._made(before.filter(pa.array(goes_on)), rows, settles_to)
        settled.write(~goes_on, made.filter(pa.array(~ended)))

    def _results(
        self, chunks: Chunks, made: pa.Table, ended: Any, corrected: pa.Table, settles_to: int
    ) -> list[pa.Table]:
        comes = made if self.emit is Emit.CHANGES else made.filter(pa.array(ended))
        comes = comes.combine_chunks()
        if not self.revises:
            return [self.results(comes, ends_of(comes), self.folding.finish(comes))]
        stored = Spans(chunks, "told", pa.schema([*self.stored, (END, pa.int64())]), self.timeout_us // 2)
        starts = np.sort(_column(made, START))
        known = stored.read(lambda part: len(corrected) > 0 or part.first_end <= settles_to or part.meets(starts))
        figures = self.figured(ends_of(comes), self.folding.finish(comes))
        same = matches(
            [*self.columns_of(comes), figures], [*self.columns_of(known), known[BEFORE]], (len(comes), len(known))
        )
        news = pa.array(same < 0)
        comes, figures = comes.filter(news), figures.filter(news)
        results, remembered = self.revised(comes, figures, known)

        found = matches(self.columns_of(known), self.columns_of(made), (len(known), len(made)))
        ceased = (found < 0) & self._of(known, corrected)
        again = matches(self.columns_of(known), self.columns_of(comes), (len(known), len(comes))) >= 0
        ends = ends_of(known).copy()
        ends[found >= 0] = ends_of(made)[found[found >= 0]]
        moved = (ends != ends_of(known)) & ~again
        lasting = known.set_column(known.num_columns - 1, END, pa.array(ends)).filter(pa.array(moved))
        changed = pa.concat_tables([remembered.append_column(END, comes[END]), lasting])
        stored.write(
            ~(ceased | again | moved) & (ends > settles_to), changed.filter(pa.array(ends_of(changed) > settles_to))
        )
        return [results, self._deleted(known.filter(pa.array(ceased)))]

    def _deleted(self, known: pa.Table) -> pa.Table:
        lost = known.select(self.stored.names)
        following = pa.array(_column(lost, REVISION) + 1, pa.int32())
        lost = lost.set_column(lost.column_names.index(REVISION), self.stored.field(REVISION), following)
        return self.revisions(lost, array_of(lost.column(BEFORE)), deleted=True)


def _column(table: pa.Table, name: str) -> Any:
    return array_of(table.column(name)).to_numpy(zero_copy_only=False)


def _flags(rows: pa.Table, name: str) -> Any:
    if name not in rows.column_names:
        return pa.array(np.zeros(len(rows), dtype=bool))
    return array_of(rows.column(name)).fill_null(False)


def _last_of_run(owners: Indices, times: Indices) -> Indices:
    """For each opening the last one of the same key and time: only from there on can the session be closed."""
    differs = np.append((owners[1:] != owners[:-1]) | (times[1:] != times[:-1]), True)[: len(owners)]
    last = np.flatnonzero(differs)
    return last[np.searchsorted(last, np.arange(len(owners)))]


def _reached(owners: Indices, following: Indices) -> Indices:
    """Which openings begin a session: the first of each key, and each that follows the end of one that does.

    `following` is the first opening, by number, that comes behind the end of a session begun by each. A chain of any
    length is followed in a few rounds, twice as far in each.
    """
    count = len(owners)
    following = np.append(following, count)
    following[:-1][np.append(owners, -1)[following[:-1]] != owners] = count
    reached = np.zeros(count + 1, dtype=bool)
    reached[np.flatnonzero(np.diff(owners, prepend=-1))] = True
    for _ in range(count.bit_length() + 1):
        reached[following[reached]] = True
        following = following[following]
    return np.flatnonzero(reached[:-1])
