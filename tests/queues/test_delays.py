"""Delayed messages: on time, once, in spite of kill -9, clock jumps, cancellations and a second service."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

import headrace as hr
from headrace.config.cluster import Cluster
from headrace.config.run import RunConfig
from headrace.errors import InputError
from headrace.queues.clocks import Clock, ElapsedTime, SystemClock
from headrace.queues.delayed import DELAYED, Plan, Stored, prepare_delays
from headrace.queues.delays import DelayService
from headrace.queues.index import WALL, DelayIndex, Entry
from headrace.queues.sending import QueueSender
from tests import peers
from tests.queues.delays_run import PLACES

ROOT = Path(__file__).parents[2]
LIMIT = 30.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[peers.Server]:
    with peers.broker_for_tests(tmp_path_factory.mktemp("delays")) as running:
        yield running


@pytest.fixture
def config(server: peers.Server, tmp_path: Path) -> RunConfig:
    return RunConfig(kafka=server.address, home=tmp_path / "home", topic_settings={"partitions": "2"})


@pytest.fixture
def queue() -> hr.Queue:
    return hr.App("shop").queue(f"jobs_{uuid.uuid4().hex[:8]}", "n BIGINT", key="n")


@contextmanager
def serving(config: RunConfig, clock: Clock | None = None, name: str = "one") -> Iterator[DelayService]:
    service = DelayService(config, name, clock=clock)
    failures: list[BaseException] = []

    def run() -> None:
        try:
            service.run()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield service
    finally:
        service.stop()
        thread.join(LIMIT)
        assert not thread.is_alive()
        assert failures == []


class Received(threading.Thread):
    """What arrives in a topic, and when."""

    def __init__(self, config: RunConfig, queue: hr.Queue) -> None:
        super().__init__(daemon=True)
        self.at: list[tuple[int, float]] = []
        self.ids: list[bytes] = []
        self._stopping = threading.Event()
        self._consumer = Consumer(
            {
                **config.client_settings(),
                "group.id": "test",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
            }
        )
        count = Cluster(config).partitions([queue.topic_name])[queue.topic_name]
        self._consumer.assign([TopicPartition(queue.topic_name, index, 0) for index in range(count)])
        self._read = queue.schema
        self.start()

    def run(self) -> None:
        while not self._stopping.is_set():
            message = self._consumer.poll(0.05)
            if message is not None and not message.error():
                value = message.value() or b""
                self.ids.append(dict(message.headers() or [])["headrace-id"])
                self.at.append((int(value.partition(b":")[2].strip(b" }")), time.time()))
        self._consumer.close()

    def stop(self) -> None:
        self._stopping.set()
        self.join()

    @property
    def numbers(self) -> Counter[int]:
        return Counter(number for number, _ in self.at)


def until(holds: Callable[[], object], what: str, limit: float = LIMIT) -> None:
    deadline = time.monotonic() + limit
    while not holds():
        assert time.monotonic() < deadline, f"not within {limit} s: {what}"
        time.sleep(0.01)


def test_messages_arrive_when_they_are_due_and_not_before(config: RunConfig, queue: hr.Queue) -> None:
    due: dict[int, float] = {}
    with serving(config) as service, QueueSender(queue, config) as sender:
        assert service.active.wait(LIMIT)
        received = Received(config, queue)
        for number in range(100):
            delay = timedelta(milliseconds=400 + random.randrange(1500))
            due[number] = time.time() + delay.total_seconds()
            if number % 2:
                sender.send({"n": number}, delay=delay).result(LIMIT)
            else:
                sender.send({"n": number}, at=datetime.fromtimestamp(due[number], UTC)).result(LIMIT)
        sender.send({"n": 1000}).result(LIMIT)
        until(lambda: len(received.numbers) == 101, "all messages")
        received.stop()
    assert set(received.numbers.values()) == {1}
    early = [number for number, at in received.at if number in due and at < due[number] - 0.001]
    assert early == []
    late = sorted(at - due[number] for number, at in received.at if number in due)
    assert late[len(late) // 2] < 0.1


def test_a_cancelled_message_is_not_delivered_and_one_with_the_same_id_is_replaced(
    config: RunConfig, queue: hr.Queue
) -> None:
    with serving(config) as service, QueueSender(queue, config) as sender:
        assert service.active.wait(LIMIT)
        received = Received(config, queue)
        sender.send({"n": 1}, delay="300 ms", id="cancelled").result(LIMIT)
        sender.send({"n": 2}, delay="300 ms", id="replaced").result(LIMIT)
        sender.send({"n": 3}, delay="600 ms", id="replaced").result(LIMIT)
        sender.cancel("cancelled").result(LIMIT)
        sender.cancel("never was").result(LIMIT)
        sender.send({"n": 4}, delay="800 ms").result(LIMIT)
        until(lambda: received.numbers[4], "the last message")
        received.stop()
    assert received.numbers == {3: 1, 4: 1}


def test_an_id_belongs_to_its_queue(config: RunConfig, queue: hr.Queue) -> None:
    other = hr.App("shop").queue(f"{queue.name}_2", "n BIGINT")
    with serving(config) as service, QueueSender(queue, config) as sender, QueueSender(other, config) as second:
        assert service.active.wait(LIMIT)
        received, elsewhere = Received(config, queue), Received(config, other)
        sender.send({"n": 1}, delay="500 ms", id="order-1").result(LIMIT)
        second.send({"n": 2}, delay="500 ms", id="order-1").result(LIMIT)
        second.cancel("order-1").result(LIMIT)
        sender.send({"n": 3}, delay="700 ms").result(LIMIT)
        until(lambda: received.numbers[3], "the last message")
        received.stop()
        elsewhere.stop()
    assert received.numbers == {1: 1, 3: 1}
    assert elsewhere.numbers == {}


def test_a_topic_that_refuses_its_message_does_not_hold_back_others(config: RunConfig, queue: hr.Queue) -> None:
    small = hr.App("shop").queue(f"{queue.name}_small", "n BIGINT, text STRING")
    Cluster(config).create(small.topic_name, 1, {"max.message.bytes": "1000"})
    with serving(config) as service, QueueSender(queue, config) as sender, QueueSender(small, config) as second:
        assert service.active.wait(LIMIT)
        received = Received(config, queue)
        second.send({"n": 1, "text": "x" * 5000}, delay="300 ms", id="large").result(LIMIT)
        for number in range(20):
            sender.send({"n": number}, delay="300 ms").result(LIMIT)
        until(lambda: len(received.numbers) == 20, "those of the other queue")
        second.cancel("large").result(LIMIT)
        received.stop()
    assert set(received.numbers.values()) == {1}


def test_a_periodic_message_comes_again_until_it_is_cancelled_each_time_with_its_own_id(
    config: RunConfig, queue: hr.Queue
) -> None:
    with serving(config) as service, QueueSender(queue, config) as sender:
        assert service.active.wait(LIMIT)
        received = Received(config, queue)
        sender.send({"n": 7}, every="1s", delay="100 ms", id="hourly").result(LIMIT)
        until(lambda: received.numbers[7] >= 3, "three times")
        sender.cancel("hourly").result(LIMIT)
        sender.send({"n": 8}, delay="2500 ms").result(LIMIT)
        until(lambda: received.numbers[8], "the message after it")
        received.stop()
    assert received.numbers[7] in (3, 4)
    times = [at for number, at in received.at if number == 7]
    assert all(0.8 < later - earlier < 1.4 for earlier, later in pairwise(times))
    assert len(set(received.ids)) == len(received.ids)
    assert all(id.startswith(b"hourly@") for id in received.ids[:3])


def test_after_downtime_what_is_overdue_is_delivered_at_once_and_once(config: RunConfig, queue: hr.Queue) -> None:
    with QueueSender(queue, config) as sender:
        for number in range(300):
            sender.send({"n": number}, delay="200 ms")
        sender.send({"n": 999}, delay="1 hour")
        sender.flush()
        received = Received(config, queue)
        time.sleep(0.3)
        assert not received.numbers
        started = time.monotonic()
        with serving(config):
            until(lambda: len(received.numbers) == 300, "what was overdue")
        assert time.monotonic() - started < 5
        with serving(config) as service:  # the same folder again: nothing comes twice
            assert service.active.wait(LIMIT)
            sender.send({"n": 301}, delay="100 ms").result(LIMIT)
            until(lambda: received.numbers[301], "the message after the restart")
        received.stop()
    assert set(received.numbers.values()) == {1}
    assert 999 not in received.numbers


def test_a_lost_index_is_made_again_from_the_topic(config: RunConfig, queue: hr.Queue) -> None:
    with QueueSender(queue, config) as sender:
        for number in range(50):
            sender.send({"n": number}, delay="100 ms")
        sender.send({"n": 100}, delay="4s")
        sender.send({"n": 101}, delay="4s", id="gone")
        sender.cancel("gone")
        sender.flush()
        received = Received(config, queue)
        with serving(config):
            until(lambda: len(received.numbers) == 50, "the first")
        for file in (config.home / "delays").iterdir():
            file.write_bytes(b"this is not SQLite" * 100)
        with serving(config):
            until(lambda: received.numbers[100], "the last")
        received.stop()
    assert received.numbers == dict.fromkeys([*range(50), 100], 1)


class SetClock(SystemClock):
    """The machine's clock, as if somebody had set it."""

    def __init__(self) -> None:
        self.by = 0

    def wall(self) -> int:
        return super().wall() + self.by


