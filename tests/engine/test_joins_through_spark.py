"""Joins through Spark: random events in random batches, with restarts, beside what a few lines of Python make of them.

No event is late here: what becomes of late ones is shown for each operator alone.
"""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.testing import Environment, Harness

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headrace.engine.read.tables import Table

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
WITHIN, SOON = 10, 7
KEYS = st.sampled_from(["a", "b", "c", "hot", "hot", "hot"])
SECONDS = st.integers(0, 40)
EVENTS = st.lists(st.tuples(KEYS, SECONDS), min_size=3, max_size=12)
CHANGES = st.lists(st.tuples(KEYS, SECONDS, st.sampled_from([None, "x", "y", "z"])), min_size=1, max_size=6)
STEP = st.tuples(CHANGES, CHANGES, EVENTS, EVENTS, st.booleans())
Row = dict[str, Any]


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def made() -> hr.App:
    app = hr.App("joined")
    for name, column in (("left", "l"), ("right", "r")):
        app.topic(name, f"{column} INT, k STRING, {column}_at TIMESTAMP", event_time=f"{column}_at", lateness="1 day")
    app.table("colours", "k STRING, colour STRING, since TIMESTAMP", key="k", event_time="since")
    app.table("shapes", "k STRING, shape STRING", key="k")

    @app.stream
    def pairs(left: DataFrame, right: DataFrame) -> DataFrame:
        return hr.join(left, right, on="k", within=f"{WITHIN} seconds", how="full")

    @app.stream
    def coloured(left: DataFrame, colours: Table) -> DataFrame:
        return hr.enrich(left, colours.select("k", "colour"), on="k", how="left")

    @app.stream
    def once(left: DataFrame) -> DataFrame:
        return hr.dedup(left, on="k", within=f"{SOON} seconds")

    @app.stream
    def whole(once: DataFrame, right: DataFrame) -> DataFrame:
        return hr.gather(once, right, on="k", within="1 hour")

    @app.table(key="k")
    def both(colours: Table, shapes: Table) -> Table:
        return hr.join(colours.select("k", "colour"), shapes, on="k", how="full")

    return app


class Reference:
    """The same by brute force."""

    def __init__(self) -> None:
        self.left: list[Row] = []
        self.right: list[Row] = []
        self.colours: list[tuple[str, int, str | None]] = []
        self.shapes: dict[str, str | None] = {}
        self.coloured: list[tuple[int, str | None]] = []

    def see(self, event: Row) -> None:
        self.left.append(event)
        valid = [(since, place, to) for place, (k, since, to) in enumerate(self.colours) if k == event["k"]]
        before = [one for one in valid if at(one[0]) <= event["l_at"]]
        self.coloured.append((event["l"], max(before)[2] if before else None))

    def pairs(self) -> Counter[tuple[int | None, int | None]]:
        near = timedelta(seconds=WITHIN)
        found = [
            (one["l"], other["r"])
            for one in self.left
            for other in self.right
            if one["k"] == other["k"] and abs(one["l_at"] - other["r_at"]) <= near
        ]
        matched_left, matched_right = {one for one, _ in found}, {other for _, other in found}
        lonely = [(row["l"], None) for row in self.left if row["l"] not in matched_left]
        alone = [(None, row["r"]) for row in self.right if row["r"] not in matched_right]
        return Counter([*found, *lonely, *alone])

    def once(self) -> list[int]:
        passed: list[Row] = []
        for row in self.left:
            like = (one for one in passed if one["k"] == row["k"])
            if all(abs(one["l_at"] - row["l_at"]) >= timedelta(seconds=SOON) for one in like):
                passed.append(row)
        return [row["l"] for row in passed]

    def both(self) -> dict[str, tuple[str | None, str | None]]:
        colours: dict[str, str | None] = {}
        for k, _, to in self.colours:
            colours[k] = to
        joined = {k: (colours.get(k), self.shapes.get(k)) for k in {*colours, *self.shapes}}
        return {k: found for k, found in joined.items() if found != (None, None)}


def compare(steps: list[Any], environment: Environment) -> None:
    reference, number = Reference(), 0
    with Harness(made(), environment=environment) as harness:
        for colours, shapes, left, right, restarts in steps:
            for k, since, to in colours:
                row = None if to is None else {"k": k, "colour": to, "since": at(since)}
                harness.send("colours", row, key=k if row is None else None, timestamp=at(since))
                reference.colours.append((k, since, to))
            for k, _, to in shapes:
                harness.send("shapes", None if to is None else {"k": k, "shape": to}, key=k if to is None else None)
                reference.shapes[k] = to
            harness.settle()
            for k, second in left:
                number += 1
                reference.see({"l": number, "k": k, "l_at": at(second)})
            harness.send("left", reference.left[len(reference.left) - len(left) :])
            for k, second in right:
                number += 1
                reference.right.append({"r": number, "k": k, "r_at": at(second)})
            harness.send("right", reference.right[len(reference.right) - len(right) :])
            harness.settle()
            if restarts:
                harness.restart()
        harness.advance(at(7200))
        assert Counter((row["l"], row["r"]) for row in harness.rows("pairs")) == reference.pairs()
        assert sorted((row["l"], row["colour"]) for row in harness.rows("coloured")) == sorted(reference.coloured)
        assert sorted(row["l"] for row in harness.rows("once")) == reference.once()
        found = {row["k"]: (row["colour"], row["shape"]) for row in harness.rows("both")}
        assert found == reference.both()
        keys = {row["k"] for row in (*reference.left, *reference.right)}
        told = harness.rows("whole")
        assert {row["k"] for row in told} == keys
        missing = {row["k"]: row["missing"] for row in told}
        assert all(("right" in missing[k]) == all(row["k"] != k for row in reference.right) for k in keys)


CALM = {
    "deadline": None,
    "phases": [Phase.explicit, Phase.generate],
    "suppress_health_check": list(HealthCheck),
    "derandomize": True,
}


@pytest.mark.timeout(300)
@given(st.lists(STEP, min_size=2, max_size=2))
@settings(max_examples=2, **CALM)  # type: ignore[arg-type]
def test_joins_are_what_brute_force_makes_of_them(headrace_environment: Environment, steps: list[Any]) -> None:
    compare(steps, headrace_environment)


@pytest.mark.long
@pytest.mark.timeout(3600)
@given(st.lists(STEP, min_size=2, max_size=4))
@settings(max_examples=20, **(CALM | {"derandomize": False}))  # type: ignore[arg-type]
def test_joins_are_what_brute_force_makes_of_them_often(headrace_environment: Environment, steps: list[Any]) -> None:
    compare(steps, headrace_environment)
