"""One row that a function raises on: the error names the line and the record, or the row is diverted to `.failed`."""

from __future__ import annotations

import json
import signal
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import functions as F
from pyspark.sql.types import LongType

import headrace as hr
from headrace.engine.plan.planner import plan_topology
from tests.engine.numbers_run import MARKER, RUN, event
from tests.engine.numbers_run import at as moment
from tests.engine.test_kills import World
from tests.engine.topics import messages, send

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from headrace.config.run import RunConfig
    from headrace.testing import Harness

pytestmark = pytest.mark.timeout(300)

ORDERS = "id BIGINT, total BIGINT, pieces BIGINT, at TIMESTAMP"


def at(second: int) -> datetime:
    return datetime(2026, 1, 1, 12, tzinfo=UTC) + timedelta(seconds=second)


def order(id: int, pieces: int = 1) -> dict[str, Any]:
    return {"id": id, "total": 12, "pieces": pieces, "at": at(id)}


def new_app() -> hr.App:
    app = hr.App("shop")
    app.topic("orders", ORDERS, key="id", event_time="at", lateness="0 seconds")
    return app


def price_of(total: int, pieces: int) -> int:
    return total // pieces


# By value, so that Spark's Python processes need not import this file, and all that it imports, after each failure.
price_of.__module__ = "__main__"
price = F.udf(price_of, LongType())
LINE = price_of.__code__.co_firstlineno + 1


def test_a_function_that_raises_stops_the_node_and_names_the_line_and_the_record(
    headrace_harness: Callable[..., Harness],
) -> None:
    app = new_app()

    @app.stream(key="id")
    def priced(orders: DataFrame) -> DataFrame:
        return orders.withColumn("price", price("total", "pieces"))

    with headrace_harness(app) as harness:
        harness.send("orders", [order(id, pieces=id - 17) for id in range(20)])
        with pytest.raises(hr.NodeFailed) as raised:
            harness.settle()
        told = str(raised.value)
        assert f"tests/engine/test_failed_rows.py:{LINE}" in told
        assert "ZeroDivisionError: integer division or modulo by zero" in told
        assert "orders[0]@17" in told


def forget_last_commit(harness: Harness, *nodes: str) -> None:
    runner = harness._running
    harness._launched.close()
    for node in nodes:
        checkpoint = runner.checkpoints.of(node)
        (checkpoint.spark / "commits" / str(checkpoint.committed_batch())).unlink()
    harness._run()


def test_rows_on_which_a_function_raises_are_diverted_with_their_place_and_reason(
    headrace_harness: Callable[..., Harness],
) -> None:
    app = new_app()

    @app.stream(key="id", on_error="divert")
    def priced(orders: DataFrame) -> DataFrame:
        return orders.withColumn("price", price("total", "pieces"))

    @app.view(key="id", order_by="at", on_error="divert")
    def prices(orders: DataFrame) -> DataFrame:
        return orders.select("id", "at", price("total", "pieces").alias("price"))

    @app.table(key="id", on_error="divert")
    def newest(orders: DataFrame) -> DataFrame:
        return orders.select("id", (F.col("total") / F.col("pieces")).alias("price"))

    @app.stream
    def complaints(rows: DataFrame = priced.failed) -> DataFrame:  # type: ignore[assignment]
        return rows.select("topic", "offset", "error")

    with headrace_harness(app) as harness:
        sent = [order(id, pieces=int(id not in (3, 6))) for id in range(8)]
        sent[2] = b"not JSON"  # type: ignore[call-overload]
        harness.send("orders", sent, headers={"trace": "t1"})
        harness.settle()
        good = [0, 1, 4, 5, 7]
        assert [row["id"] for row in harness.rows(priced)] == good
        assert [row["id"] for row in harness.rows(prices)] == good
        assert [row["id"] for row in harness.rows(newest)] == good
        assert [row["offset"] for row in harness.rows("orders.rejected")] == [2]
        failed = harness.rows(priced.failed)
        place = f"tests/engine/test_failed_rows.py:{LINE}"
        assert [(row["topic"], row["partition"], row["offset"]) for row in failed] == [("orders", 0, n) for n in [3, 6]]
        assert {row["reason"] for row in failed} == {f"the function raised at {place}"}
        assert {row["error"] for row in failed} == {"ZeroDivisionError: integer division or modulo by zero"}
        first = harness.records(priced.failed)[0]
        assert first.key == b"3"
        assert b'"pieces":0' in (first.value or b"").replace(b" ", b"")
        assert ("trace", b"t1") in first.headers
        assert [row["offset"] for row in harness.rows(prices.failed)] == [3, 6]
        assert ["Division by zero" in row["error"] for row in harness.rows(newest.failed)] == [True] * 2
        assert [row["offset"] for row in harness.rows(complaints)] == [3, 6]
        forget_last_commit(harness, "priced", "prices")  # so the batch is replayed, although its rows are written
        harness.send("orders", order(8), order(9, pieces=0))
        harness.settle()
        assert [row["id"] for row in harness.rows(priced)] == [*good, 8]
        assert [row["offset"] for row in harness.rows(priced.failed)] == [3, 6, 9]
        assert [row["offset"] for row in harness.rows(complaints)] == [3, 6, 9]


