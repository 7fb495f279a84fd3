"""Share groups under every fault: none lost, none delivered after its end was answered, whoever dies when."""

import random
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Message, Producer

from headrace.broker.errors import ErrorCode
from headrace.broker.groups.share import records
from headrace.broker.store import StoreError
from tests.broker.faults.harness import recording, serving
from tests.broker.faults.history import History
from tests.broker.faults.powerloss import Loss, image_after
from tests.broker.faults.share_history import (
    Answered,
    Asked,
    Delivered,
    Event,
    Sent,
    ShareHistory,
    Stored,
    Violation,
)
from tests.broker.faults.share_members import LOCK_S, Worker, drain, fetch
from tests.broker.share_clients import ACCEPT, LIMIT, RawMember, configure, make_topic
from tests.peers import broker_for_tests

SETTINGS = {
    "group.share.record.lock.duration.ms": str(int(LOCK_S * 1000)),
    "group.share.min.record.lock.duration.ms": "1000",
    "group.share.session.timeout.ms": "5000",
    "group.share.min.session.timeout.ms": "1000",
    "group.share.heartbeat.interval.ms": "1000",
    "group.share.min.heartbeat.interval.ms": "100",
}
DELIVERIES = 5
TOPIC = "jobs"


class Sender:
    """Writes values, a few in a batch; each once, whatever happens to the broker."""

    def __init__(self, address: str, history: ShareHistory) -> None:
        self.history = history
        self.number = 0
        self.producer = Producer(
            {
                "bootstrap.servers": address,
                "enable.idempotence": True,
                "linger.ms": 3,
                "log_level": 0,
                "reconnect.backoff.max.ms": 200,
            }
        )

    def send(self, count: int) -> None:
        for _ in range(count):
            value = str(self.number)
            self.number += 1
            self.history.add(Sent(value))
            self.producer.produce(TOPIC, value.encode(), on_delivery=self._told)
        self.producer.poll(0)

    def _told(self, error: KafkaError | None, message: Message) -> None:
        value = message.value()
        if error is None and value is not None:
            self.history.add(Stored(value.decode()))

    def flush(self) -> None:
        assert self.producer.flush(LIMIT) == 0


@contextmanager
def workers(address: str, history: ShareHistory, count: int, seed: int) -> Iterator[list[Worker]]:
    started = [Worker(address, TOPIC, TOPIC, history, seed * 100 + number).start() for number in range(count)]
    try:
        yield started
    finally:
        for worker in started:
            worker.stop()


def prepare(address: str) -> None:
    make_topic(address, TOPIC)
    configure(address, TOPIC, share_auto_offset_reset="earliest", share_delivery_count_limit=str(DELIVERIES))


def run_and_kill(folder: Path, seed: int, kills: int) -> None:
    """Members that die, hang and repeat themselves, and a broker that is killed -9 while they do."""
    dice, history = random.Random(seed), ShareHistory()
    with broker_for_tests(folder, SETTINGS) as broker:
        prepare(broker.address)
        sender = Sender(broker.address, history)
        with workers(broker.address, history, 4, seed):
            for life in range(kills + 1):
                end = time.monotonic() + dice.uniform(0.5, 1.2)
                while time.monotonic() < end:
                    sender.send(dice.randint(1, 15))
                    time.sleep(0.02)
                if life < kills:
                    broker.kill()
                    history.life += 1
                    broker.start()
            sender.flush()
        drain(broker.address, TOPIC, TOPIC, history)
    history.check(limit=DELIVERIES)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_lost_and_nothing_ended_comes_back_over_kills(tmp_path: Path, seed: int) -> None:
    run_and_kill(tmp_path, seed, kills=2)


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(100, 130))
def test_nothing_is_lost_and_nothing_ended_comes_back_over_many_kills(tmp_path: Path, seed: int) -> None:
    run_and_kill(tmp_path, seed, kills=4)


