"""Writing a view: the rows of a batch, the batch's number and the offsets it covers, in one transaction."""

import os
import socket
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import TupleRow

from headrace.errors import InputError, TableError, ViewFenced
from headrace.tables import ledger
from headrace.tables.connection import Connection, connect, explained
from headrace.tables.definition import Definition
from headrace.tables.incoming import Incoming
from headrace.topology import Schema

__all__ = ["ViewWriter"]

Cursor = psycopg.Cursor[TupleRow]

PREDECESSOR_SECONDS = 3
"""How long a transaction of the view's former owner may go on before it is ended."""
DDL_LOCK = ledger.lock_number("definitions")

# Whatever the server or the role has as defaults: no zone but UTC, no limit that cuts a long batch off, no
# endless wait for somebody who locked the table, no commit that a crash could take back after Spark was told of it.
SETTINGS = """
SET TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE;
SET LOCAL timezone = 'UTC';
SET LOCAL statement_timeout = 0;
SET LOCAL idle_in_transaction_session_timeout = 0;
SET LOCAL lock_timeout = '60s';
SET LOCAL client_min_messages = warning;
SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off';
"""


class ViewWriter:
    """The one writer of a view, for as long as no other has taken it over.

    A connection that broke is made anew at the next call. After an error nothing of the batch is there, or all of
    it: write it again, and it is skipped if it is there.
    """

    def __init__(self, dsn: str, schema_name: str, table_name: str, columns: Schema, key: tuple[str, ...]) -> None:
        self._dsn = dsn
        self._definition = Definition(schema_name, table_name, columns, key)
        self._view = self._definition.name
        self._lock = ledger.lock_number(f"view {self._view}")
        self._owner = f"{socket.gethostname()} process {os.getpid()}"
        self._connection: Connection | None = None
        self._epoch: int | None = None

    def prepare(self) -> None:
        """Make what is missing, and take the view over: whoever wrote it before is fenced from now on."""
        with self._transaction("prepare") as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", (DDL_LOCK,))
            self._end_predecessor(cursor)
            ledger.ensure_ledger(cursor)
            epoch = ledger.take_over(cursor, self._view, self._owner)
            self._definition.ensure(cursor)
        self._epoch = epoch

    def last_batch(self, query_id: str) -> int | None:
        """The last batch of the query that is in the view. Ask after `prepare`: a predecessor may still be writing."""
        with self._transaction("read the ledger of") as cursor:
            return ledger.last_batch(cursor, self._view, query_id)

    def last_entry(self) -> tuple[str, int] | None:
        """Whichever query wrote the view last, and its last batch."""
        with self._transaction("read the ledger of") as cursor:
            return ledger.last_entry(cursor, self._view)

    def write(
        self, query_id: str, batch: int, offsets: Mapping[str, Any], rows: Iterable[Any], *, claimed: bool = False
    ) -> bool:
        """Write a batch of Arrow record batches; False, with nothing read or written, if it is there already.

        Of several rows of a key the last wins: the greatest by the columns `_order...`, else by place. A row whose
        `_deleted` is true deletes its key. `offsets` is, by topic and partition, where the next batch will begin.
        """
        with self._transaction(f"write batch {batch} of") as cursor:
            epoch = self._check_owner(cursor)
            last = ledger.last_batch(cursor, self._view, query_id)
            if last is not None and batch <= last and not (claimed and batch == last):
                return False
            self._store(cursor, batch, rows)
            ledger.write_batch(cursor, self._view, query_id, batch, epoch, offsets)
        return True

    def claim(self, query_id: str, batch: int) -> bool:
        """For at-most-once: note the batch before it is written. False if it was noted before: then it is lost.

        What was claimed is written with `claimed=True`.
        """
        with self._transaction(f"claim batch {batch} of") as cursor:
            epoch = self._check_owner(cursor)
            last = ledger.last_batch(cursor, self._view, query_id)
            if last is not None and batch <= last:
                return False
            ledger.write_batch(cursor, self._view, query_id, batch, epoch, {})
        return True

    def reset(self) -> None:
        """Empty the view and forget its batches, so that it can be written from the start."""
        with self._transaction("reset") as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", (DDL_LOCK,))
            self._end_predecessor(cursor)
            ledger.ensure_ledger(cursor)
            ledger.forget(cursor, self._view)
            self._definition.empty(cursor)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @contextmanager
    def _transaction(self, what: str) -> Iterator[Cursor]:
        try:
            with explained(self._dsn, f"{what} view {self._view}"):
                if self._connection is None or self._connection.closed:
                    self._connection = connect(self._dsn)
                with self._connection.transaction(), self._connection.cursor() as cursor:
                    cursor.execute(SETTINGS)
                    yield cursor
        except BaseException:
            # In what state the connection is, is not worth finding out.
            self.close()
            raise

    def _end_predecessor(self, cursor: Cursor) -> None:
        """Wait for a transaction of the former owner, or end it: its process may be asleep in the middle."""
        cursor.execute(sql.SQL("SET LOCAL lock_timeout = {}").format(f"{PREDECESSOR_SECONDS}s"))
        try:
            with cursor.connection.transaction():
                cursor.execute("SELECT pg_advisory_xact_lock(%s)", (self._lock,))
        except psycopg.errors.LockNotAvailable:
            cursor.execute(
                """
                SELECT pg_terminate_backend(pid) FROM pg_locks
                WHERE locktype = 'advisory' AND granted AND objsubid = 1 AND pid <> pg_backend_pid()
                AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
                AND (classid::bigint << 32) | objid::bigint = %s
                """,
                (self._lock,),
            )
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", (self._lock,))
        cursor.execute("SET LOCAL lock_timeout = '60s'")

    def _check_owner(self, cursor: Cursor) -> int:
        """Under the view's lock, so that nobody takes it over until this transaction has ended."""
        if self._epoch is None:
            raise TableError(f"view {self._view} was not prepared")
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", (self._lock,))
        found = ledger.epoch_of(cursor, self._view)
        if found is None or found[0] != self._epoch:
            by = "nobody: its ledger is gone" if found is None else found[1]
            raise ViewFenced(
                f"view {self._view} was taken over by {by}",
                next_step="stop one of the two runs, or give them homes and tables of their own",
            )
        return self._epoch

    def _store(self, cursor: Cursor, batch: int, rows: Iterable[Any]) -> None:
        incoming: Incoming | None = None
        position = 0
        for some in rows:
            if some.num_rows == 0:
                continue
            try:
                incoming = incoming or self._incoming(cursor, some.schema)
                lines = incoming.lines(some, position)
            except InputError as error:
                raise TableError(
                    f"view {self._view}, batch {batch}: {error.problem}", next_step=error.next_step
                ) from error
            with cursor.copy(incoming.copy) as copy:
                copy.write(lines)
            position += some.num_rows
        if incoming is not None:
            self._check_keys(cursor, batch, incoming)
            cursor.execute(incoming.merge)

    def _incoming(self, cursor: Cursor, arrived: Any) -> Incoming:
        incoming = Incoming(self._definition, arrived)
        cursor.execute(incoming.create)
        return incoming

    def _check_keys(self, cursor: Cursor, batch: int, incoming: Incoming) -> None:
        row = cursor.execute(incoming.without_key).fetchone()
        if row is not None and row[0]:
            raise TableError(
                f"view {self._view}, batch {batch}: rows whose key ({', '.join(self._definition.key)}) holds a null, "
                f"{row[0]} of them",
                next_step="filter them out in the view's function, or choose another key",
            )
