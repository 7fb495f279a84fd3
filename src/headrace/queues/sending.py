"""Sending to a queue: now, later, or again and again."""

import os
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from datetime import datetime
from types import TracebackType
from typing import Any, Self

from headrace.clients import Producer
from headrace.clients.rows import RowWriter
from headrace.config.cluster import Cluster
from headrace.config.run import RunConfig
from headrace.errors import InputError, KafkaError
from headrace.queues.delayed import Plan, prepare_delays, record_of_end, record_of_plan
from headrace.queues.messages import ID_HEADER, new_id
from headrace.topology import App, Duration, Queue
from headrace.topology.duration import DurationLike

__all__ = ["QueueSender", "ensure_topics", "shared_sender"]

DIRECT: Mapping[str, Any] = {
    "linger.ms": 0,
    "batch.num.messages": 1,  # a share group of Apache Kafka takes whole batches: each message is one
}
DELAYED: Mapping[str, Any] = {"linger.ms": 2, "compression.type": "lz4"}
SHORTEST_PERIOD = Duration.of("1 second")
KEPT_FOR_EVER = {"retention.ms": "-1", "retention.bytes": "-1"}
LONGEST_ID = 200


def ensure_topics(cluster: Cluster, config: RunConfig, *names: str) -> None:
    """Create topics that do not exist. A message waits in them for as long as it takes, so they keep everything."""
    known = cluster.partitions(names)
    for name in names:
        if name not in known:
            cluster.create(name, None, {**KEPT_FOR_EVER, **config.topic_settings})


class QueueSender:
    """Sends messages to one queue. Use it as a context manager. Safe to use from several threads."""

    def __init__(self, queue: Queue, config: RunConfig) -> None:
        self._queue = queue
        self._config = config
        self._writer = RowWriter(queue)
        self._lock = threading.Lock()
        self._delayed: Producer | None = None
        cluster = Cluster(config)
        ensure_topics(cluster, config, queue.topic_name, queue.dead)
        self._direct = Producer(App(queue.app_name), {**config.client_settings(), **DIRECT})

    def send(
        self,
        row: Any,
        *,
        delay: DurationLike | None = None,
        at: datetime | None = None,
        every: DurationLike | None = None,
        id: str | None = None,
        headers: Mapping[str, bytes | str | None] | None = None,
    ) -> "Future[str]":
        """Send a message. The future's `result()` is its id, given when the message is on disk.

        With `delay` or `at` it is handed to the queue then; with `every` again and again. A delayed message with the id
        of one that is pending replaces it.
        """
        plan = _plan(self._queue.topic_name, delay, at, every)
        key, value = self._writer.write(row)
        own = new_id() if id is None else _checked(id)
        given = {name: _bytes(content) for name, content in (headers or {}).items()}
        said = [*given.items(), (ID_HEADER, own.encode())]
        if plan is None:
            sent = self._direct.send_to(self._queue.topic_name, value, key=key, headers=said)
        else:
            topic, own_key, content, stored = record_of_plan(self._place(own), plan, key, value, said)
            sent = self._delays().send_to(topic, content, key=own_key, headers=stored)
        return _with_id(sent, own)

    def cancel(self, id: str) -> "Future[str]":
        """Cancel a delayed or periodic message. It has no effect on one that was handed over, or does not exist."""
        topic, key, _, headers = record_of_end(self._place(_checked(id)))
        return _with_id(self._delays().send_to(topic, None, key=key, headers=headers), id)

    def _place(self, id: str) -> bytes:
        """An id among the delayed messages of all queues."""
        return f"{self._queue.topic_name}/{id}".encode()

    def flush(self) -> None:
        """Wait until all messages are on disk. Raises KafkaError if any is not."""
        self._direct.flush()
        if self._delayed is not None:
            self._delayed.flush()

    def close(self) -> None:
        try:
            self._direct.close()
        finally:
            if self._delayed is not None:
                self._delayed.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.close()
        except KafkaError:
            if error is None:  # otherwise that error is the one to tell
                raise

    def _delays(self) -> Producer:
        with self._lock:
            if self._delayed is None:
                prepare_delays(Cluster(self._config), self._config)
                self._delayed = Producer(App(self._queue.app_name), {**self._config.client_settings(), **DELAYED})
            return self._delayed


_shared: dict[tuple[int, str, Queue], QueueSender] = {}
_sharing = threading.Lock()


def shared_sender(queue: Queue, config: RunConfig) -> QueueSender:
    """The sender that this process keeps for a queue, so that sending one message does not connect anew."""
    place = (os.getpid(), config.kafka_address, queue)
    with _sharing:
        if place not in _shared:
            _shared[place] = QueueSender(queue, config)
        return _shared[place]


def _plan(to: str, delay: DurationLike | None, at: datetime | None, every: DurationLike | None) -> Plan | None:
    if delay is None and at is None and every is None:
        return None
    if delay is not None and at is not None:
        raise InputError("a message has either a delay or a time", next_step="omit delay= or at=")
    period = None if every is None else _milliseconds(every)
    if every is not None and Duration.of(every) < SHORTEST_PERIOD:
        raise InputError(f"every: {Duration.of(every)} is too short", next_step=f'make it at least "{SHORTEST_PERIOD}"')
    if at is not None:
        if not isinstance(at, datetime) or at.tzinfo is None:
            raise InputError(f"at: {at!r} has no time zone", next_step="write datetime.now(UTC) + timedelta(...)")
        return Plan(to, at=round(at.timestamp() * 1000), every=period)
    return Plan(to, after=period if delay is None else _milliseconds(delay), every=period)


def _milliseconds(duration: DurationLike) -> int:
    return -(-Duration.of(duration).microseconds // 1000)


def _checked(id: str) -> str:
    if not isinstance(id, str) or not 0 < len(id.encode()) <= LONGEST_ID:
        raise InputError(f"{id!r} is not an id", next_step=f"use a text of up to {LONGEST_ID} bytes")
    return id


def _bytes(content: bytes | str | None) -> bytes | None:
    return content.encode() if isinstance(content, str) else content


def _with_id(sent: "Future[Any]", id: str) -> "Future[str]":
    result: Future[str] = Future()
    result.set_running_or_notify_cancel()

    def done(future: "Future[Any]") -> None:
        if (error := future.exception()) is not None:
            result.set_exception(error)
        else:
            result.set_result(id)

    sent.add_done_callback(done)
    return result
