"""What the operators should give, said as plainly as it can be: rows as dictionaries, one at a time, all kept."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import ROUND_HALF_UP, Context, Decimal
from functools import cmp_to_key
from typing import Any

import pyarrow as pa

from headrace.operators.operator import BEGINNING
from headrace.topology import Aggregate, AggregateKind, Emit, Late, Since

Row = dict[str, Any]

EXACT = Context(prec=90, rounding=ROUND_HALF_UP)


def micros(moment: datetime) -> int:
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def moment(micros: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)


def identity(value: Any) -> Any:
    """Something that can be hashed and is equal where values are: NaN is NaN, -0.0 is 0.0."""
    match value:
        case float():
            return "NaN" if math.isnan(value) else value + 0.0
        case dict():
            return tuple((name, identity(part)) for name, part in value.items())
        case list() | tuple():
            return tuple(identity(part) for part in value)
        case _:
            return value


def same_map(value: Any, kind: pa.DataType) -> Any:
    """A value whose maps have their entries in one order, wherever they are inside."""
    if value is None:
        return None
    if pa.types.is_map(kind):
        return sorted(((key, same_map(item, kind.item_type)) for key, item in value), key=repr)
    if pa.types.is_list(kind):
        return [same_map(part, kind.value_type) for part in value]
    if pa.types.is_struct(kind):
        return {part.name: same_map(value[part.name], part.type) for part in kind}
    return value


def compared(one: Any, other: Any) -> int:
    """Spark's order of values: nulls inside are the smallest, NaN is the largest number."""
    if one is None or other is None:
        return (one is not None) - (other is not None)
    if isinstance(one, dict):
        return compared(list(one.values()), list(other.values()))
    if isinstance(one, list):
        for left, right in zip(one, other, strict=False):
            if result := compared(left, right):
                return result
        return len(one) - len(other)
    if isinstance(one, float):
        left, right = (math.isnan(one), one), (math.isnan(other), other)
        return 0 if math.isnan(one) and math.isnan(other) else (left > right) - (left < right)
    return bool(one > other) - bool(one < other)


def aggregate(wanted: Aggregate, kind: pa.DataType | None, rows: Sequence[Row], time: str) -> Any:
    """One figure over rows in their order of arrival; `kind` is the type of the aggregate's column."""
    if wanted.column is None:
        return len(rows)
    column = wanted.column
    in_order = [row[column] for row in sorted(rows, key=lambda row: row[time])]
    values = [value for value in in_order if value is not None]
    match wanted.kind:
        case AggregateKind.COUNT:
            return len(values)
        case AggregateKind.SUM:
            return _sum(values)
        case AggregateKind.MEAN:
            return _mean(values, kind)
        case AggregateKind.MIN:
            return min(values, key=cmp_to_key(compared), default=None)
        case AggregateKind.MAX:
            return max(values, key=cmp_to_key(compared), default=None)
        case AggregateKind.FIRST:
            return in_order[0] if in_order else None
        case AggregateKind.LAST:
            return in_order[-1] if in_order else None
        case AggregateKind.COUNT_DISTINCT:
            return len({identity(same_map(value, kind)) for value in values})
        case AggregateKind.COLLECT:
            return values


def _sum(values: Sequence[Any]) -> Any:
    if not values:
        return None
    total = values[0]
    for value in values[1:]:
        total = EXACT.add(total, value) if isinstance(total, Decimal) else total + value
    return total


def _mean(values: Sequence[Any], kind: pa.DataType | None) -> Any:
    if not values:
        return None
    if isinstance(values[0], Decimal):
        assert kind is not None
        scale = min(38, kind.scale + 4)
        return EXACT.quantize(EXACT.divide(_sum(values), Decimal(len(values))), Decimal(1).scaleb(-scale))
    return float(_sum([float(value) for value in values])) / len(values)


def aggregates(
    wanted: Iterable[tuple[str, Aggregate]], schema: pa.Schema, rows: Sequence[Row], time: str
) -> dict[str, Any]:
    return {
        name: aggregate(one, None if one.column is None else schema.field(one.column).type, rows, time)
        for name, one in wanted
    }


