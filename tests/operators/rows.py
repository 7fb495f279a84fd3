"""Random rows of all types, cut into steps, and a run of an operator beside its reference."""

import math
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import strategies as st

from headrace.operators.chunks import MemoryChunks
from headrace.operators.operator import LATE, RESULTS, Operator, Run
from headrace.topology import Aggregate, AggregateKind
from tests.operators.reference import Reference, Row, canonical, moment

TIME = pa.timestamp("us", tz="UTC")

SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("at", TIME),
        ("whole", pa.int64()),
        ("small", pa.int32()),
        ("float", pa.float64()),
        ("single", pa.float32()),
        ("price", pa.decimal128(12, 2)),
        ("wide", pa.decimal128(38, 10)),
        ("text", pa.string()),
        ("blob", pa.binary()),
        ("flag", pa.bool_()),
        ("day", pa.date32()),
        ("seen", TIME),
        ("list", pa.list_(pa.float64())),
        ("struct", pa.struct([("x", pa.float64()), ("y", pa.list_(pa.int32()))])),
        ("map", pa.map_(pa.string(), pa.int64())),
        ("deep", pa.struct([("maps", pa.list_(pa.map_(pa.string(), pa.float64())))])),
    ]
)

NAN, INF = math.nan, math.inf

POOLS: dict[str, list[Any]] = {
    "whole": [None, 0, -1, 7, 2**40, -(2**40)],
    "small": [None, 2**31 - 1, -(2**31), 5],
    "float": [None, 0.0, -0.0, 0.25, -1.5, 1e6, NAN, INF, -INF],
    "single": [None, 0.5, -0.0, NAN, INF],
    "price": [None, Decimal("0.01"), Decimal("-9999999999.99"), Decimal("9999999999.99")],
    "wide": [None, Decimal("0E-10"), Decimal("1.0000000001"), Decimal("99999999999999999999999.9999999999"),
             Decimal("-99999999999999999999999.0000000007")],
    "text": [None, "", "a", "é", "zz", "\U0001f600"],
    "blob": [None, b"", b"\x00", b"\xff\x00", b"\x7f"],
    "flag": [None, True, False],
    "day": [None, date(1969, 12, 31), date(2024, 2, 29)],
    "seen": [None, datetime(1, 1, 1, tzinfo=UTC), datetime(2024, 1, 1, tzinfo=UTC), moment(-1)],
    "list": [None, [], [None], [0.0], [-0.0], [NAN], [1.0, 2.0]],
    "struct": [None, {"x": NAN, "y": [1]}, {"x": None, "y": None}, {"x": -0.0, "y": []}, {"x": 0.0, "y": []}],
    "map": [None, [], [("a", 1), ("b", None)], [("b", None), ("a", 1)], [("a", 2)]],
    "deep": [None, {"maps": None}, {"maps": [[("a", NAN), ("b", 0.0)], None]},
             {"maps": [[("b", -0.0), ("a", NAN)], None]}],
}  # fmt: skip

NUMBERS = ("whole", "small", "float", "single", "price", "wide")
WITHOUT_ORDER = ("map", "deep")


FEW_OR_MANY = [20, pytest.param(500, marks=[pytest.mark.long, pytest.mark.timeout(900)])]
"""How many random examples a property is tried with, in short tests and in long ones."""


def every_aggregate(columns: Iterable[str]) -> tuple[tuple[str, Aggregate], ...]:
    """Each kind of aggregate of each column that it can be of."""
    found = [("rows", Aggregate(AggregateKind.COUNT, None))]
    for column in columns:
        for kind in AggregateKind:
            if kind in (AggregateKind.SUM, AggregateKind.MEAN) and column not in NUMBERS:
                continue
            if kind in (AggregateKind.MIN, AggregateKind.MAX) and column in WITHOUT_ORDER:
                continue
            found.append((f"{kind.value}_{column}", Aggregate(kind, column)))
    return tuple(found)


SOME_AGGREGATES = (
    ("n", Aggregate(AggregateKind.COUNT, None)),
    ("total", Aggregate(AggregateKind.SUM, "float")),
    ("mean", Aggregate(AggregateKind.MEAN, "wide")),
    ("highest", Aggregate(AggregateKind.MAX, "float")),
    ("last", Aggregate(AggregateKind.LAST, "map")),
    ("kinds", Aggregate(AggregateKind.COUNT_DISTINCT, "struct")),
    ("all", Aggregate(AggregateKind.COLLECT, "text")),
)
"""One of each way in which partial figures are folded."""

KEYS = [None, "hot", "hot", "hot", "a", "b", ""]


def row(key: str | None, time: int | None, draw: int) -> Row:
    """A row whose values follow from a number."""
    values: Row = {"key": key, "at": None if time is None else moment(time)}
    for place, (column, pool) in enumerate(POOLS.items()):
        values[column] = pool[(draw >> (place % 5)) % len(pool)]
    return values


def flagged(key: str | None, time: int | None, draw: int) -> Row:
    """A row that may open or close a session."""
    openings = [True, False, False, None]
    return {**row(key, time, draw), "_opens": openings[draw % 4], "_closes": openings[draw // 4 % 4]}


FLAGGED = pa.schema([*SCHEMA, ("_opens", pa.bool_()), ("_closes", pa.bool_())])


def steps(
    made: Callable[[str | None, int | None, int], Row] = row, lowest: int = -40, highest: int = 60
) -> st.SearchStrategy[list[tuple[list[Row], int]]]:
    """Batches of rows in any order, each with the watermark that is known when it comes."""
    times = st.one_of(st.integers(lowest, highest), st.integers(0, 12), st.sampled_from([None, 0, 1, 1, 1]))
    one = st.builds(made, st.sampled_from(KEYS), times, st.integers(0, 2**9))
    # A record that was delivered twice is there twice: that is for `dedup` to find, not for windows.
    twice = one.flatmap(lambda some: st.sampled_from([[some], [some], [some, some]]))
    rows = st.lists(twice, max_size=10).map(lambda lots: [some for lot in lots for some in lot])
    return st.lists(st.tuples(rows, st.integers(lowest, highest + 40)), max_size=7)


def table(rows: Sequence[Row], schema: pa.Schema = SCHEMA) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema)


def assert_agrees(operator: Operator, reference: Reference, cuts: Iterable[tuple[list[Row], int]]) -> Run:
    """Step by step the operator gives what the reference gives."""
    run = Run(operator, MemoryChunks())
    highest = -(2**62)
    for rows, watermark in cuts:
        highest = max(highest, watermark)
        expected = reference(rows, highest)
        late_before = run.late
        output = run.step(highest, rows=table(rows, operator.inputs[RESULTS]))
        for name, made in output.tables.items():
            assert made.schema.equals(operator.outputs[name]), name
        results = output.tables[RESULTS].to_pylist() if RESULTS in output.tables else []
        late = output.tables[LATE].to_pylist() if LATE in output.tables else []
        assert canonical(results) == canonical(expected.results)
        assert rows or operator.waits or not results, "rows came out although it does not wait"
        assert run.late - late_before == len(expected.late)
        if LATE in operator.outputs:
            assert canonical(late) == canonical(expected.late)
    return run
