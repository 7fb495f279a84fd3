"""Sliding windows, step by step beside a reading of what they promise that keeps all rows."""

import math
import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import EngineError
from headrace.operators.chunks import MemoryChunks
from headrace.operators.operator import BEGINNING, LATE, RESULTS, Run
from headrace.operators.ranges import Line
from headrace.operators.sliding import SlidingWindows
from headrace.topology import Aggregate, AggregateKind, Emit, Late
from tests.operators.reference import Policy, Row, Stepped, aggregates, moment
from tests.operators.rows import (
    FEW_OR_MANY,
    POOLS,
    SCHEMA,
    SOME_AGGREGATES,
    assert_agrees,
    every_aggregate,
    row,
    steps,
    table,
)


def windows(
    size: int,
    late: Late = Late.DROP,
    emit: Emit = Emit.FINAL,
    until: int = 0,
    by: tuple[str, ...] = ("key",),
    wanted: tuple[tuple[str, Aggregate], ...] = SOME_AGGREGATES,
) -> SlidingWindows:
    return SlidingWindows(
        by=by, time="at", aggregates=wanted, input=SCHEMA, late=late, until_us=until, emit=emit, size_us=size
    )


class EveryEvent:
    """Each event is answered by a walk over all rows."""

    def __init__(self, policy: Policy, size: int) -> None:
        self.policy, self.size = policy, size
        self.rows: list[Row] = []
        self.told: dict[int, list[Row]] = {}
        self.fired = BEGINNING

    def step(self, rows: list[Row], watermark: int) -> Stepped:
        policy, out = self.policy, Stepped()
        before = len(self.rows)
        for one in rows:
            late = one[policy.time] is None or policy.at(one) + policy.until < self.fired
            (out.late if late else self.rows).append(one)
        for number, event in enumerate(self.rows):
            told = self.told.setdefault(number, [])
            due = policy.emit is Emit.CHANGES or policy.at(event) < watermark
            if due and (not told or any(self.sees(event, one) for one in self.rows[before:])):
                out.results.append(self.tell(event, told))
        self.fired = watermark
        return out

    def sees(self, event: Row, one: Row) -> bool:
        behind = self.policy.at(event) - self.policy.at(one)
        return 0 <= behind < self.size and self.policy.key(event) == self.policy.key(one)

    def tell(self, event: Row, told: list[Row]) -> Row:
        policy, end = self.policy, self.policy.at(event)
        seen = [one for one in self.rows if self.sees(event, one)]
        figures = aggregates(policy.wanted, policy.schema, seen, policy.time)
        shown = {**event, "window_start": moment(end - self.size), "window_end": moment(end), **figures}
        if policy.revises:
            last = {"window_end": moment(end), **told[-1]} if told else None
            shown |= {"revision": len(told), "_deleted": False, "_before": last}
        told.append(figures)
        return shown


@pytest.mark.parametrize("examples", FEW_OR_MANY)
@pytest.mark.parametrize("emit", list(Emit))
@pytest.mark.parametrize("late", list(Late))
def test_windows_agree_with_the_reference(late: Late, emit: Emit, examples: int) -> None:
    @settings(max_examples=examples, deadline=None)
    @given(steps(), st.integers(1, 70), st.sampled_from([(), ("key",), ("key", "list")]), st.integers(1, 40))
    def holds(cuts: list[tuple[list[Row], int]], size: int, by: tuple[str, ...], horizon: int) -> None:
        until = horizon if late is Late.CORRECT else 0
        policy = Policy(by, "at", SOME_AGGREGATES, SCHEMA, late, until, emit)
        operator = pickle.loads(pickle.dumps(windows(size, late, emit, until, by)))
        run = assert_agrees(operator, EveryEvent(policy, size).step, [*cuts, ([], 10**6)])
        assert not list(run.chunks.names()), "a state that nothing can need"

    holds()


