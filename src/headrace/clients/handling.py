"""Which ids were handled already, so that a record that comes again does no harm."""

import json
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from headrace.clients.records import Record
from headrace.clients.values import columns_of
from headrace.errors import InputError
from headrace.topology.duration import Duration, DurationLike
from headrace.topology.nearest import did_you_mean

if TYPE_CHECKING:
    from psycopg import Connection

__all__ = ["Memory", "PostgresMemory", "RememberedIds", "id_reader"]

TABLE = """
CREATE SCHEMA IF NOT EXISTS headrace;
CREATE TABLE IF NOT EXISTS headrace.handled (
    consumer_group text NOT NULL,
    topic text NOT NULL,
    id text NOT NULL,
    at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (consumer_group, topic, id)
);
CREATE INDEX IF NOT EXISTS handled_at ON headrace.handled (at);
"""
INSERT = """
INSERT INTO headrace.handled (consumer_group, topic, id) VALUES (%s, %s, %s) ON CONFLICT DO NOTHING
"""
FORGET = """
DELETE FROM headrace.handled
WHERE consumer_group = %s AND topic = %s AND at < now() - %s * interval '1 microsecond'
"""
TABLE_LOCK = 4867243018  # two consumers that start at once must not both make the table
HANDLED_BETWEEN_FORGETTING = 1000


class RememberedIds(Protocol):
    def handle(self, id: str, record: Record, function: Callable[..., object]) -> None:
        """Call the function unless the id was handled."""


class Memory:
    """The last ids, in this process."""

    def __init__(self, limit: int) -> None:
        if limit < 1:
            raise InputError(f"remember is {limit}", next_step="make it at least 1")
        self._limit = limit
        self._ids: OrderedDict[str, None] = OrderedDict()

    def handle(self, id: str, record: Record, function: Callable[..., object]) -> None:
        if id not in self._ids:
            function(record)
            self._ids[id] = None
            if len(self._ids) > self._limit:
                self._ids.popitem(last=False)
        else:
            self._ids.move_to_end(id)


class PostgresMemory:
    """All ids, in the database and the transaction in which the function does its work."""

    def __init__(
        self, connection: "Connection[Any]", group: str, topic: str, forget_after: DurationLike | None
    ) -> None:
        from psycopg.pq import TransactionStatus

        if connection.info.transaction_status != TransactionStatus.IDLE:
            raise InputError(
                "the connection has an open transaction",
                next_step="commit it first, or connect with autocommit=True",
            )
        self._connection = connection
        self._group = group
        self._topic = topic
        self._kept = None if forget_after is None else Duration.of(forget_after)
        self._since_forgetting = 0
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s)", [TABLE_LOCK])
            connection.execute(TABLE)

    def handle(self, id: str, record: Record, function: Callable[..., object]) -> None:
        with self._connection.transaction():
            # Another consumer that has the same id in hand makes this wait until it is done.
            inserted = self._connection.execute(INSERT, [self._group, self._topic, id])
            if inserted.rowcount:
                function(record, self._connection)
        self._since_forgetting += 1
        if self._kept is not None and self._since_forgetting >= HANDLED_BETWEEN_FORGETTING:
            self._since_forgetting = 0
            with self._connection.transaction():
                self._connection.execute(FORGET, [self._group, self._topic, self._kept.microseconds])


def id_reader(by: str | Sequence[str] | Callable[[Record], str]) -> Callable[[Record], str]:
    """What tells a record's event apart from all others, as text."""
    if callable(by):
        return by
    names = [by] if isinstance(by, str) else list(by)
    if not names:
        raise InputError("deduplicate_by names no column", next_step='add deduplicate_by="id"')

    def read(record: Record) -> str:
        values = columns_of(record.row)
        found = [_value(name, values, record) for name in names]
        return found[0] if len(found) == 1 else json.dumps(found)

    return read


def _value(name: str, values: Mapping[str, Any], record: Record) -> str:
    if name not in values:
        raise InputError(f"{record}: no column {name!r} to deduplicate by", next_step=did_you_mean(name, values))
    value = values[name]
    if value is None:
        raise InputError(f"{record}: the id {name!r} is null, so it cannot be deduplicated")
    return str(value)
