"""As-of enrichment: each event with the row of a table that was valid at the event's time, or is valid now.

A table's row is valid from its time until the next row of its key; a deleted row is not valid. Of rows with the same
time the one that was written last counts. Rows of the table that arrive in a step count for the events of that step;
rows that arrive later do not change an answer. An event is answered at once, or, where it waits for the table, once the
watermark has passed its time and the wait. An event that is older than that when it arrives is late. Of what was valid
before the watermark less the wait, only the rows that were still valid then are kept. A late event is answered with
such a row if that was valid at the event's time, otherwise with none, never with a row of a later time.

Where the table's rows have no event time, they are valid from the time at which they were written, and what was true
before that is not known. There the first row of a key counts for earlier events as well, until it is removed because a
newer one has replaced it. A row before which others were removed says so in the state.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa

from headrace.operators.chunks import Chunks
from headrace.operators.grouping import Indices, array_of
from headrace.operators.history import History
from headrace.operators.keys import complete, numbered, times_of
from headrace.operators.log import Log
from headrace.operators.operator import BEGINNING, RESULTS, Output, Step
from headrace.operators.ranges import Line
from headrace.topology.names import DELETED, ORDER, VALID_FROM

__all__ = ["STREAM", "TABLE", "Enrich"]

STREAM, TABLE = "stream", "table"
"""The names of the inputs."""
DELETES_KEPT_US = 24 * 3600 * 1_000_000
"""How long a delete is kept at least, so that an older row of its key that arrives after it stays deleted."""
VERSIONS, WAITING = "version", "waiting"
FOLLOWS = "_follows"
"""In state: whether older rows of the key were removed. Null in state that was written without it: unknown."""


@dataclass(frozen=True, kw_only=True)
class Enrich:
    on: tuple[tuple[str, str], ...]
    """Pairs of a column of the stream and the column of the table's key that it equals."""
    time: str
    stream: pa.Schema
    table: pa.Schema
    as_of: Literal["event", "now"] = "event"
    how: Literal["inner", "left"] = "left"
    wait_us: int = 0
    backdates_first: bool = False
    """Whether the first row of a key counts for events before it as well."""

    @property
    def version(self) -> int:
        return 1

    @property
    def waits(self) -> bool:
        return self.wait_us > 0

    @property
    def inputs(self) -> Mapping[str, pa.Schema]:
        return {STREAM: self.stream, TABLE: self.table}

    @property
    def outputs(self) -> Mapping[str, pa.Schema]:
        return {RESULTS: pa.schema([*self.stream, *(self.table.field(name) for name in self._added())])}

    def step(self, chunks: Chunks, step: Step) -> Output:
        versions = Log(chunks, VERSIONS, lambda rows, whole: self._needed(rows, whole, step.fired - self.wait_us))
        changes = step.rows.get(TABLE)
        if changes is not None and len(changes):
            if self.backdates_first:
                changes = changes.append_column(FOLLOWS, pa.array(np.zeros(len(changes), np.bool_)))
            versions.add(changes.combine_chunks())
        rows = step.rows.get(STREAM, self.stream.empty_table()).combine_chunks()
        times = self._moments(rows, self.time)
        oldest = step.fired - self.wait_us
        late = int((times < oldest).sum()) if self.as_of == "event" else 0
        if self.wait_us:
            rows, times = self._waited(chunks, step, rows, times)
        if not len(rows):
            return Output({}, late)
        found, early, known = self._found(versions, rows, times, oldest)
        matched = found >= 0
        unmatched = len(rows) - int(matched.sum())
        if unmatched and self.how == "inner":
            rows, found, matched = rows.filter(pa.array(matched)), found[matched], matched[matched]
        if not len(rows):
            return Output({}, late, unmatched, early)
        valid = known.select(self._added()).take(pa.array(found, mask=~matched))
        results = pa.table([*rows.columns, *valid.columns], self.outputs[RESULTS])
        return Output({RESULTS: results}, late, unmatched, early)

    def _waited(self, chunks: Chunks, step: Step, rows: pa.Table, times: Indices) -> tuple[pa.Table, Indices]:
        """The events that have waited long enough, the late ones first; the others are kept."""
        waiting = History(chunks, max(-(-self.wait_us // 8), 1), {WAITING: self.stream.names})
        oldest, due_before = step.fired - self.wait_us, step.watermark - self.wait_us
        tardy = times < oldest
        answered = [rows.filter(pa.array(tardy))]
        waiting.append(rows.filter(pa.array(~tardy)), times[~tardy])
        for number in waiting.numbers(oldest, due_before):
            held = waiting.read(WAITING, number)
            at = self._moments(held, self.time)
            answered.append(held.filter(pa.array((at >= oldest) & (at < due_before))))
        waiting.forget(WAITING, due_before)
        rows = pa.concat_tables(answered).combine_chunks()
        return rows, self._moments(rows, self.time)

    def _found(self, log: Log, rows: pa.Table, times: Indices, oldest: int) -> tuple[Indices, int, pa.Table]:
        """For each event the version that was valid, -1 where there was none; how many events are older than the first
        version of their key; and the versions."""
        versions = pa.concat_tables([self._kept.empty_table(), *log.read()], promote_options="default")
        versions = versions.combine_chunks()
        count = len(versions)
        keys = [rows.column(name) for name, _ in self.on]
        asked = np.concatenate([np.zeros(count, np.bool_), complete(keys)])
        both = [
            pa.chunked_array([array_of(versions.column(there)).cast(key.type), array_of(key)])
            for (_, there), key in zip(self.on, keys, strict=True)
        ]
        codes = numbered(both, asked)
        since, written = self._places(versions)
        # Versions that no event on time can use are there until they are removed, which must not change an answer.
        seen_at = np.maximum(times, oldest) if self.as_of == "event" else np.zeros_like(times)
        # Events are sorted after the versions of their time, so that the version before an event is valid for it.
        line = _lined(
            codes,
            np.concatenate([since, seen_at]),
            np.concatenate([written, np.full(len(rows), np.iinfo(np.int64).max)]),
        )
        is_event = line >= count
        first = np.full(int(codes.max(initial=-1)) + 1, -1, np.int64)
        in_line = line[~is_event]
        first[codes[in_line[::-1]]] = in_line[::-1]
        before = np.maximum.accumulate(np.where(is_event, -1, np.arange(len(line))))[is_event]
        events, version = line[is_event], line[before]
        version = np.where((before >= 0) & (codes[version] == codes[events]), version, first[codes[events]])
        places, is_first = events - count, version == first[codes[events]]
        valid = version >= 0
        early = 0
        if self.as_of == "event" and count:
            too_old = valid & (since[version] > times[places])
            if self.backdates_first:
                follows = array_of(versions.column(FOLLOWS)).fill_null(True).to_numpy(zero_copy_only=False)
                too_old &= ~(is_first & ~follows[version]) | (times[places] == BEGINNING)
            early = int((too_old & is_first & (times[places] >= oldest)).sum())
            valid &= ~too_old
        valid[valid] = ~versions.column(DELETED).to_numpy()[version[valid]]
        found = np.full(len(rows), -1, np.int64)
        found[places[valid]] = version[valid]
        return found, early, versions

    def _needed(self, versions: pa.Table, whole: bool, bound: int) -> pa.Table:
        """The versions that are valid for events at the bound or later."""
        keys = [versions.column(there) for _, there in self.on]
        codes = numbered(keys, complete(keys))
        since, written = self._places(versions)
        line = _lined(codes, since, written)
        ordered, at = codes[line], since[line]
        passed = at <= bound if self.as_of == "event" else np.ones(len(line), np.bool_)
        kept = np.ones(len(line), np.bool_)
        kept[:-1] = ~((ordered[1:] == ordered[:-1]) & passed[1:])
        if whole:
            forgettable = passed if self.as_of == "now" else at <= bound - DELETES_KEPT_US
            kept &= ~(forgettable & versions.column(DELETED).to_numpy()[line])
        if self.backdates_first:
            follows = array_of(versions.column(FOLLOWS)).fill_null(True).to_numpy(zero_copy_only=False).copy()
            follows[line[1:]] |= (ordered[1:] == ordered[:-1]) & ~kept[:-1]
            versions = versions.set_column(versions.column_names.index(FOLLOWS), FOLLOWS, pa.array(follows))
        return versions.take(pa.array(np.sort(line[kept])))

    def _places(self, versions: pa.Table) -> tuple[Indices, Indices]:
        """From when each version is valid, if time counts, and the order in which they were written."""
        written: Indices = array_of(versions.column(ORDER)).to_numpy()
        if self.as_of == "now":
            return np.zeros(len(versions), np.int64), written
        return self._moments(versions, VALID_FROM), written

    def _moments(self, rows: pa.Table, column: str) -> Indices:
        times, known = times_of(rows.column(column))
        return np.where(known, times, BEGINNING)

    @property
    def _kept(self) -> pa.Schema:
        """The columns of versions in state."""
        return self.table.append(pa.field(FOLLOWS, pa.bool_())) if self.backdates_first else self.table

    def _added(self) -> list[str]:
        aside = {VALID_FROM, ORDER, DELETED, *(there for _, there in self.on)}
        return [name for name in self.table.names if name not in aside]


def _lined(codes: Indices, times: Indices, written: Indices) -> Indices:
    """The rows that have a key, in the order of key, time, writing and arrival."""
    rows = np.flatnonzero(codes >= 0)
    rows = rows[np.argsort(written[rows], kind="stable")]
    return rows[Line.of(codes[rows], times[rows], 1).order]
