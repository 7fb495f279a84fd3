"""A producer of typed rows: validated by a topic's schema, keyed by its key, acknowledged by receipts."""

import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Any, Self

from confluent_kafka import KafkaError as ClientError
from confluent_kafka import KafkaException, Message
from confluent_kafka import Producer as Client

from headrace.clients.records import Receipt
from headrace.clients.rows import RowWriter
from headrace.config.kafka_errors import explained, not_delivered, refused_settings
from headrace.errors import InputError, KafkaError, NotDelivered
from headrace.topology import App, Feed, Topic
from headrace.topology.lookup import input_topic, named_feed

__all__ = ["Producer"]

CONNECT_SECONDS = 10.0
POLL_SECONDS = 0.1
DEFAULTS: Mapping[str, Any] = {
    "acks": "all",
    "enable.idempotence": True,  # a retry writes nothing twice
    "partitioner": "murmur2_random",  # Java's, and so the engine's: equal keys meet in one partition
    "linger.ms": 5,
}

Headers = Mapping[str, bytes | str | None]


class Producer:
    """Sends rows to an app's topics. Use it as a context manager: at the end it waits for all acknowledgements.

    A row is written once, in the order of sending within a partition, and its receipt is given when all in-sync
    replicas have it. Safe to use from several threads.
    """

    def __init__(self, app: App, settings: Mapping[str, Any]) -> None:
        self._app = app
        self._address = str(settings.get("bootstrap.servers", ""))
        self._writers: dict[Topic, RowWriter] = {}
        self._failures: list[Exception] = []
        self._closed = threading.Event()
        try:
            self._client = Client({**DEFAULTS, **settings})
        except KafkaException as error:
            raise refused_settings(error) from error
        try:
            self._client.list_topics(timeout=CONNECT_SECONDS)
        except KafkaException as error:
            raise explained(error, f"connect a producer at {self._address}") from error
        self._poller = threading.Thread(target=self._poll, name="headrace-producer", daemon=True)
        self._poller.start()

    def send(
        self,
        topic: Feed | str,
        row: Any,
        *,
        key: Any = None,
        headers: Headers | None = None,
        timestamp: datetime | None = None,
        partition: int | None = None,
    ) -> "Future[Receipt]":
        """Send a row: a dict, a dataclass or a pydantic model. The future's `result()` is its receipt.

        A row that does not fit raises InputError at once. `key` is for topics whose key is not among their columns,
        and to delete a row of a table: `send(cards, None, key="c1")`, with a tuple or a mapping where the key has
        several columns. `timestamp` is the record's own, the time of sending if it is not given.
        """
        node = self._topic(topic)
        if node not in self._writers:
            self._writers[node] = RowWriter(node)
        if row is None:
            deleted = self._writers[node].key_of_delete(key)
            return self._produce(node.topic_name, None, deleted, headers, timestamp, partition)
        own_key, value = self._writers[node].write(row)
        if key is not None and own_key is not None:
            raise InputError(
                f"topic {node.name!r}: the key is taken from the columns {', '.join(node.key)}", next_step="omit key="
            )
        return self._produce(node.topic_name, value, own_key if key is None else key, headers, timestamp, partition)

    def send_all(self, topic: Feed | str, rows: Iterable[Any]) -> list[Receipt]:
        """Send rows and wait until all are acknowledged. Returns their receipts in the order of the rows."""
        sent = []
        for number, row in enumerate(rows, start=1):
            try:
                sent.append(self.send(topic, row))
            except InputError as error:
                before = "" if number == 1 else f"; the {number - 1} before it were sent"
                raise InputError(f"row {number}: {error.problem}{before}", next_step=error.next_step) from error
        raised = {id(failure) for future in sent if (failure := future.exception()) is not None}
        self._failures = [failure for failure in self._failures if id(failure) not in raised]
        return [future.result() for future in sent]

    def send_raw(
        self,
        topic: Feed | str,
        value: bytes | None,
        *,
        key: bytes | str | None = None,
        headers: Headers | None = None,
        timestamp: datetime | None = None,
        partition: int | None = None,
    ) -> "Future[Receipt]":
        """Send bytes without checking them against the schema, as a producer of another system might."""
        return self._produce(self._topic(topic).topic_name, value, key, headers, timestamp, partition)

    def send_to(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | str | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
    ) -> "Future[Receipt]":
        """Send bytes to a topic that is not the app's own, by its name. A header may be repeated."""
        return self._produce(topic, value, key, headers, None, None)

    def flush(self) -> None:
        """Wait until all records are acknowledged. Raises KafkaError if any was not."""
        while self._client.flush(POLL_SECONDS):
            pass  # in short turns, so that Ctrl-C gets through
        failures, self._failures = self._failures, []
        if len(failures) == 1:
            raise failures[0]
        if failures:
            raise NotDelivered(f"{len(failures)} records were not acknowledged; the first: {failures[0]}")

    def close(self) -> None:
        """Wait until all records are acknowledged, then close the connection."""
        if not self._closed.is_set():
            try:
                self.flush()
            finally:
                self._closed.set()
                self._poller.join()

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

    def _topic(self, topic: Feed | str) -> Topic:
        feed = named_feed(self._app, topic)
        if (found := input_topic(feed)) is not None:
            return found
        raise InputError(f"{feed} is written by the app itself", next_step="send to one of its input topics")

    def _produce(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | str | None,
        headers: Headers | Sequence[tuple[str, bytes | None]] | None,
        timestamp: datetime | None,
        partition: int | None,
    ) -> "Future[Receipt]":
        if self._closed.is_set():
            raise InputError("the producer is closed", next_step="send inside the `with` block")
        future: Future[Receipt] = Future()
        future.set_running_or_notify_cancel()  # what is on its way cannot be called back
        pairs = headers.items() if isinstance(headers, Mapping) else headers or ()
        extra: dict[str, Any] = {}
        if timestamp is not None:
            extra["timestamp"] = _milliseconds(timestamp)
        if partition is not None:
            extra["partition"] = partition
        while True:
            try:
                self._client.produce(
                    topic,
                    value,
                    key,
                    headers=[*pairs] or None,
                    on_delivery=partial(self._delivered, future, topic),
                    **extra,
                )
                return future
            except BufferError:
                self._client.poll(POLL_SECONDS)  # the queue is full: sending goes on as fast as the broker takes it
            except KafkaException as error:
                raise not_delivered(error.args[0], topic, self._address) from error

    def _delivered(self, future: "Future[Receipt]", topic: str, error: ClientError | None, message: Message) -> None:
        if error is None:
            future.set_result(Receipt(topic, message.partition() or 0, message.offset() or 0))
        else:
            failure = not_delivered(error, topic, self._address)
            self._failures.append(failure)
            future.set_exception(failure)

    def _poll(self) -> None:
        while not self._closed.is_set():
            self._client.poll(POLL_SECONDS)


def _milliseconds(moment: datetime) -> int:
    if moment.tzinfo is None:
        raise InputError(f"the timestamp {moment.isoformat()} has no time zone", next_step="add tzinfo=UTC")
    return round(moment.timestamp() * 1000)
