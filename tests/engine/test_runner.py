"""A topology that runs: rows through hops, rejects, channels, stops and starts."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

import headrace as hr
from headrace.config.cluster import Cluster
from headrace.config.run import RunConfig
from headrace.delivery.producers import TransactionalProducer
from headrace.engine.run import node_run as running
from headrace.engine.run.checkpoints import Checkpoints
from headrace.engine.run.failures import cause_of
from headrace.engine.run.progress import NodeState
from headrace.engine.run.replay import ReplayRequest, plan_replays
from headrace.engine.run.runner import Runner
from headrace.topology import App
from tests.engine.runs import EVENTS, app_with_events, event, numbers, run, until
from tests.engine.topics import messages, rows, send

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(300)

LONG_AGO = 1_767_225_600_001  # 2026-01-01, in milliseconds


@pytest.fixture
def config(config: RunConfig) -> RunConfig:
    return replace(config, create_inputs=True, attempts=2, topic_settings={"partitions": "2"})


def test_rows_go_through_hops_channels_and_guarantees(spark: SparkSession, config: RunConfig, prefix: str) -> None:
    app = app_with_events(prefix)

    @app.stream(key="k")
    def doubled(events: DataFrame) -> DataFrame:
        return events.withColumn("n", F.col("n") * 2)

    @app.stream(key="k", guarantee="at-least-once")
    def least(doubled: DataFrame) -> DataFrame:
        return doubled.select("n", "k")

    @app.stream(key="k", guarantee="at-most-once")
    def most(doubled: DataFrame) -> DataFrame:
        return doubled.select("n", "k")

    @app.stream(key="k", channels=["odd", "even"])
    def split(events: DataFrame) -> dict[str, DataFrame]:
        return {"odd": events.filter("n % 2 = 1"), "even": events.filter("n % 2 = 0")}

    with run(app, config, spark) as runner:
        send(config.kafka_address, f"{prefix}events", [event(n) for n in range(100)], key="k")
        runner.process_all_available()
        for topic in ("doubled", "least", "most"):
            assert numbers(config, prefix + topic) == [2 * n for n in range(100)]
        assert numbers(config, f"{prefix}split.odd") == list(range(1, 100, 2))
        assert numbers(config, f"{prefix}split.even") == list(range(0, 100, 2))
        send(config.kafka_address, f"{prefix}events", [event(100)], key="k")
        runner.process_all_available()
        assert 200 in numbers(config, f"{prefix}least")
        progress = {node.node: node for node in runner.progress()}
    assert progress["doubled"].rows == 101
    assert progress["doubled"].state is NodeState.RUNNING
    partitions = Cluster(config).partitions([f"{prefix}events", f"{prefix}doubled"])
    assert partitions[f"{prefix}events"] == partitions[f"{prefix}doubled"] == 2


def test_a_batch_is_written_in_the_order_of_its_event_times(
    spark: SparkSession, config: RunConfig, prefix: str
) -> None:
    app = app_with_events(prefix)

    @app.stream
    def same(events: DataFrame) -> DataFrame:
        return events

    # All in one batch, out of two partitions into one.
    Cluster(config).create(f"{prefix}events", 2, {})
    Cluster(config).create(f"{prefix}same", 1, {})
    seconds = [30, 10, 50, 20, 40, 0]
    send(config.kafka_address, f"{prefix}events", [event(n, second) for n, second in enumerate(seconds)], key="k")
    with run(app, config, spark) as runner:
        runner.process_all_available()
    times = [row["at"] for row in rows(config.kafka_address, f"{prefix}same")]
    assert len(times) == 6
    assert times == sorted(times)


@pytest.mark.parametrize(
    ("guarantee", "here"),
    [("exactly-once", True), ("at-least-once", True), ("at-least-once", False), ("at-most-once", True)],
    ids=["exactly-once", "at-least-once", "at-least-once-on-a-cluster", "at-most-once"],
)
def test_what_cannot_be_used_goes_to_the_rejected_with_its_bytes_and_reason(
    spark: SparkSession, config: RunConfig, prefix: str, guarantee: str, here: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.engine.run.runner.runs_here", lambda _: here)
    app = app_with_events(prefix)

    @app.stream(key="k", guarantee=guarantee)
    def good(events: DataFrame) -> DataFrame:
        return events

    began = time.time()
    bad = [b"{broken", b'{"n": 1, "k": null, "at": "2026-01-01T00:00:00Z"}', b"\xff\xfe"]
    with run(app, config, spark) as runner:
        values = [event(1), bad[0], event(2), *bad[1:], event(3)]
        send(config.kafka_address, f"{prefix}events", values, key="k", sent_at=LONG_AGO)
        runner.process_all_available()
        send(config.kafka_address, f"{prefix}events", [event(4)], key="k")
        runner.process_all_available()
        until(lambda: runner.progress()[0].rejected == 3)
    assert numbers(config, f"{prefix}good") == [1, 2, 3, 4]
    rejected = messages(config.kafka_address, f"{prefix}events.rejected")
    assert sorted(message.value() or b"" for message in rejected) == sorted(bad)
    for message in rejected:
        headers = dict(message.headers() or [])
        assert headers["headrace-topic"] == f"{prefix}events".encode()
        assert headers["headrace-reason"]
        assert headers["headrace-timestamp"] == b"2026-01-01T00:00:00.001000Z"
        assert message.timestamp()[1] / 1000 >= began, "retention counts from the time it was rejected"


def test_a_stopped_run_goes_on_where_it_was(spark: SparkSession, config: RunConfig, prefix: str) -> None:
    app = app_with_events(prefix)

    @app.stream(key="k")
    def counted(events: DataFrame) -> DataFrame:
        return hr.windowed(events, hr.tumbling("10 seconds"), by="k").agg(n=hr.count())

    with run(app, config, spark) as runner:
        send(config.kafka_address, f"{prefix}events", [event(n) for n in range(30)], key="k")
        runner.process_all_available()
    with run(app, config, spark) as runner:
        send(config.kafka_address, f"{prefix}events", [event(n) for n in range(30, 300)], key="k")
        runner.process_all_available()
        (node,) = runner.progress()
        assert node.state_rows > 0
        assert node.watermark is not None
    closed = rows(config.kafka_address, f"{prefix}counted")
    assert {row["n"] for row in closed} == {2}
    windows = [(row["k"], row["window_start"]) for row in closed]
    assert len(windows) == len(set(windows)) == 5 * 23  # up to the watermark, 00:03:59


def test_a_restarted_run_shows_what_its_checkpoints_know(spark: SparkSession, config: RunConfig, prefix: str) -> None:
    app = app_with_events(prefix)

    @app.stream(key="k")
    def counted(events: DataFrame) -> DataFrame:
        return hr.windowed(events, hr.tumbling("10 seconds"), by="k").agg(n=hr.count())

    @app.stream(key="k")
    def slid(events: DataFrame) -> DataFrame:
        return hr.windowed(events, hr.sliding("10 seconds"), by="k").agg(total=hr.sum("n"))

    def shown(runner: Runner) -> list[tuple[Any, int, int]]:
        return [(node.watermark, node.state_rows, node.state_bytes) for node in runner.progress()]

    with run(app, config, spark) as runner:
        for sent in (range(30), range(80, 82)):
            send(config.kafka_address, f"{prefix}events", [event(n) for n in sent], key="k")
            runner.process_all_available()
        before = shown(runner)
    assert all(watermark is not None and rows > 0 and size > 0 for watermark, rows, size in before)
    with run(app, config, spark) as runner:
        assert shown(runner) == before
        time.sleep(2)  # Spark reports that it is idle, which must not clear it
        assert shown(runner) == before
        send(config.kafka_address, f"{prefix}events", [event(82)], key="k")
        runner.process_all_available()
        until(lambda: shown(runner)[0][1] == before[0][1] + 1)
        # A row came, and those that no window needs any more went; the buckets that it did not touch still count.
        until(lambda: shown(runner)[1][0] != before[1][0])
        assert abs(shown(runner)[1][1] - before[1][1]) <= 2


def test_changed_windows_are_refused_together_and_a_reset_starts_them_over(
    spark: SparkSession, config: RunConfig, prefix: str
) -> None:
    def counting(size: str) -> App:
        app = app_with_events(prefix)

        @app.stream(key="k")
        def counted(events: DataFrame) -> DataFrame:
            return hr.windowed(events, hr.tumbling(size), by="k").agg(n=hr.count())

        @app.stream(key="k")
        def summed(events: DataFrame) -> DataFrame:
            return hr.windowed(events, hr.session(size), by="k").agg(n=hr.sum("n"))

        return app

    with run(counting("10 seconds"), config, spark) as runner:
        send(config.kafka_address, f"{prefix}events", [event(n) for n in range(300)], key="k")
        runner.process_all_available()
    before = len(rows(config.kafka_address, f"{prefix}counted"))
    assert before
    changed = counting("20 seconds")
    both = r"(?s)'counted' no longer.* tumbling 20 seconds; .*'summed' no longer.*--reset counted --reset summed"
    with pytest.raises(hr.CheckpointError, match=both):
        Runner(changed, config, spark).start()
    one = Runner(changed, config, spark)
    with pytest.raises(hr.CheckpointError, match=r"^the code of 'summed'.*--reset summed"):
        one.start(restarted={"counted": None})
    assert one.kept == {}  # a run that cannot be sets nothing aside
    with run(counting("10 seconds"), config, spark) as runner:
        runner.process_all_available()
    with run(changed, config, spark, over={"counted": None, "summed": None}) as runner:
        kept = runner.kept["counted"]
        runner.process_all_available()
    after = rows(config.kafka_address, f"{prefix}counted")
    assert len(after) > before
    assert {row["n"] for row in after[:]} == {2, 4}
    assert (kept / "spark" / "offsets").exists()


def test_another_cluster_is_refused_by_name(spark: SparkSession, config: RunConfig, prefix: str) -> None:
    app = app_with_events(prefix)

    @app.stream
    def same(events: DataFrame) -> DataFrame:
        return events

    with run(app, config, spark):
        pass
    checkpoint = Checkpoints(config.home, app.name).of("same")
    ours = checkpoint.note.cluster
    assert ours is not None
    checkpoint.take_note(cluster="elsewhere")
    with pytest.raises(hr.CheckpointError, match=f"belongs to the Kafka cluster elsewhere.*{ours}.*--reset same"):
        Runner(app, config, spark).start()


def test_a_topic_nobody_made_is_missed_on_a_cluster_of_others(
    spark: SparkSession, config: RunConfig, prefix: str
) -> None:
    app = app_with_events(prefix)

    @app.stream
    def same(events: DataFrame) -> DataFrame:
        return events

    with pytest.raises(hr.TopicNotFound, match=f"headrace topics create {prefix}events"):
        Runner(app, replace(config, create_inputs=False), spark).start()


def test_a_stop_lets_the_batch_finish(
    spark: SparkSession, config: RunConfig, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = app_with_events(prefix)

    @app.stream(guarantee="at-most-once")
    def same(events: DataFrame) -> DataFrame:
        return events

    commit = TransactionalProducer.commit
    inside = threading.Event()

    def slowly(self: TransactionalProducer) -> None:
        inside.set()
        time.sleep(2)
        commit(self)

    checkpoint = Checkpoints(config.home, app.name).of("same")
    runner = Runner(app, config, spark)
    runner.start()
    # On a new checkpoint Spark runs a first batch even if there is no record.
    until(lambda: checkpoint.committed_batch() == 0)
    monkeypatch.setattr(TransactionalProducer, "commit", slowly)
    send(config.kafka_address, f"{prefix}events", [event(1)], key="k")
    assert inside.wait(60)
    runner.request_stop()
    assert runner.wait() == 0
    assert numbers(config, f"{prefix}same") == [1]
    assert checkpoint.committed_batch() == checkpoint.last_batch() == 1


def test_lag_counts_what_was_not_read(
    spark: SparkSession, config: RunConfig, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = app_with_events(prefix)

    @app.stream
    def same(events: DataFrame) -> DataFrame:
        return events

    write = running.NodeRun._write
    go = threading.Event()

    def held(self: running.NodeRun, frame: DataFrame, number: int) -> None:
        go.wait(60)
        write(self, frame, number)

    monkeypatch.setattr(running.NodeRun, "_write", held)
    with run(app, config, spark) as runner:
        send(config.kafka_address, f"{prefix}events", [event(n) for n in range(7)], key="k")
        until(lambda: runner.progress()[0].lag == 7)
        go.set()
        runner.process_all_available()
        until(lambda: runner.progress()[0].lag == 0)


def test_a_replay_reads_again_from_a_time_and_keeps_the_old_checkpoint(
    spark: SparkSession, config: RunConfig, prefix: str
) -> None:
    app = app_with_events(prefix)

    @app.stream(key="k")
    def same(events: DataFrame) -> DataFrame:
        return events

    @app.stream(key="k")
    def after(same: DataFrame) -> DataFrame:
        return same

    with run(app, config, spark) as runner:
        send(config.kafka_address, f"{prefix}events", [event(n) for n in range(5)], key="k")
        runner.process_all_available()
    time.sleep(0.01)
    since = time.time()
    time.sleep(0.01)
    send(config.kafka_address, f"{prefix}events", [event(n) for n in range(5, 8)], key="k")
    with run(app, config, spark) as runner:
        runner.process_all_available()
    topology, checkpoints = app.topology(), Checkpoints(config.home, app.name)
    moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(since)) + f".{int(since % 1 * 1e6):06d}"
    request = ReplayRequest.parse(f"same:events={moment}")
    (replay,) = plan_replays([request], topology, Cluster(config), checkpoints)
    assert "3 records" in replay.effects[0]
    assert replay.effects[1:] == (
        f"same writes to {prefix}same again, after what is there",
        f"same writes to {prefix}events.rejected again, after what is there",
        "after will read what same writes again",
    )
    with run(app, config, spark, over={"same": replay.start}) as runner:
        assert runner.kept["same"].exists()
        runner.process_all_available()
    assert numbers(config, f"{prefix}same") == sorted([*range(8), 5, 6, 7])
    assert numbers(config, f"{prefix}after") == sorted([*range(8), 5, 6, 7])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("same", "is not a replay"),
        ("same:=2026-01-01", "is not a replay"),
        ("same:events=yesterday", "'yesterday' is not a time"),
        ("sane:events=2026-01-01", "did you mean 'same'"),
        ("events=2026-01-01", "has no checkpoint"),
        ("same:evens=2026-01-01", "did you mean 'events'"),
    ],
)
def test_a_replay_that_cannot_be_meant_is_said(config: RunConfig, prefix: str, text: str, said: str) -> None:
    app = app_with_events(prefix)

    @app.stream
    def same(events: DataFrame) -> DataFrame:
        return events

    with pytest.raises(hr.InputError, match=said):
        plan_replays([ReplayRequest.parse(text)], app.topology(), Cluster(config), Checkpoints(config.home, app.name))


def test_real_time(spark: SparkSession, config: RunConfig, prefix: str) -> None:
    app = hr.App(f"app{prefix.strip('.')}", prefix=prefix)
    app.topic("events", EVENTS, key="k")

    @app.stream(key="k", guarantee="at-least-once", latency="real-time")
    def quick(events: DataFrame) -> DataFrame:
        return events.filter("n >= 0")

    with run(app, replace(config, topic_settings={"partitions": "1"}), spark):
        send(config.kafka_address, f"{prefix}events", [event(1), b"broken"], key="k")
        until(lambda: numbers(config, f"{prefix}quick") == [1])
        until(lambda: len(messages(config.kafka_address, f"{prefix}events.rejected")) == 1)


def test_causes_are_said_in_a_line() -> None:
    python = 'Job aborted\nTraceback (most recent call last):\n  File "a.py", line 1\nValueError: bad card\n\nmore'
    assert cause_of(RuntimeError(python)) == "ValueError: bad card at a.py:1"
    java = "Job aborted\nCaused by: a.B: first\n\tat x\nCaused by: c.D: second\n\tat y"
    assert cause_of(RuntimeError(java)) == "c.D: second"
    assert cause_of(RuntimeError("plain")) == "RuntimeError: plain"
    assert cause_of(hr.Unreachable("away", next_step="wait")) == "away; wait"


def test_a_table_that_is_yet_to_be_made_is_there_before_the_first_event(
    spark: SparkSession, config: RunConfig, prefix: str
) -> None:
    app = app_with_events(prefix)
    app.topic("homes", "k STRING, home STRING", key="k")

    def slowly(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            time.sleep(3 if batch.num_rows else 0)
            yield batch

    @app.stream(key="k")
    def checked(homes: DataFrame) -> DataFrame:
        return homes.mapInArrow(slowly, homes.schema)

    @app.table(key="k")
    def known_homes(checked: DataFrame) -> DataFrame:
        return checked

    @app.stream(key="k")
    def placed(events: DataFrame, known_homes: Any) -> DataFrame:
        return hr.enrich(events, known_homes, on="k", as_of="now")

    homes = [{"k": f"k{n}", "home": f"h{n}"} for n in range(5)]
    for topic, sent in (("homes", homes), ("events", [event(n) for n in range(40)])):
        send(config.kafka_address, f"{prefix}{topic}", sent, key="k")
    with run(app, config, spark) as runner:
        runner.process_all_available()
        found = rows(config.kafka_address, f"{prefix}placed")
    assert sorted((row["n"], row["home"]) for row in found) == [(n, f"h{n % 5}") for n in range(40)]
