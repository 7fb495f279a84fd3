"""A run in which something fails: nodes, threads, topics that are deleted."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.admin import AdminClient
from pyspark.sql import functions as F

import headrace as hr
from headrace.config.run import RunConfig
from headrace.delivery.producers import TransactionalProducer
from headrace.engine.run.progress import NodeState
from headrace.engine.run.runner import Runner
from tests.engine.runs import app_with_events, event, numbers, run, until
from tests.engine.topics import send

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def config(config: RunConfig) -> RunConfig:
    return replace(config, create_inputs=True, attempts=2, topic_settings={"partitions": "2"})


def test_a_node_that_keeps_failing_stops_the_app_and_is_named(
    spark: SparkSession, config: RunConfig, prefix: str
) -> None:
    app = app_with_events(prefix)

    @app.stream
    def broken(events: DataFrame) -> DataFrame:
        return events.withColumn("n", F.when(F.col("n") == 13, F.raise_error("unlucky number")).otherwise(F.col("n")))

    @app.stream
    def whole(events: DataFrame) -> DataFrame:
        return events

    runner = Runner(app, config, spark)
    runner.start()
    send(config.kafka_address, f"{prefix}events", [event(1)], key="k")
    runner.process_all_available()
    send(config.kafka_address, f"{prefix}events", [event(13)], key="k")
    assert runner.wait() == 1
    assert runner.failure is not None
    assert runner.failure.node == "broken"
    assert runner.failure.batch >= 1  # how rows fall into batches is Spark's affair
    assert "unlucky number" in runner.failure.cause
    states = {node.node: node.state for node in runner.progress()}
    assert states == {"broken": NodeState.FAILED, "whole": NodeState.STOPPED}
    assert numbers(config, f"{prefix}broken") == [1]


def fail(*_: Any) -> Any:
    raise ZeroDivisionError("division by zero")


@pytest.mark.parametrize(
    "dies", ["headrace.engine.run.heartbeats.Heartbeats.beat", "headrace.engine.run.node_run.NodeRun._error"]
)
def test_a_thread_that_dies_ends_the_run_with_its_reason(
    spark: SparkSession, config: RunConfig, prefix: str, monkeypatch: pytest.MonkeyPatch, dies: str
) -> None:
    app = app_with_events(prefix)

    @app.stream
    def same(events: DataFrame) -> DataFrame:
        return events

    with run(app, config, spark) as runner:
        monkeypatch.setattr(dies, fail)
        limit = threading.Timer(30, runner.request_stop)
        limit.start()
        assert runner.wait() == 1
        limit.cancel()
    assert isinstance(runner.failure, hr.EngineError)
    name = "progress" if "beat" in dies else "same"
    assert f"the background thread '{name}' died: ZeroDivisionError: division by zero" in str(runner.failure)
    log = config.home.absolute() / "logs" / "spark.log"
    assert str(log) in str(runner.failure)
    assert "in fail" in log.read_text()
    with pytest.raises(hr.EngineError, match="division by zero"):
        runner.check()


def test_with_keep_going_only_what_depends_on_a_failed_node_stops(
    spark: SparkSession, config: RunConfig, prefix: str
) -> None:
    app = app_with_events(prefix)

    @app.stream(key="k")
    def broken(events: DataFrame) -> DataFrame:
        return events.withColumn("n", F.when(F.col("n") == 13, F.raise_error("unlucky number")).otherwise(F.col("n")))

    @app.stream(key="k")
    def after(broken: DataFrame) -> DataFrame:
        return broken

    @app.stream(key="k")
    def last(after: DataFrame, events: DataFrame) -> DataFrame:
        return after.unionByName(events)

    @app.stream(key="k")
    def whole(events: DataFrame) -> DataFrame:
        return events

    def states() -> dict[str, NodeState]:
        return {node.node: node.state for node in runner.progress()}

    runner = Runner(app, replace(config, attempts=1), spark, keep_going=True)
    runner.start()
    codes: list[int] = []
    waiting = threading.Thread(target=lambda: codes.append(runner.wait()), daemon=True)
    waiting.start()
    try:
        send(config.kafka_address, f"{prefix}events", [event(13)], key="k")
        until(lambda: states()["last"] is NodeState.STOPPED)
        send(config.kafka_address, f"{prefix}events", [event(14)], key="k")
        until(lambda: numbers(config, f"{prefix}whole") == [13, 14])
        shown = {node.node: node for node in runner.progress()}
        assert waiting.is_alive()
    finally:
        runner.request_stop()
        waiting.join(60)
    assert {name: node.state for name, node in shown.items()} == {
        "broken": NodeState.FAILED,
        "after": NodeState.STOPPED,
        "last": NodeState.STOPPED,
        "whole": NodeState.RUNNING,
    }
    assert shown["after"].last_error == "stopped because it depends on 'broken', which failed"
    assert codes == [1]
    assert [failure.node for failure in runner.failures if isinstance(failure, hr.NodeFailed)] == ["broken"]
    assert "node 'broken' failed in batch" in str(runner.failure), "it did not keep failing: it failed once"


def test_a_deleted_topic_is_named_with_all_its_readers(spark: SparkSession, config: RunConfig, prefix: str) -> None:
    app = app_with_events(prefix)

    @app.stream
    def one(events: DataFrame) -> DataFrame:
        return events

    @app.stream
    def two(events: DataFrame) -> DataFrame:
        return events

    @app.stream
    def three(one: DataFrame) -> DataFrame:
        return one

    with run(app, config, spark) as runner:
        send(config.kafka_address, f"{prefix}events", [event(n) for n in range(9)], key="k")
        runner.process_all_available()
        admin = AdminClient({"bootstrap.servers": config.kafka_address})
        admin.delete_topics([f"{prefix}events"])[f"{prefix}events"].result(30)
        assert runner.wait() == 1
    said = str(runner.failure)
    assert f"topic '{prefix}events' was deleted while the app read it" in said
    assert "restart the app with --reset one --reset two: " in said
    assert "What the deleted records gave cannot be rebuilt: a view that is reset is emptied" in said


def test_a_failure_that_passes_is_followed_by_a_restart(
    spark: SparkSession, config: RunConfig, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = app_with_events(prefix)

    @app.stream
    def same(events: DataFrame) -> DataFrame:
        return events

    commit = TransactionalProducer.commit
    failing = threading.Event()

    def sometimes(self: TransactionalProducer) -> None:
        if failing.is_set():
            failing.clear()
            self._give_up()
            raise hr.Unreachable("the broker went away")
        commit(self)

    monkeypatch.setattr(TransactionalProducer, "commit", sometimes)
    with run(app, config, spark) as runner:
        for n in range(3):
            failing.set()
            send(config.kafka_address, f"{prefix}events", [event(n)], key="k")
            runner.process_all_available()
        (node,) = runner.progress()
    assert node.errors == 3
    assert node.last_error is not None
    assert "went away" in node.last_error
    assert numbers(config, f"{prefix}same") == [0, 1, 2]
