"""A worker's slots on a share group: each takes one message, processes it, acknowledges it, and takes the next.

confluent-kafka's ShareConsumer is for one thread, refuses to poll before all it gave is acknowledged, and cannot renew
a lock. So each slot has a consumer of its own. A job that may take longer than the longest lock gets a lease instead: a
delayed copy of the message, which is cancelled when the job is done.
"""

import asyncio
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from confluent_kafka import AcknowledgeType, KafkaException, ShareConsumer
from confluent_kafka import Message as ClientMessage
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from headrace.clients.records import record_of
from headrace.config.cluster import REQUEST_SECONDS, Cluster
from headrace.config.kafka_errors import explained
from headrace.config.run import RunConfig
from headrace.errors import KafkaError
from headrace.queues.calling import AsyncCaller, Caller, PlainCaller
from headrace.queues.jobs import GivenBack, Jobs
from headrace.threads import Threads
from headrace.topology import Worker

__all__ = ["ShareSlots", "last_delivery"]

POLL_SECONDS = 0.5
SHORTEST_LOCK, LONGEST_LOCK = 15.0, 60.0
"""What Kafka accepts by default."""
MARGIN = 5.0
"""Between the end of a job's time and the end of its lock, to send a retry and acknowledge."""
MOST_DELIVERIES = 10
"""What Kafka accepts. The broker archives a record after that, without a word: so it must never come to it."""
RETRY_SECONDS = 1.0
COMMIT_SECONDS = 10.0
APART = 5.0
"""Seconds by which a message is delayed that must not run beside one that may kill the process."""
RETRY_SHARE = 4
"""For so many slots of the queue there is one for retries."""
SETTINGS: Mapping[str, Any] = {
    "share.acknowledgement.mode": "explicit",
    "max.poll.records": 1,
    "fetch.wait.max.ms": 500,
}


def last_delivery(retries: int) -> int:
    """The delivery from which on a record goes to the dead-letter topic, not to the function.

    The broker would deliver it at least once more, if moving it there fails.
    """
    return min(retries + 2, MOST_DELIVERIES - 1)


def lock_seconds(timeout: float) -> float:
    return min(LONGEST_LOCK, max(SHORTEST_LOCK, timeout + MARGIN))


