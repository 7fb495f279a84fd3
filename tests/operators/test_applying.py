"""Functions of one's own over the rows of windows that close together."""

import pickle
from collections.abc import Callable
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings

from headrace.errors import EngineError, InputError
from headrace.operators.applying import Applying, Closing
from headrace.operators.chunks import MemoryChunks
from headrace.operators.event_sessions import EventSessions
from headrace.operators.operator import LATE, RESULTS, Run
from headrace.operators.sessions import Sessions
from headrace.operators.slices import Slices
from headrace.topology import Emit, Late, Since
from tests.operators import reference
from tests.operators.reference import Policy, Row, Stepped, moment
from tests.operators.rows import FEW_OR_MANY, FLAGGED, SCHEMA, TIME, assert_agrees, flagged, row, steps, table

WHOLE = pa.schema([("key", pa.string()), ("window_start", TIME), ("window_end", TIME), *list(SCHEMA)[1:]])
COUNTED = pa.schema([("key", pa.string()), ("n", pa.int64())])


def as_it_is(rows: pa.Table) -> pa.Table:
    return rows


def counted(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.group_by("key").agg(n=pl.len())


def window(kind: str, late: Late = Late.DIVERT, emit: Emit = Emit.FINAL) -> Closing:
    input = FLAGGED if kind == "events" else SCHEMA
    common: dict[str, Any] = {
        "by": ("key",),
        "time": "at",
        "aggregates": (),
        "input": input,
        "late": late,
        "emit": emit,
    }
    match kind:
        case "tumbling":
            return Slices(**common, size_us=10, every_us=10)
        case "hopping":
            return Slices(**common, size_us=12, every_us=8)
        case "gap":
            return Sessions(**common, gap_us=6)
        case _:
            return EventSessions(**common, timeout_us=12, since=Since.LAST, slice_us=10)


def applying(kind: str, function: Callable[[Any], Any] = as_it_is, result: pa.Schema = WHOLE) -> Applying:
    return Applying(window=window(kind), function=function, result=result)


def brute(kind: str) -> Any:
    policy = Policy(("key",), "at", (), FLAGGED if kind == "events" else SCHEMA, Late.DIVERT)
    match kind:
        case "tumbling":
            return reference.SlicedWindows(policy, 10, 10)
        case "hopping":
            return reference.SlicedWindows(policy, 12, 8)
        case "gap":
            return reference.GapSessions(policy, 6)
        case _:
            return reference.EventSessions(policy, 12, Since.LAST)


@pytest.mark.parametrize("examples", FEW_OR_MANY)
@pytest.mark.parametrize("kind", ["tumbling", "hopping", "gap", "events"])
def test_a_function_sees_all_rows_of_the_windows_that_close(kind: str, examples: int) -> None:
    @settings(max_examples=examples, deadline=None)
    @given(steps(flagged if kind == "events" else row))
    def holds(cuts: list[tuple[list[Row], int]]) -> None:
        expected = brute(kind)
        inside: list[Row] = []

        def telling(start: int, end: int, rows: list[Row]) -> Row:
            for one in rows:
                place = {"key": one["key"], "window_start": moment(start), "window_end": moment(end)}
                values = {name: value for name, value in one.items() if name not in ("key", "_opens", "_closes")}
                inside.append({**place, **values})
            return {}

        expected.telling.tell = telling

        def step(rows: list[Row], watermark: int) -> Stepped:
            inside.clear()
            late = expected.step(rows, watermark).late
            return Stepped(list(inside), late)

        assert_agrees(pickle.loads(pickle.dumps(applying(kind))), step, cuts)

    holds()


def test_rows_of_a_window_are_in_the_order_of_time() -> None:
    run = Run(applying("tumbling"), MemoryChunks())
    run.step(0, rows=table([row("a", 7, 1), row("a", 3, 2)]))
    run.step(0, rows=table([row("a", 5, 3), row("a", 3, 4)]))
    made = run.step(10).tables[RESULTS]
    assert made.column_names[:4] == ["key", "window_start", "window_end", "at"]
    assert made.column("at").to_pylist() == [moment(time) for time in (3, 3, 5, 7)]
    assert made.column("whole").to_pylist() == [row("a", 3, draw)["whole"] for draw in (2, 4, 3, 1)]


def test_a_function_may_take_and_give_polars() -> None:
    run = Run(applying("gap", counted, COUNTED), MemoryChunks())
    output = run.step(100, rows=table([row("a", 1, 1), row("a", 2, 1), row("b", 1, 1)]))
    assert sorted(map(tuple, (one.values() for one in output.tables[RESULTS].to_pylist()))) == [("a", 2), ("b", 1)]
    assert LATE not in output.tables


def test_polars_keeps_what_the_rows_hold() -> None:
    def through(rows: "pl.DataFrame") -> pl.DataFrame:
        assert isinstance(rows, pl.DataFrame)
        return rows

    rows = [row("a", draw % 10, draw) for draw in range(64)]
    made = Run(applying("tumbling", through), MemoryChunks()).step(10, rows=table(rows)).tables[RESULTS]
    expected = Run(applying("tumbling"), MemoryChunks()).step(10, rows=table(rows)).tables[RESULTS]
    assert reference.canonical(made.to_pylist()) == reference.canonical(expected.to_pylist())


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (lambda rows: None, "returned NoneType"),
        (lambda rows: rows.select(["key"]), "returned the columns key, and its schema has key, n"),
        (lambda rows: pa.table({"key": ["a"], "n": ["many"]}), "returned 'n' as string, not int64"),
    ],
)
def test_what_a_function_gives_is_held_to_its_schema(function: Callable[[Any], Any], problem: str) -> None:
    run = Run(applying("tumbling", function, COUNTED), MemoryChunks())
    with pytest.raises(EngineError, match=problem):
        run.step(10, rows=table([row("a", 1, 1)]))


@pytest.mark.parametrize(("late", "emit"), [(Late.CORRECT, Emit.FINAL), (Late.DROP, Emit.CHANGES)])
def test_rows_that_come_again_are_refused(late: Late, emit: Emit) -> None:
    with pytest.raises(InputError, match="does not support"):
        Applying(window=window("gap", late, emit), function=as_it_is, result=WHOLE)


def test_a_column_that_the_window_has_itself_is_refused() -> None:
    input = pa.schema([*SCHEMA, ("window_end", TIME)])
    own = Slices(by=("key",), time="at", aggregates=(), input=input, size_us=10, every_us=10)
    with pytest.raises(InputError, match="'window_end'"):
        Applying(window=own, function=as_it_is, result=WHOLE)
