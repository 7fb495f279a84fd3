"""Real clients at work while the real process is killed again and again: nothing lost, doubled, reordered or undone."""

import random
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic

from tests.peers import free_port

TOPIC = "events"
PARTITIONS = 3
PACE = 0.004


class Process:
    """`headrace broker` on one folder and one address, over all its lives."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self.address = f"127.0.0.1:{free_port()}"
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(
            [
                *[str(Path(sys.executable).with_name("headrace")), "broker", "--data", str(self._data)],
                *["--listen", self.address, "--set", "group.initial.rebalance.delay.ms=0"],
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._process.stdout is not None
        assert "ready" in self._process.stdout.readline()

    def kill(self) -> None:
        if self._process is not None:
            assert self._process.poll() is None, "the broker ended by itself"
            self._process.kill()
            self._process.communicate()
            self._process = None


@dataclass
class Evidence:
    """What the clients did and saw."""

    acknowledged: dict[str, tuple[int, int]] = field(default_factory=dict)
    """value -> (partition, offset), as the broker said"""
    committed: list[list[str]] = field(default_factory=list)
    aborted: list[list[str]] = field(default_factory=list)
    undecided: list[list[str]] = field(default_factory=list)
    sent: list[str] = field(default_factory=list)
    read: dict[str, list[tuple[int, int, str]]] = field(default_factory=lambda: defaultdict(list))
    """reader -> (partition, offset, value) in the order of its polls"""
    group: list[tuple[int, int, str]] = field(default_factory=list)
    group_committed: dict[int, int] = field(default_factory=dict)
    """partition -> the highest offset a commit of which was acknowledged"""


class Clients:
    def __init__(self, address: str) -> None:
        self.evidence = Evidence()
        self.stop = threading.Event()
        self._config: dict[str, str | int | float | bool] = {
            "bootstrap.servers": address,
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 200,
            "retry.backoff.ms": 20,
            "log_level": 0,
            "socket.timeout.ms": 5000,
            "batch.size": 16_000,  # below segment.bytes, whatever piles up while the broker is away
        }
        self._failures: list[BaseException] = []
        self._threads = [
            *(self._thread(self._write, f"writer-{number}") for number in range(2)),
            *(self._thread(self._transact, f"transactional-{number}") for number in range(2)),
            *(self._thread(self._read, f"reader-{number}") for number in range(2)),
            *(self._thread(self._consume, f"member-{number}") for number in range(2)),
        ]

    def _thread(self, work: Callable[[str], None], name: str) -> threading.Thread:
        def run() -> None:
            try:
                work(name)
            except BaseException as error:
                self._failures.append(error)

        return threading.Thread(target=run, name=name)

    def start(self) -> None:
        admin = AdminClient(self._config)
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1, config={"segment.bytes": "20000"})])[TOPIC].result(30)
        for thread in self._threads:
            thread.start()

    def finish(self) -> Evidence:
        """Let everybody end what was begun; the broker is up from now on."""
        self.stop.set()
        for thread in self._threads:
            thread.join(90)
            assert not thread.is_alive(), f"{thread.name} hangs"
        if self._failures:
            raise self._failures[0]
        return self.evidence

    def check_health(self) -> None:
        if self._failures:
            raise self._failures[0]

    # -- idempotent

    def _write(self, name: str) -> None:
        producer = Producer({**self._config, "enable.idempotence": True, "linger.ms": 2, "message.timeout.ms": 120_000})

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                self._failures.append(KafkaException(error))
                return
            value = message.value()
            partition, offset = message.partition(), message.offset()
            assert value is not None
            assert partition is not None
            assert offset is not None
            self.evidence.acknowledged[value.decode()] = (partition, offset)

        number = 0
        while not self.stop.is_set():
            value = f"{name}:{number}"
            self.evidence.sent.append(value)
            producer.produce(TOPIC, value.encode(), partition=number % PARTITIONS, on_delivery=delivered)
            producer.poll(PACE)
            number += 1
        assert producer.flush(60) == 0

    # -- transactional

    def _transact(self, name: str) -> None:
        dice = random.Random(name)
        producer = self._new_transactional(name)
        number = 0
        while not self.stop.is_set():
            values = [f"{name}:{number + each}" for each in range(dice.randint(1, 6))]
            number += len(values)
            self.evidence.sent.extend(values)
            abort = dice.random() < 0.25
            try:
                producer.begin_transaction()
                for each, value in enumerate(values):
                    producer.produce(TOPIC, value.encode(), partition=(number + each) % PARTITIONS)
                if abort:
                    producer.flush(30)
                    self._insist(lambda: producer.abort_transaction(30))  # noqa: B023
                    self.evidence.aborted.append(values)
                else:
                    self._insist(lambda: producer.commit_transaction(30))  # noqa: B023
                    self.evidence.committed.append(values)
            except KafkaException as failed:
                error = failed.args[0]
                if error.txn_requires_abort():
                    self._insist(lambda: producer.abort_transaction(30))  # noqa: B023
                    self.evidence.aborted.append(values)
                else:
                    self.evidence.undecided.append(values)
                    producer = self._new_transactional(name)
            time.sleep(PACE)

    def _new_transactional(self, name: str) -> Producer:
        producer = Producer({**self._config, "transactional.id": name, "linger.ms": 2})
        self._insist(lambda: producer.init_transactions(30))
        return producer

    @staticmethod
    def _insist(call: Callable[[], Any]) -> None:
        """Try again while the client says that it may."""
        deadline = time.monotonic() + 60
        while True:
            try:
                call()
                return
            except KafkaException as failed:
                if not failed.args[0].retriable() or time.monotonic() > deadline:
                    raise

    # -- readers

    def _read(self, name: str) -> None:
        consumer = Consumer(
            {**self._config, "group.id": name, "isolation.level": "read_committed", "enable.auto.commit": False}
            | {"auto.offset.reset": "error", "fetch.wait.max.ms": 50}
        )
        consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in range(PARTITIONS)])
        while not self.stop.is_set():
            for message in consumer.consume(100, 0.1):
                self._take(message, self.evidence.read[name])
        consumer.close()

    def _consume(self, name: str) -> None:
        consumer = Consumer(
            {**self._config, "group.id": "group", "isolation.level": "read_committed", "enable.auto.commit": False}
            | {"auto.offset.reset": "earliest", "session.timeout.ms": 10_000, "fetch.wait.max.ms": 50}
        )
        consumer.subscribe([TOPIC])
        while not self.stop.is_set():
            for message in consumer.consume(100, 0.1):
                self._take(message, self.evidence.group)
            try:
                for entry in consumer.commit(asynchronous=False) or []:
                    if entry.error is None and entry.offset >= 0:
                        known = self.evidence.group_committed.get(entry.partition, -1)
                        self.evidence.group_committed[entry.partition] = max(known, entry.offset)
            except KafkaException:
                continue  # nothing to commit, a rebalance, or the broker is away
        consumer.close()

    def _take(self, message: Message, into: list[tuple[int, int, str]]) -> None:
        if (error := message.error()) is not None:
            assert error.code() not in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE), error
            return
        value = message.value()
        partition, offset = message.partition(), message.offset()
        assert value is not None
        assert partition is not None
        assert offset is not None
        into.append((partition, offset, value.decode()))

    def everything(self, isolation: str = "read_committed") -> dict[int, dict[int, str]]:
        """partition -> offset -> value, read from the beginning to the end by a fresh consumer."""
        to_end = {"enable.partition.eof": True, "fetch.wait.max.ms": 50}
        consumer = Consumer({**self._config, "group.id": "all", "isolation.level": isolation, **to_end})
        consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in range(PARTITIONS)])
        log: dict[int, dict[int, str]] = {partition: {} for partition in range(PARTITIONS)}
        ended: set[int | None] = set()
        deadline = time.monotonic() + 60
        while len(ended) < PARTITIONS:
            assert time.monotonic() < deadline, "the log could not be read to its end"
            for message in consumer.consume(500, 0.2):
                error = message.error()
                if error is not None and error.code() == KafkaError._PARTITION_EOF:
                    ended.add(message.partition())
                    continue
                rows: list[tuple[int, int, str]] = []
                self._take(message, rows)
                for partition, offset, value in rows:
                    assert offset not in log[partition]
                    log[partition][offset] = value
        consumer.close()
        return log

    def group_positions(self) -> dict[int, int]:
        consumer = Consumer({**self._config, "group.id": "group"})
        wanted = [TopicPartition(TOPIC, partition) for partition in range(PARTITIONS)]
        found = {entry.partition: entry.offset for entry in consumer.committed(wanted, 30)}
        consumer.close()
        return found


def judge(evidence: Evidence, log: dict[int, dict[int, str]], positions: dict[int, int]) -> None:
    """What a checker of logs looks for, by the names it has for them."""
    places = {value: (partition, offset) for partition, rows in log.items() for offset, value in rows.items()}
    counts = Counter(value for rows in log.values() for value in rows.values())
    assert not [value for value, count in counts.items() if count > 1], "duplicates"
    assert set(counts) <= set(evidence.sent), "values nobody sent"
    lost = {value: place for value, place in evidence.acknowledged.items() if places.get(value) != place}
    assert not lost, f"lost or moved: {dict(list(lost.items())[:5])}"
    for values in evidence.committed:
        assert all(value in places for value in values), f"a committed transaction is not whole: {values}"
    for values in evidence.aborted:
        assert not any(value in places for value in values), f"an aborted transaction was read: {values}"
    for values in evidence.undecided:
        assert len({value in places for value in values}) == 1, f"a transaction was read in part: {values}"
    _in_order(log)
    for reader, rows in evidence.read.items():
        _consistent(reader, rows, log, in_order=True)
    _consistent("the group", evidence.group, log, in_order=False)
    read_by_group = {(partition, offset) for partition, offset, _ in evidence.group}
    for partition, position in positions.items():
        unread = [offset for offset in log[partition] if offset < position and (partition, offset) not in read_by_group]
        assert not unread, f"the group passed over {unread[:5]} of partition {partition}"
        assert position >= evidence.group_committed.get(partition, -1), "a committed offset was lost"


def _in_order(log: dict[int, dict[int, str]]) -> None:
    for rows in log.values():
        newest: dict[str, int] = {}
        for _, value in sorted(rows.items()):
            writer, number = value.split(":")
            assert int(number) > newest.get(writer, -1), f"{value} came after {newest.get(writer)}"
            newest[writer] = int(number)


def _consistent(
    reader: str, rows: list[tuple[int, int, str]], log: dict[int, dict[int, str]], *, in_order: bool
) -> None:
    position: dict[int, int] = {}
    for partition, offset, value in rows:
        assert log[partition].get(offset) == value, f"{reader} read {value} at {partition}/{offset}"
        if in_order:
            before = position.get(partition, -1)
            assert offset > before, f"{reader} went back from {before} to {offset}"
            skipped = [each for each in range(before + 1, offset) if each in log[partition]]
            assert not skipped, f"{reader} skipped {skipped[:5]} of partition {partition}"
            position[partition] = offset


def crash(folder: Path, kills: int, seed: int) -> None:
    dice = random.Random(seed)
    process = Process(folder / "data")
    process.start()
    clients = Clients(process.address)
    try:
        clients.start()
        for _ in range(kills):
            # After a loss of connection librdkafka asks for its coordinator after half a second or more.
            time.sleep(dice.choice([dice.uniform(0.1, 0.8), dice.uniform(0.8, 2.5)]))
            clients.check_health()
            process.kill()
            process.start()
        time.sleep(1)
        evidence = clients.finish()
        log, positions = clients.everything(), clients.group_positions()
    finally:
        clients.stop.set()
        process.kill()
    judge(evidence, log, positions)
    assert len(evidence.acknowledged) > 20 * kills
    assert len(evidence.committed) > kills // 2
    assert evidence.aborted
    assert evidence.group_committed


def test_killed_under_real_clients(tmp_path: Path) -> None:
    crash(tmp_path, kills=2, seed=1)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [2, 3])
def test_killed_many_times_under_real_clients(tmp_path: Path, seed: int) -> None:
    crash(tmp_path, kills=40, seed=seed)
