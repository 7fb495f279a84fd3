"""Consumers of three clients behind one face: each reads in a group on its own thread, and says what it was given."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from aiokafka import AIOKafkaConsumer
from aiokafka.abc import ConsumerRebalanceListener as AioListener
from confluent_kafka import Consumer, KafkaException
from kafka import KafkaConsumer
from kafka.consumer.subscription_state import ConsumerRebalanceListener as PythonListener
from kafka.errors import KafkaConnectionError

LIMIT = 60.0
SESSION_MS = 30_000
HEARTBEAT_MS = 500


def until(condition: Callable[[], bool], what: str, limit: float = LIMIT) -> None:
    """Wait for a condition, or say what did not come true."""
    deadline = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < deadline, f"not within {limit} s: {what}"
        time.sleep(0.02)


class Reader:
    """Reads, and commits what it read, until it is closed. Everything a test looks at is appended or replaced whole."""

    def __init__(self, address: str, group: str, topic: str, instance: str | None = None) -> None:
        self.address, self.group, self.topic, self.instance = address, group, topic, instance
        self.given: list[frozenset[int]] = []
        """What it was given, each time it was given anything anew."""
        self.values: list[str] = []
        self.failure: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def partitions(self) -> frozenset[int]:
        if self.failure is not None:
            raise self.failure
        return self.given[-1] if self.given else frozenset()

    def close(self) -> None:
        """Leave the group, or, as a static member, keep the place in it."""
        self._stop.set()
        self._thread.join(LIMIT)
        assert not self._thread.is_alive()
        if self.failure is not None:
            raise self.failure

    def _run(self) -> None:
        try:
            self._read()
        except BaseException as failure:
            self.failure = failure

    def _read(self) -> None:
        raise NotImplementedError

    def _assigned(self, partitions: Iterable[Any]) -> None:
        self.given.append(frozenset(each.partition for each in partitions))


class ConfluentReader(Reader):
    def _read(self) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self.address,
                "group.id": self.group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": SESSION_MS,
                "heartbeat.interval.ms": HEARTBEAT_MS,
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
                **({"group.instance.id": self.instance} if self.instance else {}),
            }
        )
        consumer.subscribe([self.topic], on_assign=lambda _, partitions: self._assigned(partitions))
        while not self._stop.is_set():
            message = consumer.poll(0.1)
            if message is None or message.error():
                continue
            self.values.append(message.value().decode())
            try:
                consumer.commit(message, asynchronous=False)
            except KafkaException:
                pass  # a rebalance, or a broker that is away: what is not committed is read again
        consumer.close()


class KafkaPythonReader(Reader):
    def _read(self) -> None:
        reader = self

        class Listener(PythonListener):  # type: ignore[misc]
            def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
                pass

            def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
                reader._assigned(assigned)

        consumer = KafkaConsumer(
            bootstrap_servers=self.address,
            group_id=self.group,
            group_instance_id=self.instance,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
            reconnect_backoff_max_ms=200,
        )
        consumer.subscribe([self.topic], listener=Listener())
        while not self._stop.is_set():
            try:
                # In kafka-python 3.0, a poll that ends while it joins loses the answer to its join now and then.
                polled = consumer.poll(2_000)
            except KafkaConnectionError:
                continue  # the broker is away
            for messages in polled.values():
                self.values += [message.value.decode() for message in messages]
                try:
                    consumer.commit()
                except Exception:  # as above
                    pass
        consumer.close(autocommit=False)


class AiokafkaReader(Reader):
    def _read(self) -> None:
        asyncio.run(self._read_on_a_loop())

    async def _read_on_a_loop(self) -> None:
        reader = self

        class Listener(AioListener):  # type: ignore[misc]
            async def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
                pass

            async def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
                reader._assigned(assigned)

        consumer = AIOKafkaConsumer(
            bootstrap_servers=self.address,
            group_id=self.group,
            group_instance_id=self.instance,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
        )
        consumer.subscribe([self.topic], listener=Listener())
        await consumer.start()
        while not self._stop.is_set():
            for messages in (await consumer.getmany(timeout_ms=100)).values():
                self.values += [message.value.decode() for message in messages]
                try:
                    await consumer.commit()
                except Exception:  # as above
                    pass
        await consumer.stop()


class MakeReader(Protocol):
    def __call__(self, address: str, group: str, topic: str, instance: str | None = None) -> Reader: ...


READERS: dict[str, MakeReader] = {
    "confluent-kafka": ConfluentReader,
    "kafka-python": KafkaPythonReader,
    "aiokafka": AiokafkaReader,
}