@pytest.mark.parametrize("jump", [3_600_000, -3_600_000])
def test_a_delay_counts_elapsed_time_and_a_moment_follows_the_wall_clock(
    config: RunConfig, queue: hr.Queue, jump: int
) -> None:
    clock = SetClock()
    now = datetime.now(UTC)
    with serving(config, clock) as service, QueueSender(queue, config) as sender:
        assert service.active.wait(LIMIT)
        received = Received(config, queue)
        sent = time.time()
        sender.send({"n": 1}, delay="1500 ms").result(LIMIT)
        sender.send({"n": 2}, at=now + timedelta(minutes=30)).result(LIMIT)
        sender.send({"n": 3}, at=now + timedelta(milliseconds=1500)).result(LIMIT)
        clock.by, jumped = jump, time.time()
        until(lambda: received.numbers[1], "the elapsed time")
        received.stop()
    times = dict(received.at)
    # A jump of an hour is told from a busy machine.
    assert 1.4 < times[1] - sent < 10
    if jump > 0:
        assert times[2] - jumped < 5  # both moments are in the past from then on
        assert times[3] - jumped < 5
    else:
        assert 2 not in times
        assert 3 not in times


def test_a_jump_of_the_clock_does_not_shorten_a_delay_over_a_restart(config: RunConfig, queue: hr.Queue) -> None:
    clock = SetClock()
    with QueueSender(queue, config) as sender:
        with serving(config, clock) as service:
            assert service.active.wait(LIMIT)
            clock.by = 3_600_000
            sent = time.time()
            sender.send({"n": 1}, delay="2s").result(LIMIT)
            sender.send({"n": 2}, delay="1 ms").result(LIMIT)
            received = Received(config, queue)
            until(lambda: received.numbers[2], "the one that is not to wait")
        with serving(config, clock):
            until(lambda: received.numbers[1], "the delayed one")
        received.stop()
    assert dict(received.at)[1] - sent > 1.9


