"""Gap sessions, step by step beside sessions that keep all their rows."""

import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.operators.chunks import MemoryChunks
from headrace.operators.operator import LATE, RESULTS, Run
from headrace.operators.sessions import Sessions
from headrace.topology import Aggregate, AggregateKind, Emit, Late
from tests.operators.reference import GapSessions, Policy, Row, moment
from tests.operators.rows import FEW_OR_MANY, SCHEMA, SOME_AGGREGATES, assert_agrees, row, steps, table

COUNT = (("n", Aggregate(AggregateKind.COUNT, None)),)


def sessions(
    gap: int,
    late: Late = Late.DROP,
    emit: Emit = Emit.FINAL,
    until: int = 0,
    by: tuple[str, ...] = ("key",),
    wanted: tuple[tuple[str, Aggregate], ...] = SOME_AGGREGATES,
) -> Sessions:
    return Sessions(by=by, time="at", aggregates=wanted, input=SCHEMA, late=late, until_us=until, emit=emit, gap_us=gap)


def bursts(rows: list[dict[str, object]]) -> list[tuple[object, ...]]:
    """Start, end and count, and where they are given revision and whether it is deleted."""
    names = ["window_start", "window_end", "n", "revision", "_deleted"]
    return sorted(tuple(one[name] for name in names if name in one) for one in rows)


@pytest.mark.parametrize("examples", FEW_OR_MANY)
@pytest.mark.parametrize("emit", list(Emit))
@pytest.mark.parametrize("late", list(Late))
def test_sessions_agree_with_the_reference(late: Late, emit: Emit, examples: int) -> None:
    @settings(max_examples=examples, deadline=None)
    @given(steps(), st.integers(1, 12), st.sampled_from([(), ("key",), ("key", "list")]), st.integers(1, 60))
    def holds(cuts: list[tuple[list[Row], int]], gap: int, by: tuple[str, ...], horizon: int) -> None:
        until = horizon if late is Late.CORRECT else 0
        policy = Policy(by, "at", SOME_AGGREGATES, SCHEMA, late, until, emit)
        operator = pickle.loads(pickle.dumps(sessions(gap, late, emit, until, by)))
        assert_agrees(operator, GapSessions(policy, gap).step, cuts)

    holds()


def test_a_pause_of_the_gap_separates() -> None:
    run = Run(sessions(10, wanted=COUNT), MemoryChunks())
    output = run.step(100, rows=table([row("a", time, 0) for time in (0, 9, 18, 28)]))
    assert bursts(output.tables[RESULTS].to_pylist()) == [
        (moment(0), moment(28), 3),
        (moment(28), moment(38), 1),
    ]


def test_a_straggler_is_late_unless_its_session_is_open() -> None:
    run = Run(sessions(10, Late.DIVERT, wanted=COUNT), MemoryChunks())
    run.step(0, rows=table([row("a", 21, 0)]))
    run.step(25)
    output = run.step(25, rows=table([row("a", 12, 0), row("b", 12, 0), row("a", 3, 0), row("b", 3, 0)]))
    assert output.late == 2
    assert output.tables[LATE].column("key").to_pylist() == ["b", "b"]
    assert bursts(run.step(40).tables[RESULTS].to_pylist()) == [(moment(3), moment(31), 3)]


def test_a_straggler_that_merges_sessions_deletes_what_was_told_of_the_later_one() -> None:
    run = Run(sessions(10, Late.CORRECT, until=100, wanted=COUNT), MemoryChunks())
    run.step(50, rows=table([row("a", time, 0) for time in (0, 18)]))
    output = run.step(50, rows=table([row("a", 9, 0)]))
    assert bursts(output.tables[RESULTS].to_pylist()) == [
        (moment(0), moment(28), 3, 1, False),
        (moment(18), moment(28), None, 1, True),
    ]
    assert output.tables[RESULTS].column("_before").to_pylist()[0]["n"] == 1


@pytest.mark.parametrize("emit", list(Emit))
def test_state_is_gone_once_no_row_can_touch_it(emit: Emit) -> None:
    run = Run(sessions(10, Late.CORRECT, emit, until=20), MemoryChunks())
    run.step(0, rows=table([row("a", time, time) for time in range(0, 500, 13)]))
    run.step(300)
    assert list(run.chunks.names())
    run.step(600)
    assert not list(run.chunks.names())


def test_a_step_leaves_alone_what_it_does_not_touch() -> None:
    run = Run(sessions(10, Late.CORRECT, until=10_000, wanted=COUNT), MemoryChunks())
    chunks = run.chunks
    assert isinstance(chunks, MemoryChunks)
    run.step(0, rows=table([row(f"k{number}", time, 0) for number in range(300) for time in range(0, 1000, 20)]))
    run.step(1000)
    before = dict(chunks.blobs)
    run.step(1000, rows=table([row("k1", 505, 0)]))
    kept = sum(chunks.blobs.get(name) == blob for name, blob in before.items())
    assert kept >= len(before) - 2, "only those that end about then are rewritten"