def test_windows_on_which_an_applied_function_raises_are_diverted_and_the_others_are_not(
    headrace_harness: Callable[..., Harness],
) -> None:
    app = new_app()

    def summed(rows: Any) -> Any:
        for pieces in rows.column("pieces").to_pylist():
            _ = 1 // pieces
        return rows.group_by("window_end").aggregate([("total", "sum")]).rename_columns(["window_end", "total"])

    @app.stream(on_error="divert")
    def minutes(orders: DataFrame) -> Any:
        cut = hr.windowed(orders, hr.tumbling("1 minute"), by=[], late="divert")
        return cut.apply(summed, schema="window_end TIMESTAMP, total BIGINT")

    @app.view(key="window_end", on_error="divert")
    def shown(orders: DataFrame) -> Any:
        cut = hr.windowed(orders, hr.tumbling("1 minute"), by=[])
        return cut.apply(summed, schema="window_end TIMESTAMP, total BIGINT").having("total > 0")

    line = summed.__code__.co_firstlineno + 2
    with headrace_harness(app) as harness:
        harness.send("orders", order(1), order(61), order(62, pieces=0), order(121))
        harness.advance(at(180))
        harness.send("orders", order(2))  # late
        harness.restart()
        harness.advance(at(240))
        for node in (minutes, shown):
            assert [row["window_end"] for row in harness.rows(node)] == [at(60), at(180)]
            failed = harness.rows(node.failed)
            assert [json.loads(row["value"])["id"] for row in failed] == [61, 62]
            assert {row["error"] for row in failed} == {"ZeroDivisionError: integer division or modulo by zero"}
            assert {row["reason"] for row in failed} == {
                f"the function raised at tests/engine/test_failed_rows.py:{line}"
            }
            assert {(row["topic"], row["partition"], row["offset"]) for row in failed} == {(None, None, None)}
        assert [row["id"] for row in harness.rows(minutes.late)] == [2]


def test_what_cannot_be_diverted_is_refused_with_the_reason(spark: SparkSession, config: RunConfig) -> None:
    app = new_app()
    app.rate("ticks")
    cost = price("total", "pieces").alias("cost")

    @app.stream(key="id", on_error="divert")
    def once(orders: DataFrame) -> DataFrame:
        return orders.withColumn("cost", cost).dropDuplicates(["id"])

    @app.view(key="id", on_error="divert")
    def summed(orders: DataFrame) -> DataFrame:
        return orders.select("id", cost).groupBy("id").agg(F.sum("cost").alias("cost"))

    @app.stream(key="id", on_error="divert")
    def slides(orders: DataFrame) -> Any:
        return hr.windowed(orders.withColumn("cost", cost), hr.sliding("1 minute"), by="id").agg(n=hr.sum("cost"))

    @app.view(key=["id", "window_start"], on_error="divert")
    def counted(orders: DataFrame) -> DataFrame:
        return hr.windowed(orders, hr.tumbling("1 minute")).agg(n=hr.count())  # type: ignore[return-value]

    @app.stream(on_error="divert")
    def ticking(ticks: DataFrame) -> DataFrame:
        return ticks

    @app.stream(key="id", on_error="divert")
    def twice(orders: DataFrame) -> DataFrame:
        return orders.union(orders)

    with pytest.raises(hr.PlanError) as refused:
        plan_topology(app.topology(), spark, config)
    told = {problem.message.partition("'")[2].partition("'")[0]: problem for problem in refused.value.problems}
    beside = "calls a Python function beside state ("
    assert f'on_error="divert": it {beside}Deduplicate' in told["once"].message
    assert f"{beside}Aggregate), and Spark cannot run part of such a batch again" in told["summed"].message
    assert beside + "TransformWithState" in told["slides"].message
    assert 'on_error="divert": it keeps state (Aggregate)' in told["counted"].message
    assert "reads rate 'ticks', whose rows cannot be read again by offset" in told["ticking"].message
    assert "reads 'orders' in several places" in told["twice"].message
    assert told["once"].next_step == "call the function in a node of its own, without state, or leave on_error out"


def test_declarations_that_cannot_divert_are_refused() -> None:
    app = new_app()

    @app.stream(key="id", guarantee="at-least-once", latency="real-time", on_error="divert")
    def fast(orders: DataFrame) -> DataFrame:
        return orders

    @app.stream(key="id", channels=["odd", "failed"], on_error="divert")
    def split(orders: DataFrame) -> dict[str, DataFrame]:
        return {"odd": orders, "failed": orders}

    @app.stream(key="id", on_error="ignore")
    def ignoring(orders: DataFrame) -> DataFrame:
        return orders

    @app.stream
    def complaints(rows: DataFrame = ignoring.failed) -> DataFrame:  # type: ignore[assignment]
        return rows

    told = [str(problem).partition(": ")[2] for problem in app.problems()]
    assert told == [
        'stream \'fast\': latency="real-time" does not go with on_error="divert": real-time mode has no batch to run '
        "again; leave one of them out",
        "stream 'split': channels= does not go with on_error=\"divert\": each channel reads the topic on its own; call "
        "the function in a node of its own, and split its rows in the next node",
        "stream 'ignoring': on_error: 'ignore' is unknown; known here: stop, divert",
        "stream 'complaints': nothing writes ignoring.failed: 'ignoring' does not divert rows on which its function "
        "raises; add on_error=\"divert\" to 'ignoring'",
    ]


