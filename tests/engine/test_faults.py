"""What goes wrong under a running app: it goes on, or says what is wrong and what to do, and nothing is lost."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

import headrace as hr
from headrace.config.cluster import Cluster
from headrace.config.run import RunConfig
from headrace.engine.run.checkpoints import Checkpoint, Checkpoints
from headrace.engine.run.progress import NodeProgress, NodeState
from headrace.engine.run.runner import Runner
from headrace.tables import EmbeddedPostgres
from headrace.topology import App, Duration
from tests.engine.disks import fill, mounted
from tests.engine.topics import messages, rows, send

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(300)

EVENTS = "n BIGINT, k STRING, at TIMESTAMP"
LARGEST = 1048588
"""Kafka's default of max.message.bytes."""


@pytest.fixture
def config(config: RunConfig) -> RunConfig:
    return replace(config, create_inputs=True, attempts=2)


def app_of(prefix: str, schema: str = EVENTS, *, counting: bool = False, viewing: bool = False) -> App:
    app = hr.App("app" + prefix.strip("."), prefix=prefix)
    app.topic("events", schema, key="k", event_time="at", lateness="1 minute")

    @app.stream(key="k")
    def same(events: DataFrame) -> DataFrame:
        return events

    if counting:

        @app.stream(key="k")
        def counted(events: DataFrame) -> Any:
            return hr.windowed(events, hr.tumbling("10 seconds")).agg(n=hr.count())

    if viewing:

        @app.view(key="n")
        def seen(events: DataFrame) -> DataFrame:
            return events

    return app


def event(n: int, **more: Any) -> dict[str, Any]:
    return {"n": n, "k": f"k{n % 5}", "at": f"2026-01-01T00:{n // 60:02d}:{n % 60:02d}Z", **more}


@contextmanager
def run(app: App, config: RunConfig, spark: SparkSession) -> Iterator[Runner]:
    runner = Runner(app, config, spark)
    runner.start()
    try:
        yield runner
    finally:
        runner.stop()


def until(condition: Callable[[], bool], limit: float = 120.0) -> None:
    deadline = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.05)


def failure_of(runner: Runner) -> str:
    """What it ends with, all by itself."""
    until(lambda: any(node.state is NodeState.FAILED for node in runner.progress()))
    assert runner.wait() == 1
    assert runner.failure is not None
    return str(runner.failure)


def numbers(config: RunConfig, topic: str) -> list[int]:
    return sorted(row["n"] for row in rows(config.kafka_address, topic))


# ---- records and schemas


def test_a_record_as_large_as_its_topic_takes_is_passed_on_or_rejected(
    spark: SparkSession, config: RunConfig, prefix: str
) -> None:
    app = app_of(prefix, EVENTS + ", text STRING")
    producer = Producer({"bootstrap.servers": config.kafka_address, "message.max.bytes": 2 * LARGEST})
    with run(app, config, spark) as runner:
        empty = len(json.dumps(event(1, text="")))
        good = json.dumps(event(1, text="x" * (LARGEST - 4096 - empty)))
        broken = b"{" + b"x" * (LARGEST - 100)
        for value in (good, broken, json.dumps(event(2))):
            producer.produce(f"{prefix}events", value)
            assert producer.flush(30) == 0
        runner.process_all_available()
    assert numbers(config, f"{prefix}same") == [1, 2]
    (rejected,) = messages(config.kafka_address, f"{prefix}events.rejected")
    assert rejected.value() == broken


def test_a_row_that_its_topic_does_not_take_stops_the_app_with_what_to_do(
    spark: SparkSession, config: RunConfig, prefix: str
) -> None:
    app = app_of(prefix, EVENTS + ", text STRING")
    Cluster(config).create(f"{prefix}same", 1, {"max.message.bytes": "1000"})
    with run(app, config, spark) as runner:
        send(config.kafka_address, f"{prefix}events", [event(1, text="x" * 1000)], key="k")
        said = failure_of(runner)
    assert f"{prefix}same" in said
    assert "raise max.message.bytes of the topic" in said


