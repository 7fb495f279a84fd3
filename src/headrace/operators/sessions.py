"""Sessions by a gap: rows of a key without a pause as long as the gap."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.operators.chunks import Chunks
from headrace.operators.grouping import Groups, Indices, array_of, grouped, matches
from headrace.operators.operator import RESULTS, Output, Step
from headrace.operators.spans import END, Part, Spans, ends_of
from headrace.operators.windowing import BEFORE, REVISION, START, Windowing
from headrace.topology import Emit

__all__ = ["Sessions"]


@dataclass(frozen=True, kw_only=True)
class Sessions(Windowing):
    """A session is [its first row's time, its last row's time + gap): a pause of exactly the gap separates.

    Rows are late when the session they would make is closed; one that joins a session still open is not. Where late
    rows correct, a closed session can become open again: its row stays as it is until the session closes again.
    """

    gap_us: int

    @cached_property
    def state(self) -> pa.Schema:
        keys = [self.stored.field(name) for name in (START, *self.keys)]
        memory = [self.stored.field(name) for name in self._memory]
        return pa.schema([*keys, pa.field(END, pa.int64()), *memory, *self.folding.partials])

    @property
    def _memory(self) -> list[str]:
        """The columns of the last row written for a session: null if none was written."""
        return [REVISION, BEFORE] if self.revises else []

    def step(self, chunks: Chunks, step: Step) -> Output:
        rows = self.rows_of(step.rows.get(RESULTS))
        times, known = self.times_of(rows)
        spans = Spans(chunks, "session", self.state, self.gap_us // 2)
        arrivals = np.sort(times[known])
        sessions = spans.read(lambda part: part.meets(arrivals, self.gap_us) or self._falls_due(part, step))
        fresh = self._lifted(rows.filter(pa.array(known)), times[known])

        near = np.flatnonzero(matches(self._keys(sessions), self._keys(fresh), (len(sessions), len(fresh))) >= 0)
        both = pa.concat_tables([sessions.take(pa.array(near)), fresh]).combine_chunks()
        groups = self._overlapping(both)
        merged = self._merge(both, groups)
        too_late = ends_of(merged) + self.until_us <= step.fired
        late = self._late(rows, known, groups, too_late)
        gone = self._deleted(both, groups)
        # The rows of the step come behind the stored sessions: a group whose last row is stored has none of them.
        alone = np.maximum.reduceat(groups.order, groups.starts) < len(near) if len(groups) else too_late
        merged = merged.filter(pa.array(~(too_late | alone)))
        joined = np.zeros(len(sessions), dtype=bool)
        joined[near] = True
        joined[near[groups.first[alone]]] = False

        ends = ends_of(sessions)
        if self.emit is Emit.CHANGES:
            due = np.zeros(len(sessions), dtype=bool)
            comes = np.ones(len(merged), dtype=bool)
        else:
            due = ~joined & (ends > step.fired) & (ends <= step.watermark)
            comes = ends_of(merged) <= step.watermark
        stored, results = self._written(
            pa.concat_tables([merged.filter(pa.array(comes)), sessions.filter(pa.array(due))])
        )
        changed = pa.concat_tables([stored, merged.filter(pa.array(~comes))])
        changed = changed.filter(pa.array(ends_of(changed) + self.until_us > step.watermark))
        stays = ~joined & ~due & (ends + self.until_us > step.watermark)
        spans.write(stays, changed)
        return self.answer([*gone, *results], late)

    def _falls_due(self, part: Part, step: Step) -> bool:
        """Whether a session of the part is closed by the watermark, or can be forgotten."""
        closes = part.first_end <= step.watermark and part.last_end > step.fired
        return closes or part.first_end + self.until_us <= step.watermark

    def _lifted(self, rows: pa.Table, times: Indices) -> pa.Table:
        """Each row as a session of its own, not yet written."""
        columns = [pa.array(times), *self.keys_of(rows).values(), pa.array(times + self.gap_us)]
        columns += [pa.nulls(len(rows), self.stored.field(name).type) for name in self._memory]
        columns += self.folding.lift(rows, times).columns
        return pa.Table.from_arrays(columns, schema=self.state)

    def _keys(self, sessions: pa.Table) -> list[Any]:
        return [sessions.column(key) for key in self.keys]

    def _overlapping(self, sessions: pa.Table) -> Groups:
        """The sessions of a key that overlap, directly or through others, each group by start and then by arrival."""
        if not len(sessions):
            return grouped([], 0)
        owners = grouped(self._keys(sessions), len(sessions)).of_rows
        starts, ends = array_of(sessions.column(START)).to_numpy(), ends_of(sessions)
        order = np.lexsort((starts, owners))
        owners, starts, ends = owners[order], starts[order], ends[order]
        # The latest end so far of the same key: ends by rank, so that a key's place can stand before them.
        by_rank = np.sort(ends)
        latest = np.maximum.accumulate(owners * len(ends) + np.searchsorted(by_rank, ends)) % len(ends)
        begins = np.ones(len(order), dtype=bool)
        begins[1:] = (owners[1:] != owners[:-1]) | (starts[1:] >= by_rank[latest[:-1]])
        return Groups(order, np.flatnonzero(begins))

    def _merge(self, sessions: pa.Table, groups: Groups) -> pa.Table:
        """One session for each group; the row written for the one with the same start is its row."""
        if not len(groups):
            return sessions.slice(0, 0)
        first = sessions.select([START, *self.keys, *self._memory]).take(pa.array(groups.first))
        ends = np.maximum.reduceat(ends_of(sessions)[groups.order], groups.starts)
        columns = {**dict(zip(first.column_names, first.columns, strict=True)), END: pa.array(ends)}
        partials = self.folding.fold(sessions, groups)
        columns |= dict(zip(partials.column_names, partials.columns, strict=True))
        return pa.Table.from_arrays([columns[name] for name in self.state.names], schema=self.state)

    def _late(self, rows: pa.Table, known: Any, groups: Groups, too_late: Any) -> pa.Table:
        """The rows without a time and those that only make closed sessions, in the order of arrival."""
        late = ~known
        if too_late.any():
            lost = np.zeros(len(groups.order), dtype=bool)
            lost[groups.order] = np.repeat(too_late, groups.lengths)
            # The stored sessions come first; they are never too late.
            late[known] = lost[len(lost) - int(known.sum()) :]
        return rows.filter(pa.array(late))

    def _deleted(self, sessions: pa.Table, groups: Groups) -> list[pa.Table]:
        """Sessions that were written and are now part of one with another start."""
        if not self.revises or not len(groups):
            return []
        ceased = sessions.column(REVISION).is_valid().to_numpy().copy()
        ceased[groups.first] = False
        lost = sessions.filter(pa.array(ceased)).select(self.stored.names)
        lost = lost.set_column(lost.column_names.index(REVISION), self.stored.field(REVISION), _next(lost))
        return [self.revisions(lost, array_of(lost.column(BEFORE)), deleted=True)] if len(lost) else []

    def _written(self, sessions: pa.Table) -> tuple[pa.Table, list[pa.Table]]:
        """The sessions as they are stored after they were written, and their results."""
        if not len(sessions):
            return sessions, []
        sessions = sessions.combine_chunks()
        ends, figures = ends_of(sessions), self.folding.finish(sessions)
        if not self.revises:
            return sessions, [self.results(sessions, ends, figures)]
        before = array_of(sessions.column(BEFORE))
        for name, value in ((REVISION, _next(sessions)), (BEFORE, self.figured(ends, figures))):
            sessions = sessions.set_column(self.state.get_field_index(name), self.state.field(name), value)
        return sessions, [self.revisions(sessions.select(self.stored.names), before)]


def _next(stored: pa.Table) -> Any:
    """The next revision: 0 if no row was written."""
    return pc.fill_null(pc.add(array_of(stored.column(REVISION)), pa.scalar(1, pa.int32())), 0)
