"""Writes records from the driver: a batch in one transaction, or without one."""

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaException, Producer

from headrace.config.kafka_errors import explained
from headrace.config.run import RunConfig
from headrace.errors import NotDelivered

if TYPE_CHECKING:
    import pyarrow as pa  # it takes tens of MB, and only those who send rows in columns need it

__all__ = ["RecordProducer", "TransactionalProducer"]

ABORT_LIMIT = 10.0
FULL_PAUSE = 0.01
ANY_PARTITION = -1  # the partitioner chooses
SETTINGS: dict[str, Any] = {
    "partitioner": "murmur2_random",  # Java's: a key is in the partition where every other client puts it
    "enable.idempotence": True,
    "linger.ms": 5,
    "message.max.bytes": 1_000_000_000,  # how large a record may be is for its topic to say
    "queue.buffering.max.messages": 200_000,
    "queue.buffering.max.kbytes": 64 << 10,
    "delivery.report.only.error": True,  # a report for each record would cost as much as to send it
}


class RecordProducer:
    """Sends rows of the columns topic, key, value, headers and timestamp, each once at most."""

    def __init__(self, config: RunConfig, **settings: Any) -> None:
        milliseconds = config.transaction_timeout.microseconds // 1000
        self._limit = milliseconds / 1000
        self._address = config.kafka_address
        given = {**SETTINGS, "message.timeout.ms": milliseconds, **config.client_settings(), **settings}
        self._failed: list[Any] = []
        self._producer = Producer({**given, "on_delivery": self._on_delivery})

    def send(self, rows: "Iterable[pa.RecordBatch]") -> int:
        """Send the rows, in order; waits while the producer's queue is full. Returns the number of rows."""
        sent = 0
        for slice_ in rows:
            for topic, key, value, headers, timestamp in _records(slice_):
                self._produce(topic, value, key, headers, timestamp)
            sent += slice_.num_rows
        return sent

    def send_record(
        self,
        topic: str,
        key: bytes | str | None,
        value: bytes | str | None,
        timestamp: int = 0,
        partition: int = ANY_PARTITION,
        headers: Sequence[tuple[str, bytes | None]] | None = None,
    ) -> None:
        """Text is sent as UTF-8. The timestamp is in milliseconds; 0 is the producer's own clock."""
        self._produce(topic, value, key, headers, timestamp, partition)

    def send_records(self, records: Iterable[tuple[str, Any, Any, int, int]]) -> None:
        """The same for many: topic, key, value, timestamp and partition of each."""
        produce = self._producer.produce
        for topic, key, value, timestamp, partition in records:
            try:
                produce(topic, value, key, partition, timestamp=timestamp)
            except (BufferError, KafkaException):
                self._produce(topic, value, key, None, timestamp, partition)

    def flush(self) -> None:
        """Wait until every record was acknowledged."""
        left = self._producer.flush(self._limit)
        if self._failed:
            raise explained(self._failed[0], f"write to {self._address}")
        if left:
            raise NotDelivered(f"{left} records were not acknowledged by {self._address} within {self._limit:.0f} s")

    def close(self) -> None:
        """Drop what was not sent."""
        self._producer.purge()
        # Its own close() waits for ever for a broker that is unavailable; dropping the reference does not.
        del self._producer

    def _produce(
        self, topic: str, value: Any, key: Any, headers: Any, timestamp: int, partition: int = ANY_PARTITION
    ) -> None:
        try:
            self._producer.produce(topic, value, key, partition, timestamp=timestamp, headers=headers)
        except BufferError:
            self._produce_later(topic, value, key, headers, timestamp, partition)
        except KafkaException as error:
            raise explained(error.args[0], f"write to topic {topic!r} at {self._address}") from error

    def _produce_later(self, topic: str, value: Any, key: Any, headers: Any, timestamp: int, partition: int) -> None:
        deadline = time.monotonic() + self._limit
        while time.monotonic() < deadline:
            self._producer.poll(FULL_PAUSE)
            if self._failed:
                break
            try:
                return self._producer.produce(topic, value, key, partition, timestamp=timestamp, headers=headers)
            except BufferError:
                pass
        self.flush()  # which says why
        raise NotDelivered(f"{self._address} accepts no more records")

    def _on_delivery(self, error: Any, _: Any) -> None:
        if error is not None:
            self._failed.append(error)


class TransactionalProducer(RecordProducer):
    """The only writer of its id: creating it aborts an open transaction of an earlier writer, and fences it."""

    def __init__(self, config: RunConfig, transactional_id: str, **settings: Any) -> None:
        milliseconds = config.transaction_timeout.microseconds // 1000
        own = {"transactional.id": transactional_id, "transaction.timeout.ms": milliseconds}
        super().__init__(config, **own, **settings)
        self._id = transactional_id
        with self._asked_to("begin as"):
            self._producer.init_transactions(self._limit)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All records that are sent inside become visible together. After an error, create a new producer."""
        with self._asked_to("begin a transaction of"):
            self._producer.begin_transaction()
        try:
            yield
        except BaseException:
            self._give_up()
            raise
        self.commit()

    def commit(self) -> None:
        try:
            with self._asked_to("commit a transaction of"):
                self._producer.commit_transaction(self._limit)
        except BaseException:
            # It may have been committed nevertheless: the ledger will tell.
            self._give_up()
            raise

    def _give_up(self) -> None:
        try:
            self._producer.purge()
            self._producer.abort_transaction(ABORT_LIMIT)
        except KafkaException:
            pass  # the next producer of this id ends it

    @contextmanager
    def _asked_to(self, what: str) -> Iterator[None]:
        try:
            yield
        except KafkaException as error:
            raise explained(error.args[0], f"{what} the writer {self._id!r} at {self._address}") from error


def _records(rows: "pa.RecordBatch") -> Iterator[tuple[str, bytes | None, bytes | None, Any, int]]:
    return zip(
        rows.column("topic").to_pylist(),
        rows.column("key").to_pylist(),
        rows.column("value").to_pylist(),
        _headers(rows.column("headers")),
        _timestamps(rows.column("timestamp")),
        strict=True,
    )


def _headers(column: "pa.Array") -> list[Any]:
    if column.null_count == len(column):
        return [None] * len(column)
    return [
        None if headers is None else [(header["key"], header["value"]) for header in headers]
        for headers in column.to_pylist()
    ]


def _timestamps(column: "pa.Array") -> list[int]:
    """In milliseconds; 0 is the producer's own clock."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if column.null_count == len(column):
        return [0] * len(column)
    milliseconds = pc.divide(column.cast(pa.int64()), 1000)
    return list(pc.max_element_wise(milliseconds.fill_null(0), 0).to_pylist())