def test_of_two_services_one_is_active_and_the_other_takes_over(config: RunConfig, queue: hr.Queue) -> None:
    other = RunConfig(kafka=config.kafka, home=config.home.with_name("other"))
    with QueueSender(queue, config) as sender, serving(other, name="two") as second:
        received = Received(config, queue)
        with serving(config, name="one") as first:
            until(lambda: first.active.is_set() or second.active.is_set(), "one of them")
            for number in range(100):
                sender.send({"n": number}, delay="50 ms").result(LIMIT)
            until(lambda: len(received.numbers) == 100, "all messages")
        for number in range(100, 110):
            sender.send({"n": number}, delay="50 ms").result(LIMIT)
        until(lambda: len(received.numbers) == 110, "those after the first was stopped")
        received.stop()
    assert set(received.numbers.values()) == {1}


def killed_runs(config: RunConfig, queue: hr.Queue, rounds: int) -> None:
    """Each place in turn: a service is killed there, again and again, while messages become due."""
    numbers = iter(range(1_000_000))
    sent = []
    with QueueSender(queue, config) as sender:
        received = Received(config, queue)
        for turn in range(rounds):
            place = PLACES[turn % len(PLACES)]
            words = [sys.executable, "-m", "tests.queues.delays_run", str(config.kafka), str(config.home), place, "2"]
            process = subprocess.Popen(words, cwd=ROOT)
            deadline = time.monotonic() + LIMIT
            while process.poll() is None:
                assert time.monotonic() < deadline, f"it was not killed at {place}"
                number = next(numbers)
                sender.send({"n": number}, delay=timedelta(milliseconds=random.randrange(400))).result(LIMIT)
                sent.append(number)
            assert process.returncode == -signal.SIGKILL, place
        with serving(config):
            until(lambda: len(received.numbers) == len(sent), "every message")
        received.stop()
    assert received.numbers == dict.fromkeys(sent, 1)