def test_a_schema_that_gained_a_column_is_followed_by_all_nodes(
    spark: SparkSession, config: RunConfig, prefix: str, postgres_dsn: str
) -> None:
    config = replace(config, postgres=postgres_dsn)
    events = f"{prefix}events"
    with run(app_of(prefix, counting=True, viewing=True), config, spark) as runner:
        send(config.kafka_address, events, [event(1), event(2, country="PT")], key="k")
        runner.process_all_available()
    grown = app_of(prefix, EVENTS + ", country STRING", counting=True, viewing=True)
    with run(grown, config, spark) as runner:
        send(config.kafka_address, events, [event(3, country="PT"), event(4), event(200)], key="k")
        runner.process_all_available()
    found = {row["n"]: row.get("country", "not there") for row in rows(config.kafka_address, f"{prefix}same")}
    assert found == {1: "not there", 2: "not there", 3: "PT", 4: None, 200: None}
    assert [row["n"] for row in rows(config.kafka_address, f"{prefix}counted")] == [1] * 4
    with psycopg.connect(postgres_dsn) as connection:
        kept = connection.execute(f'SELECT n, country FROM "{grown.name}".seen ORDER BY n').fetchall()
    assert kept == [(1, None), (2, None), (3, "PT"), (4, None), (200, None)]


# ---- topics that are deleted