class Isolation:
    """Lets a job run alone in its process, so that the others are not hit if it kills the process once more."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._running = 0
        self._is_alone = False

    @contextmanager
    def entered(self, alone: bool) -> Iterator[bool]:
        """False for one that wants to be alone while another is: if that one kills the process, it must not be here."""
        with self._changed:
            if alone and self._is_alone:
                yield False
                return
            self._changed.wait_for(lambda: not self._is_alone)
            if alone:
                self._is_alone = True
                self._changed.wait_for(lambda: self._running == 0)
            self._running += 1
        try:
            yield True
        finally:
            with self._changed:
                self._running -= 1
                if alone:
                    self._is_alone = False
                self._changed.notify_all()


class ShareSlots:
    """The slots of one worker in this process."""

    def __init__(self, worker: Worker, config: RunConfig, jobs: Jobs, threads: Threads) -> None:
        self._worker = worker
        self._config = config
        self._jobs = jobs
        self._threads = threads
        self._timeout = worker.timeout.microseconds / 1e6
        self._lock = lock_seconds(self._timeout)
        self._limit = last_delivery(worker.queue.retries)
        self._isolation = Isolation()
        self._permits = threading.BoundedSemaphore(worker.concurrency)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._running: list[threading.Thread] = []

    def start(self) -> None:
        self._configure_group()
        if self._worker.is_async:
            self._loop = asyncio.new_event_loop()
            self._threads.start(f"{self._worker.name} loop", self._loop.run_forever)
        # A share group deals partitions out among its members: one with both topics might get retries only. So some
        # slots are for retries alone, and the permits keep the sum within the worker's concurrency.
        count = self._worker.concurrency
        topics = [self._worker.queue.topic_name] * count + [self._worker.retry_topic] * -(-count // RETRY_SHARE)
        self._running = [
            self._threads.start(f"{self._worker.name} slot {number}", partial(self._slot, topic))
            for number, topic in enumerate(topics)
        ]

    def join(self) -> None:
        for thread in self._running:
            thread.join()
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)

    def _configure_group(self) -> None:
        """The group's lock, its limit of deliveries, and that it starts at the beginning of the queue."""
        settings = {
            "share.auto.offset.reset": "earliest",
            "share.isolation.level": "read_committed",  # delayed messages come in transactions
            "share.record.lock.duration.ms": str(round(self._lock * 1000)),
            "share.delivery.count.limit": str(MOST_DELIVERIES),
        }
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in settings.items()
        ]
        group = ConfigResource(ResourceType.GROUP, self._worker.group, incremental_configs=entries)
        cluster = Cluster(self._config)
        for future in cluster.admin.incremental_alter_configs([group], request_timeout=REQUEST_SECONDS).values():
            cluster.result(future, f"configure the share group {self._worker.group!r}")

    def _consumer(self, topic: str) -> ShareConsumer:
        patience = {"max.poll.interval.ms": round((self._timeout + 300) * 1000)}
        consumer = ShareConsumer(
            {**SETTINGS, **patience, **self._config.client_settings(), "group.id": self._worker.group}
        )
        consumer.subscribe([topic])
        return consumer

    def _slot(self, topic: str) -> None:
        caller: Caller = PlainCaller(f"headrace {self._worker.name}") if self._loop is None else AsyncCaller(self._loop)
        while not self._jobs.stopping.is_set():
            consumer = self._consumer(topic)
            try:
                while not self._jobs.stopping.is_set():
                    self._take(consumer, caller)
            except KafkaException as error:
                if error.args[0].fatal():
                    raise explained(error, f"take messages of {self._worker.queue.name!r}") from error
                self._jobs.stopping.wait(RETRY_SECONDS)
            finally:
                with suppress(KafkaException):
                    consumer.commit_sync(COMMIT_SECONDS)
                consumer.close()

    def _take(self, consumer: ShareConsumer, caller: Caller) -> None:
        """Wait for a message, and process it. The next poll sends its acknowledgement."""
        messages = consumer.poll(POLL_SECONDS)
        locked_until = time.monotonic() + self._lock - MARGIN / 2
        for message in messages:
            error = message.error()
            if error is not None:
                if error.fatal():
                    raise KafkaException(error)
                continue
            with self._permits:
                # It may have waited for a permit, or behind others of its batch, which Apache Kafka locks as a whole.
                is_late = time.monotonic() + min(self._timeout, LONGEST_LOCK - MARGIN) > locked_until
                if self._jobs.stopping.is_set() or is_late:
                    consumer.acknowledge(message, self._given_back(message))
                    continue
                with self._isolation.entered(self._is_suspect(message)) as entered:
                    if not entered:
                        consumer.acknowledge(message, self._given_back(message, APART))
                        consumer.commit_sync(COMMIT_SECONDS)
                    elif self._timeout + MARGIN > LONGEST_LOCK:
                        self._process_leased(consumer, message, caller)
                    else:
                        consumer.acknowledge(message, self._process(message, caller))

    def _process(self, message: ClientMessage, caller: Caller) -> AcknowledgeType:
        try:
            self._jobs.process(record_of(message), self._deliveries(message), caller)
        except GivenBack:
            return self._given_back(message)
        except (KafkaError, TimeoutError):
            return AcknowledgeType.RELEASE  # its outcome could not be written: it is delivered again
        return AcknowledgeType.ACCEPT

    def _given_back(self, message: ClientMessage, seconds: float = 0.0) -> AcknowledgeType:
        """Send it again at once and accept it: a release would count as an attempt, though it was none."""
        try:
            self._jobs.give_back(record_of(message), self._deliveries(message), seconds)
        except (KafkaError, TimeoutError):
            return AcknowledgeType.RELEASE
        return AcknowledgeType.ACCEPT

    def _process_leased(self, consumer: ShareConsumer, message: ClientMessage, caller: Caller) -> None:
        record, deliveries = record_of(message), self._deliveries(message)
        if not self._jobs.may_run(record, deliveries):
            consumer.acknowledge(message, self._process(message, caller))  # it is only moved to the dead letters
            return
        try:
            self._jobs.lease(record, deliveries, self._timeout + MARGIN)
        except (KafkaError, TimeoutError):
            consumer.acknowledge(message, AcknowledgeType.RELEASE)
            return
        consumer.acknowledge(message, AcknowledgeType.ACCEPT)
        consumer.commit_sync()
        try:
            if self._jobs.process(record, deliveries, caller):
                self._jobs.end_lease(record)
        except GivenBack:
            with suppress(KafkaError, TimeoutError):
                self._jobs.give_back(record, deliveries)
        except (KafkaError, TimeoutError):
            pass  # its outcome could not be written: the lease brings it again

    def _is_suspect(self, message: ClientMessage) -> bool:
        """Whether its workers died so often that the next death would end it: it, or one that ran beside it."""
        return 1 < (message.delivery_count() or 1) == self._limit - 1

    def _deliveries(self, message: ClientMessage) -> int:
        """How often the record was delivered; on the last time it may be, it counts as tried too often."""
        count = message.delivery_count() or 1
        return count if count < self._limit else max(count, self._worker.queue.retries + 2)
