"""Transactions of real clients: commit, abort, fencing, timeouts, offsets, and a broker killed in the middle."""

import random
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from kafka.admin import KafkaAdminClient

from tests.broker.transactions_clients import (
    LIMIT,
    WRITERS,
    ConfluentWriter,
    MakeWriter,
    committed_offset,
    eventually,
    make_topic,
    read,
)
from tests.peers import Server, broker_for_tests


@pytest.fixture(params=WRITERS)
def make_writer(request: pytest.FixtureRequest) -> MakeWriter:
    return WRITERS[request.param]


@pytest.fixture
def name() -> str:
    return f"txn-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A broker of the test's own, which it may kill."""
    settings = {
        "group.initial.rebalance.delay.ms": "0",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "100",
    }
    with broker_for_tests(tmp_path / "broker", settings) as started:
        yield started


def test_only_what_was_committed_is_read(broker_address: str, topic: str, name: str, make_writer: MakeWriter) -> None:
    make_topic(broker_address, topic, 2)
    writer = make_writer(broker_address, name)
    for number in range(6):
        writer.begin()
        for partition in range(2):
            writer.send(topic, f"{number}-{partition}", partition)
        if number % 3 == 1:
            writer.flush()
            writer.abort()
        else:
            writer.commit()
    writer.close()
    expected = [f"{number}-{partition}" for partition in range(2) for number in (0, 2, 3, 5)]
    eventually(lambda: read(broker_address, topic, 2) == expected)
    assert len(read(broker_address, topic, 2, committed=False)) == 12


def test_an_open_transaction_is_not_read(broker_address: str, topic: str, name: str, make_writer: MakeWriter) -> None:
    make_topic(broker_address, topic)
    writer = make_writer(broker_address, name)
    writer.begin()
    writer.send(topic, "a")
    writer.flush()
    assert read(broker_address, topic) == []
    assert read(broker_address, topic, committed=False) == ["a"]
    writer.commit()
    eventually(lambda: read(broker_address, topic) == ["a"])
    writer.close()


def test_offsets_are_committed_with_the_transaction(
    broker_address: str, topic: str, name: str, make_writer: MakeWriter
) -> None:
    make_topic(broker_address, topic)
    group = f"group-of-{topic}"
    writer = make_writer(broker_address, name)
    for offset, commit in ((5, True), (9, False)):
        writer.begin()
        writer.send(topic, str(offset))
        writer.send_offset(topic, offset, group)
        writer.flush()
        if commit:
            writer.commit()
        else:
            writer.abort()
    writer.close()
    eventually(lambda: committed_offset(broker_address, group, topic) == 5)
    eventually(lambda: read(broker_address, topic) == ["5"])


def test_a_successor_fences_its_predecessor(
    broker_address: str, topic: str, name: str, make_writer: MakeWriter
) -> None:
    make_topic(broker_address, topic)
    first = make_writer(broker_address, name)
    first.begin()
    first.send(topic, "zombie")
    first.flush()
    second = make_writer(broker_address, name)
    second.begin()
    second.send(topic, "a")
    with pytest.raises(Exception, match=r"(?i)fenced|epoch|newer|failed"):
        first.commit()
    second.commit()
    first.close()
    second.close()
    eventually(lambda: read(broker_address, topic) == ["a"])


def test_a_transaction_past_its_timeout_is_aborted(
    server: Server, topic: str, name: str, make_writer: MakeWriter
) -> None:
    make_topic(server.address, topic)
    slow = make_writer(server.address, name, 1_000)
    slow.begin()
    slow.send(topic, "too late")
    slow.flush()
    other = make_writer(server.address, name + "-other")
    other.begin()
    other.send(topic, "in time")
    other.commit()
    eventually(lambda: read(server.address, topic) == ["in time"])
    with pytest.raises(Exception, match=r"(?i)fenced|epoch|newer|failed|error"):
        slow.commit()
    slow.close()
    other.close()


@pytest.mark.parametrize("kill", [True, False], ids=["killed", "stopped"])
def test_an_open_transaction_outlives_the_broker(
    server: Server, topic: str, name: str, make_writer: MakeWriter, kill: bool
) -> None:
    make_topic(server.address, topic)
    writer = make_writer(server.address, name)
    writer.begin()
    writer.send(topic, "before")
    writer.flush()
    if kill:
        server.kill()
    else:
        assert server.stop() == 0
    server.start()
    assert read(server.address, topic) == []
    writer.send(topic, "after")
    writer.commit()
    eventually(lambda: read(server.address, topic) == ["before", "after"])
    writer.begin()
    writer.send(topic, "next")
    writer.commit()
    eventually(lambda: read(server.address, topic) == ["before", "after", "next"])
    writer.close()


