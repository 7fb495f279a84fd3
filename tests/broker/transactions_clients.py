"""Transactional producers of three clients behind one face, and a reader that skips what was aborted."""

import asyncio
import time
from collections.abc import Callable
from typing import Any, Protocol

from aiokafka import AIOKafkaProducer
from aiokafka import TopicPartition as AioPartition
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaProducer
from kafka import TopicPartition as PythonPartition
from kafka.structs import OffsetAndMetadata

LIMIT = 60.0


class Writer(Protocol):
    """A transactional producer; made, it has taken over its transactional id."""

    def begin(self) -> None: ...
    def send(self, topic: str, value: str, partition: int = 0) -> None: ...
    def send_offset(self, topic: str, offset: int, group: str) -> None: ...
    def flush(self) -> None: ...
    def commit(self) -> None: ...
    def abort(self) -> None: ...
    def close(self) -> None: ...


MakeWriter = Callable[..., Writer]


class ConfluentWriter:
    def __init__(self, address: str, name: str, timeout_ms: int = 60_000) -> None:
        self.address = address
        self.producer = Producer(
            {
                "bootstrap.servers": address,
                "transactional.id": name,
                "transaction.timeout.ms": timeout_ms,
                "log_level": 0,
                "linger.ms": 0,
                "reconnect.backoff.ms": 10,
                "reconnect.backoff.max.ms": 100,
                "retry.backoff.ms": 10,
                "retry.backoff.max.ms": 100,
            }
        )
        self.producer.init_transactions(LIMIT)

    def begin(self) -> None:
        self.producer.begin_transaction()

    def send(self, topic: str, value: str, partition: int = 0) -> None:
        self.producer.produce(topic, value.encode(), partition=partition)

    def send_offset(self, topic: str, offset: int, group: str) -> None:
        consumer = Consumer({"bootstrap.servers": self.address, "group.id": group, "log_level": 0})
        metadata = consumer.consumer_group_metadata()
        self.producer.send_offsets_to_transaction([TopicPartition(topic, 0, offset)], metadata, LIMIT)
        consumer.close()

    def flush(self) -> None:
        assert self.producer.flush(LIMIT) == 0

    def commit(self) -> None:
        self.producer.commit_transaction(LIMIT)

    def abort(self) -> None:
        self.producer.abort_transaction(LIMIT)

    def close(self) -> None:
        self.producer.purge()


class KafkaPythonWriter:
    def __init__(self, address: str, name: str, timeout_ms: int = 60_000) -> None:
        self.producer = KafkaProducer(
            bootstrap_servers=address, transactional_id=name, transaction_timeout_ms=timeout_ms
        )
        self.producer.init_transactions()

    def begin(self) -> None:
        self.producer.begin_transaction()

    def send(self, topic: str, value: str, partition: int = 0) -> None:
        self.producer.send(topic, value.encode(), partition=partition)

    def send_offset(self, topic: str, offset: int, group: str) -> None:
        offsets = {PythonPartition(topic, 0): OffsetAndMetadata(offset, "", -1)}
        self.producer.send_offsets_to_transaction(offsets, group)

    def flush(self) -> None:
        self.producer.flush(LIMIT)

    def commit(self) -> None:
        self.producer.commit_transaction()

    def abort(self) -> None:
        self.producer.abort_transaction()

    def close(self) -> None:
        self.producer.close(timeout=1)


class AiokafkaWriter:
    def __init__(self, address: str, name: str, timeout_ms: int = 60_000) -> None:
        self.runner = asyncio.Runner()
        self.sent: list[Any] = []

        async def start() -> AIOKafkaProducer:
            producer = AIOKafkaProducer(
                bootstrap_servers=address, transactional_id=name, transaction_timeout_ms=timeout_ms
            )
            await producer.start()
            return producer

        self.producer = self.runner.run(start())

    def begin(self) -> None:
        self.runner.run(self.producer.begin_transaction())

    def send(self, topic: str, value: str, partition: int = 0) -> None:
        self.sent.append(self.runner.run(self.producer.send(topic, value.encode(), partition=partition)))

    def send_offset(self, topic: str, offset: int, group: str) -> None:
        offsets = {AioPartition(topic, 0): offset}
        self.runner.run(self.producer.send_offsets_to_transaction(offsets, group))

    def flush(self) -> None:
        async def delivered() -> None:
            await asyncio.wait_for(asyncio.gather(*self.sent), LIMIT)

        self.runner.run(delivered())
        self.sent.clear()

    def commit(self) -> None:
        self.runner.run(self.producer.commit_transaction())

    def abort(self) -> None:
        self.runner.run(self.producer.abort_transaction())

    def close(self) -> None:
        async def stop() -> None:
            try:
                await asyncio.wait_for(self.producer.stop(), 5)
            except Exception:  # a fenced producer complains once more
                pass

        self.runner.run(stop())
        self.runner.close()


WRITERS: dict[str, MakeWriter] = {
    "confluent-kafka": ConfluentWriter,
    "kafka-python": KafkaPythonWriter,
    "aiokafka": AiokafkaWriter,
}


def make_topic(address: str, name: str, partitions: int = 1) -> None:
    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
    admin.create_topics([NewTopic(name, partitions, 1)])[name].result(LIMIT)


def read(address: str, topic: str, partitions: int = 1, *, committed: bool = True) -> list[str]:
    """Every value up to the end, partition by partition; up to the first open transaction if `committed`."""
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 20,
            "isolation.level": "read_committed" if committed else "read_uncommitted",
            "log_level": 0,
        }
    )
    values: dict[int, list[str]] = {partition: [] for partition in range(partitions)}
    at_end: set[int] = set()
    try:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in values])
        deadline = time.monotonic() + LIMIT
        while len(at_end) < partitions:
            assert time.monotonic() < deadline, "the end of the topic was not reached"
            message = consumer.poll(1)
            if message is None:
                continue
            partition, error = message.partition(), message.error()
            assert partition is not None
            if error is None:
                value = message.value()
                assert isinstance(value, bytes)
                values[partition].append(value.decode())
            elif error.code() == KafkaError._PARTITION_EOF:
                at_end.add(partition)
    finally:
        consumer.close()
    return [value for partition in range(partitions) for value in values[partition]]


def committed_offset(address: str, group: str, topic: str) -> int:
    """The group's offset of partition 0; negative if there is none."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": group, "log_level": 0})
    try:
        offset: int = consumer.committed([TopicPartition(topic, 0)], LIMIT)[0].offset
        return offset
    finally:
        consumer.close()


def eventually(condition: Callable[[], bool], limit: float = LIMIT) -> None:
    deadline = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < deadline, "it did not come to be in time"
        time.sleep(0.05)
