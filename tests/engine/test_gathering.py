"""Fan-in: the parts of an event that went different ways, on the harness; and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

import headrace as hr
from headrace.config.run import RunConfig
from tests.engine.test_joins import PAYMENTS, MakeHarness, at, refusal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(300)


def test_parcels_come_out_whole_or_say_what_is_missing(headrace_harness: MakeHarness) -> None:
    app = hr.App("parcels")
    payments = app.topic("payments", PAYMENTS, key="id", event_time="at", lateness="1 minute")
    packing = app.topic("packing", "id STRING, weight DOUBLE, done TIMESTAMP", event_time="done", lateness="1 minute")
    labels = app.topic("labels", "id STRING, text STRING, at TIMESTAMP", event_time="at", lateness="1 minute")

    @app.stream(key="id")
    def once(payments: DataFrame) -> DataFrame:
        return hr.dedup(payments, on="id", within="1 hour")

    @app.stream(key="id")
    def parcels(once: DataFrame, packing: DataFrame, labels: DataFrame) -> DataFrame:
        return hr.gather(once, packing, labels, on="id", within="10 minutes")

    harness = headrace_harness(app)
    harness.send(payments, [{"id": id, "card": card, "at": at(0)} for id, card in ("1x", "1y", "2x", "3x")])
    harness.send(packing, [{"id": id, "weight": 1.5, "done": at(2)} for id in "12"])
    harness.send(labels, {"id": "1", "text": "to Bonn", "at": at(5)})
    harness.settle()
    assert [row["id"] for row in harness.rows(once)] == ["1", "2", "3"]
    (whole,) = harness.rows(parcels)
    assert whole == {
        "id": "1",
        "gathered_at": at(5),
        "once": {"card": "x", "at": at(0)},
        "packing": {"weight": 1.5, "done": at(2)},
        "labels": {"text": "to Bonn", "at": at(5)},
        "missing": [],
    }
    harness.restart()
    harness.send(payments, {"id": "1", "card": "z", "at": at(30)}, {"id": "3", "card": "z", "at": at(70)})
    harness.advance(at(15))
    told = {row["id"]: (row["missing"], row["gathered_at"]) for row in harness.rows(parcels)}
    assert told["2"] == (["labels"], at(10))
    assert told["3"] == (["packing", "labels"], at(10))
    assert [row["id"] for row in harness.rows(once)] == ["1", "2", "3", "3"]


def test_parts_that_cannot_be_gathered_are_told_before_any_query_starts(spark: SparkSession, config: RunConfig) -> None:
    def twice(clicks: Any) -> Any:
        return hr.gather(clicks, clicks.where("link > 1"), on="search", within="1 minute")

    def lonely(clicks: Any) -> Any:
        return hr.gather(clicks, on="search", within="1 minute")

    def gather_unlike(clicks: Any, numbered: Any) -> Any:
        return hr.gather(clicks, numbered, on="search", within="1 minute")

    def endless(clicks: Any, numbered: Any) -> Any:
        return hr.gather(clicks, numbered, on="link")

    def tell(function: Callable[..., Any]) -> str:
        return refusal(spark, config, function)

    assert "two parts have the same name: clicks, clicks; name them: names=['part1', 'part2']" in tell(twice)
    assert "gather() needs two or more parts" in tell(lonely)
    assert "'search' is string on the left, and 'search' int on the right" in tell(gather_unlike)
    assert "gather() needs within=; add within=" in tell(endless)