def delete_topic(config: RunConfig, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": config.kafka_address})
    admin.delete_topics([topic])[topic].result(30)
    until(lambda: topic not in admin.list_topics(timeout=30).topics)


def test_a_topic_that_is_deleted_under_its_reader_stops_the_app_and_a_reset_starts_over(
    spark: SparkSession, config: RunConfig, prefix: str
) -> None:
    app, events = app_of(prefix), f"{prefix}events"
    with run(app, config, spark) as runner:
        send(config.kafka_address, events, [event(n) for n in range(50)], key="k")
        runner.process_all_available()
        delete_topic(config, events)
        said = failure_of(runner)
    assert "node 'same' keeps failing in batch" in said
    assert f"topic '{events}' was deleted while the app read it" in said
    assert "--reset same" in said
    # Made again, with more records than were read: Spark would skip as many of the new ones, without a word.
    send(config.kafka_address, events, [event(n) for n in range(100, 170)], key="k")
    with pytest.raises(
        hr.CheckpointError, match=f"topic '{events}' was deleted and created again since 'same' read it"
    ):
        Runner(app, config, spark).start()
    Checkpoints(config.home, app.name).reset("same")
    with run(app, config, spark) as runner:
        runner.process_all_available()
    assert numbers(config, f"{prefix}same") == [*range(50), *range(100, 170)]


def test_records_that_are_deleted_before_they_are_read_stop_the_app(
    spark: SparkSession, config: RunConfig, prefix: str
) -> None:
    app, events = app_of(prefix), f"{prefix}events"
    with run(app, config, spark) as runner:
        send(config.kafka_address, events, [event(n) for n in range(10)], key="k")
        runner.process_all_available()
    send(config.kafka_address, events, [event(n) for n in range(10, 30)], key="k")
    Cluster(config).delete_before({events: {0: 20}})
    with run(app, config, spark) as runner:
        said = failure_of(runner)
    assert "node 'same' keeps failing in batch" in said
    assert "records were deleted before they were read" in said
    assert f"{events}-0" in said
    assert "--reset same" in said
    assert "--replay same:TOPIC=TIME" in said


def test_a_topic_that_is_deleted_under_its_writer_is_made_again(
    spark: SparkSession, config: RunConfig, prefix: str
) -> None:
    app = app_of(prefix)
    quick = replace(config, transaction_timeout=Duration.of("5 seconds"))
    with run(app, quick, spark) as runner:
        send(config.kafka_address, f"{prefix}events", [event(1)], key="k")
        runner.process_all_available()
        delete_topic(config, f"{prefix}same")
        send(config.kafka_address, f"{prefix}events", [event(2)], key="k")
        runner.process_all_available()
    assert numbers(config, f"{prefix}same") == [2]


# ---- checkpoints


def cut(path: Path, text: str | None) -> None:
    """What a crashed disk leaves; Spark's sum of the file would give it away."""
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    if text is None:
        path.unlink()
    else:
        path.write_text(text)


def last(checkpoint: Checkpoint, log: str) -> Path:
    return max(
        (path for path in (checkpoint.spark / log).iterdir() if path.name.isdecimal()), key=lambda p: int(p.name)
    )


DAMAGES: dict[str, tuple[Callable[[Checkpoint], object], str]] = {
    "offsets empty": (lambda one: cut(last(one, "offsets"), ""), "is truncated"),
    "offsets garbled": (lambda one: cut(last(one, "offsets"), 'v1\n{}\n{"x'), "cannot be read"),
    "offsets of the last batch gone": (lambda one: cut(last(one, "offsets"), None), "is missing in"),
    "all offsets gone": (lambda one: shutil.rmtree(one.spark / "offsets"), "is missing in"),
    "commit garbled": (lambda one: cut(last(one, "commits"), "v1\n{x"), "cannot be read"),
    "metadata garbled": (lambda one: cut(one.spark / "metadata", "{"), "cannot be read"),
    "metadata gone": (lambda one: cut(one.spark / "metadata", None), "metadata is missing"),
    "fingerprint garbled": (lambda one: cut(one.folder / "fingerprint.json", "{"), "cannot be read"),
    "note garbled": (lambda one: cut(one.folder / "sink.json", "[]"), "cannot be read"),
}


def test_a_damaged_checkpoint_is_told_before_the_start_and_one_brought_back_goes_on(
    spark: SparkSession, config: RunConfig, prefix: str, tmp_path: Path
) -> None:
    app, events = app_of(prefix), f"{prefix}events"
    with run(app, config, spark) as runner:
        for n in range(3):
            send(config.kafka_address, events, [event(n)], key="k")
            runner.process_all_available()
    checkpoint, copy = Checkpoints(config.home, app.name).of("same"), tmp_path / "copy"
    shutil.copytree(checkpoint.folder, copy)
    for name, (damage, said) in DAMAGES.items():
        damage(checkpoint)
        with pytest.raises(hr.CheckpointError) as told:
            Runner(app, config, spark).start()
        assert "the checkpoint of 'same' is damaged" in str(told.value), name
        assert str(checkpoint.folder) in str(told.value), name
        assert said in str(told.value), name
        assert "restore it from a backup, or start over with --reset same" in str(told.value), name
        shutil.rmtree(checkpoint.folder)
        shutil.copytree(copy, checkpoint.folder)
    send(config.kafka_address, events, [event(3)], key="k")
    with run(app, config, spark) as runner:
        runner.process_all_available()
    assert numbers(config, f"{prefix}same") == [0, 1, 2, 3]


def damage_state(checkpoint: Checkpoint) -> None:
    for path in (checkpoint.spark / "state").rglob("*"):
        if path.suffix in (".changelog", ".zip", ".delta"):
            cut(path, "x")


@pytest.mark.parametrize("damage", [damage_state, lambda one: shutil.rmtree(one.spark / "state")], ids=["cut", "gone"])
def test_damaged_state_is_told(
    spark: SparkSession, config: RunConfig, prefix: str, damage: Callable[[Checkpoint], None]
) -> None:
    app, events = app_of(prefix, counting=True), f"{prefix}events"
    with run(app, config, spark) as runner:
        send(config.kafka_address, events, [event(n) for n in range(20)], key="k")
        runner.process_all_available()
    checkpoint = Checkpoints(config.home, app.name).of("counted")
    damage(checkpoint)
    send(config.kafka_address, events, [event(21)], key="k")
    with run(app, config, spark) as runner:
        said = failure_of(runner)
    assert "node 'counted' keeps failing" in said
    assert f"the checkpoint at {checkpoint.folder} is damaged" in said
    assert "--reset counted" in said


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "disk") as folder:
        yield folder