@pytest.mark.timeout(600)
def test_a_batch_that_is_killed_while_it_diverts_rows_gives_them_once(tmp_path: Path) -> None:
    with World(tmp_path, "failing") as world:
        address = world.broker.address
        send(address, "numbers", [event(n, moment(n)) for n in range(24)], "k")
        world.start()
        # Not before: the first commit is that of the ledger. The batch takes many jobs to divide: it is not over yet.
        world.arm("before-commit divided", RUN)
        assert world.wait() == -signal.SIGKILL, world.said
        world.settle()
        rows = sorted(json.loads(record.value() or b"")["n"] for record in messages(address, "divided"))
        assert rows == [MARKER, *(n for n in range(24) if n % 10 != 3)]
        failed = sorted(json.loads(record.value() or b"")["n"] for record in messages(address, "divided.failed"))
        assert failed == [3, 13, 23]


def halved(pieces: int) -> int:
    return 12 // pieces


halved.__module__ = "__main__"


def test_many_rows_are_found_without_a_task_that_fails(
    headrace_harness: Callable[..., Harness], spark: SparkSession
) -> None:
    """Whatever kind of function raises: a failed task costs seconds, and a third of all rows fails here."""
    app = new_app()

    def by_series(pieces: pd.Series) -> pd.Series:
        return pieces.map(halved)

    def by_frames(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for frame in frames:
            yield frame.assign(price=frame["pieces"].map(halved))[["id", "price"]]

    def by_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            prices = [halved(pieces) for pieces in batch.column("pieces").to_pylist()]
            yield pa.RecordBatch.from_pydict({"id": batch.column("id"), "price": prices})

    for function in (by_series, by_frames, by_batches):
        function.__module__ = "__main__"
    series = F.pandas_udf(by_series, LongType())

    @app.stream(key="id", on_error="divert")
    def one_by_one(orders: DataFrame) -> DataFrame:
        # The second function has no value to compute with where the first one raised.
        less_one = F.udf(lambda price: price - 1, LongType())
        return orders.select("id", price("total", "pieces").alias("price")).withColumn("less", less_one("price"))

    @app.stream(key="id", on_error="divert")
    def in_series(orders: DataFrame) -> DataFrame:
        return orders.select("id", series("pieces").alias("price"))

    @app.stream(key="id", on_error="divert")
    def in_frames(orders: DataFrame) -> DataFrame:
        return orders.mapInPandas(by_frames, "id BIGINT, price BIGINT")

    @app.stream(key="id", on_error="divert")
    def in_batches(orders: DataFrame) -> DataFrame:
        return orders.mapInArrow(by_batches, "id BIGINT, price BIGINT")

    nodes = (one_by_one, in_series, in_frames, in_batches)
    with headrace_harness(app) as harness:
        harness.send("orders", [order(id, pieces=id % 3) for id in range(12)])
        jobs = spark.sparkContext._jsc.sc().dagScheduler().nextJobId()
        harness.settle()
        for node in nodes:
            assert [row["id"] for row in harness.rows(node)] == [id for id in range(12) if id % 3]
            failed = harness.rows(node.failed)
            assert [row["offset"] for row in failed] == list(range(0, 12, 3))
            assert {row["error"] for row in failed} == {"ZeroDivisionError: integer division or modulo by zero"}
            line = LINE if node is one_by_one else halved.__code__.co_firstlineno + 1
            assert {row["reason"] for row in failed} == {
                f"the function raised at tests/engine/test_failed_rows.py:{line}"
            }
            assert harness.progress(node).failed == 4
        tracker = spark.sparkContext.statusTracker()
        ran = range(int(jobs), int(spark.sparkContext._jsc.sc().dagScheduler().nextJobId()))
        ends = [info.status for job in ran if (info := tracker.getJobInfo(job)) is not None]
        # That of the batch itself, one for each node.
        assert ends.count("FAILED") <= len(nodes)


def test_the_search_for_failed_rows_is_shown(headrace_harness: Callable[..., Harness]) -> None:
    app = new_app()

    @app.stream(key="id", on_error="divert")
    def priced(orders: DataFrame) -> DataFrame:
        return orders.withColumn("price", price("total", "pieces"))

    with headrace_harness(app) as harness:
        harness.send("orders", [order(id, pieces=id % 4) for id in range(16)])
        seen = set()
        limit = time.monotonic() + 120
        while harness.progress(priced).failed < 4:
            assert time.monotonic() < limit
            seen.add(harness.progress(priced).activity)
            time.sleep(0.05)
        assert any(said and said.startswith("its function raises on some of 16 records: ") for said in seen)
        assert harness.progress(priced).activity is None
