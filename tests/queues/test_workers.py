"""Workers: acknowledged, retried, dead-lettered; killed, hung, slow, stopped; on the embedded broker."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

import headrace as hr
from headrace.clients import Record, read_to_end
from headrace.config.run import RunConfig
from headrace.queues.delays import DelayService
from headrace.queues.sending import QueueSender
from headrace.queues.working import WorkerRun, prepare_queues
from headrace.threads import Threads
from headrace.topology import Queue, Worker
from tests import peers
from tests.queues.test_delays import LIMIT, ROOT, serving, until

FILE = Path(__file__).with_name("worker_app.py")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[peers.Server]:
    with peers.broker_for_tests(tmp_path_factory.mktemp("workers")) as running:
        yield running


@pytest.fixture(scope="module")
def delays(server: peers.Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DelayService]:
    with serving(RunConfig(kafka=server.address, home=tmp_path_factory.mktemp("delays"))) as service:
        assert service.active.wait(LIMIT)
        yield service


@pytest.fixture
def config(server: peers.Server, delays: DelayService, tmp_path: Path) -> RunConfig:
    return RunConfig(kafka=server.address, home=tmp_path / "home", topic_settings={"partitions": "2"})


@pytest.fixture
def app() -> hr.App:
    return hr.App("shop", prefix=f"t{uuid.uuid4().hex[:8]}-")


@contextmanager
def working(app: hr.App, config: RunConfig, *workers: Worker) -> Iterator[list[WorkerRun]]:
    topology = app.topology()
    prepare_queues(topology, config)
    threads = Threads()
    # Groups are not prefixed, and tests share a broker.
    runs = [WorkerRun(worker, config, threads) for worker in workers or topology.workers]
    try:
        for run in runs:
            run.start()
        yield runs
    finally:
        for run in runs:
            run.stop(grace=1.0)
        threads.check()


def send(queue: Queue, config: RunConfig, rows: list[dict[str, Any]]) -> None:
    with QueueSender(queue, config) as sender:
        for row in rows:
            sender.send(row)


def records(app: hr.App, topic: str, config: RunConfig) -> list[Record]:
    reader = hr.App("reader")
    reader.topic("read", topic=topic, format="bytes")
    return list(read_to_end(reader, "read", config.client_settings(), None, None))


def raw_records(topic: str, config: RunConfig) -> list[tuple[bytes, bytes | None]]:
    """Keys and values of one partition, those without a value too."""
    consumer = Consumer({**config.client_settings(), "group.id": "raw", "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = []
    while (message := consumer.poll(LIMIT)) is not None and message.error() is None:
        found.append((message.key() or b"", message.value()))
    consumer.close()
    return found


def headers(record: Record) -> dict[str, str]:
    return {name: (value or b"").decode() for name, value in record.headers}


def test_each_message_is_processed_once_and_what_is_returned_goes_into_the_topic(
    app: hr.App, config: RunConfig
) -> None:
    results = app.topic("results", "n BIGINT, message_id STRING")
    jobs = app.queue("jobs", "n BIGINT")
    seen: list[int] = []

    @app.worker(jobs, concurrency=4, into=results)
    def once(row: dict[str, Any]) -> dict[str, Any] | None:
        seen.append(row["n"])
        return row if row["n"] % 2 else None

    with working(app, config):
        send(jobs, config, [{"n": n} for n in range(100)])
        until(lambda: len(seen) == 100, "all jobs")
    assert sorted(seen) == list(range(100))
    found = list(read_to_end(app, results, config.client_settings(), None, None))
    assert sorted(record.row["n"] for record in found) == list(range(1, 100, 2))
    assert all(record.row["message_id"] == headers(record)["headrace-id"] for record in found)


def test_a_failing_message_is_retried_after_its_pauses_and_then_buried_with_the_reason(
    app: hr.App, config: RunConfig
) -> None:
    jobs = app.queue("jobs", "n BIGINT", retries=2, backoff="200ms..400ms")
    calls: dict[int, list[tuple[int, float]]] = defaultdict(list)

    @app.worker(jobs, concurrency=2)
    def failing(row: dict[str, Any], message: hr.Message) -> None:
        calls[row["n"]].append((message.attempt, time.monotonic()))
        if row["n"] == 1 or (row["n"] == 2 and message.attempt < 3):
            raise ValueError("no such order:\n1")

    with working(app, config) as (run,):
        send(jobs, config, [{"n": 0}, {"n": 1}, {"n": 2}])
        until(lambda: run.figures.done == 2 and run.figures.dead == 1, "two done and one dead")
    assert [attempt for attempt, _ in calls[0]] == [1]
    assert [attempt for attempt, _ in calls[1]] == [1, 2, 3]
    assert [attempt for attempt, _ in calls[2]] == [1, 2, 3]
    assert calls[1][1][1] - calls[1][0][1] >= 0.2
    assert calls[1][2][1] - calls[1][1][1] >= 0.4
    (letter,) = records(app, jobs.dead, config)
    said = headers(letter)
    assert letter.value == b'{"n": 1}' or letter.value == b'{"n":1}'
    assert said["headrace-reason"] == "ValueError: no such order:\n1"
    assert said["headrace-error"] == "ValueError: no such order:\n1"
    assert said["headrace-attempts"] == "3"
    assert said["headrace-group"] == "shop.failing"
    assert said["headrace-topic"].startswith(f"{jobs.topic_name}.retry.")


def test_a_record_that_cannot_be_read_is_buried_at_once(app: hr.App, config: RunConfig) -> None:
    jobs = app.queue("jobs", "n BIGINT")

    @app.worker(jobs)
    def reading(row: dict[str, Any]) -> None:
        pass

    with working(app, config) as (run,), hr.Producer(app, config.client_settings()) as producer:
        producer.send_raw(jobs, b"not JSON").result(LIMIT)
        until(lambda: run.figures.dead, "a dead letter")
    (letter,) = records(app, jobs.dead, config)
    assert "not" in headers(letter)["headrace-reason"]
    assert run.figures.done == 0


def test_async_functions_run_side_by_side(app: hr.App, config: RunConfig) -> None:
    jobs = app.queue("jobs", "n BIGINT")
    together: list[int] = []
    now = 0

    @app.worker(jobs, concurrency=6)
    async def waiting(row: dict[str, Any]) -> None:
        nonlocal now
        now += 1
        together.append(now)
        await asyncio.sleep(0.2)
        now -= 1

    with working(app, config) as (run,):
        send(jobs, config, [{"n": n} for n in range(18)])
        until(lambda: run.figures.done == 18, "all jobs")
    assert max(together) >= 4


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_a_job_that_hangs_is_retried_and_its_slot_works_on(app: hr.App, config: RunConfig, kind: str) -> None:
    jobs = app.queue("jobs", "n BIGINT", retries=1, backoff="50ms")
    released = threading.Event()

    def plain_hang(row: dict[str, Any]) -> None:
        if row["n"] == 0:
            released.wait(60)

    async def async_hang(row: dict[str, Any]) -> None:
        if row["n"] == 0:
            await asyncio.sleep(60)

    app.worker(jobs, timeout="300ms")(plain_hang if kind == "plain" else async_hang)
    with working(app, config) as (run,):
        send(jobs, config, [{"n": n} for n in range(5)])
        until(lambda: run.figures.dead == 1 and run.figures.done == 4, "one dead, the others done")
        released.set()
    (letter,) = records(app, jobs.dead, config)
    assert headers(letter)["headrace-reason"] == "it took longer than 300 milliseconds"
    assert headers(letter)["headrace-attempts"] == "2"


def test_every_group_gets_every_message_and_a_retry_is_for_its_own_group(app: hr.App, config: RunConfig) -> None:
    jobs = app.queue("jobs", "n BIGINT", retries=3, backoff="50ms")
    seen: Counter[tuple[str, int]] = Counter()

    @app.worker(jobs)
    def left(row: dict[str, Any], message: hr.Message) -> None:
        seen["left", row["n"]] += 1
        if row["n"] == 3 and message.attempt == 1:
            raise ValueError("once")

    @app.worker(jobs)
    def right(row: dict[str, Any]) -> None:
        seen["right", row["n"]] += 1

    with working(app, config) as runs:
        send(jobs, config, [{"n": n} for n in range(10)])
        until(lambda: all(run.figures.done == 10 for run in runs), "both groups")
    assert seen["left", 3] == 2
    assert sum(seen.values()) == 21
    assert len(records(app, jobs.topic_name, config)) == 10  # who reads the log does not see retries


def test_a_job_longer_than_the_lock_has_a_lease_which_ends_with_it(
    app: hr.App, config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.queues.slots.LONGEST_LOCK", 15.0)
    jobs = app.queue("jobs", "n BIGINT", retries=2, backoff="50ms")
    seen: list[tuple[int, int]] = []

    @app.worker(jobs, timeout="1 hour", concurrency=2)
    def long(row: dict[str, Any], message: hr.Message) -> None:
        seen.append((row["n"], message.attempt))
        if row["n"] == 1 and message.attempt == 1:
            raise ValueError("once")

    with working(app, config) as (run,):
        send(jobs, config, [{"n": 0}, {"n": 1}])
        until(lambda: run.figures.done == 2, "both jobs")
    assert sorted(seen) == [(0, 1), (1, 1), (1, 2)]
    last = {key: value for key, value in raw_records("headrace.delayed", config) if key.startswith(b"shop.long/")}
    assert len(last) == 3  # of two messages and a retry
    assert set(last.values()) == {None}  # cancelled, or handed over


def test_messages_of_a_key_keep_their_order_through_failures(app: hr.App, config: RunConfig) -> None:
    jobs = app.queue("jobs", "k STRING, n BIGINT", key="k", retries=3, backoff="20ms")
    done: dict[str, list[int]] = defaultdict(list)
    busy: set[str] = set()

    @app.worker(jobs, concurrency=4, order_by="key")
    def ordered(row: dict[str, Any], message: hr.Message) -> None:
        assert row["k"] not in busy
        busy.add(row["k"])
        try:
            time.sleep(0.001)
            if row["n"] % 5 == 2 and message.attempt < 3:
                raise ValueError("again")
            if row["n"] == 9:
                raise ValueError("never")
            done[row["k"]].append(row["n"])
        finally:
            busy.discard(row["k"])

    rows = [{"k": f"k{k}", "n": n} for n in range(12) for k in range(6)]
    with working(app, config) as (run,):
        send(jobs, config, rows)
        until(lambda: run.figures.done == 66 and run.figures.dead == 6, "all jobs")
    assert dict(done) == {f"k{k}": [n for n in range(12) if n != 9] for k in range(6)}
    with working(app, config) as (run,):  # what was done is committed
        time.sleep(1)
        assert run.figures.done == 0


# ---- processes


class Processes:
    """`headrace work` as processes, and what their journal says."""

    def __init__(self, config: RunConfig, folder: Path) -> None:
        self.journal = folder / "journal"
        self.journal.touch()
        self._config = config
        self._running: list[subprocess.Popen[bytes]] = []
        self._log = (folder / "work.log").open("ab")

    def start(self) -> subprocess.Popen[bytes]:
        words = [
            "-m",
            "headrace",
            "work",
            str(FILE),
            "--kafka",
            str(self._config.kafka),
            "--home",
            str(self._config.home),
        ]
        process = subprocess.Popen(
            [sys.executable, *words],
            env={**os.environ, "HEADRACE_TEST_JOURNAL": str(self.journal)},
            cwd=ROOT,
            stderr=self._log,
        )
        self._running.append(process)
        return process

    def counts(self, word: str) -> Counter[int]:
        lines = (line.split() for line in self.journal.read_text().splitlines())
        return Counter(int(line[1]) for line in lines if len(line) == 4 and line[0] == word)

    def end(self) -> None:
        for process in self._running:
            if process.poll() is None:
                process.kill()
            process.wait()
        self._log.close()


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[peers.Server]:
    with peers.broker_for_tests(tmp_path / "broker") as running:
        yield running


@pytest.fixture
def own_config(own_server: peers.Server, tmp_path: Path) -> RunConfig:
    return RunConfig(kafka=own_server.address, home=tmp_path / "home", topic_settings={"partitions": "2"})


@pytest.fixture
def processes(own_config: RunConfig, tmp_path: Path) -> Iterator[Processes]:
    started = Processes(own_config, tmp_path)
    try:
        yield started
    finally:
        started.end()


def the_app() -> tuple[hr.App, Queue]:
    from tests.queues import worker_app

    return worker_app.app, worker_app.jobs


def killed_workers(config: RunConfig, processes: Processes, kills: int) -> None:
    app, jobs = the_app()
    count = 40 * (kills + 1)
    with serving(config):
        prepare_queues(app.topology(), config)
        workers = [processes.start() for _ in range(2)]
        send(jobs, config, [{"n": n, "does": "sleep 0.02"} for n in range(count)])
        for turn in range(kills):
            reached = 30 * (turn + 1)
            until(lambda reached=reached: len(processes.counts("end")) >= reached, "some jobs")  # type: ignore[misc]
            victim = workers[turn % 2]
            victim.kill()
            victim.wait()
            workers[turn % 2] = processes.start()
        until(lambda: len(processes.counts("end")) == count, "every job", 90)
        for worker in workers:
            worker.send_signal(signal.SIGTERM)
        assert [worker.wait(LIMIT) for worker in workers] == [0, 0]
    again = sum(processes.counts("begin").values()) - count
    assert again <= kills * 8  # at most what was in progress in the processes that were killed
    assert records(app, jobs.dead, config) == []


def test_workers_that_are_killed_lose_no_message(own_config: RunConfig, processes: Processes) -> None:
    killed_workers(own_config, processes, 3)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_workers_that_are_killed_many_times(own_config: RunConfig, processes: Processes) -> None:
    killed_workers(own_config, processes, 30)


def test_a_message_that_kills_its_worker_every_time_ends_in_the_dead_letters(
    own_config: RunConfig, processes: Processes
) -> None:
    app, jobs = the_app()
    with serving(own_config):
        prepare_queues(app.topology(), own_config)
        send(jobs, own_config, [{"n": n, "does": "die" if n == 5 else ""} for n in range(20)])
        deadline = time.monotonic() + 90
        process = processes.start()
        while len(processes.counts("end")) < 19 or not records(app, jobs.dead, own_config):
            assert time.monotonic() < deadline
            if process.poll() is not None:
                process = processes.start()
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT) == 0
    (letter,) = records(app, jobs.dead, own_config)
    assert headers(letter)["headrace-reason"] == "its worker died or hung 3 times"
    assert headers(letter)["headrace-attempts"] == "3"
    assert processes.counts("begin")[5] == 3


def test_a_stop_finishes_what_is_in_progress(own_config: RunConfig, processes: Processes) -> None:
    app, jobs = the_app()
    with serving(own_config):
        prepare_queues(app.topology(), own_config)
        send(jobs, own_config, [{"n": n, "does": "sleep 1"} for n in range(8)])
        first = processes.start()
        until(lambda: len(processes.counts("begin")) == 4, "four jobs in progress")
        first.send_signal(signal.SIGTERM)
        assert first.wait(LIMIT) == 0
        assert processes.counts("end") == processes.counts("begin") == dict.fromkeys(processes.counts("end"), 1)
        second = processes.start()
        until(lambda: len(processes.counts("end")) == 8, "the others")
        second.send_signal(signal.SIGTERM)
        assert second.wait(LIMIT) == 0
    assert set(processes.counts("begin").values()) == {1}


def test_the_broker_is_killed_while_messages_are_locked_acknowledged_and_delayed(
    own_server: peers.Server, own_config: RunConfig, processes: Processes
) -> None:
    app, jobs = the_app()
    with serving(own_config):
        prepare_queues(app.topology(), own_config)
        worker = processes.start()
        send(jobs, own_config, [{"n": n, "does": "raise" if n % 10 == 0 else "sleep 0.02"} for n in range(100)])
        for reached in (20, 50):
            until(lambda reached=reached: len(processes.counts("end")) >= reached, "some jobs")  # type: ignore[misc]
            own_server.kill()
            own_server.start()
        until(lambda: len(processes.counts("end")) == 90, "every good job", 90)
        until(lambda: len(records(app, jobs.dead, own_config)) >= 10, "every bad one in the dead letters", 60)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(LIMIT) == 0
    dead = {json.loads(record.row["value"])["n"] for record in records(app, jobs.dead, own_config)}
    assert dead == set(range(0, 100, 10))
