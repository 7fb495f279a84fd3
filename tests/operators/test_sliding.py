"""Sliding windows against a brute-force reading of what they promise."""

import math
from dataclasses import dataclass, field
from decimal import ROUND_HALF_UP, Decimal, localcontext
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.operators.chunks import MemoryChunks
from headrace.operators.operator import BEGINNING, LATE, RESULTS, Run
from headrace.operators.sliding import SlidingWindows
from headrace.topology import Aggregate, AggregateKind, Emit, Late

MOMENT = pa.timestamp("us", "UTC")
INPUT = pa.schema(
    [
        ("id", pa.int64()),
        ("key", pa.string()),
        ("at", MOMENT),
        ("f", pa.float64()),
        ("i", pa.int32()),
        ("d", pa.decimal128(12, 2)),
        ("wide", pa.decimal128(30, 3)),
        ("s", pa.string()),
        ("pair", pa.struct([("x", pa.int32()), ("y", pa.list_(pa.string()))])),
        ("tags", pa.map_(pa.string(), pa.int32())),
        ("note", pa.string()),
    ]
)
AGGREGATES = {
    "n": hr.count(),
    "n_f": hr.count("f"),
    "sum_f": hr.sum("f"),
    "mean_f": hr.mean("f"),
    "min_f": hr.min("f"),
    "max_f": hr.max("f"),
    "different_f": hr.count_distinct("f"),
    "sum_i": hr.sum("i"),
    "mean_i": hr.mean("i"),
    "max_i": hr.max("i"),
    "sum_d": hr.sum("d"),
    "mean_d": hr.mean("d"),
    "min_d": hr.min("d"),
    "sum_wide": hr.sum("wide"),
    "mean_wide": hr.mean("wide"),
    "first_s": hr.first("s"),
    "last_s": hr.last("s"),
    "max_s": hr.max("s"),
    "all_s": hr.collect("s"),
    "different_s": hr.count_distinct("s"),
    "first_pair": hr.first("pair"),
    "different_pair": hr.count_distinct("pair"),
    "all_pair": hr.collect("pair"),
    "last_tags": hr.last("tags"),
    "all_tags": hr.collect("tags"),
    "max_at": hr.max("at"),
}
ROWS = st.fixed_dictionaries(
    {
        "key": st.sampled_from(["hot", "hot", "hot", "a", "b", None]),
        "at": st.integers(-60, 60),
        "f": st.sampled_from([None, math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, 2.0, -3.0, 2.0**52]),
        "i": st.none() | st.integers(-(2**31), 2**31 - 1),
        "d": st.none() | st.integers(-(10**12) + 1, 10**12 - 1).map(lambda value: Decimal(f"{value}e-2")),
        "wide": st.none() | st.integers(-(10**30) + 1, 10**30 - 1).map(lambda value: Decimal(f"{value}e-3")),
        "s": st.sampled_from([None, "", "a", "b", "ß", "\U0001f600"]),
        "pair": st.sampled_from([None, {"x": 1, "y": ["a"]}, {"x": 1, "y": None}, {"x": None, "y": []}]),
        "tags": st.sampled_from([None, [], [("a", 1)], [("b", None), ("a", 2)]]),
        "note": st.sampled_from([None, "x", "y"]),
    }
)
STEPS = st.lists(st.tuples(st.lists(ROWS, max_size=12), st.integers(-60, 70)), min_size=1, max_size=8)


def operator(size: int, late: Late, until: int, emit: Emit, by: tuple[str, ...] = ("key",)) -> SlidingWindows:
    return SlidingWindows(by, "at", size, tuple(AGGREGATES.items()), late, until, emit, INPUT)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("emit", Emit)
@pytest.mark.parametrize("late", Late)
@settings(max_examples=500, deadline=None)
@given(steps=STEPS, size=st.integers(1, 80), until=st.integers(0, 60))
def test_many_random_streams_are_answered_as_by_brute_force(
    emit: Emit, late: Late, steps: list[tuple[list[dict[str, Any]], int]], size: int, until: int
) -> None:
    compare(steps, operator(size, late, until if late is Late.CORRECT else 0, emit))


@pytest.mark.parametrize("emit", Emit)
@pytest.mark.parametrize("late", Late)
@settings(max_examples=30, deadline=None)
@given(steps=STEPS, size=st.integers(1, 80), until=st.integers(0, 60))
def test_random_streams_are_answered_as_by_brute_force(
    emit: Emit, late: Late, steps: list[tuple[list[dict[str, Any]], int]], size: int, until: int
) -> None:
    compare(steps, operator(size, late, until if late is Late.CORRECT else 0, emit))


