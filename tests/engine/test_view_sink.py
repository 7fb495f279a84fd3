"""Views fed by Spark: up to date by key, each batch once, and read after one's own writes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer

import headrace as hr
from headrace.config.run import RunConfig
from headrace.engine.run.checkpoints import Checkpoints
from headrace.engine.run.runner import Runner
from headrace.engine.write.batch import Batch
from headrace.engine.write.row_sink import RowSink
from headrace.tables import ViewReader
from headrace.topology import App
from tests.engine.topics import messages, send

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(300)

SPEND = "card STRING, amount BIGINT, version INT, gone BOOLEAN"
READING = "sensor STRING, value DOUBLE, at TIMESTAMP"


@dataclass(frozen=True)
class Sent:
    """A receipt."""

    topic: str
    partition: int
    offset: int


@pytest.fixture
def config(config: RunConfig, postgres_dsn: str) -> RunConfig:
    return replace(config, create_inputs=True, attempts=2, postgres=postgres_dsn, topic_settings={"partitions": "1"})


def app_of(prefix: str, guarantee: str = "exactly-once", order_by: str | None = None) -> App:
    app = hr.App("app" + prefix.strip("."), prefix=prefix)
    app.topic("payments", SPEND, key="card")

    @app.view(key="card", guarantee=guarantee, order_by=order_by)
    def spend(payments: DataFrame) -> DataFrame:
        return payments.withColumnRenamed("gone", "_deleted")

    return app


def payment(card: str, amount: int, version: int = 0, gone: bool | None = None) -> dict[str, Any]:
    return {"card": card, "amount": amount, "version": version, "gone": gone}


def reading(minute: int, value: float) -> dict[str, Any]:
    return {"sensor": "s1", "value": value, "at": f"2026-01-01T12:{minute:02}:00Z"}


@contextmanager
def run(app: App, config: RunConfig, spark: SparkSession) -> Iterator[Runner]:
    runner = Runner(app, config, spark)
    runner.start()
    try:
        yield runner
    finally:
        runner.stop()


@contextmanager
def view_of(app: App, config: RunConfig) -> Iterator[ViewReader]:
    reader = ViewReader(config.postgres_dsn, app.name, "spend", ("card",))
    try:
        yield reader
    finally:
        reader.close()


def amounts(app: App, config: RunConfig) -> dict[str, int]:
    with view_of(app, config) as reader:
        return {row["card"]: row["amount"] for row in reader.rows()}


def test_rows_are_updated_and_deleted_by_key_and_the_last_one_wins(
    spark: SparkSession, config: RunConfig, prefix: str
) -> None:
    app = app_of(prefix)
    with run(app, config, spark) as runner:
        send(config.kafka_address, f"{prefix}payments", [payment("a", 1), payment("b", 2), payment("a", 3)], key="card")
        runner.process_all_available()
        assert amounts(app, config) == {"a": 3, "b": 2}
        send(config.kafka_address, f"{prefix}payments", [payment("b", 9, gone=True), payment("c", 4)], key="card")
        with view_of(app, config) as reader:
            found = reader.get("c", after=Sent(f"{prefix}payments", 0, 4))
            assert found is not None
            assert found["amount"] == 4
        assert amounts(app, config) == {"a": 3, "c": 4}


def test_order_by_decides_which_row_of_a_batch_is_the_last(spark: SparkSession, config: RunConfig, prefix: str) -> None:
    app = app_of(prefix, order_by="version")
    rows = [payment("a", 1, version=5), payment("a", 2, version=7), payment("a", 3, version=6)]
    with run(app, config, spark):
        pass  # so that the topic is there, and all rows are in one batch
    send(config.kafka_address, f"{prefix}payments", rows, key="card")
    with run(app, config, spark) as runner:
        runner.process_all_available()
    assert amounts(app, config) == {"a": 2}


@pytest.mark.parametrize("guarantee", ["exactly-once", "at-least-once", "at-most-once"])
def test_order_by_holds_across_batches(spark: SparkSession, config: RunConfig, prefix: str, guarantee: str) -> None:
    app = app_of(prefix, guarantee, order_by="version")
    batches = [
        [payment("a", 1, version=5), payment("b", 1, version=5), payment("c", 1, version=5)],
        [payment("a", 2, version=4), payment("b", 2, version=6, gone=True), payment("c", 2, version=5)],
        [payment("a", 3, version=3, gone=True), payment("b", 3, version=5), payment("c", 3, version=6)],
    ]
    with run(app, config, spark) as runner:
        for batch in batches:
            send(config.kafka_address, f"{prefix}payments", batch, key="card")
            runner.process_all_available()
    assert amounts(app, config) == {"a": 1, "c": 3}
    with run(app, config, spark) as runner:
        send(config.kafka_address, f"{prefix}payments", [payment("b", 4, version=5)], key="card")
        runner.process_all_available()
        assert amounts(app, config) == {"a": 1, "c": 3}
        send(config.kafka_address, f"{prefix}payments", [payment("b", 5, version=6)], key="card")
        runner.process_all_available()
    assert amounts(app, config) == {"a": 1, "b": 5, "c": 3}


def test_tombstones_delete_from_a_view_with_an_order(spark: SparkSession, config: RunConfig, prefix: str) -> None:
    app = hr.App("app" + prefix.strip("."), prefix=prefix)
    app.table("cards", "card STRING, amount BIGINT, version INT", key="card")

    @app.view(key="card", order_by="version")
    def spend(cards: Any) -> Any:
        return cards

    producer = Producer({"bootstrap.servers": config.kafka_address})
    with run(app, config, spark) as runner:
        for name, version in (("a", 5), ("b", 5), ("a", None), ("c", 1), ("c", None)):
            row = {"card": name, "amount": 1, "version": version}
            producer.produce(f"{prefix}cards", None if version is None else json.dumps(row), name)
            if name != "c":
                assert producer.flush(30) == 0
                runner.process_all_available()
        assert amounts(app, config) == {"b": 1}
        # Both of them in one batch.
        assert producer.flush(30) == 0
        runner.process_all_available()
    assert amounts(app, config) == {"b": 1}


def test_a_delete_is_remembered_for_as_long_as_rows_before_it_are_not_late(
    spark: SparkSession, config: RunConfig, prefix: str
) -> None:
    app = hr.App("app" + prefix.strip("."), prefix=prefix)
    columns = "card STRING, amount BIGINT, at TIMESTAMP, gone BOOLEAN"
    app.topic("payments", columns, key="card", event_time="at", lateness="10 minutes")

    @app.view(key="card", order_by="at")
    def spend(payments: DataFrame) -> DataFrame:
        return payments.withColumnRenamed("gone", "_deleted")

    def paid(card: str, amount: int, minute: int, gone: bool = False) -> dict[str, Any]:
        return {"card": card, "amount": amount, "at": f"2026-01-01T12:{minute:02}:00Z", "gone": gone}

    batches = [
        [paid("a", 1, 5), paid("b", 1, 5), paid("c", 1, 5)],
        [paid("a", 1, 20, gone=True), paid("b", 1, 20, gone=True)],
        [paid("a", 2, 19)],  # not late: the watermark is 12:10
        [paid("c", 2, 31)],
        [paid("a", 3, 19), paid("c", 3, 4)],  # the last batch with the watermark before 12:20
        [paid("b", 4, 19)],  # late, and the delete is forgotten
    ]
    with run(app, config, spark) as runner:
        for batch in batches:
            send(config.kafka_address, f"{prefix}payments", batch, key="card")
            runner.process_all_available()
    assert amounts(app, config) == {"b": 4, "c": 2}


def test_the_advice_for_a_key_without_the_window_is_right_when_it_is_followed(
    spark: SparkSession, config: RunConfig, prefix: str
) -> None:
    def app_with(options: str) -> App:
        app = hr.App("app" + prefix.strip("."), prefix=prefix)
        app.topic("readings", READING, key="sensor", event_time="at", lateness="1 hour")
        declared: dict[str, Any] = eval(f"dict({options})")

        @app.view(**declared)
        def newest(readings: DataFrame) -> Any:
            return hr.windowed(readings, hr.tumbling("1 minute")).agg(mean=hr.mean("value"))

        return app

    with pytest.raises(hr.PlanError) as refused:
        Runner(app_with('key="sensor"'), config, spark).start()
    (problem,) = refused.value.problems
    advised = re.findall(r"for the newest window of each key, say (.*)$", problem.next_step or "")
    assert advised == ['key=["sensor"], order_by="window_start"']
    app = app_with(advised[0])
    with run(app, config, spark) as runner:
        for batch in [[reading(1, 10.0)], [reading(2, 20.0)], [reading(1, 0.0)]]:
            send(config.kafka_address, f"{prefix}readings", batch, key="sensor")
            runner.process_all_available()
    reader = ViewReader(config.postgres_dsn, app.name, "newest", ("sensor",))
    assert [row["mean"] for row in reader.rows()] == [20.0]
    reader.close()


@pytest.mark.parametrize("guarantee", ["exactly-once", "at-least-once", "at-most-once"])
def test_a_batch_that_is_there_is_not_written_again(
    spark: SparkSession, config: RunConfig, prefix: str, guarantee: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = app_of(prefix, guarantee)
    write = RowSink.write
    lost: list[int] = []

    def fails_afterwards(self: RowSink, batch: Batch) -> None:
        write(self, batch)
        if not lost:
            lost.append(batch.number)
            raise OSError("before Spark noted the batch")

    monkeypatch.setattr(RowSink, "write", fails_afterwards)
    with run(app, config, spark) as runner:
        send(config.kafka_address, f"{prefix}payments", [payment("a", 1), b"broken"], key="card")
        runner.process_all_available()
        assert lost == [0]
        assert runner.progress()[0].errors == 1
        send(config.kafka_address, f"{prefix}payments", [payment("b", 2)], key="card")
        runner.process_all_available()
    assert amounts(app, config) == {"a": 1, "b": 2}
    assert len(messages(config.kafka_address, f"{prefix}payments.rejected")) == 1


def test_a_reset_empties_the_view_and_a_deleted_checkpoint_is_missed(
    spark: SparkSession, config: RunConfig, prefix: str
) -> None:
    app = app_of(prefix)
    with run(app, config, spark) as runner:
        send(config.kafka_address, f"{prefix}payments", [payment("a", 1)], key="card")
        runner.process_all_available()
    elsewhere = replace(config, home=config.home / "other")
    with pytest.raises(hr.CheckpointError, match=r"another checkpoint of 'spend'.*--reset spend"):
        Runner(app, elsewhere, spark).start()
    checkpoints = Checkpoints(config.home, app.name)
    checkpoints.of("spend").take_note(registered=("postgres",))
    kept = checkpoints.reset("spend")
    assert kept is not None
    with view_of(app, config) as reader:
        assert reader.rows()
    with run(app, config, spark) as runner:
        runner.process_all_available()
        assert amounts(app, config) == {"a": 1}


def test_a_database_that_is_not_the_one_it_wrote_to_is_refused(
    spark: SparkSession, config: RunConfig, prefix: str
) -> None:
    app = app_of(prefix)
    with run(app, config, spark):
        pass
    import psycopg

    with psycopg.connect(config.postgres_dsn, autocommit=True) as connection:
        connection.execute("DELETE FROM headrace.batches WHERE view = %s", (f"{app.name}.spend",))
    with pytest.raises(hr.CheckpointError, match="has none of them"):
        Runner(app, config, spark).start()
