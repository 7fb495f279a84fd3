"""The harness: rows are processed step by step, time moves when it is told to, and leaves no trace."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

import headrace as hr
from headrace.testing import Harness

pytestmark = pytest.mark.timeout(300)  # the first of them starts Spark, a broker and PostgreSQL

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
MakeHarness = Callable[..., Harness]

app = hr.App("fraud")
payments = app.topic(
    "payments",
    "id STRING, card STRING, amount DECIMAL(12,2), at TIMESTAMP",
    key="card",
    event_time="at",
    lateness="1 minute",
)


@app.stream(key="card")
def large(payments: Any) -> Any:
    return payments.where("amount > 100")


@app.stream(key="card")
def large_minutes(payments: Any) -> Any:
    """Spark would push this filter below the watermark, and drop what moves it."""
    return hr.windowed(payments.where("amount > 100"), hr.tumbling("1 minute")).agg(n=hr.count())


@app.stream(key="card")
def minutes(payments: Any) -> Any:
    return hr.windowed(payments, hr.tumbling("1 minute")).agg(n=hr.count(), total=hr.sum("amount"))


@app.stream(key="card")
def hours(minutes: Any) -> Any:
    return hr.windowed(minutes, hr.tumbling("1 hour")).agg(n=hr.sum("n"))


@app.view(key=["card", "window_start"])
def spend(payments: Any) -> Any:
    return hr.windowed(payments, hr.tumbling("1 hour")).agg(total=hr.sum("amount"))


def payment(id: str, amount: str, after: float = 0, card: str = "a") -> dict[str, Any]:
    return {"id": id, "card": card, "amount": Decimal(amount), "at": NOON + timedelta(seconds=after)}


def minute(number: int, n: int, total: str) -> dict[str, Any]:
    start = NOON + timedelta(minutes=number)
    return {
        "card": "a",
        "window_start": start,
        "window_end": start + timedelta(minutes=1),
        "n": n,
        "total": Decimal(total),
    }


def test_what_happened_long_ago_is_not_past_its_retention(headrace_harness: MakeHarness) -> None:
    harness = headrace_harness(app)
    own = {"payments", "large", "large_minutes", "minutes", "hours"}
    topics = [name for name in harness._topics() if name.partition(".")[0] in own]
    assert {*own, "payments.rejected"} <= {*topics}
    kept = harness._cluster.topic_setting("retention.ms", topics)
    assert kept.keys() == {*topics}
    assert {name for name, value in kept.items() if value != "-1"} == set()


def test_rows_go_through_the_graph_and_time_moves_when_told(headrace_harness: MakeHarness) -> None:
    harness = headrace_harness(app)
    receipts = harness.send(payments, payment("1", "150"), [payment("2", "20", 10), payment("3", "300", 70)])
    assert [receipt.offset for receipt in receipts] == [0, 1, 2]
    harness.settle()
    assert harness.rows(large) == [payment("1", "150"), payment("3", "300", 70)]
    assert harness.rows(minutes) == []
    assert harness.rows(spend) == [{"card": "a", "window_start": NOON, **totals("470")}]

    harness.advance(NOON + timedelta(minutes=1))
    assert harness.rows(minutes) == [minute(0, 2, "170")]
    assert [row["n"] for row in harness.rows(large_minutes)] == [1]
    assert harness.rows("hours") == []

    harness.send(payments, payment("4", "1", 59))  # its window has closed
    harness.send(payments, payment("5", "2", 60))
    harness.advance(NOON + timedelta(minutes=59))
    assert harness.rows(minutes) == [minute(0, 2, "170"), minute(1, 2, "302")]
    assert harness.rows(hours) == []
    harness.advance("2026-01-31T13:00:00Z")
    assert [(row["window_start"], row["n"]) for row in harness.rows(hours)] == [(NOON, 4)]
    # The markers were seen by the watermark alone.
    assert len(harness.records(payments)) == 5
    assert harness.rows(payments.rejected) == []
    assert harness.progress(minutes).rejected == 0
    assert harness.progress(hours).watermark == NOON + timedelta(hours=1)


def totals(total: str) -> dict[str, Any]:
    return {"window_end": NOON + timedelta(hours=1), "total": Decimal(total)}


def test_each_harness_starts_from_nothing(headrace_harness: MakeHarness) -> None:
    harness = headrace_harness(app)
    harness.settle()
    for node in (payments, large, minutes, hours, spend):
        assert harness.rows(node) == []
    harness.send("payments", payment("1", "101"))
    harness.settle()
    assert [row["id"] for row in harness.rows("large")] == ["1"]


def test_a_restart_goes_on_from_the_checkpoints(headrace_harness: MakeHarness) -> None:
    harness = headrace_harness(app)
    harness.send(payments, payment("1", "150"))
    harness.settle()
    harness.restart()
    harness.send(payments, payment("2", "160", 1))
    harness.advance(NOON + timedelta(minutes=1))
    assert [row["id"] for row in harness.rows(large)] == ["1", "2"]
    assert harness.rows(minutes) == [minute(0, 2, "310")]


def test_what_cannot_be_used_is_seen_with_its_reason(headrace_harness: MakeHarness) -> None:
    harness = headrace_harness(app)
    harness.send(payments, b'{"id": "1"', payment("2", "150"))
    harness.settle()
    (rejected,) = harness.rows(payments.rejected)
    assert (rejected["value"], rejected["topic"], rejected["offset"]) == (b'{"id": "1"', "payments", 0)
    assert rejected["reason"] == "the value is not one JSON object"
    assert [row["id"] for row in harness.rows(large)] == ["2"]
    with pytest.raises(hr.InputError, match="may not be exact"):
        harness.send(payments, {"id": "1", "card": "a", "amount": 1.5, "at": NOON})


def test_a_step_takes_about_a_second_once_warm(headrace_harness: MakeHarness) -> None:
    harness = headrace_harness(app)
    harness.advance(NOON - timedelta(days=1))
    took = []
    for number in range(5):
        began = time.monotonic()
        harness.send(payments, payment(str(number), "150", number))
        harness.settle()
        took.append(time.monotonic() - began)
    assert len(harness.rows(large)) == 5
    assert min(took) < 5, took  # a second where nobody else uses the machine


broken = hr.App("broken")
numbers = broken.topic("numbers", "n BIGINT")


@broken.stream
def inverses(numbers: Any) -> Any:
    return numbers.selectExpr("1 / n AS inverse")


def test_a_node_that_fails_says_so_at_the_next_step(headrace_harness: MakeHarness) -> None:
    harness = headrace_harness(broken)
    harness.send(numbers, {"n": 2})
    harness.settle()
    assert harness.rows(inverses) == [{"inverse": 0.5}]
    harness.send(numbers, {"n": 0})
    with pytest.raises(hr.NodeFailed, match=r"(?i)division by zero"):
        harness.settle()


def test_names_that_mean_nothing_are_answered(headrace_harness: MakeHarness) -> None:
    harness = headrace_harness(broken)
    with pytest.raises(hr.InputError, match="did you mean 'inverses'"):
        harness.rows("inverse")
    with pytest.raises(hr.InputError, match="has no time zone"):
        harness.advance("2026-01-01T00:00")
    with pytest.raises(hr.InputError, match="no node named 'numbers' was started"):
        harness.progress(numbers)
    harness.close()
    with pytest.raises(hr.InputError, match="the harness is closed"):
        harness.settle()


def test_only_the_nodes_that_are_named_and_their_upstreams_are_started(headrace_harness: MakeHarness) -> None:
    harness = headrace_harness(app, nodes=[hours])
    assert [query.name for query in harness.topology.queries] == ["minutes", "hours"]
    harness.send(payments, payment("1", "10.00"), payment("2", "20.00", 30))
    harness.send(minutes, minute(2, 40, "1.00"))  # in between, beside what its own node makes
    harness.advance(NOON + timedelta(hours=2))
    assert [row["n"] for row in harness.rows(minutes)] == [40, 2]
    assert [row["n"] for row in harness.rows(hours)] == [42]
    with pytest.raises(hr.InputError, match="the view spend was not started; add it to nodes="):
        harness.rows(spend)
    with pytest.raises(hr.InputError, match="no node named 'large' was started"):
        harness.progress(large)


def test_without_upstreams_rows_are_sent_to_the_streams_in_between(headrace_harness: MakeHarness) -> None:
    harness = headrace_harness(app, nodes=["hours"], upstreams=False)
    assert [query.name for query in harness.topology.queries] == ["hours"]
    harness.send("minutes", [minute(0, 1, "1.00"), minute(1, 2, "1.00")])
    harness.settle()
    harness.restart()
    harness.send(minutes, minute(2, 3, "1.00"))
    harness.advance(NOON + timedelta(hours=1))
    assert [row["n"] for row in harness.rows(hours)] == [6]
    assert [row["n"] for row in harness.rows(minutes)] == [1, 2, 3]


def test_nodes_and_streams_that_cannot_be_meant(headrace_harness: MakeHarness) -> None:
    with pytest.raises(hr.InputError, match="no node 'hour'; did you mean 'hours'"):
        headrace_harness(app, nodes=["hour"])
    with pytest.raises(hr.InputError, match="the topic payments is not started by itself"):
        headrace_harness(app, nodes=[payments])
    harness = headrace_harness(app, nodes=[hours], upstreams=False)
    with pytest.raises(hr.InputError, match="column 'n' is 'many', not BIGINT"):
        harness.send(minutes, {**minute(0, 1, "1.00"), "n": "many"})
    with pytest.raises(hr.InputError, match=r"no rows can be sent to payments\.rejected"):
        harness.send(payments.rejected, {"reason": "none"})


def test_rows_that_no_started_node_reads_are_refused(headrace_harness: MakeHarness) -> None:
    app = hr.App("shop")
    app.topic("orders", "id BIGINT", key="id")
    app.topic("returns", "id BIGINT", key="id")

    @app.stream(key="id")
    def kept(orders: Any) -> Any:
        return orders

    @app.stream(key="id")
    def returned(returns: Any) -> Any:
        return returns

    with headrace_harness(app, nodes=[kept]) as harness:
        harness.send("orders", {"id": 1})
        with pytest.raises(hr.InputError, match=r"no node that was started reads 'returns'; .* returned$"):
            harness.send("returns", {"id": 1})
        harness.settle()
        assert harness.rows(kept) == [{"id": 1}]