def test_records_are_copied_exactly_once(server: Server, topic: str, name: str) -> None:
    """Consume, transform, produce: with members of a group, takeovers, aborts, and a broker killed over it."""
    source, target, group = topic, f"{topic}-copy", f"group-of-{topic}"
    for each in (source, target):
        make_topic(server.address, each)
    count = 300
    feeder = ConfluentWriter(server.address, name + "-feeder")
    feeder.begin()
    for number in range(count):
        feeder.send(source, str(number))
    feeder.commit()
    feeder.close()

    kills = threading.Thread(target=_kill_now_and_then, args=(server, 3, 1.0))
    kills.start()
    deadline = time.monotonic() + 1.5 * LIMIT
    lives = 0
    while committed_offset_or_none(server, group, source) < count + 1:
        assert time.monotonic() < deadline, server.log_tail()
        lives += 1
        given = (server.address, source, target, group, name, str(lives), str(count + 1))
        copier = subprocess.Popen([sys.executable, "-m", "tests.broker.copier", *given], stderr=subprocess.DEVNULL)
        try:
            copier.wait(8)  # whatever ends it, the next begins from what the group has committed
        except subprocess.TimeoutExpired:
            copier.kill()
            copier.wait()
    kills.join()
    assert lives > 1
    eventually(lambda: read(server.address, target) == [str(number) for number in range(count)])


def committed_offset_or_none(server: Server, group: str, topic: str) -> int:
    try:
        return committed_offset(server.address, group, topic)
    except KafkaException:
        return -1


def _kill_now_and_then(server: Server, times: int, every: float) -> None:
    for _ in range(times):
        time.sleep(every)
        server.kill()
        server.start()


class Busy(threading.Thread):
    """Writes one small transaction after the other to every partition, and keeps account of each."""

    def __init__(self, address: str, name: str, topic: str, partitions: int) -> None:
        super().__init__()
        self.address, self.id, self.topic, self.partitions = address, name, topic, partitions
        self.outcomes: list[str] = []
        self.stopping = threading.Event()

    def run(self) -> None:
        writer = None
        while not self.stopping.is_set():
            number = len(self.outcomes)
            self.outcomes.append("unfinished")
            try:
                writer = writer or ConfluentWriter(self.address, self.id)
                writer.begin()
                for partition in range(self.partitions):
                    writer.send(self.topic, f"{self.id}/{number}/{partition}", partition)
                if number % 4 == 0:
                    writer.flush()
                    writer.abort()
                else:
                    self.outcomes[number] = "in doubt"
                    writer.commit()
                    self.outcomes[number] = "committed"
            except (KafkaException, AssertionError):
                if writer is not None:
                    writer.close()
                writer = None

    def stop(self) -> None:
        seen = len(self.outcomes)
        eventually(lambda: len(self.outcomes) > seen + 5)
        self.stopping.set()
        self.join(LIMIT)
        assert not self.is_alive()
        ConfluentWriter(self.address, self.id).close()  # ends what may have been left open

    def check(self, values: list[str]) -> None:
        mine = [value.split("/")[1:] for value in values if value.startswith(f"{self.id}/")]
        found: dict[int, set[str]] = {}
        for number, partition in mine:
            found.setdefault(int(number), set()).add(partition)
        whole = {str(partition) for partition in range(self.partitions)}
        for number, outcome in enumerate(self.outcomes):
            there = found.pop(number, set())
            assert there in (set(), whole), f"transaction {number} is torn: {there}"
            if outcome == "committed":
                assert there == whole, f"transaction {number} was committed and is lost"
            elif outcome == "unfinished":
                assert there == set(), f"transaction {number} was never committed and is there"
        assert found == {}
        assert "committed" in self.outcomes


@pytest.mark.parametrize("kills", [4, pytest.param(40, marks=[pytest.mark.long, pytest.mark.timeout(900)])])
def test_transactions_are_whole_however_often_the_broker_is_killed(
    server: Server, topic: str, name: str, kills: int
) -> None:
    """What was committed is there once and whole, what was not is absent, what is in doubt is whole or absent."""
    partitions = 3
    make_topic(server.address, topic, partitions)
    writers = [Busy(server.address, f"{name}-{number}", topic, partitions) for number in range(3)]
    for writer in writers:
        writer.start()
    chance = random.Random(3)
    for _ in range(kills):
        time.sleep(chance.uniform(0.1, 1.5))
        server.kill()
        server.start()
    for writer in writers:
        writer.stop()
    values = read(server.address, topic, partitions)
    assert len(values) == len(set(values)), "something is there twice"
    for writer in writers:
        writer.check(values)


def test_admin_tools_see_transactions(broker_address: str, topic: str, name: str) -> None:
    make_topic(broker_address, topic)
    writer = ConfluentWriter(broker_address, name)
    writer.begin()
    writer.send(topic, "a")
    writer.flush()
    admin = KafkaAdminClient(bootstrap_servers=broker_address)
    try:
        described = admin.describe_transactions([name])
        assert "Ongoing" in str(described)
        assert topic in str(described)
        assert name in str(admin.list_transactions())
    finally:
        admin.close()
    writer.commit()
    writer.close()
