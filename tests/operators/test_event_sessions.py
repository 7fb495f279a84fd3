"""Sessions opened and closed by events, step by step beside a walk through all rows."""

import pickle
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.operators.chunks import MemoryChunks
from headrace.operators.event_sessions import EventSessions
from headrace.operators.operator import LATE, RESULTS, Run
from headrace.topology import Aggregate, AggregateKind, Emit, Late, Since
from tests.operators import reference
from tests.operators.reference import Policy, Row, moment
from tests.operators.rows import (
    FEW_OR_MANY,
    FLAGGED,
    SCHEMA,
    SOME_AGGREGATES,
    assert_agrees,
    flagged,
    row,
    steps,
    table,
)

COUNT = (("n", Aggregate(AggregateKind.COUNT, None)),)


def sessions(
    timeout: int,
    since: Since = Since.LAST,
    late: Late = Late.DROP,
    emit: Emit = Emit.FINAL,
    until: int = 0,
    by: tuple[str, ...] = ("key",),
    wanted: tuple[tuple[str, Aggregate], ...] = SOME_AGGREGATES,
    slices: int = 10,
) -> EventSessions:
    return EventSessions(
        by=by,
        time="at",
        aggregates=wanted,
        input=FLAGGED,
        late=late,
        until_us=until,
        emit=emit,
        timeout_us=timeout,
        since=since,
        slice_us=slices,
    )


def event(key: str, time: int, kind: str = "") -> Row:
    return {**row(key, time, 0), "_opens": kind == "opens", "_closes": kind == "closes"}


def told(run: Run, watermark: int, *events: Row) -> list[tuple[Any, ...]]:
    """Key, start, end and count of what came out, and where they are given revision and whether it is deleted."""
    results = run.step(watermark, rows=table(events, FLAGGED)).tables.get(RESULTS)
    names = ["key", "window_start", "window_end", "n", "revision", "_deleted"]
    rows = [] if results is None else results.to_pylist()
    plain = [[one[name] for name in names if name in one] for one in rows]
    return sorted(tuple(reference.micros(it) if isinstance(it, datetime) else it for it in one) for one in plain)


@pytest.mark.parametrize("examples", FEW_OR_MANY)
@pytest.mark.parametrize("emit", list(Emit))
@pytest.mark.parametrize("late", list(Late))
def test_sessions_agree_with_the_reference(late: Late, emit: Emit, examples: int) -> None:
    @settings(max_examples=examples, deadline=None)
    @given(
        steps(flagged),
        st.integers(1, 30),
        st.sampled_from(Since),
        st.sampled_from([(), ("key",), ("key", "list")]),
        st.integers(1, 60),
    )
    def holds(cuts: list[tuple[list[Row], int]], timeout: int, since: Since, by: tuple[str, ...], horizon: int) -> None:
        until = horizon if late is Late.CORRECT else 0
        policy = Policy(by, "at", SOME_AGGREGATES, FLAGGED, late, until, emit)
        operator = pickle.loads(pickle.dumps(sessions(timeout, since, late, emit, until, by)))
        assert_agrees(operator, reference.EventSessions(policy, timeout, since).step, cuts)

    holds()


def test_a_session_is_from_login_to_logout() -> None:
    run = Run(sessions(30, wanted=COUNT), MemoryChunks())
    events = [event("a", 1), event("a", 3, "opens"), event("a", 5, "opens"), event("a", 9, "closes"), event("a", 10)]
    assert told(run, 9, *events) == []
    assert told(run, 10) == [("a", 3, 10, 3)]
    assert told(run, 100) == []


@pytest.mark.parametrize(("since", "expected"), [(Since.FIRST, ("a", 0, 10, 2)), (Since.LAST, ("a", 0, 22, 3))])
def test_a_timeout_counts_from_the_first_or_the_last_row(since: Since, expected: tuple[Any, ...]) -> None:
    run = Run(sessions(10, since, wanted=COUNT), MemoryChunks())
    told(run, 5, event("a", 0, "opens"), event("a", 4), event("a", 12))
    told(run, 7)
    assert told(run, 100) == [expected]


def test_a_hot_key_of_many_sessions_is_followed_to_the_end() -> None:
    run = Run(sessions(10, wanted=COUNT), MemoryChunks())
    events = [event("hot", time, ("opens", "closes", "")[time % 3]) for time in range(3000)]
    assert told(run, 4000, *events) == [("hot", time, time + 2, 2) for time in range(0, 3000, 3)]


def test_a_late_login_changes_what_was_told_and_deletes_what_is_no_session_any_more() -> None:
    run = Run(sessions(20, Since.LAST, Late.CORRECT, until=100, wanted=COUNT), MemoryChunks())
    assert told(run, 50, event("a", 10, "opens"), event("a", 12, "closes")) == [("a", 10, 13, 2, 0, False)]
    assert told(run, 50, event("a", 5, "opens")) == [("a", 5, 13, 3, 0, False), ("a", 10, 13, None, 1, True)]
    assert told(run, 50, event("a", 7)) == [("a", 5, 13, 4, 1, False)]
    assert told(run, 50, event("a", 15)) == []


def test_a_session_that_goes_on_after_all_is_told_again_however_long_it_lasts() -> None:
    run = Run(sessions(10, Since.LAST, Late.CORRECT, until=5, wanted=COUNT), MemoryChunks())
    assert told(run, 12, event("a", 0, "opens")) == [("a", 0, 10, 1, 0, False)]
    assert told(run, 12, event("a", 8)) == []
    assert told(run, 16) == []
    assert told(run, 20) == [("a", 0, 18, 2, 1, False)]


def test_late_rows_come_without_what_was_added_to_them() -> None:
    run = Run(sessions(20, late=Late.DIVERT), MemoryChunks())
    run.step(50)
    late = run.step(50, rows=table([event("a", 49, "opens"), event("a", 50, "opens")], FLAGGED)).tables[LATE]
    assert late.schema.equals(SCHEMA)
    assert late.column("at").to_pylist() == [moment(49)]


@pytest.mark.parametrize("emit", list(Emit))
def test_state_is_gone_once_no_row_can_touch_it(emit: Emit) -> None:
    run = Run(sessions(10, Since.FIRST, Late.CORRECT, emit, until=20), MemoryChunks())
    told(run, 0, *(event("a", time, "opens" if time % 3 else "closes") for time in range(0, 500, 13)))
    told(run, 300)
    assert list(run.chunks.names())
    told(run, 600)
    assert not list(run.chunks.names())
