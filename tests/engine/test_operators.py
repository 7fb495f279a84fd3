"""`hr.windowed` where Spark's own windows do not do: through a broker, Spark and PostgreSQL, late rows and all."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest

import headrace as hr

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

    from headrace.testing import Harness

pytestmark = pytest.mark.timeout(300)

PAYMENTS = "id STRING, card STRING, amount DECIMAL(12,2), at TIMESTAMP"


def at(second: int) -> datetime:
    return datetime(2026, 1, 1, 12, tzinfo=UTC) + timedelta(seconds=second)


def payment(id: str, second: int, card: str = "a", amount: str = "1.00") -> dict[str, Any]:
    return {"id": id, "card": card, "amount": amount, "at": at(second)}


def app_with_payments(lateness: str = "0 seconds") -> hr.App:
    app = hr.App("shop")
    app.topic("payments", PAYMENTS, key="card", event_time="at", lateness=lateness)
    return app


def test_late_rows_are_diverted_once_and_read_by_the_next_node(headrace_harness: Callable[..., Harness]) -> None:
    app = app_with_payments()

    @app.stream(key="card")
    def minutes(payments: DataFrame) -> Any:
        return (
            hr.windowed(payments, hr.tumbling("1 minute"), late="divert")
            .agg(n=hr.count(), total=hr.sum("amount"))
            .having("n > 1")
            .with_columns(mean="total / n")
            .select("card", "window_end", "n", "mean")
        )

    @app.stream(key="card")
    def tardy(rows: DataFrame = minutes.late) -> DataFrame:
        return rows.select("id", "card", "at")

    with headrace_harness(app) as harness:
        harness.send("payments", payment("1", 1), payment("2", 2), payment("3", 3, "b"), payment("4", 61))
        harness.advance(at(60))
        assert [(row["card"], row["window_end"], row["n"], row["mean"]) for row in harness.rows("minutes")] == [
            ("a", at(60), 2, 1)
        ]
        harness.send("payments", payment("late 1", 5), payment("5", 62), payment("late 2", 6, "b"))
        harness.restart()
        harness.send("payments", payment("late 3", 7))
        harness.advance(at(120))
        assert sorted(row["id"] for row in harness.rows("minutes.late")) == ["late 1", "late 2", "late 3"]
        assert sorted(row["id"] for row in harness.rows("tardy")) == ["late 1", "late 2", "late 3"]
        assert [row["n"] for row in harness.rows("minutes")] == [2, 2]
        assert harness.records("minutes.late")[0].key == b"a"
        progress = harness.progress("minutes")
        assert progress.late == 3
        assert progress.state_rows == 0


def test_an_operator_that_is_used_twice_in_a_node_answers_twice(headrace_harness: Callable[..., Harness]) -> None:
    app = app_with_payments()

    @app.stream(key="card", channels=["many", "few"])
    def counted(payments: DataFrame) -> Any:
        minutes = hr.windowed(payments, hr.tumbling("1 minute")).agg(n=hr.count())
        return {"many": minutes.filter("n > 1"), "few": minutes.filter("n = 1")}

    @app.stream(key="card", channels=["many", "few"])
    def visits(payments: DataFrame) -> Any:
        sessions = hr.windowed(payments.withColumnRenamed("id", "bucket"), hr.session("1 minute"))
        each = sessions.agg(n=hr.count(), buckets=hr.collect("bucket"))
        return {"many": each.filter("n > 1"), "few": each.filter("n = 1")}

    with headrace_harness(app) as harness:
        harness.send("payments", payment("1", 1), payment("2", 2), payment("3", 3, "b"))
        harness.advance(at(600))
        for node in ("counted", "visits"):
            assert [(row["card"], row["n"]) for row in harness.rows(f"{node}.many")] == [("a", 2)]
            assert [(row["card"], row["n"]) for row in harness.rows(f"{node}.few")] == [("b", 1)]
        assert harness.rows("visits.many")[0]["buckets"] == ["1", "2"]


def test_sliding_windows_answer_each_event_once_time_has_passed_it(headrace_harness: Callable[..., Harness]) -> None:
    app = app_with_payments()

    @app.stream(key="card")
    def bursts(payments: DataFrame) -> Any:
        return hr.windowed(payments, hr.sliding("5 minutes")).agg(n=hr.count(), total=hr.sum("amount"))

    with headrace_harness(app) as harness:
        harness.send("payments", payment("2", 30), payment("1", 10), payment("3", 310), payment("x", 20, "b"))
        harness.advance(at(300))
        rows = harness.rows("bursts")
        assert [(row["id"], row["n"], row["window_end"]) for row in rows] == [
            ("1", 1, at(10)),
            ("x", 1, at(20)),
            ("2", 2, at(30)),
        ]
        assert rows[0]["at"] == at(10)
        assert harness.progress("bursts").state_rows >= 4
        harness.advance(at(311))
        # The event at 10 s is just outside of (10 s, 310 s].
        assert [(row["id"], row["n"]) for row in harness.rows("bursts")][3:] == [("3", 2)]


def test_changes_answer_at_once_and_are_revised(headrace_harness: Callable[..., Harness]) -> None:
    app = app_with_payments(lateness="1 minute")

    @app.view(key="id")
    def bursts(payments: DataFrame) -> Any:
        return hr.windowed(payments, hr.sliding("1 minute"), late="divert").agg(n=hr.count()).having("n < 3")

    @app.view(key=["card", "window_start"])
    def hours(payments: DataFrame) -> Any:
        # Spark's own window: what no longer holds must go there as well.
        counted = hr.windowed(payments, hr.tumbling("1 hour")).agg(n=hr.count())
        return counted.having("n < 3").select("card", "window_start", "n")

    @app.stream(key=["card", "window_start"])
    def days(payments: DataFrame) -> Any:
        counted = hr.windowed(payments, hr.tumbling("1 day"), emit="changes").agg(n=hr.count())
        return counted.having("n < 3")

    @app.view(key=["card", "window_start"])
    def today(days: Any) -> Any:
        return days

    with headrace_harness(app) as harness:
        harness.send("payments", payment("1", 10), payment("2", 30))
        harness.settle()
        assert [(row["id"], row["n"], row["revision"]) for row in harness.rows("bursts")] == [("1", 1, 0), ("2", 2, 0)]
        assert [row["n"] for row in harness.rows("hours")] == [2]
        assert [row["n"] for row in harness.rows("today")] == [2]
        harness.send("payments", payment("early", 5))
        harness.settle()
        assert [(row["id"], row["n"], row["revision"]) for row in harness.rows("bursts")] == [
            ("1", 2, 1),
            ("early", 1, 0),
        ]
        assert harness.rows("hours") == []
        assert harness.rows("today") == []
        assert [record.row for record in harness.records("days")][-1] is None
        harness.advance(at(100))
        harness.send("payments", payment("late", 6))
        harness.settle()
        assert [row["id"] for row in harness.rows("bursts.late")] == ["late"]
        assert len(harness.rows("bursts")) == 2


def test_corrections_come_out_again_as_a_changelog(headrace_harness: Callable[..., Harness]) -> None:
    app = app_with_payments()

    @app.stream(key=["card", "window_start"])
    def visits(payments: DataFrame) -> Any:
        window = hr.session("30 seconds")
        return hr.windowed(payments, window, late="correct", until="1 hour").agg(n=hr.count())

    @app.view(key=["card", "window_start"])
    def shown(visits: Any) -> Any:
        return visits

    with headrace_harness(app) as harness:
        harness.send("payments", payment("1", 0), payment("2", 50))
        harness.advance(at(200))
        assert [(row["window_start"], row["n"]) for row in harness.rows("shown")] == [(at(0), 1), (at(50), 1)]
        harness.send("payments", payment("between", 25))
        harness.settle()
        harness.settle()
        assert [(row["window_start"], row["window_end"], row["n"]) for row in harness.rows("shown")] == [
            (at(0), at(80), 3)
        ]
        records = harness.records("visits")
        assert [record.row for record in records].count(None) == 1
        harness.advance(at(3700))
        harness.send("payments", payment("too late", 26))
        harness.settle()
        assert [row["id"] for row in harness.rows("visits.late")] == ["too late"]


def doubled(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.group_by("card", "window_end").agg(pl.col("id").sort().str.join("+").alias("ids"))


def test_sessions_that_an_event_opens_and_functions_of_ones_own(headrace_harness: Callable[..., Harness]) -> None:
    app = app_with_payments()

    @app.stream(key="card")
    def visits(payments: DataFrame) -> Any:
        window = hr.session(opens="amount = 0", timeout="1 minute", closes="amount = 9")
        return hr.windowed(payments, window, late="divert").agg(ids=hr.collect("id"))

    @app.stream(key="card")
    def together(payments: DataFrame) -> Any:
        cut = hr.windowed(payments, hr.tumbling("1 minute"), late="divert")
        return cut.apply(doubled, schema="card STRING, window_end TIMESTAMP, ids STRING").having("ids <> '6'")

    with headrace_harness(app) as harness:
        harness.send("payments", payment("1", 1), payment("2", 2, amount="0"), payment("4", 20, amount="9"))
        harness.send("payments", payment("3", 10), payment("5", 30), payment("6", 70, "b"))
        harness.advance(at(121))
        harness.send("payments", payment("late", 3))
        harness.settle()
        assert [row["ids"] for row in harness.rows("visits")] == [["2", "3", "4"]]
        assert [(row["ids"], row["window_end"]) for row in harness.rows("together")] == [("1+2+3+4+5", at(60))]
        for node in ("visits", "together"):
            assert [row["id"] for row in harness.rows(f"{node}.late")] == ["late"]
            assert list(harness.rows(f"{node}.late")[0]) == ["id", "card", "amount", "at"]


def test_spark_counts_groups_of_late_rows_so_that_the_count_is_a_minimum(
    headrace_harness: Callable[..., Harness],
) -> None:
    app = app_with_payments()

    @app.stream(key="card")
    def dropped(payments: DataFrame) -> Any:
        return hr.windowed(payments, hr.tumbling("1 minute")).agg(n=hr.count())

    @app.stream(key="card")
    def diverted(payments: DataFrame) -> Any:
        return hr.windowed(payments, hr.tumbling("1 minute"), late="divert").agg(n=hr.count())

    with headrace_harness(app) as harness:
        harness.send("payments", payment("1", 0))
        harness.advance(at(200))
        assert not harness.progress("dropped").late_is_minimum
        harness.send("payments", [payment(str(number), 1, "ab"[number % 2]) for number in range(4)])
        harness.settle()
        progress = harness.progress("dropped")
        assert (progress.late, progress.late_is_minimum) == (2, True)
        progress = harness.progress("diverted")
        assert (progress.late, progress.late_is_minimum) == (4, False)
