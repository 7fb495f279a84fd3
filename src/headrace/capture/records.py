"""Changes of rows as records in Debezium's envelope: JSON without schema, written by hand as it is the hot path."""

import time
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import NamedTuple

from headrace import __version__
from headrace.capture.catalog import CatalogColumn, kept_columns
from headrace.capture.pgoutput import UNCHANGED, RelationColumn, Row
from headrace.capture.tasks import TableTask
from headrace.capture.values import Encode, Kinds, quoted
from headrace.errors import CaptureError

__all__ = ["UNAVAILABLE", "Record", "RowWriter", "Source", "Transaction"]

UNAVAILABLE = "__debezium_unavailable_value"
"""What Debezium writes for a large value (TOAST) that an update did not change."""


class Record(NamedTuple):
    """A record for a topic."""

    topic: str
    key: str | None
    value: str | None
    timestamp: int
    partition: int = -1


class RowWriter:
    """Writes rows of a table, and their keys, as JSON objects; for the columns that the table has at one moment."""

    def __init__(
        self, task: TableTask, columns: Sequence[RelationColumn | CatalogColumn], key: Sequence[str], kinds: Kinds
    ) -> None:
        names = [column.name for column in columns]
        for name in key:
            if name not in names:
                raise CaptureError(
                    f"the column {name!r} of {task.table}, which is part of its key, was dropped or renamed",
                    next_step="restore it; or begin again: headrace capture drop, then start the app",
                )
        kept = kept_columns(names, key, task.columns)
        encoders = [
            _masked(task.masks.get(column.name), kinds.of(column.type, column.modifier).encode) for column in columns
        ]
        self.names = names
        self.task = task
        self._parts = [(index, f"{quoted(name)}:", encoders[index]) for index, name in enumerate(names) if name in kept]
        self._keys = [(names.index(name), f"{quoted(name)}:", encoders[names.index(name)]) for name in key]
        self._key_indexes = [names.index(name) for name in key]
        self.unavailable: set[str] = set()
        """The columns whose value was missing in an update."""

    def key_of(self, row: Row) -> tuple[object, ...]:
        return tuple([row[index] for index in self._key_indexes])

    def key(self, row: Row) -> str:
        parts = []
        for index, head, encode in self._keys:
            value = row[index]
            if value is None or value is UNCHANGED:
                raise CaptureError(
                    f"a change of {self.task.table} does not have the key column {self.names[index]!r}",
                    next_step=f"type: ALTER TABLE {self.task.table.quoted} REPLICA IDENTITY FULL",
                )
            parts.append(head + encode(value))
        return "{" + ",".join(parts) + "}"

    def row(self, row: Row) -> str:
        parts = []
        for index, head, encode in self._parts:
            value = row[index]
            if value is None:
                parts.append(head + "null")
            elif value is UNCHANGED:
                self.unavailable.add(self.names[index])
                parts.append(f'{head}"{UNAVAILABLE}"')
            else:
                parts.append(head + encode(value))
        return "{" + ",".join(parts) + "}"


def _masked(mask: str | None, encode: Encode) -> Encode:
    match mask:
        case "null":
            return lambda _: "null"
        case "hash":
            return lambda text: f'"{sha256(text.encode()).hexdigest()}"'
        case _:
            return encode


class Source:
    """What the records of a database have in common."""

    def __init__(self, name: str, database: str) -> None:
        self._start = (
            f'"source":{{"version":{quoted(__version__)},"connector":"postgresql",'
            f'"name":{quoted(name)},"db":{quoted(database)}'
        )

    def of_rows(self, task: TableTask, milliseconds: int, lsn: int, op: str = "r") -> str:
        """What follows the row in a record that no transaction of the database has made: those of a snapshot."""
        return (
            f',{self._start},"schema":{quoted(task.table.schema)},"table":{quoted(task.table.name)},"snapshot":"incremental",'
            f'"ts_ms":{milliseconds},"sequence":{_sequence(lsn, lsn)},"txId":null,"lsn":{lsn},"xmin":null}},'
            f'"transaction":null,"op":"{op}","ts_ms":{milliseconds}}}'
        )

    def of_transaction(self, task: TableTask, milliseconds: int, xid: int, last_commit: int, commit: int) -> str:
        """For the changes of a transaction, until the place of a change in it."""
        return (
            f',{self._start},"schema":{quoted(task.table.schema)},"table":{quoted(task.table.name)},"snapshot":"false",'
            f'"ts_ms":{milliseconds},"sequence":{_sequence(last_commit, commit)},"txId":{xid},"xmin":null,"lsn":'
        )


def _sequence(last_commit: int, lsn: int) -> str:
    """Debezium's: a JSON array of two texts, as a text."""
    return f'"[\\"{last_commit}\\",\\"{lsn}\\"]"'


class Transaction:
    """A transaction of the database while its changes pass: writes them, and counts them by table."""

    def __init__(
        self, source: Source, commit_lsn: int, xid: int, milliseconds: int, timestamp: int, last_commit: int
    ) -> None:
        """`timestamp` is that of its records: the commit's, but never before one of an earlier record."""
        self.commit_lsn = commit_lsn
        self.xid = xid
        self.timestamp = timestamp
        self.id = f"{xid}:{commit_lsn}"
        self.total = 0
        self.counts: dict[str, int] = {}
        self._source = source
        self._milliseconds = milliseconds
        self._last_commit = last_commit
        self._starts: dict[str, str] = {}
        self._now = int(time.time() * 1000)

    def change(self, writer: RowWriter, op: str, lsn: int, key: str | None, before: str, after: str) -> Record:
        """The record of a change; `before` and `after` are JSON."""
        task = writer.task
        topic = task.topic
        start = self._starts.get(topic)
        if start is None:
            start = self._starts[topic] = self._source.of_transaction(
                task, self._milliseconds, self.xid, self._last_commit, self.commit_lsn
            )
        self.total += 1
        order = self.counts[topic] = self.counts.get(topic, 0) + 1
        value = (
            f'{{"before":{before},"after":{after}{start}{lsn}}},"transaction":{{"id":"{self.id}","total_order":{self.total}'
            f',"data_collection_order":{order}}},"op":"{op}","ts_ms":{self._now}}}'
        )
        return Record(topic, key, value, self.timestamp)

    def begin(self, topic: str) -> Record:
        """For the topic of transactions."""
        value = (
            f'{{"status":"BEGIN","id":"{self.id}","event_count":null,"data_collections":null,'
            f'"ts_ms":{self._milliseconds}}}'
        )
        return Record(topic, f'{{"id":"{self.id}"}}', value, self.timestamp)

    def end(self, topic: str, name_of: Callable[[str], str]) -> Record:
        counts = ",".join(
            f'{{"data_collection":{quoted(name_of(one))},"event_count":{count}}}' for one, count in self.counts.items()
        )
        value = (
            f'{{"status":"END","id":"{self.id}","event_count":{self.total},"data_collections":[{counts}],'
            f'"ts_ms":{self._milliseconds}}}'
        )
        return Record(topic, f'{{"id":"{self.id}"}}', value, self.timestamp)