def compare(steps: list[tuple[list[dict[str, Any]], int]], windows: SlidingWindows) -> None:
    run, brute = Run(windows, MemoryChunks()), BruteForce(windows)
    number = 0
    for rows, watermark in [*steps, ([], 10**6)]:
        for row in rows:
            row["id"] = number
            number += 1
        expected, expected_late = brute.step(rows, watermark)
        output = run.step(watermark, rows=pa.Table.from_pylist(rows, INPUT))
        got = output.tables.get(RESULTS, windows.outputs[RESULTS].empty_table())
        assert got.schema == windows.outputs[RESULTS]
        assert sorted(map(plain, got.to_pylist()), key=lambda row: row["id"]) == list(map(plain, expected))
        assert output.late == len(expected_late)
        assert (output.wake is None) == (brute.wake() is None)
        assert output.wake == brute.wake()
        if windows.late is Late.DROP:
            assert set(output.tables) <= {RESULTS}
        else:
            late = output.tables.get(LATE, INPUT.empty_table())
            assert late.schema == INPUT
            assert [row["id"] for row in late.to_pylist()] == [row["id"] for row in expected_late]
    assert not list(run.chunks.names())


@dataclass
class BruteForce:
    windows: SlidingWindows
    fired: int = BEGINNING
    rows: list[dict[str, Any]] = field(default_factory=list)
    emitted: dict[int, list[dict[str, Any]]] = field(default_factory=dict)

    def step(self, rows: list[dict[str, Any]], watermark: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        watermark = max(watermark, self.fired)
        late = [row for row in rows if row["at"] + self.windows.until_us < self.fired]
        new = [row for row in rows if row["at"] + self.windows.until_us >= self.fired]
        self.rows += new
        out = []
        for event in sorted(self.rows, key=lambda row: row["id"]):
            before = self.emitted.get(event["id"], [])
            due = self.windows.emit is Emit.CHANGES or event["at"] < watermark
            touched = any(self.sees(event, row) for row in new)
            if due and (not before or touched):
                figures = self.figures(event)
                out.append(self.answer(event, figures, before))
                self.emitted[event["id"]] = [*before, figures]
        self.fired = watermark
        return out, late

    def wake(self) -> int | None:
        waiting = [row["at"] + 1 for row in self.rows if row["id"] not in self.emitted]
        return min(waiting, default=None)

    def sees(self, event: dict[str, Any], row: dict[str, Any]) -> bool:
        same = all(row[name] == event[name] for name in self.windows.by)
        return same and event["at"] - self.windows.size_us < row["at"] <= event["at"]

    def figures(self, event: dict[str, Any]) -> dict[str, Any]:
        seen = sorted((row for row in self.rows if self.sees(event, row)), key=lambda row: (row["at"], row["id"]))
        with localcontext(prec=80):
            return {name: aggregated(aggregate, seen) for name, aggregate in self.windows.aggregates}

    def answer(self, event: dict[str, Any], figures: dict[str, Any], before: list[dict[str, Any]]) -> dict[str, Any]:
        own = {"window_start": event["at"] - self.windows.size_us, "window_end": event["at"]}
        if self.windows.emit is Emit.FINAL and self.windows.late is not Late.CORRECT:
            return {**event, **own, **figures}
        last = {"window_end": event["at"], **before[-1]} if before else None
        return {**event, **own, **figures, "revision": len(before), "_deleted": False, "_before": last}


def aggregated(aggregate: Aggregate, rows: list[dict[str, Any]]) -> Any:
    if aggregate.column is None:
        return len(rows)
    values = [row[aggregate.column] for row in rows]
    present = [value for value in values if value is not None]
    match aggregate.kind:
        case AggregateKind.COUNT:
            return len(present)
        case AggregateKind.FIRST:
            return values[0]
        case AggregateKind.LAST:
            return values[-1]
        case AggregateKind.COLLECT:
            return present
        case AggregateKind.COUNT_DISTINCT:
            return len({repr(value + 0.0 if isinstance(value, float) else value) for value in present})
    if not present:
        return None
    match aggregate.kind:
        case AggregateKind.SUM:
            return sum(present)
        case AggregateKind.MEAN if isinstance(present[0], Decimal):
            scale = {"d": 6, "wide": 7}[aggregate.column]
            return (sum(present) / len(present)).quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP)
        case AggregateKind.MEAN:
            return sum(present) / len(present)
        case AggregateKind.MIN:
            return min(present, key=by_nan_last)
        case AggregateKind.MAX:
            return max(present, key=by_nan_last)


def by_nan_last(value: Any) -> Any:
    return (math.isnan(value), value) if isinstance(value, float) else value


def plain(value: Any) -> Any:
    """Comparable: NaN equal to itself, 0.0 to -0.0, times as microseconds."""
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    return pa.scalar(value, MOMENT).value if hasattr(value, "tzinfo") else value