class WatchedHistory(ShareHistory):
    """Keeps the moments right after an answer came, by the events of the disk: what it said must be there by then."""

    def __init__(self, disk: History) -> None:
        super().__init__()
        self.disk = disk
        self.moments: list[tuple[int, int]] = []

    def add(self, *events: Event) -> None:
        super().add(*events)
        if any(isinstance(event, Answered | Stored) for event in events):
            heard = len(self.events)
            self.moments.append((self.disk.now(), heard))


def lose_power(folder: Path, seed: int, losses: int) -> None:
    """What was answered before the power went is so afterwards, whatever of the unsynced writes is there."""
    dice, disk_history = random.Random(seed), History()
    history = WatchedHistory(disk_history)
    recorded = folder / "recorded"
    recorded.mkdir()
    with serving(recorded, settings=SETTINGS, **recording(recorded, disk_history, 0.005)) as running:
        address = f"{running.address[0]}:{running.address[1]}"
        prepare(address)
        sender = Sender(address, history)
        with workers(address, history, 3, seed):
            end = time.monotonic() + 1.5
            while time.monotonic() < end:
                sender.send(dice.randint(1, 8))
                time.sleep(0.01)
            sender.flush()
    for number in range(losses):
        point, heard = dice.choice(history.moments)
        loss = dice.choice([Loss.NONE_KEPT, Loss.PREFIX_KEPT, Loss.SUBSET_KEPT])
        after = folder / f"after-{number}"
        after.mkdir()
        image_after(disk_history, point, loss, number).write_to(after)
        check_after_loss(after, history, heard)


def check_after_loss(folder: Path, before: ShareHistory, heard: int) -> None:
    known, after = before.events[:heard], ShareHistory()
    with serving(folder, settings=SETTINGS) as running:
        drain(f"{running.address[0]}:{running.address[1]}", TOPIC, TOPIC, after)
    delivered = {event.value for event in after.events if isinstance(event, Delivered)}
    ended = {event.value for event in known if isinstance(event, Answered)}
    assert not delivered & ended, "delivered after its end was answered"
    stored = {event.value for event in known if isinstance(event, Stored)}
    # What was asked and not answered may have been written, and so may the last delivery of a record.
    asked = {event.value for event in before.events if isinstance(event, Asked)}
    last = {e.value for e in before.events if isinstance(e, Delivered) and e.deliveries == DELIVERIES}
    lost = stored - delivered - ended - asked - last
    assert not lost, f"sent and gone: {sorted(lost)}"


@pytest.mark.timeout(180)
def test_power_losses(tmp_path: Path) -> None:
    lose_power(tmp_path, seed=1, losses=12)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(10, 16))
def test_many_power_losses(tmp_path: Path, seed: int) -> None:
    lose_power(tmp_path, seed, losses=80)


def test_the_wall_clock_does_not_end_a_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    history = ShareHistory()
    with serving(tmp_path, settings=SETTINGS) as running:
        address = f"{running.address[0]}:{running.address[1]}"
        prepare(address)
        sender = Sender(address, history)
        sender.send(1)
        sender.flush()
        holder, other = RawMember(address, TOPIC).join(TOPIC), RawMember(address, TOPIC).join(TOPIC)
        began = time.monotonic()
        assert list(fetch(holder, history, 1, 0)) == [0]
        now, now_ns = time.time, time.time_ns
        for days in (1, -2):
            monkeypatch.setattr(time, "time", lambda days=days: now() + days * 86_400)
            monkeypatch.setattr(time, "time_ns", lambda days=days: now_ns() + days * 86_400 * 10**9)
            assert fetch(other, history, 1, 200) == {}
        assert list(fetch(other, history, 1, 10_000)) == [0]
        assert time.monotonic() - began >= LOCK_S - 0.01
        holder.close(), other.close()


