"""Writing a view: the rows of a batch, the batch's number and the offsets it covers, in one transaction."""

import os
import socket
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import TupleRow

from headrace.errors import InputError, TableError, ViewFenced
from headrace.tables import ledger
from headrace.tables.connection import Connection, connect, explained
from headrace.tables.definition import Definition
from headrace.tables.incoming import Incoming
from headrace.tables.order import Order, drop_markers
from headrace.topology import Schema

__all__ = ["ViewWriter"]

Cursor = psycopg.Cursor[TupleRow]

PREDECESSOR_SECONDS = 3
"""How long to wait for a transaction of the view's previous owner before it is terminated."""
DDL_LOCK = ledger.lock_number("definitions")

# Independent of the defaults of the server and the role: UTC, no time limit for a long batch, a limited wait for a
# lock on the table, and no asynchronous commit, which a crash could undo after Spark has recorded the batch.
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
    """The only writer of a view, until another one takes it over.

    A lost connection is opened again at the next call. After an error the view has all of the batch or nothing of
    it: write the batch again, and it is skipped if the view has it.
    """

    def __init__(
        self,
        dsn: str,
        schema_name: str,
        table_name: str,
        columns: Schema,
        key: tuple[str, ...],
        order_by: tuple[str, ...] = (),
    ) -> None:
        self._dsn = dsn
        self._definition = Definition(schema_name, table_name, columns, key, order_by)
        self._order = Order(self._definition) if order_by else None
        self._view = self._definition.name
        self._lock = ledger.lock_number(f"view {self._view}")
        self._owner = f"{socket.gethostname()} process {os.getpid()}"
        self._connection: Connection | None = None
        self._epoch: int | None = None

    def prepare(self) -> None:
        """Create what is missing, and take over the view: its previous writer is fenced from now on."""
        with self._transaction("prepare") as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", (DDL_LOCK,))
            self._end_predecessor(cursor)
            ledger.ensure_ledger(cursor)
            epoch = ledger.take_over(cursor, self._view, self._owner)
            self._definition.ensure(cursor)
            if self._order is None:
                drop_markers(cursor, self._definition)  # rows written from now on have no order to compare with
            else:
                self._order.ensure(cursor)
        self._epoch = epoch

    def last_batch(self, query_id: str) -> int | None:
        """The last batch of the query in the view. Call it after `prepare`: a previous writer may still be writing."""
        with self._transaction("read the ledger of") as cursor:
            return ledger.last_batch(cursor, self._view, query_id)

    def last_entry(self) -> tuple[str, int] | None:
        """The query that wrote the view last, and its last batch."""
        with self._transaction("read the ledger of") as cursor:
            return ledger.last_entry(cursor, self._view)

    def write(
        self,
        query_id: str,
        batch: int,
        offsets: Mapping[str, Any],
        rows: Iterable[Any],
        *,
        claimed: bool = False,
        forget_before: datetime | None = None,
    ) -> bool:
        """Write a batch of Arrow record batches; False, with nothing read or written, if it is there already.

        Of several rows of a key the last wins, or the greatest by the view's `order_by`, whichever batch it was in. A
        row whose `_deleted` is true deletes its key. `offsets` is, by topic and partition, where the next batch will
        begin. Deletes with an order value before `forget_before` are no longer remembered.
        """
        with self._transaction(f"write batch {batch} of") as cursor:
            epoch = self._check_owner(cursor)
            last = ledger.last_batch(cursor, self._view, query_id)
            if last is not None and batch <= last and not (claimed and batch == last):
                return False
            self._store(cursor, batch, rows)
            if self._order is not None and forget_before is not None:
                self._order.forget(cursor, forget_before)
            ledger.write_batch(cursor, self._view, query_id, batch, epoch, offsets)
        return True

    def claim(self, query_id: str, batch: int) -> bool:
        """For at-most-once: record the batch before it is written. False if it was recorded before: it is then lost.

        Write a claimed batch with `claimed=True`.
        """
        with self._transaction(f"claim batch {batch} of") as cursor:
            epoch = self._check_owner(cursor)
            last = ledger.last_batch(cursor, self._view, query_id)
            if last is not None and batch <= last:
                return False
            ledger.write_batch(cursor, self._view, query_id, batch, epoch, {})
        return True

    def reset(self) -> None:
        """Empty the view and delete its ledger entries, so that it can be written from the start."""
        with self._transaction("reset") as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", (DDL_LOCK,))
            self._end_predecessor(cursor)
            ledger.ensure_ledger(cursor)
            ledger.forget(cursor, self._view)
            drop_markers(cursor, self._definition)
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
            # The state of the connection is unknown.
            self.close()
            raise

    def _end_predecessor(self, cursor: Cursor) -> None:
        """Wait for a transaction of the previous owner, or terminate it: its process may be suspended."""
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
        """Under the view's lock, so that no other run takes it over before this transaction ends."""
        if self._epoch is None:
            raise TableError(f"view {self._view} is not prepared")
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", (self._lock,))
        found = ledger.epoch_of(cursor, self._view)
        if found is None or found[0] != self._epoch:
            by = "an unknown run, since its ledger entry is missing" if found is None else found[1]
            raise ViewFenced(
                f"view {self._view} was taken over by {by}",
                next_step="stop one of the two runs, or give each its own --home and its own app name",
            )
        return self._epoch

    def _store(self, cursor: Cursor, batch: int, rows: Iterable[Any]) -> None:
        incoming: Incoming | None = None
        position = 0
        for some in rows:
            if some.num_rows == 0:
                continue
            try:
                if incoming is None:
                    incoming = Incoming(self._definition, some.schema)
                    incoming.create(cursor)
                incoming.copy(cursor, some, position)
            except InputError as error:
                raise TableError(
                    f"view {self._view}, batch {batch}: {error.problem}", next_step=error.next_step
                ) from error
            position += some.num_rows
        if incoming is not None:
            self._check_keys(cursor, batch, incoming)
            incoming.merge(cursor)

    def _check_keys(self, cursor: Cursor, batch: int, incoming: Incoming) -> None:
        count = incoming.count_without_key(cursor)
        if count:
            raise TableError(
                f"view {self._view}, batch {batch}: {count} rows have a null in the key "
                f"({', '.join(self._definition.key)})",
                next_step="filter them out in the view's function, or choose another key",
            )