@pytest.mark.parametrize("examples", FEW_OR_MANY)
def test_every_aggregate_of_every_type_agrees_with_the_reference(examples: int) -> None:
    wanted = every_aggregate(POOLS)

    @settings(max_examples=examples // 4, deadline=None)
    @given(steps(), st.integers(1, 70))
    def holds(cuts: list[tuple[list[Row], int]], size: int) -> None:
        policy = Policy(("key",), "at", wanted, SCHEMA, emit=Emit.CHANGES)
        assert_agrees(windows(size, emit=Emit.CHANGES, wanted=wanted), EveryEvent(policy, size).step, cuts)

    holds()


def test_times_far_apart_stand_beside_those_of_many_keys() -> None:
    years = [moment(-62_000_000_000_000_000), moment(0), moment(250_000_000_000_000_000)]
    rows = [row(f"k{number}", 0, number) | {"at": year} for number in range(40) for year in years]
    output = Run(windows(10**14, emit=Emit.CHANGES), MemoryChunks()).step(0, rows=table(rows))
    assert output.tables[RESULTS].column("n").to_pylist() == [1] * 120
    reaching_all = Run(windows(2**60, emit=Emit.CHANGES), MemoryChunks()).step(0, rows=table(rows))
    assert sorted(reaching_all.tables[RESULTS].column("n").to_pylist()) == [1] * 40 + [2] * 40 + [3] * 40


def test_a_sum_too_large_is_told_by_its_name() -> None:
    total = (("total", Aggregate(AggregateKind.SUM, "whole")),)
    run = Run(windows(10, emit=Emit.CHANGES, wanted=total), MemoryChunks())
    most = row("a", 1, 0) | {"whole": 2**63 - 1}
    assert run.step(0, rows=table([most])).tables[RESULTS].column("total").to_pylist() == [2**63 - 1]
    less = run.step(0, rows=table([row("a", 2, 0) | {"whole": -1}]))
    assert less.tables[RESULTS].column("total").to_pylist() == [2**63 - 2]
    with pytest.raises(EngineError, match="total of a window is too large for int64"):
        run.step(0, rows=table([row("a", 3, 0) | {"whole": 2}]))


def test_a_small_number_beside_a_large_one_is_not_lost_in_later_windows() -> None:
    total = (("total", Aggregate(AggregateKind.SUM, "float")),)
    rows = [row("a", 10 * place, 0) | {"float": value} for place, value in enumerate([1e300, math.nan, 0.1, 0.2])]
    output = Run(windows(10, emit=Emit.CHANGES, wanted=total), MemoryChunks()).step(0, rows=table(rows))
    got = output.tables[RESULTS].column("total").to_pylist()
    assert [got[0], *got[2:]] == [1e300, 0.1, 0.2]
    assert math.isnan(got[1])


def test_late_rows_are_diverted_once_the_horizon_has_passed() -> None:
    run = Run(windows(10, Late.CORRECT, until=5), MemoryChunks())
    run.step(20, rows=table([row("a", 15, 1)]))
    assert run.step(20, rows=table([row("a", 14, 2), row("a", 15, 3)])).late == 1
    assert run.late == 1
    output = run.step(20, rows=table([row("a", 15, 2), row("a", 14, 2), row("a", None, 2)]))
    assert LATE in output.tables
    assert output.tables[LATE].num_rows == 2
    assert output.tables[RESULTS].column("revision").to_pylist() == [2, 1, 0]


def test_a_step_reads_and_writes_only_slices_that_it_touches() -> None:
    class Counted(MemoryChunks):
        def __init__(self) -> None:
            super().__init__()
            self.touched: list[str] = []

        def read(self, name: str) -> Any:
            self.touched.append(name)
            return super().read(name)

        def write(self, name: str, table: pa.Table) -> None:
            self.touched.append(name)
            super().write(name, table)

    chunks = Counted()
    run = Run(windows(80, Late.CORRECT, Emit.CHANGES, until=100_000), chunks)
    for time in range(0, 50_000, 200):
        run.step(0, rows=table([row("a", time + 7 * place, place) for place in range(20)]))
    chunks.touched.clear()
    run.step(0, rows=table([row("a", 25_000, 1)]))
    assert 0 < len(chunks.touched) < 15


@pytest.mark.parametrize("kind", [AggregateKind.SUM, AggregateKind.MAX, AggregateKind.COUNT_DISTINCT])
def test_ranges_of_a_hot_key_are_not_walked_one_by_one(kind: AggregateKind) -> None:
    # Each of 200,000 rows sees all before it: 20 billion values if they were walked.
    rows = 200_000
    values = pa.table({"v": np.arange(rows) % 1000 / 4})
    line = Line.of(np.zeros(rows, np.int64), np.arange(rows), rows)
    figures = line.spans(np.arange(rows)).aggregate(values, "v", Aggregate(kind, "v")).to_numpy()
    wanted = {
        AggregateKind.SUM: rows / 1000 * 499500 / 4,
        AggregateKind.MAX: 249.75,
        AggregateKind.COUNT_DISTINCT: 1000,
    }
    assert figures[-1] == wanted[kind]