def test_a_full_disk_refuses_an_acknowledgement_and_the_member_keeps_the_record(tmp_path: Path) -> None:
    history = ShareHistory()
    with serving(tmp_path, settings=SETTINGS) as running:
        address = f"{running.address[0]}:{running.address[1]}"
        prepare(address)
        sender = Sender(address, history)
        sender.send(2)
        sender.flush()
        member = RawMember(address, TOPIC).join(TOPIC)
        assert list(fetch(member, history, 2, 0)) == [0, 1]
        write = running.broker.store.write

        def full(change: object) -> object:
            failed = running.loop.create_future()
            failed.set_exception(StoreError("database or disk is full"))
            return failed

        running.broker.store.write = full  # type: ignore[method-assign, assignment]
        assert member.acknowledge((0, 0, [ACCEPT])) == (0, ErrorCode.KAFKA_STORAGE_ERROR)
        running.broker.store.write = write  # type: ignore[method-assign]
        assert member.acknowledge((0, 1, [ACCEPT])) == (0, 0), "it holds them still"
        assert member.start_offset(TOPIC) == (2, 0)
        member.close()


def test_a_start_that_could_not_be_stored_is_looked_for_again(tmp_path: Path) -> None:
    with serving(tmp_path, settings=SETTINGS) as running:
        address = f"{running.address[0]}:{running.address[1]}"
        prepare(address)
        write, calls = running.broker.store.write, 0

        def fails_after_the_group(change: object) -> object:
            nonlocal calls
            calls += 1
            if calls == 1:
                return write(change)  # type: ignore[arg-type]
            failed = running.loop.create_future()
            failed.set_exception(StoreError("database or disk is full"))
            return failed

        running.broker.store.write = fails_after_the_group  # type: ignore[method-assign, assignment]
        member = RawMember(address, TOPIC)
        assert member.heartbeat(TOPIC).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        running.broker.store.write = write  # type: ignore[method-assign]
        assert member.start_offset(TOPIC) == (-1, -1)
        assert member.heartbeat(TOPIC).error_code == 0
        assert member.start_offset(TOPIC) == (0, 0)
        member.close()


def test_a_late_write_does_not_bring_a_deleted_group_back(tmp_path: Path) -> None:
    row = (b"\0" * 16, 0, 0, 5, b"", b"")
    with serving(tmp_path, settings=SETTINGS) as running:
        prepare(f"{running.address[0]}:{running.address[1]}")

        def late(connection: sqlite3.Connection) -> int:
            records.save_partitions(connection, [("deleted", *row)])
            found: int = connection.execute("SELECT count(*) FROM share_partitions").fetchone()[0]
            return found

        async def written() -> int:
            return await running.broker.store.write(late)

        assert running.wait(written()) == 0


def test_a_connection_that_closes_while_its_group_is_deleted_is_let_go(tmp_path: Path) -> None:
    with serving(tmp_path, settings=SETTINGS) as running:
        address = f"{running.address[0]}:{running.address[1]}"
        prepare(address)
        member = RawMember(address, TOPIC).join(TOPIC)
        fetch(member, ShareHistory(), 1, 0)
        before = running.open_connections()
        group = running.broker.groups.share.group(TOPIC)
        running.call(group.die)
        member.close()
        deadline = time.monotonic() + LIMIT
        while running.open_connections() >= before:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        running.call(group.revive)


# The checker itself


@pytest.mark.parametrize(
    "events",
    [
        [Delivered("a", "m", 1)],
        [Sent("a"), Stored("a")],
        [Sent("a"), Stored("a"), Delivered("a", "m", 1)],
        [Sent("a"), Delivered("a", "m", 1), Asked("a", True), Answered("a", True), Delivered("a", "n", 2)],
        [Sent("a"), Delivered("a", "m", 1), Delivered("a", "n", 1)],
        [Sent("a"), Delivered("a", "m", DELIVERIES + 1)],
        [Sent("a"), Delivered("a", "m", 1), Answered("a", True)],
    ],
)
def test_the_checker_finds(events: list[Event]) -> None:
    history = ShareHistory()
    history.add(*events)
    with pytest.raises(Violation):
        history.check(limit=DELIVERIES)