@dataclass
class Policy:
    """What all windows are asked for."""

    by: tuple[str, ...]
    time: str
    wanted: tuple[tuple[str, Aggregate], ...]
    schema: pa.Schema
    late: Late = Late.DROP
    until: int = 0
    emit: Emit = Emit.FINAL

    @property
    def revises(self) -> bool:
        return self.emit is Emit.CHANGES or self.late is Late.CORRECT

    def key(self, row: Row) -> Any:
        return tuple(identity(row[name]) for name in self.by)

    def at(self, row: Row) -> int:
        return micros(row[self.time])


@dataclass
class Stepped:
    """What came out of one step."""

    results: list[Row] = field(default_factory=list)
    late: list[Row] = field(default_factory=list)


@dataclass
class Telling:
    """The rows that came out so far, by key and start, so that the next one of a window has the next revision."""

    policy: Policy
    known: dict[Any, Row] = field(default_factory=dict)

    def tell(self, start: int, end: int, rows: Sequence[Row]) -> Row:
        policy = self.policy
        figures = aggregates(policy.wanted, policy.schema, rows, policy.time)
        shown = {name: rows[0][name] for name in policy.by}
        shown |= {"window_start": moment(start), "window_end": moment(end), **figures}
        if policy.revises:
            place = (policy.key(rows[0]), start)
            before = self.known.get(place)
            shown["revision"] = 0 if before is None else before["revision"] + 1
            shown["_deleted"] = False
            shown["_before"] = None if before is None else self._figures(before)
            self.known[place] = dict(shown)
        return shown

    def delete(self, key: Any, start: int) -> Row:
        before = self.known.pop((key, start))
        nothing = {name: None for name, _ in self.policy.wanted}
        return {
            **before,
            **nothing,
            "revision": before["revision"] + 1,
            "_deleted": True,
            "_before": self._figures(before),
        }

    def _figures(self, row: Row) -> Row:
        return {"window_end": row["window_end"], **{name: row[name] for name, _ in self.policy.wanted}}


class SlicedWindows:
    """Tumbling and hopping windows: each holds its own list of rows."""

    def __init__(self, policy: Policy, size: int, every: int) -> None:
        self.policy, self.size, self.every = policy, size, every
        self.windows: dict[tuple[Any, int], list[Row]] = {}
        self.telling = Telling(policy)
        self.fired = BEGINNING

    def step(self, rows: Sequence[Row], watermark: int) -> Stepped:
        policy, out = self.policy, Stepped()
        touched = []
        for row in rows:
            if row[policy.time] is None:
                out.late.append(row)
                continue
            time = policy.at(row)
            starts = [start for start in range(time - self.size + 1, time + 1) if start % self.every == 0]
            counted = [start for start in starts if start + self.size + policy.until > self.fired]
            if not counted:
                out.late.append(row)
            for start in counted:
                self.windows.setdefault((policy.key(row), start), []).append(row)
                touched.append((policy.key(row), start))
        for place, inside in self.windows.items():
            end = place[1] + self.size
            due = policy.emit is Emit.FINAL and self.fired < end <= watermark
            again = place in touched and (policy.emit is Emit.CHANGES or end <= self.fired)
            if due or again:
                out.results.append(self.telling.tell(place[1], end, inside))
        self.fired = watermark
        return out


@dataclass(eq=False)
class Burst:
    """The rows of a gap session, each with its number of arrival; `told` is the start under which it came out."""

    rows: list[tuple[int, Row]]
    told: list[int] = field(default_factory=list)


