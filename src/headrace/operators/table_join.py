"""Two tables joined, updated when either changes: a changelog by the keys of both, deletes included.

A step writes each row of the result at most once: as it is now, or as deleted. In a left, right or full join a row
without a match is written alone until it has one. A null equals nothing. A row of the result is valid from the later
time of its two rows; a deleted row or one without a match from the time of the change that caused it.

The state is a log of each table's rows, of which the last of a key is valid, and how many steps have written
something: the order of what is written.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.operators.chunks import Chunks
from headrace.operators.grouping import Indices, array_of, spread
from headrace.operators.keys import Mask, complete, last_rows, numbered, times_of
from headrace.operators.log import Log
from headrace.operators.operator import BEGINNING, RESULTS, Output, Step
from headrace.operators.windowing import TIME as MOMENT
from headrace.operators.windowing import timestamps
from headrace.topology.names import DELETED, ORDER, VALID_FROM

__all__ = ["LEFT", "RIGHT", "TableJoin"]

LEFT, RIGHT = "left", "right"
"""The names of the inputs."""
COUNTER = "told"  # its name in the checkpoints that exist


@dataclass(frozen=True, kw_only=True)
class TableJoin:
    """All rows of a key of either table must come to one bucket, and all that are equal in `on` as well.

    The results have the left columns, where `on` says so filled from the right, the right columns but those of `on`,
    and what a table's rows carry. A deleted row has only the columns of the keys.
    """

    left: pa.Schema
    right: pa.Schema
    left_key: tuple[str, ...]
    right_key: tuple[str, ...]
    on: tuple[tuple[str, str], ...]
    """Pairs of a left and a right column that are to be equal."""
    how: Literal["inner", "left", "right", "full"] = "inner"

    @property
    def version(self) -> int:
        return 1

    @property
    def waits(self) -> bool:
        return False

    @property
    def inputs(self) -> Mapping[str, pa.Schema]:
        return {LEFT: self.left, RIGHT: self.right}

    @cached_property
    def key(self) -> tuple[str, ...]:
        """The key of the result.

        Which right row stands beside a left one follows from the left key as far as `on` is the right key, and such
        columns are left out; where a right row can be without a match they identify it. Where each right row is there,
        beside the one left row that it may have, the right key is enough, and what it is on may be null.
        """
        names = {there: here for here, there in self.on}
        if self.how == "right" and {*self.left_key} <= {*names.values()}:
            return tuple(names.get(name, name) for name in self.right_key)
        of_on = [here for here, there in self.on if there in self.right_key and self.how in ("right", "full")]
        of_right = [name for name in self._right_columns if name in self.right_key]
        return tuple(dict.fromkeys([*self.left_key, *of_on, *of_right]))

    @cached_property
    def outputs(self) -> Mapping[str, pa.Schema]:
        fields = [*map(self.left.field, self._left_columns), *map(self.right.field, self._right_columns)]
        marks = [pa.field(VALID_FROM, MOMENT), pa.field(ORDER, pa.int64()), pa.field(DELETED, pa.bool_())]
        return {RESULTS: pa.schema([*fields, *marks])}

    def step(self, chunks: Chunks, step: Step) -> Output:
        left = _Side.read(chunks, LEFT, self.left, self.left_key, step)
        right = _Side.read(chunks, RIGHT, self.right, self.right_key, step)
        if not left.changed.any() and not right.changed.any():
            return Output({})
        on_left = [array_of(left.rows.column(here)) for here, _ in self.on]
        on_right = [array_of(right.rows.column(there)) for _, there in self.on]
        both = [pa.chunked_array([one, other.cast(one.type)]) for one, other in zip(on_left, on_right, strict=True)]
        touched = np.concatenate([left.changed & complete(on_left), right.changed & complete(on_right)])
        codes = numbered(both, touched)
        changes = self._changes(left, right, codes[: len(left.rows)], codes[len(left.rows) :])
        if not len(changes.time):
            return Output({})
        return Output({RESULTS: self._results(left, right, changes, _next(chunks))})

    def _changes(self, left: "_Side", right: "_Side", here: Indices, there: Indices) -> "_Changes":
        """What is written: `here` and `there` number the values of `on` that a change concerns."""
        changes = [_pairs(left, right, here, there)]
        if self.how in ("left", "full"):
            changes.append(_alone(left, right, here, there))
        if self.how in ("right", "full"):
            changes.append(_alone(right, left, there, here).turned())
        return _Changes.joined(changes)

    def _results(self, left: "_Side", right: "_Side", changes: "_Changes", number: int) -> pa.Table:
        def column(side: _Side, name: str, rows: Indices, shown: str) -> Any:
            missing = (rows < 0) if shown in self.key else (rows < 0) | changes.gone
            return array_of(side.rows.column(name)).take(pa.array(rows, mask=missing))

        partners, columns = dict(self.on), []
        for name in self._left_columns:
            values = column(left, name, changes.left, name)
            if name in partners:
                values = pc.coalesce(values, column(right, partners[name], changes.right, name).cast(values.type))
            columns.append(values)
        columns += [column(right, name, changes.right, name) for name in self._right_columns]
        marks = [timestamps(changes.time), pa.array(np.full(len(changes.time), number)), pa.array(changes.gone)]
        results = pa.table([*columns, *marks], self.outputs[RESULTS])
        # What is gone comes last: it is not gone if a row is there under its key.
        keys = numbered([results.column(name) for name in self.key], np.ones(len(results), np.bool_))
        first = np.unique(keys, return_index=True)[1]
        return results if len(first) == len(results) else results.take(pa.array(np.sort(first)))

    @cached_property
    def _left_columns(self) -> list[str]:
        return [name for name in self.left.names if name not in (VALID_FROM, ORDER, DELETED)]

    @cached_property
    def _right_columns(self) -> list[str]:
        aside = {VALID_FROM, ORDER, DELETED, *(there for _, there in self.on)}
        return [name for name in self.right.names if name not in aside]


@dataclass(frozen=True, slots=True)
class _Side:
    """One table: all its rows, and which of them are valid before and after this step."""

    rows: pa.Table
    before: Indices
    after: Indices
    changed: Mask
    """Which rows have a key that changes, and are valid before or after."""
    since: Indices
    """Of each row the time from which it is valid."""
    ended: Indices
    """Of each row whose key changes the time of that change."""

    @classmethod
    def read(cls, chunks: Chunks, name: str, schema: pa.Schema, key: Sequence[str], step: Step) -> "_Side":
        log = Log(chunks, name, lambda rows, whole: _last(rows, key, whole))
        known = pa.concat_tables([schema.empty_table(), *log.read()])
        came = step.rows.get(name, schema.empty_table())
        if len(came):
            came = came.sort_by(ORDER)
            log.add(came)
        rows = pa.concat_tables([known, came]).combine_chunks()
        keys = numbered([rows.column(one) for one in key], np.ones(len(rows), np.bool_))
        deleted = rows.column(DELETED).to_numpy()
        times, timed = times_of(rows.column(VALID_FROM))
        since = np.where(timed, times, BEGINNING)
        last = last_rows(keys)
        before, after = last_rows(keys[: len(known)]), last
        before = before[before >= 0]
        before, after = before[~deleted[before]], after[~deleted[after]]
        changing = np.zeros(len(last), np.bool_)
        changing[keys[len(known) :]] = True
        holds = np.zeros(len(rows), np.bool_)
        holds[before] = holds[after] = True
        return cls(rows, before, after, holds & changing[keys], since, since[last[keys]])


@dataclass(frozen=True, slots=True)
class _Changes:
    """Rows of the result by the rows of both tables they are made of, -1 where there is none.

    A changed row is deleted as it was before, and written as it is now.
    """

    left: Indices
    right: Indices
    time: Indices
    gone: Mask

    def turned(self) -> "_Changes":
        return _Changes(self.right, self.left, self.time, self.gone)

    @classmethod
    def joined(cls, parts: "Sequence[_Changes]") -> "_Changes":
        """All of them, the deleted ones last."""
        left, right, time, gone = (
            np.concatenate([getattr(one, name) for one in parts]) for name in ("left", "right", "time", "gone")
        )
        order = np.argsort(gone, kind="stable")
        return cls(left[order], right[order], time[order], gone[order])


def _pairs(left: _Side, right: _Side, here: Indices, there: Indices) -> _Changes:
    """The pairs of which a row has changed, as they are now, and as they were before."""

    def changed(mine: Indices, others: Indices) -> tuple[Indices, Indices]:
        new, old = mine[left.changed[mine]], mine[~left.changed[mine]]
        lots = [(new, others), (old, others[right.changed[others]])]
        found = [_matched(one, other, here, there) for one, other in lots]
        return np.concatenate([one for one, _ in found]), np.concatenate([other for _, other in found])

    was_left, was_right = changed(left.before, right.before)
    is_left, is_right = changed(left.after, right.after)
    ended = np.maximum(
        np.where(left.changed[was_left], left.ended[was_left], BEGINNING),
        np.where(right.changed[was_right], right.ended[was_right], BEGINNING),
    )
    return _Changes(
        np.concatenate([is_left, was_left]),
        np.concatenate([is_right, was_right]),
        np.concatenate([np.maximum(left.since[is_left], right.since[is_right]), ended]),
        np.arange(len(is_left) + len(was_left)) >= len(is_left),
    )


def _alone(side: _Side, other: _Side, here: Indices, there: Indices) -> _Changes:
    """The rows of a side that have no match now and had one, or have changed; and those that had none before."""
    size = int(max(here.max(initial=-1), there.max(initial=-1))) + 1
    had, has = (np.bincount(there[rows][there[rows] >= 0], minlength=size) > 0 for rows in (other.before, other.after))
    caused = np.full(size, BEGINNING)
    causes = np.flatnonzero(other.changed & (there >= 0))
    np.maximum.at(caused, there[causes], other.ended[causes])

    def alone(rows: Indices, paired: Mask) -> Indices:
        codes = here[rows]
        lonely, turned = np.ones(len(rows), np.bool_), np.zeros(len(rows), np.bool_)
        matched = codes >= 0
        lonely[matched] = ~paired[codes[matched]]
        turned[matched] = (had != has)[codes[matched]]
        return rows[lonely & (side.changed[rows] | turned)]

    was, now = alone(side.before, had), alone(side.after, has)
    rows = np.concatenate([now, was])
    gone = np.arange(len(rows)) >= len(now)
    since = np.where(gone, np.where(side.changed[rows], side.ended[rows], BEGINNING), side.since[rows])
    codes = here[rows]
    since[codes >= 0] = np.maximum(since[codes >= 0], caused[codes[codes >= 0]])
    return _Changes(rows, np.full(len(rows), -1, np.int64), since, gone)


def _matched(left: Indices, right: Indices, here: Indices, there: Indices) -> tuple[Indices, Indices]:
    """All pairs of these rows whose numbers are equal, and not negative."""
    left, right = left[here[left] >= 0], right[there[right] >= 0]
    right = right[np.argsort(there[right], kind="stable")]
    first = np.searchsorted(there[right], here[left], side="left")
    counts = np.searchsorted(there[right], here[left], side="right") - first
    return np.repeat(left, counts), right[spread(first, counts)]


def _last(rows: pa.Table, key: Sequence[str], whole: bool) -> pa.Table:
    """The last row of each key; a delete is needed only as long as there are older rows elsewhere."""
    last = last_rows(numbered([rows.column(one) for one in key], np.ones(len(rows), np.bool_)))
    if whole:
        last = last[~rows.column(DELETED).to_numpy()[last]]
    return rows.take(pa.array(np.sort(last))).combine_chunks()


def _next(chunks: Chunks) -> int:
    """How many steps have written something, this one included."""
    last = chunks.read(COUNTER)
    number = 1 if last is None else last.column(COUNTER)[0].as_py() + 1
    chunks.write(COUNTER, pa.table({COUNTER: [number]}))
    return int(number)
