"""A consumer of typed rows. It commits the offsets of records that were processed, not of those that were read."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from confluent_kafka import Consumer as Client
from confluent_kafka import KafkaError as ClientError
from confluent_kafka import KafkaException, Message, TopicPartition

from headrace.clients.handling import Memory, PostgresMemory, RememberedIds, id_reader
from headrace.clients.records import Record, record_of, record_reader
from headrace.config.kafka_errors import explained, refused_settings
from headrace.errors import InputError, TopicNotFound
from headrace.topology import App, Feed
from headrace.topology.duration import DurationLike
from headrace.topology.lookup import topic_feed
from headrace.topology.schema import SchemaLike

if TYPE_CHECKING:
    from psycopg import Connection

__all__ = ["Consumer", "read_to_end"]

CONNECT_SECONDS = 10.0
POLL_SECONDS = 0.2
DEFAULTS: Mapping[str, Any] = {
    "isolation.level": "read_committed",
    "enable.auto.offset.store": False,  # a record is stored when it was processed, and what is stored is committed
    "enable.auto.commit": True,
    "auto.commit.interval.ms": 1000,
}
REMEMBERED_IDS = 100_000

OnRejected: TypeAlias = Callable[[Record, str], None]


class Consumer:
    """A consumer in a group. Use it as a context manager, and iterate over it to get records.

    A record is processed when the next one is requested, or when the `with` block ends without an error. Offsets of
    processed records are committed within a second, on a rebalance, and at the end. After a crash the other records
    are delivered again: at-least-once. `handle` with `deduplicate_by` skips duplicates.
    """

    def __init__(
        self,
        app: App,
        topic: Feed | str,
        group: str,
        settings: Mapping[str, Any],
        *,
        schema: SchemaLike | None = None,
        start: str = "earliest",
        on_rejected: OnRejected | None = None,
    ) -> None:
        if start not in ("earliest", "latest"):
            raise InputError(f"start is {start!r}", next_step='use "earliest" or "latest"')
        feed = topic_feed(app, topic)
        self.topic = feed.topic_name
        self.group = group
        self._address = str(settings.get("bootstrap.servers", ""))
        self._read = record_reader(feed, schema)
        self._on_rejected = on_rejected
        self._given: Record | None = None
        self._stopped = threading.Event()
        self._closed = False
        try:
            self._client = Client({**DEFAULTS, "auto.offset.reset": start, **settings, "group.id": group})
        except KafkaException as error:
            raise refused_settings(error) from error
        partitions_of(self._client, self.topic, self._address)
        self._client.subscribe([self.topic])

    def poll(self, seconds: float = POLL_SECONDS) -> Record | None:
        """The next record, or None if there is none within the time. The previous record counts as processed."""
        self._mark_processed()
        message = self._client.poll(seconds)
        if message is None:
            return None
        error = message.error()
        if error is not None:
            self._bear(error)
            return None
        record = record_of(message)
        found = _with_row(record, self._read, self._on_rejected)
        self._given = record
        return found

    def handle(
        self,
        function: Callable[..., object],
        *,
        deduplicate_by: str | Sequence[str] | Callable[[Record], str] | None = None,
        remember: int = REMEMBERED_IDS,
        postgres: "Connection[Any] | None" = None,
        forget_after: DurationLike | None = None,
    ) -> None:
        """Call `function(record)` for each record, until `stop()`. With `deduplicate_by` an id is handled once.

        An id is one or several columns, or the result of a function of the record. The guarantee depends on where
        ids are kept:

        - In memory, the last `remember` ids: duplicates are skipped while this consumer runs, but not after a restart.
          For handlers whose effect may be repeated then.
        - With `postgres`, in its table `headrace.handled`: the function is called as `function(record, connection)`
          inside a transaction that also keeps the id. What it does through that connection happens exactly once
          for each id; other effects (a mail, a request) may be repeated. Ids are kept for `forget_after`, or without
          limit.

        If the function raises, `handle` raises, and the record is delivered again.
        """
        if deduplicate_by is None:
            if postgres is not None:
                raise InputError("postgres= needs ids to deduplicate by", next_step='add deduplicate_by="id"')
            for record in self:
                function(record)
            return
        read_id = id_reader(deduplicate_by)
        memory: RememberedIds
        if postgres is None:
            memory = Memory(remember)
        else:
            memory = PostgresMemory(postgres, self.group, self.topic, forget_after)
        for record in self:
            memory.handle(read_id(record), record, function)

    def commit(self) -> None:
        """Mark the last record as processed and commit its offset now."""
        self._mark_processed()
        try:
            self._client.commit(asynchronous=False)
        except KafkaException as error:
            if error.args[0].code() != ClientError._NO_OFFSET:
                raise explained(error, f"commit the offsets of group {self.group!r} at {self._address}") from error

    def stop(self) -> None:
        """End the iteration or `handle` after the current record. Safe in any thread and in signal handlers."""
        self._stopped.set()

    def close(self) -> None:
        """Commit the offsets of processed records and leave the group."""
        if not self._closed:
            self._closed = True
            self._client.close()

    def __iter__(self) -> Iterator[Record]:
        while not self._stopped.is_set():
            record = self.poll()
            if record is not None:
                yield record
        self._mark_processed()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self._mark_processed()
        self.close()

    def _mark_processed(self) -> None:
        record, self._given = self._given, None
        if record is None:
            return
        try:
            self._client.store_offsets(offsets=[TopicPartition(record.topic, record.partition, record.offset + 1)])
        except KafkaException as error:
            if error.args[0].code() != ClientError._STATE:  # the partition is another member's by now
                raise

    def _bear(self, error: ClientError) -> None:
        if error.code() == ClientError._PARTITION_EOF:
            return
        if error.fatal() or not error.retriable():
            raise explained(error, f"read topic {self.topic!r} at {self._address}")


def read_to_end(
    app: App,
    topic: Feed | str,
    settings: Mapping[str, Any],
    schema: SchemaLike | None,
    on_rejected: OnRejected | None = None,
) -> Iterator[Record]:
    """All records that are committed in a topic now, partition by partition, without a group."""
    feed = topic_feed(app, topic)
    read = record_reader(feed, schema)
    records = (_with_row(record_of(message), read, on_rejected) for message in _messages_to_end(feed, settings))
    return (record for record in records if record is not None)


def _with_row(record: Record, read: Callable[[Record], Record], on_rejected: OnRejected | None) -> Record | None:
    """The record with its row; None if it cannot be read and `on_rejected` has taken it."""
    try:
        return read(record)
    except InputError as rejection:
        if on_rejected is None:
            raise InputError(
                rejection.problem, next_step="pass on_rejected= to skip records that cannot be read"
            ) from rejection
        on_rejected(record, rejection.problem)
        return None


def _messages_to_end(feed: Feed, settings: Mapping[str, Any]) -> Iterator[Message]:
    topic = feed.topic_name
    address = str(settings.get("bootstrap.servers", ""))
    own = {
        "isolation.level": "read_committed",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "earliest",
        "group.id": "headrace-reader",  # librdkafka asks for one; nothing is committed to it
        "fetch.wait.max.ms": 10,
    }
    client = Client({**own, **settings})
    try:
        unread = set(partitions_of(client, topic, address))
        client.assign([TopicPartition(topic, partition, 0) for partition in unread])
        while unread:
            for message in client.consume(1000, POLL_SECONDS):
                error = message.error()
                if error is None:
                    yield message
                elif error.code() == ClientError._PARTITION_EOF:
                    unread.discard(message.partition() or 0)
                elif error.fatal() or not error.retriable():
                    raise explained(error, f"read topic {topic!r} at {address}")
    finally:
        client.close()


def partitions_of(client: Client, topic: str, address: str) -> list[int]:
    """The topic's partitions. Does not create the topic."""
    try:
        found = client.list_topics(topic, timeout=CONNECT_SECONDS).topics[topic]
    except KafkaException as error:
        raise explained(error, f"read topic {topic!r} at {address}") from error
    if found.error is not None or not found.partitions:
        raise TopicNotFound(
            f"topic {topic!r} does not exist at {address}",
            next_step="run the app that writes it, or list the topics with: headrace topics list",
        )
    return sorted(found.partitions)
