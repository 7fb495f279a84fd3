"""Tumbling and hopping windows, step by step beside windows that keep all their rows."""

import pickle

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.operators.chunks import MemoryChunks
from headrace.operators.operator import LATE, RESULTS, Run
from headrace.operators.slices import Slices
from headrace.topology import Aggregate, AggregateKind, Emit, Late
from tests.operators.reference import Policy, Row, SlicedWindows, moment
from tests.operators.rows import FEW_OR_MANY, SCHEMA, SOME_AGGREGATES, assert_agrees, row, steps, table

SIZES = [(10, 10), (10, 5), (12, 8), (7, 3), (1, 1), (30, 2)]

COUNT = (("n", Aggregate(AggregateKind.COUNT, None)),)


def windows(
    size: int,
    every: int,
    late: Late = Late.DROP,
    emit: Emit = Emit.FINAL,
    until: int = 0,
    by: tuple[str, ...] = ("key",),
    wanted: tuple[tuple[str, Aggregate], ...] = SOME_AGGREGATES,
) -> Slices:
    return Slices(
        by=by,
        time="at",
        aggregates=wanted,
        input=SCHEMA,
        late=late,
        until_us=until,
        emit=emit,
        size_us=size,
        every_us=every,
    )


@pytest.mark.parametrize("examples", FEW_OR_MANY)
@pytest.mark.parametrize("emit", list(Emit))
@pytest.mark.parametrize("late", list(Late))
def test_windows_agree_with_the_reference(late: Late, emit: Emit, examples: int) -> None:
    @settings(max_examples=examples, deadline=None)
    @given(steps(), st.sampled_from(SIZES), st.sampled_from([(), ("key",), ("key", "list")]), st.integers(1, 40))
    def holds(cuts: list[tuple[list[Row], int]], size: tuple[int, int], by: tuple[str, ...], horizon: int) -> None:
        until = horizon if late is Late.CORRECT else 0
        policy = Policy(by, "at", SOME_AGGREGATES, SCHEMA, late, until, emit)
        operator = pickle.loads(pickle.dumps(windows(*size, late, emit, until, by)))
        assert_agrees(operator, SlicedWindows(policy, *size).step, cuts)

    holds()


@pytest.mark.parametrize("emit", list(Emit))
def test_state_is_gone_once_no_row_can_touch_it(emit: Emit) -> None:
    run = Run(windows(10, 5, Late.CORRECT, emit, until=20), MemoryChunks())
    run.step(0, rows=table([row("a", time, time) for time in range(0, 50, 3)]))
    run.step(69)
    assert list(run.chunks.names())
    run.step(200)
    assert not list(run.chunks.names())


def test_a_late_row_without_a_time_is_kept_apart() -> None:
    run = Run(windows(10, 10, Late.DIVERT), MemoryChunks())
    output = run.step(0, rows=table([row("a", None, 1), row("a", 3, 2)]))
    assert output.tables[LATE].column("key").to_pylist() == ["a"]
    assert output.late == 1


def test_a_step_writes_only_what_it_touches() -> None:
    run = Run(windows(10, 10, wanted=COUNT), MemoryChunks())
    chunks = run.chunks
    assert isinstance(chunks, MemoryChunks)
    run.step(0, rows=table([row(f"k{number}", time, 0) for number in range(500) for time in (5, 15)]))
    before = dict(chunks.blobs)
    run.step(0, rows=table([row("k1", 15, 0)]))
    assert all(chunks.blobs.get(name) == blob for name, blob in before.items()), "a large part was rewritten"
    added = sum(len(blob) for name, blob in chunks.blobs.items() if name not in before)
    assert added < 1000
    output = run.step(20)
    made = {(one["key"], one["window_start"]): one["n"] for one in output.tables[RESULTS].to_pylist()}
    assert len(made) == 1000
    assert made["k1", moment(10)] == 2


def test_parts_stay_few() -> None:
    run = Run(windows(1000, 1000, wanted=COUNT), MemoryChunks())
    for number in range(200):
        run.step(0, rows=table([row(f"k{number}", 5, 0)]))
    assert len(list(run.chunks.names())) < 12
    assert len(run.step(1000).tables[RESULTS]) == 200


def test_rows_of_one_time_stay_in_their_order_of_arrival_whatever_is_merged() -> None:
    wanted = (("all", Aggregate(AggregateKind.COLLECT, "text")), ("last", Aggregate(AggregateKind.LAST, "text")))
    run = Run(windows(10, 10, by=(), wanted=wanted), MemoryChunks())
    expected = []
    for number, count in enumerate([20, 5, 1, 40]):
        texts = [f"{number}.{place}" for place in range(count)]
        run.step(0, rows=table([{**row("a", 5, 0), "text": text} for text in texts]))
        expected += texts
    assert len(list(run.chunks.names())) == 1
    (made,) = run.step(10).tables[RESULTS].to_pylist()
    assert made["all"] == expected
    assert made["last"] == "3.39"


def test_results_have_the_input_types_and_revisions_only_where_rows_come_again() -> None:
    plain = windows(10, 10, wanted=COUNT).outputs
    assert plain == {RESULTS: plain[RESULTS]}
    assert plain[RESULTS].names == ["key", "window_start", "window_end", "n"]
    revised = windows(10, 10, Late.CORRECT, until=5, wanted=COUNT).outputs
    assert revised[RESULTS].names == [*plain[RESULTS].names, "revision", "_deleted", "_before"]
    assert revised[RESULTS].field("_before").type.field(0).type == pa.timestamp("us", tz="UTC")
    assert revised[LATE] == SCHEMA
