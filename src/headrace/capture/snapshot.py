"""Reads tables in chunks by key, beside the stream, so that each row stands at its place in the order of changes.

For each chunk, in a thread:

1. A transaction locks the table against changes of its definition, as those, and TRUNCATE, would let the table appear
   empty to a snapshot that is older. Then it takes a snapshot of the database: the ids of the transactions whose
   changes it sees, and the rows that follow the last key.
2. pg_logical_emit_message() writes a watermark to the database's log.

When the stream reaches the watermark, it has passed every change that the chunk sees. Rows whose key has changed in the
stream by a transaction that the chunk does not see are dropped: the topic has a newer row. The others are written at
the watermark, together with the position: a snapshot that was interrupted resumes after its last chunk.

Keys are remembered from the beginning of the snapshot, and not from a second watermark before the chunk: a transaction
becomes visible a moment after its commit is in the log, and a chunk that is read in that moment lacks its changes.
Where there are too many, those are forgotten whose transactions a chunk has seen, by the ids of its snapshot.
"""

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Semaphore, Thread
from typing import Any

import psycopg2.errors

from headrace.capture.catalog import COLUMNS, CatalogColumn
from headrace.capture.pgoutput import Row
from headrace.capture.replication import as_text, connect_for_chunks, replication_errors
from headrace.capture.tasks import TableTask, Task
from headrace.errors import Error

__all__ = ["WATERMARK", "Changed", "Chunk", "SnapshotReader", "Visibility"]

WATERMARK = "headrace.watermark"
CHUNK_ROWS = 10_000
MOST_KEYS = 100_000
AHEAD = 2
"""How many chunks are read before the first of them is written."""
WAIT_SECONDS = 0.05
IDS = 1 << 32


