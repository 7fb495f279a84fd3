"""A record as a client reads it: its row, and all that the record itself has."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Message

from headrace.clients.decoding import RowReader
from headrace.errors import InputError
from headrace.topology import Feed, Format
from headrace.topology.lookup import input_topic
from headrace.topology.names import (
    ERROR_HEADER,
    OFFSET_HEADER,
    PARTITION_HEADER,
    REASON_HEADER,
    TIMESTAMP_HEADER,
    TOPIC_HEADER,
)
from headrace.topology.schema import SchemaLike

__all__ = ["Receipt", "Record", "record_of", "record_reader"]

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
PLACE_FIELDS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "topic": (TOPIC_HEADER, str),
    "partition": (PARTITION_HEADER, int),
    "offset": (OFFSET_HEADER, int),
    "timestamp": (TIMESTAMP_HEADER, datetime.fromisoformat),
}


class Receipt(NamedTuple):
    """The position of an acknowledged record. A view that covers it includes the record's effect."""

    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class Record:
    """One event of a topic. `row` is its value by the schema, `value` the bytes it was read from.

    Of a table's changes, one that deletes its key has None for both.
    """

    row: Any
    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp: datetime | None

    @property
    def receipt(self) -> Receipt:
        """The record's position: `view.get(key, after=record.receipt)` waits until the view includes it."""
        return Receipt(self.topic, self.partition, self.offset)

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]@{self.offset}"


def record_reader(feed: Feed, schema: SchemaLike | None) -> Callable[[Record], Record]:
    """Gives a record its row. Raises InputError with the place and the reason if it has none."""
    if feed.is_failed:
        return lambda record: replace(record, row=_diverted_row(record, reason=REASON_HEADER, error=ERROR_HEADER))
    if feed.is_rejected:
        return lambda record: replace(record, row=_diverted_row(record, reason=REASON_HEADER))
    topic = input_topic(feed)
    # Of a database's change the whole is given: before, after, and where it comes from.
    is_change = topic is not None and topic.format is Format.DEBEZIUM
    reader = RowReader(
        topic.schema if schema is None and topic is not None and not is_change else schema,
        topic.format if topic is not None else Format.JSON,
    )

    # A stream's windows may come out again, and go: what it writes is a changelog then.
    deletes = feed.is_table or (feed.node is feed and feed.node.is_query)

    def read(record: Record) -> Record:
        if deletes and record.value is None:
            return record
        try:
            return replace(record, row=reader.read(record.value))
        except InputError as error:
            raise InputError(f"{record}: {error.problem}") from error

    return read


def record_of(message: Message) -> Record:
    """A record whose row is not read yet."""
    kind, milliseconds = message.timestamp()
    pairs: Any = message.headers() or ()
    return Record(
        row=None,
        topic=message.topic() or "",
        partition=message.partition() or 0,
        offset=message.offset() or 0,
        key=_bytes(message.key()),
        value=_bytes(message.value()),
        headers=tuple((name, _bytes(value)) for name, value in pairs),
        timestamp=None if kind == TIMESTAMP_NOT_AVAILABLE else EPOCH + timedelta(milliseconds=milliseconds),
    )


def _diverted_row(record: Record, **why: str) -> dict[str, Any]:
    """What the engine says of a record it did not use: the row that a node reading `.rejected` or `.failed` gets."""
    # A record that is rejected twice keeps its first headers: the last one counts. Others need not be text.
    said = {name: (value or b"").decode(errors="replace") for name, value in record.headers}
    place = {name: kind(said[header]) if header in said else None for name, (header, kind) in PLACE_FIELDS.items()}
    reasons = {name: said.get(header) for name, header in why.items()}
    row = {**reasons, **place, "key": record.key, "value": record.value}
    return row | {"timestamp": place["timestamp"] or record.timestamp}


def _bytes(value: Any) -> bytes | None:
    return value.encode() if isinstance(value, str) else value