def test_a_full_disk_stops_the_app_and_once_there_is_room_it_goes_on(
    spark: SparkSession, config: RunConfig, prefix: str, small_disk: Path
) -> None:
    app, events = app_of(prefix, counting=True), f"{prefix}events"
    config = replace(config, home=small_disk / "home")
    with run(app, config, spark) as runner:
        send(config.kafka_address, events, [event(n) for n in range(100)], key="k")
        runner.process_all_available()
        ballast = fill(small_disk)
        send(config.kafka_address, events, [event(n) for n in range(100, 200)], key="k")
        said = failure_of(runner)
        assert f"no space left on the disk of {small_disk}" in said
        assert "free space there and restart; processing resumes with this batch" in said
    with pytest.raises(hr.CheckpointError, match="cannot be written: no space left on device; free some space"):
        Runner(app_of(f"x{prefix}"), config, spark).start()
    ballast.unlink()
    with run(app, config, spark) as runner:
        send(config.kafka_address, events, [event(n) for n in range(200, 300)], key="k")
        runner.process_all_available()
    assert numbers(config, f"{prefix}same") == list(range(300))
    # Windows of ten seconds hold two events of each of five keys; the watermark is at 00:03:59.
    windows = [(row["k"], row["window_start"], row["n"]) for row in rows(config.kafka_address, f"{prefix}counted")]
    assert len(windows) == len(set(windows)) == 5 * 23
    assert {n for _, _, n in windows} == {2}


# ---- PostgreSQL


@pytest.mark.parametrize("away", [3, pytest.param(60, marks=pytest.mark.long)])
def test_postgresql_is_away_for_a_while(
    spark: SparkSession, config: RunConfig, prefix: str, tmp_path: Path, away: int
) -> None:
    app, events = app_of(prefix, viewing=True), f"{prefix}events"
    server = EmbeddedPostgres(tmp_path / "postgres")
    config = replace(config, postgres=server.start())

    def seen() -> list[int]:
        with psycopg.connect(config.postgres_dsn) as connection:
            return [n for (n,) in connection.execute(f'SELECT n FROM "{app.name}".seen ORDER BY n').fetchall()]

    def view(runner: Runner) -> NodeProgress:
        return next(node for node in runner.progress() if node.node == "seen")

    try:
        with run(app, config, spark) as runner:
            send(config.kafka_address, events, [event(n) for n in range(10)], key="k")
            runner.process_all_available()
            server.stop()
            send(config.kafka_address, events, [event(n) for n in range(10, 20)], key="k")
            until(lambda: view(runner).state is NodeState.RESTARTING)
            assert "PostgreSQL at 127.0.0.1" in (view(runner).last_error or "")
            time.sleep(away)
            runner.process_all_available("same")  # the others go on
            assert numbers(config, f"{prefix}same") == list(range(20))
            server.start()
            runner.process_all_available()
            assert seen() == list(range(20))
        # Where it stays away for longer than the app has patience, the app stops; the next run has it all.
        with run(app, replace(config, patience=Duration.of("2 seconds")), spark) as runner:
            server.stop()
            send(config.kafka_address, events, [event(n) for n in range(20, 30)], key="k")
            said = failure_of(runner)
            assert "node 'seen' keeps failing in batch" in said
            assert "is unavailable" in said
            assert "start it, or pass another address with --postgres" in said
        server.start()
        with run(app, config, spark) as runner:
            runner.process_all_available()
        assert seen() == list(range(30))
    finally:
        server.stop()