class GapSessions:
    """Sessions that are merged two at a time until none overlap."""

    def __init__(self, policy: Policy, gap: int) -> None:
        self.policy, self.gap = policy, gap
        self.sessions: list[Burst] = []
        self.telling = Telling(policy)
        self.fired = BEGINNING
        self.arrived = 0

    def span(self, burst: Burst) -> tuple[int, int]:
        times = [self.policy.at(row) for _, row in burst.rows]
        return min(times), max(times) + self.gap

    def key(self, burst: Burst) -> Any:
        return self.policy.key(burst.rows[0][1])

    def step(self, rows: Sequence[Row], watermark: int) -> Stepped:
        policy, out = self.policy, Stepped()
        fresh = []
        for row in rows:
            self.arrived += 1
            if row[policy.time] is None:
                out.late.append(row)
            else:
                fresh.append(Burst([(self.arrived, row)]))
        touched = self.merged(fresh)
        for burst in touched:
            start, end = self.span(burst)
            if end + policy.until <= self.fired:
                self.sessions.remove(burst)
                out.late += [row for _, row in burst.rows]
                continue
            for old in burst.told:
                if old != start:
                    out.results.append(self.telling.delete(self.key(burst), old))
            burst.told = [old for old in burst.told if old == start]
        for burst in self.sessions:
            start, end = self.span(burst)
            again = burst in touched and (policy.emit is Emit.CHANGES or end <= watermark)
            if again or (policy.emit is Emit.FINAL and self.fired < end <= watermark):
                in_order = [row for _, row in sorted(burst.rows, key=lambda pair: pair[0])]
                out.results.append(self.telling.tell(start, end, in_order))
                burst.told = [start]
        for burst in [burst for burst in self.sessions if self.span(burst)[1] + policy.until <= watermark]:
            # From here on nothing is known of it: a row that would have joined it begins another one.
            self.sessions.remove(burst)
            self.telling.known.pop((self.key(burst), self.span(burst)[0]), None)
        self.fired = watermark
        return out

    def merged(self, fresh: list[Burst]) -> list[Burst]:
        """Add the new ones, and give those that have changed."""
        changed: list[Burst] = []
        for burst in fresh:
            start, end = self.span(burst)
            near = [
                other
                for other in self.sessions
                if self.key(other) == self.key(burst) and self.span(other)[0] < end and start < self.span(other)[1]
            ]
            whole = Burst(burst.rows + [one for other in near for one in other.rows])
            whole.told = [start for other in near for start in other.told]
            self.sessions = [other for other in self.sessions if other not in near] + [whole]
            changed = [other for other in changed if other not in near] + [whole]
        return changed


class EventSessions:
    """All rows are kept, and all sessions made anew in each step, by walking through the rows of a key."""

    def __init__(self, policy: Policy, timeout: int, since: Since) -> None:
        self.policy, self.timeout, self.since = policy, timeout, since
        self.rows: dict[Any, list[Row]] = {}
        self.telling = Telling(policy)
        self.known: dict[Any, Any] = {}
        self.fired = BEGINNING

    def step(self, rows: Sequence[Row], watermark: int) -> Stepped:
        policy, out = self.policy, Stepped()
        for row in rows:
            if row[policy.time] is None or policy.at(row) < self.fired - policy.until:
                out.late.append({name: value for name, value in row.items() if name not in ("_opens", "_closes")})
            else:
                self.rows.setdefault(policy.key(row), []).append(row)
        there = set()
        for key, mine in self.rows.items():
            passed = sorted((row for row in mine if policy.at(row) < watermark), key=policy.at)
            for start, end, inside, closed in self.walked(passed):
                there.add((key, start))
                figures = identity({"window_end": end, **aggregates(policy.wanted, policy.schema, inside, policy.time)})
                ended = closed or end <= watermark
                if (ended or policy.emit is Emit.CHANGES) and self.known.get((key, start)) != figures:
                    self.known[key, start] = figures
                    out.results.append(self.telling.tell(start, end, inside))
        for place in list(self.known):
            if place not in there:
                del self.known[place]
                out.results.append(self.telling.delete(*place))
        self.fired = watermark
        return out

    def walked(self, rows: Sequence[Row]) -> Iterator[tuple[int, int, list[Row], bool]]:
        """Start, end and rows of each session, and whether a row closed it."""
        inside: list[Row] = []
        for number, row in enumerate(rows):
            time = self.policy.at(row)
            if inside and time >= self.limit(inside):
                yield self.policy.at(inside[0]), self.limit(inside), inside, False
                inside = []
            if inside or row["_opens"]:
                inside = [*inside, row]
            reopens = any(other["_opens"] and self.policy.at(other) == time for other in rows[number + 1 :])
            if inside and row["_closes"] and not (reopens and self.policy.at(inside[0]) == time):
                yield self.policy.at(inside[0]), time + 1, inside, True
                inside = []
        if inside:
            yield self.policy.at(inside[0]), self.limit(inside), inside, False

    def limit(self, inside: Sequence[Row]) -> int:
        return self.policy.at(inside[0 if self.since is Since.FIRST else -1]) + self.timeout


def canonical(rows: Iterable[Mapping[str, Any]]) -> list[Any]:
    """Rows in no order, so that two lots of them can be compared."""
    return sorted((identity(dict(row)) for row in rows), key=repr)


Reference = Callable[[Sequence[Row], int], Stepped]
