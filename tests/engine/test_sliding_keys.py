"""Sliding windows whose rows change: a key that several events share is refused, and the advice works."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

import headrace as hr
from headrace.engine.plan.planner import plan_topology
from headrace.errors import PlanError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from headrace.config.run import RunConfig
    from headrace.testing import Harness

pytestmark = pytest.mark.timeout(300)

READINGS = "id STRING, sensor STRING, celsius DOUBLE, at TIMESTAMP"
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


def app_with_readings(name: str = "sensors", prefix: str = "") -> hr.App:
    app = hr.App(name, prefix=prefix)
    app.topic("readings", READINGS, key="sensor", event_time="at", lateness="5 minutes")
    return app


def hot(rows: DataFrame, **options: Any) -> Any:
    return (
        hr.windowed(rows, hr.sliding("30 seconds"), **options)
        .agg(temps=hr.collect("celsius"))
        .having("size(temps) >= 3 AND forall(slice(temps, -3, 3), t -> t > 8)")
    )


def test_a_key_that_several_events_share_is_refused(spark: SparkSession, config: RunConfig) -> None:
    app = app_with_readings(prefix=f"{uuid.uuid4().hex[:8]}.")
    declared: dict[str, list[str]] = {}

    def bad(
        declare: Callable[..., Any], key: Any, *advice: str, **options: Any
    ) -> Callable[[Callable[..., Any]], None]:
        def add(make: Callable[..., Any]) -> None:
            def node(readings: Any) -> Any:
                return make(readings)

            node.__name__ = f"node{len(declared)}"
            declared[node.__name__] = ["does not identify one event", *advice]
            declare(key=key, **options)(node)

        return add

    by_time = "say key=['sensor', 'at']"
    bad(
        app.stream,
        "sensor",
        f'{by_time}, or other columns that identify an event, such as an id; or say emit="final", so',
    )(lambda rows: hot(rows, emit="changes").select("sensor", "celsius", "at"))
    bad(
        app.table,
        "sensor",
        f'{by_time}, or other columns that identify an event, such as an id; or say emit="final", so',
    )(hot)
    bad(app.view, "sensor", by_time, 'or say emit="final" and order_by="at", so')(hot)
    bad(app.view, "sensor", by_time)(lambda rows: hr.windowed(rows, hr.sliding("1 minute")).agg(n=hr.count()))
    bad(app.view, "sensor", f"{by_time} (keep at in .select)", 'order_by="at" (keep at in .select), so')(
        lambda rows: hot(rows).select("sensor", "celsius")
    )
    bad(app.stream, "probe", "say key=['probe', 'moment']")(
        lambda rows: hot(rows, emit="changes").with_columns(moment="at", probe="sensor").select("moment", "probe")
    )
    bad(app.stream, ["name", "n"], by_time)(
        lambda rows: (
            hr.windowed(rows, hr.sliding("1 minute"), emit="changes")
            .agg(n=hr.count())
            .with_columns(name="upper(concat(sensor, '!'))")
        )
    )
    bad(app.stream, "sensor", by_time, 'or say emit="final", late="divert", so')(
        lambda rows: hot(rows, late="correct", until="1 day")
    )
    bad(app.stream, "sensor", "say key=['sensor', 'id', 'at']")(
        lambda rows: hot(rows, by=["sensor", "id"], emit="changes")
    )

    with pytest.raises(PlanError) as told:
        plan_topology(app.topology(), spark, config)
    found = {
        problem.message.split("'")[1]: f"{problem.message}; {problem.next_step}" for problem in told.value.problems
    }
    assert list(found) == list(declared)
    for name, wanted in declared.items():
        for part in wanted:
            assert part in found[name]


def test_keys_that_identify_an_event_are_accepted(spark: SparkSession, config: RunConfig) -> None:
    app = app_with_readings(prefix=f"{uuid.uuid4().hex[:8]}.")
    for number, key in enumerate(["id", ["sensor", "at"], ["sensor", "window_end"], ["sensor", "celsius"]]):

        def node(readings: DataFrame) -> Any:
            return hot(readings, emit="changes")

        node.__name__ = f"node{number}"
        app.stream(key=key)(node)

    @app.view(key="moment")
    def renamed(readings: DataFrame) -> Any:
        return hot(readings, by=[]).with_columns(moment="at").select("moment", "celsius")

    assert len(plan_topology(app.topology(), spark, config)) == 5


def reading(second: int, celsius: float) -> dict[str, Any]:
    return {"id": str(second), "sensor": "s1", "celsius": celsius, "at": NOON + timedelta(seconds=second)}


def test_the_advice_keeps_the_newest_row_when_an_old_one_is_retracted(headrace_harness: Callable[..., Harness]) -> None:
    app = app_with_readings("alarms")

    @app.stream(key=["sensor", "at"])
    def alarms(readings: DataFrame) -> Any:
        return hot(readings, emit="changes").select("sensor", "celsius", "at")

    @app.view(key=["sensor", "at"])
    def all_alarms(alarms: Any) -> Any:
        return alarms

    @app.stream(key="sensor")
    def settled(readings: DataFrame) -> Any:
        return hot(readings, emit="final").select("sensor", "celsius", "at")

    @app.view(key="sensor")
    def last_alarm(settled: DataFrame) -> Any:
        return settled

    @app.view(key="sensor", order_by="at")
    def last_at_once(readings: DataFrame) -> Any:
        return hot(readings, emit="final").select("sensor", "celsius", "at")

    with headrace_harness(app) as harness:
        harness.send("readings", [reading(second, 9.0) for second in (0, 10, 20, 70, 80, 90)])
        harness.settle()
        assert [row["at"] for row in harness.rows(all_alarms)] == [NOON + timedelta(seconds=s) for s in (20, 90)]
        harness.send("readings", reading(15, 1.0))
        harness.settle()
        newest = NOON + timedelta(seconds=90)
        assert [row["at"] for row in harness.rows(all_alarms)] == [newest]
        harness.advance(NOON + timedelta(minutes=10))
        assert [row["at"] for row in harness.rows(settled)] == [newest]
        assert [row["at"] for row in harness.rows(last_alarm)] == [newest]
        assert [row["at"] for row in harness.rows(last_at_once)] == [newest]
