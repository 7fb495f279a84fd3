"""Every window through Spark: random rows in random batches, restarts from the checkpoint, beside the same references.

The watermark is Spark's own: a batch knows the newest time of those before it, and one without rows follows when it
has moved.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from headrace.operators.event_sessions import EventSessions
from headrace.operators.operator import BEGINNING, LATE, RESULTS, Operator
from headrace.operators.sessions import Sessions
from headrace.operators.slices import Slices
from headrace.operators.sliding import SlidingWindows
from headrace.topology import Emit, Late, Since
from tests.operators import reference
from tests.operators.reference import Policy, Row, canonical, micros, moment
from tests.operators.rows import FLAGGED, SCHEMA, SOME_AGGREGATES, flagged, row, steps, table
from tests.operators.streaming import Hosting
from tests.operators.test_sliding import EveryEvent

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECOND = 1_000_000
BY = ("key",)
KINDS = ("slices", "gap sessions", "event sessions", "sliding")


def made(kind: str, late: Late, emit: Emit) -> tuple[Operator, Callable[[list[Row], int], reference.Stepped]]:
    """An operator and what it should do, in seconds."""
    until = 20 * SECOND if late is Late.CORRECT else 0
    schema = FLAGGED if kind == "event sessions" else SCHEMA
    common: dict[str, Any] = {"by": BY, "time": "at", "aggregates": SOME_AGGREGATES, "input": schema}
    common |= {"late": late, "until_us": until, "emit": emit}
    policy = Policy(BY, "at", SOME_AGGREGATES, schema, late, until, emit)
    match kind:
        case "slices":
            operator: Operator = Slices(size_us=12 * SECOND, every_us=8 * SECOND, **common)
            return operator, reference.SlicedWindows(policy, 12 * SECOND, 8 * SECOND).step
        case "gap sessions":
            return Sessions(gap_us=5 * SECOND, **common), reference.GapSessions(policy, 5 * SECOND).step
        case "event sessions":
            operator = EventSessions(timeout_us=9 * SECOND, since=Since.LAST, **common)
            return operator, reference.EventSessions(policy, 9 * SECOND, Since.LAST).step
        case _:
            return SlidingWindows(size_us=15 * SECOND, **common), EveryEvent(policy, 15 * SECOND).step


def in_seconds(rows: Sequence[Row]) -> list[Row]:
    """Spark's watermark counts milliseconds."""
    return [one | {"at": None if one["at"] is None else moment(micros(one["at"]) * SECOND)} for one in rows]


def agrees(spark: SparkSession, kind: str, late: Late, emit: Emit, cuts: list[tuple[list[Row], int]]) -> None:
    """A cut's number says whether the query is started again after it."""
    operator, step = made(kind, late, emit)
    with tempfile.TemporaryDirectory() as folder:
        hosting = Hosting(spark, Path(folder), operator, {RESULTS: BY})
        watermark, counted = BEGINNING, 0
        try:
            for given_rows, number in cuts:
                rows = in_seconds(given_rows)
                out = hosting.process(rows=table(rows, operator.inputs[RESULTS]))
                expected = step(rows, watermark)
                newest = max((micros(one["at"]) for one in rows if one["at"] is not None), default=BEGINNING)
                if newest > max(watermark, 0):
                    watermark = newest
                    expected.results += step([], watermark).results
                assert canonical(out[RESULTS].to_pylist()) == canonical(expected.results)
                if LATE in operator.outputs:
                    assert canonical(out[LATE].to_pylist()) == canonical(expected.late)
                counted += len(expected.late)
                assert hosting.late == counted
                if number % 3 == 0:
                    hosting.restart()
        finally:
            hosting.stop()


@pytest.mark.parametrize(
    "examples",
    [
        pytest.param(2, marks=pytest.mark.timeout(600)),
        pytest.param(20, marks=[pytest.mark.long, pytest.mark.timeout(7200)]),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_windows_in_spark_agree_with_the_reference(spark: SparkSession, kind: str, examples: int) -> None:
    rows = steps(flagged if kind == "event sessions" else row)
    # Each batch costs a second; a few show as much of what Spark has to do with it.
    batches = rows.map(lambda cuts: [cut for cut in cuts if cut[0]][:4]).filter(lambda cuts: len(cuts) > 1)

    # To shrink an example through Spark would take hours; in memory the same is found in seconds.
    @settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(batches, st.sampled_from(Late), st.sampled_from(Emit))
    def holds(cuts: list[tuple[list[Row], int]], late: Late, emit: Emit) -> None:
        agrees(spark, kind, late, emit, cuts)

    holds()