def test_kill_9_at_every_place_loses_nothing_and_delivers_nothing_twice(config: RunConfig, queue: hr.Queue) -> None:
    killed_runs(config, queue, len(PLACES))


@pytest.mark.long
@pytest.mark.timeout(600)
def test_kill_9_at_every_place_many_times(config: RunConfig, queue: hr.Queue) -> None:
    killed_runs(config, queue, 30)


def test_the_topic_is_trimmed_up_to_the_oldest_pending_message(
    config: RunConfig, queue: hr.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.queues.delays.TRIM_SECONDS", 0.2)
    monkeypatch.setattr("headrace.queues.delays.SMALL", 50)
    cluster = Cluster(config)
    with serving(config) as service, QueueSender(queue, config) as sender:
        assert service.active.wait(LIMIT)
        received = Received(config, queue)
        sender.send({"n": 5000}, delay="8s", id="oldest").result(LIMIT)
        before = cluster.ends([DELAYED])[DELAYED][0]
        for number in range(200):
            sender.send({"n": number}, delay="10 ms")
        until(lambda: len(received.numbers) == 200, "all but one")
        # One old message among many that are gone is written again, so that its neighbours can be deleted.
        until(lambda: cluster.beginnings([DELAYED])[DELAYED][0] > before, "the beginning moved")
        until(lambda: received.numbers[5000], "the oldest")
        received.stop()
    assert set(received.numbers.values()) == {1}


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"delay": "1s", "at": datetime.now(UTC)}, "either a delay or a time"),
        ({"at": datetime(2026, 1, 1)}, "has no time zone"),
        ({"every": "10 ms"}, "is too short"),
        ({"delay": "1s", "id": ""}, "is not an id"),
        ({"delay": "soon"}, "is not a duration"),
    ],
)
def test_what_cannot_be_sent_is_refused_at_once(
    config: RunConfig, queue: hr.Queue, options: dict[str, object], problem: str
) -> None:
    with QueueSender(queue, config) as sender, pytest.raises(InputError, match=problem):
        sender.send({"n": 1}, **options)  # type: ignore[arg-type]


def test_a_million_pending_messages_fit(tmp_path: Path) -> None:
    """The index alone: the size of 20,000 rows tells that of a million."""
    index = DelayIndex(tmp_path / "index.db")
    count = 20_000
    stored = [Stored(uuid.uuid4().hex.encode(), Plan("jobs", at=1), None, None, b"", ()) for _ in range(count)]
    entries = [Entry(offset, one, random.randrange(10**12), WALL) for offset, one in enumerate(stored)]
    for start in range(0, count, 500):
        index.apply(entries[start : start + 500], start + 500, 0)
    assert index.counts() == {"jobs": count}
    index.close()
    size = sum(file.stat().st_size for file in tmp_path.iterdir() if not file.name.endswith(("-wal", "-shm")))
    assert size / count < 140


def test_elapsed_time_does_not_jump_and_goes_on_over_a_restart() -> None:
    clock = SetClock()
    elapsed = ElapsedTime(clock)
    before = elapsed.now()
    clock.by = 10_000_000
    assert elapsed.now() - before < 1000
    again = ElapsedTime(clock, elapsed.shift)
    assert abs(again.now() - elapsed.now()) < 10


def test_the_topic_has_one_partition_and_keeps_everything(config: RunConfig) -> None:
    cluster = Cluster(config)
    prepare_delays(cluster, config)
    prepare_delays(cluster, config)
    assert cluster.partitions([DELAYED]) == {DELAYED: 1}
    assert cluster.topic_setting("retention.ms", [DELAYED]) == {DELAYED: "-1"}