@dataclass(frozen=True, slots=True)
class Visibility:
    """Which transactions a snapshot sees, as pg_current_snapshot() tells."""

    first_running: int
    first_future: int
    running: frozenset[int]

    @classmethod
    def of(cls, text: str) -> "Visibility":
        """From `10:20:10,14,15`."""
        first, future, running = text.split(":")
        return cls(int(first), int(future), frozenset(int(one) for one in running.split(",") if one))

    def sees(self, xid: int) -> bool:
        """The stream has the lower 32 bits of an id: it is the one that is nearest to the snapshot."""
        whole = self.first_future - (self.first_future - xid + IDS // 2) % IDS + IDS // 2
        return whole < self.first_running or (whole < self.first_future and whole not in self.running)


@dataclass(slots=True)
class Changed:
    """The keys of a table that have changed since its snapshot began, each with the last transaction that did."""

    keys: dict[tuple[object, ...], int] = field(default_factory=dict)
    truncated: int | None = None

    def forget(self, seen: Visibility) -> None:
        """Keep the memory small: what a chunk saw, later chunks see, so their rows are not older than the change."""
        if len(self.keys) > MOST_KEYS:
            self.keys = {key: xid for key, xid in self.keys.items() if not seen.sees(xid)}


@dataclass(slots=True)
class Chunk:
    """Rows of a table, and the transactions that they are the result of."""

    task: TableTask
    columns: tuple[CatalogColumn, ...]
    rows: Sequence[Row]
    last_key: list[str] | None
    """None if no rows follow."""
    seen: Visibility
    total: int
    """How many rows the table has, as PostgreSQL estimates it."""


class SnapshotReader:
    """A thread that reads the chunks of tables, one table after the other."""

    def __init__(self, task: Task, tables: Sequence[tuple[TableTask, tuple[str, ...], list[str] | None]]) -> None:
        """Each table with its key, and the last key that was written, None at the beginning."""
        self._task = task
        self._tables = tables
        self._room = Semaphore(AHEAD)
        self._is_closed = False
        self._chunks: dict[bytes, Chunk] = {}
        self.failure: BaseException | None = None
        self._thread = Thread(target=self._run, name="headrace snapshot", daemon=True)
        self._thread.start()

    def take(self, token: bytes) -> Chunk | None:
        """The chunk of a watermark; None if it is not one of this process."""
        chunk = self._chunks.pop(token, None)
        if chunk is not None:
            self._room.release()
        return chunk

    def close(self) -> None:
        self._is_closed = True
        self._room.release()

    def _run(self) -> None:
        try:
            connection = connect_for_chunks(self._task)
            try:
                with replication_errors(self._task):
                    self._await_transactions(connection)
                for table, key, after in self._tables:
                    self._read(connection, table, key, after)
            finally:
                connection.close()
        except BaseException as error:
            self.failure = error

    def _await_transactions(self, connection: Any) -> None:
        """Wait for the transactions that run now to end.

        The log has no change of theirs for a table that was added to the publication after the change; nor are the keys
        known of those that a process before this one has written and that chunks do not see yet. Chunks must see them.
        """
        ends_at = None
        while not self._is_closed:
            with connection, connection.cursor() as cursor:
                cursor.execute(
                    "SELECT pg_snapshot_xmin(now)::text::int8, pg_snapshot_xmax(now)::text::int8 "
                    "FROM pg_current_snapshot() AS now"
                )
                first_running, first_future = cursor.fetchone()
            ends_at = first_future if ends_at is None else ends_at
            if int(first_running) >= int(ends_at):
                return
            time.sleep(WAIT_SECONDS)

    def _read(self, connection: Any, table: TableTask, key: tuple[str, ...], after: list[str] | None) -> None:
        is_last = False
        while not is_last:
            self._room.acquire()
            if self._is_closed:
                return
            with replication_errors(self._task):
                try:
                    chunk = self._chunk(connection, table, key, after)
                except psycopg2.errors.UndefinedTable:  # it was dropped since: no rows follow
                    chunk = Chunk(table, (), [], None, Visibility(0, 0, frozenset()), 0)
            after, is_last = chunk.last_key, chunk.last_key is None
            token = f"{self._task.slot} {uuid.uuid4()}".encode()
            self._chunks[token] = chunk
            with replication_errors(self._task), connection, connection.cursor() as cursor:
                cursor.execute("SELECT pg_logical_emit_message(true, %s, %s)", (WATERMARK, token.decode()))

    def _chunk(self, connection: Any, table: TableTask, key: tuple[str, ...], after: list[str] | None) -> Chunk:
        with connection, connection.cursor() as cursor:
            name = table.table
            # First of all: it takes no snapshot, so the next statement's is younger than any rewrite of the table.
            cursor.execute(f"LOCK TABLE {name.quoted} IN ACCESS SHARE MODE")
            cursor.execute("SELECT to_regclass(%s)::oid::int8, pg_current_snapshot()::text", (name.quoted,))
            id_, snapshot = cursor.fetchone()
            cursor.execute(COLUMNS, (id_,))
            columns = tuple(
                # Numbers come as text once `as_text` was told of their type.
                CatalogColumn(column, int(type_), int(modifier), is_not_null in (True, "t"), sql)
                for column, type_, modifier, is_not_null, generated, sql in cursor.fetchall()
                if not generated or (generated == "s" and connection.server_version >= 180000)
            )
            cursor.execute("SELECT greatest(reltuples, 0)::int8 FROM pg_class WHERE oid = %s", (id_,))
            (total,) = cursor.fetchone()
            if not columns:
                return Chunk(table, (), [], None, Visibility.of(snapshot), 0)
            as_text(connection, [column.type for column in columns])
            types = {column.name: column.sql_type for column in columns}
            keys = ", ".join(_quoted(column) for column in key)
            conditions = [] if table.where is None else [f"({table.where})"]
            if after is not None:
                # Literals by mogrify: the condition may have percent signs of its own.
                values = ", ".join(
                    f"{cursor.mogrify('%s', (value,)).decode()}::{types[column]}"
                    for column, value in zip(key, after, strict=True)
                )
                conditions.append(f"({keys}) > ({values})")
            chosen = ", ".join(_quoted(column.name) for column in columns)
            condition = f" WHERE {' AND '.join(conditions)}" if conditions else ""
            cursor.execute(f"SELECT {chosen} FROM {name.quoted}{condition} ORDER BY {keys} LIMIT {CHUNK_ROWS}")
            rows = cursor.fetchall()
        last = None
        if len(rows) == CHUNK_ROWS:
            places = [next(i for i, column in enumerate(columns) if column.name == one) for one in key]
            last = [rows[-1][place] for place in places]
        return Chunk(table, columns, rows, last, Visibility.of(snapshot), int(total))


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def failure_of(reader: SnapshotReader | None) -> None:
    """Raise what the reader's thread failed with."""
    if reader is not None and reader.failure is not None:
        if isinstance(reader.failure, Error):
            raise reader.failure
        raise RuntimeError("the reading of a snapshot failed") from reader.failure
