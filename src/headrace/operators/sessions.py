"""Sessions by a gap: the rows of a key between which there is no pause as long as the gap."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.operators.chunks import Chunks
from headrace.operators.grouping import Groups, Indices, array_of, grouped, matches
from headrace.operators.operator import RESULTS, Output, Step
from headrace.operators.windowing import BEFORE, REVISION, START, Windowing
from headrace.topology import Emit

__all__ = ["Sessions"]

LAST = "last"
"""In state: the time of a session's latest row."""


@dataclass(frozen=True, slots=True)
class Part:
    """A chunk of sessions, with the times that say whether a step has to do with it."""

    number: int
    first_start: int
    first_end: int
    last_end: int

    def __str__(self) -> str:
        return f"session/{self.number}/{self.first_start}/{self.first_end}/{self.last_end}"

    @classmethod
    def named(cls, name: str) -> "Part":
        return cls(*map(int, name.split("/")[1:]))


@dataclass(frozen=True, kw_only=True)
class Sessions(Windowing):
    """A session is [its first row's time, its last row's time + gap): a pause of exactly the gap separates.

    Rows are late when the session they would make is closed; one that joins a session still open is not. Where late
    rows correct, a closed session may grow into an open one: what was told of it stays until it is closed again.
    """

    gap_us: int

    @cached_property
    def state(self) -> pa.Schema:
        told = [self.told.field(REVISION), self.told.field(BEFORE)] if self.revises else []
        keys = [self.told.field(name) for name in (START, *self.keys)]
        return pa.schema([*keys, pa.field(LAST, pa.int64()), *told, *self.folding.partials])

    def step(self, chunks: Chunks, step: Step) -> Output:
        parts = [Part.named(name) for name in chunks.names()]
        rows = self.rows_of(step.rows.get(RESULTS))
        times, known = self.times_of(rows)
        read = [part for part in parts if self._concerns(part, np.sort(times[known]), step)]
        stored = [_stored(chunks, part) for part in read]
        sessions = pa.concat_tables([self.state.empty_table(), *stored]).combine_chunks()
        source = np.repeat(np.arange(len(read)), [len(table) for table in stored])

        fresh = self._lifted(rows.filter(pa.array(known)), times[known])
        near = np.flatnonzero(matches(self._keys(sessions), self._keys(fresh), (len(sessions), len(fresh))) >= 0)
        both = pa.concat_tables([sessions.take(pa.array(near)), fresh]).combine_chunks()
        groups = self._overlapping(both)
        merged = self._merge(both, groups)
        too_late = self._ends(merged) + self.until_us <= step.fired
        late = self._late(rows, known, groups, too_late)
        gone = self._deleted(both, groups)
        # The rows of the step come behind the stored sessions: a group whose last row is stored has none of them.
        alone = np.maximum.reduceat(groups.order, groups.starts) < len(near) if len(groups) else too_late
        joins = np.zeros(len(sessions), dtype=bool)
        joins[near] = True
        joins[near[groups.first[alone]]] = False
        merged = merged.filter(pa.array(~(too_late | alone)))

        ends = self._ends(sessions)
        due = ~joins & (ends > step.fired) & (ends <= step.watermark)
        final = self.emit is Emit.FINAL
        telling = self._ends(merged) <= step.watermark if final else np.ones(len(merged), dtype=bool)
        if not final:
            due[:] = False
        told, results = self._told(pa.concat_tables([merged.filter(pa.array(telling)), sessions.filter(pa.array(due))]))

        changed = pa.concat_tables([told, merged.filter(pa.array(~telling))])
        changed = changed.filter(pa.array(self._ends(changed) + self.until_us > step.watermark))
        stays = ~joins & ~due & (ends + self.until_us > step.watermark)
        remaining = {part: table.filter(pa.array(stays[source == number])) for number, (part, table) in
                     enumerate(zip(read, stored, strict=True))}  # fmt: skip
        self._write(chunks, parts, dict(zip(read, stored, strict=True)), remaining, changed)
        untouched = [part.first_end for part in parts if part not in remaining]
        left = np.concatenate([self._ends(changed), ends[stays], np.array(untouched, dtype=np.int64)])
        left = left[left > step.watermark]
        wake = int(left.min()) if final and len(left) else None
        return self.answer([*gone, *results], late, wake)

    def _concerns(self, part: Part, times: Indices, step: Step) -> bool:
        """Whether a row may join a session of the part, or one falls due or can be forgotten."""
        nearest = np.searchsorted(times, part.first_start - self.gap_us, side="right")
        joins = nearest < len(times) and times[nearest] < part.last_end
        due = part.first_end <= step.watermark and part.last_end > step.fired
        return bool(joins or due or part.first_end + self.until_us <= step.watermark)

    def _lifted(self, rows: pa.Table, times: Indices) -> pa.Table:
        """Each row as a session of its own, not yet told."""
        at = pa.array(times)
        columns = [at, *self.keys_of(rows).values(), at]
        if self.revises:
            columns += [pa.nulls(len(rows), self.told.field(name).type) for name in (REVISION, BEFORE)]
        columns += self.folding.lift(rows, times).columns
        return pa.Table.from_arrays(columns, schema=self.state)

    def _keys(self, sessions: pa.Table) -> list[Any]:
        return [sessions.column(key) for key in self.keys]

    def _ends(self, sessions: pa.Table) -> Indices:
        ends: Indices = array_of(sessions.column(LAST)).to_numpy() + self.gap_us
        return ends

    def _overlapping(self, sessions: pa.Table) -> Groups:
        """The sessions of a key that overlap, directly or through others, each group by start and then by arrival."""
        if not len(sessions):
            return grouped([], 0)
        owners = grouped(self._keys(sessions), len(sessions)).of_rows
        starts, ends = array_of(sessions.column(START)).to_numpy(), self._ends(sessions)
        order = np.lexsort((starts, owners))
        owners, starts, ends = owners[order], starts[order], ends[order]
        # The latest end so far of the same key: ends by rank, so that a key's place can stand before them.
        by_rank = np.sort(ends)
        latest = np.maximum.accumulate(owners * len(ends) + np.searchsorted(by_rank, ends)) % len(ends)
        begins = np.ones(len(order), dtype=bool)
        begins[1:] = (owners[1:] != owners[:-1]) | (starts[1:] >= by_rank[latest[:-1]])
        return Groups(order, np.flatnonzero(begins))

    def _merge(self, sessions: pa.Table, groups: Groups) -> pa.Table:
        """One session a group; what was told of the one with the same start was told of it."""
        if not len(groups):
            return sessions.slice(0, 0)
        first = sessions.select([*self.state.names[: len(self.keys) + 1]]).take(pa.array(groups.first))
        last = np.maximum.reduceat(array_of(sessions.column(LAST)).to_numpy()[groups.order], groups.starts)
        told = [array_of(sessions.column(name)).take(pa.array(groups.first)) for name in self._memory]
        partials = self.folding.fold(sessions, groups)
        return pa.Table.from_arrays([*first.columns, pa.array(last), *told, *partials.columns], schema=self.state)

    @property
    def _memory(self) -> list[str]:
        return [REVISION, BEFORE] if self.revises else []

    def _late(self, rows: pa.Table, known: Any, groups: Groups, too_late: Any) -> pa.Table:
        """The rows that have no time or only make sessions that are closed, in the order of arrival."""
        late = ~known
        if too_late.any():
            lost = np.zeros(len(groups.order), dtype=bool)
            lost[groups.order] = np.repeat(too_late, groups.lengths)
            # The stored sessions come first; they are never too late.
            late[known] = lost[len(lost) - int(known.sum()) :]
        return rows.filter(pa.array(late))

    def _deleted(self, sessions: pa.Table, groups: Groups) -> list[pa.Table]:
        """Sessions that were told and are now part of one with another start."""
        if not self.revises or not len(groups):
            return []
        ceased = sessions.column(REVISION).is_valid().to_numpy().copy()
        ceased[groups.first] = False
        lost = sessions.filter(pa.array(ceased)).select(self.told.names)
        lost = lost.set_column(lost.column_names.index(REVISION), self.told.field(REVISION), _next(lost))
        return [self.revisions(lost, array_of(lost.column(BEFORE)), deleted=True)] if len(lost) else []

    def _told(self, sessions: pa.Table) -> tuple[pa.Table, list[pa.Table]]:
        """The sessions as they are remembered after they came out, and their results."""
        if not len(sessions):
            return sessions, []
        sessions = sessions.combine_chunks()
        ends, figures = self._ends(sessions), self.folding.finish(sessions)
        if not self.revises:
            return sessions, [self.results(sessions, ends, figures)]
        before = array_of(sessions.column(BEFORE))
        for name, value in ((REVISION, _next(sessions)), (BEFORE, self.figured(ends, figures))):
            sessions = sessions.set_column(self.state.get_field_index(name), self.state.field(name), value)
        return sessions, [self.revisions(sessions.select(self.told.names), before)]

    def _write(
        self,
        chunks: Chunks,
        parts: Sequence[Part],
        stored: dict[Part, pa.Table],
        remaining: dict[Part, pa.Table],
        changed: pa.Table,
    ) -> None:
        """Put the changed sessions beside those that end at about the same time, and rewrite no more than that."""
        number = max((part.number for part in parts), default=-1)
        lots: dict[int, list[pa.Table]] = {}
        places = self._places_of(self._ends(changed))
        for place in np.unique(places).tolist():
            lots[place] = [changed.filter(pa.array(places == place))]
        whole = [part for part, table in remaining.items() if len(table) == len(stored[part])]
        for part in remaining.keys() - set(whole):
            lots.setdefault(self._place(part), []).append(remaining[part])
            chunks.delete(str(part))
        for part in sorted(whole, key=lambda part: stored[part].nbytes):
            lot = lots.get(self._place(part))
            if lot is not None and stored[part].nbytes < 2 * sum(table.nbytes for table in lot):
                lot.append(stored[part])
                chunks.delete(str(part))
        for lot in lots.values():
            table = pa.concat_tables(lot).combine_chunks()
            if len(table):
                number += 1
                ends = self._ends(table)
                first = int(table.column(START).to_numpy().min())
                chunks.write(str(Part(number, first, int(ends.min()), int(ends.max()))), table)

    def _places_of(self, ends: Indices) -> Indices:
        return ends // max(1, self.gap_us // 2)

    def _place(self, part: Part) -> int:
        return int(self._places_of(np.array([part.first_end]))[0])


def _stored(chunks: Chunks, part: Part) -> pa.Table:
    table = chunks.read(str(part))
    assert table is not None, f"chunk {part} was listed and is not there"
    return table


def _next(told: pa.Table) -> Any:
    """The revision that comes next: 0 where nothing was told."""
    return pc.fill_null(pc.add(array_of(told.column(REVISION)), pa.scalar(1, pa.int32())), 0)
