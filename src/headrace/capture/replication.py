"""Connections by psycopg2: the replication stream, which psycopg 3 has no API for, and the reading of chunks.

psycopg2 fetches a whole result while other threads run, which keeps the stream going beside a snapshot.
"""

import select
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg2
import psycopg2.errorcodes
import psycopg2.extensions
import psycopg2.extras

from headrace.capture.tasks import Task
from headrace.capture.values import SESSION
from headrace.errors import CaptureError, PostgresUnavailable

__all__ = ["ReplicationStream", "connect_for_chunks", "replication_errors"]

STATUS_SECONDS = 1
OPTIONS = " ".join(f"-c {name}={value}" for name, value in SESSION.items() if name != "client_encoding")
SETTINGS: dict[str, Any] = {
    "application_name": "headrace capture",
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 4,
    "client_encoding": "UTF8",
}


@contextmanager
def replication_errors(task: Task) -> Iterator[None]:
    """Turn psycopg2's errors into ours; each says what to type."""
    try:
        yield
    except psycopg2.Error as error:
        raise _ours(error, task) from error


def _ours(error: psycopg2.Error, task: Task) -> CaptureError | PostgresUnavailable:
    said = (error.diag.message_primary if error.diag else None) or str(error).strip().partition("\n")[0]
    match error.pgcode:
        case psycopg2.errorcodes.OBJECT_IN_USE:
            # After a crash the server needs a moment to notice; then it is somebody else.
            return PostgresUnavailable(
                f"the slot {task.slot!r} of {task.shown} is read by another process: {said}",
                next_step="stop that one, or type: SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots "
                f"WHERE slot_name = '{task.slot}'",
            )
        case psycopg2.errorcodes.INSUFFICIENT_PRIVILEGE if "row-level security" in said:
            return CaptureError(
                f"a snapshot of {task.shown} would lack the rows that policies hide from the role: {said}",
                next_step="type, as a superuser: ALTER ROLE ... BYPASSRLS",
            )
        case psycopg2.errorcodes.INSUFFICIENT_PRIVILEGE:
            return CaptureError(
                f"{task.shown} does not let the role read its log: {said}",
                next_step="type, as a superuser: ALTER ROLE ... REPLICATION; GRANT SELECT ON the tables TO the role",
            )
        case psycopg2.errorcodes.UNDEFINED_OBJECT if "publication" in said:
            return CaptureError(
                f"the log of {task.shown} has changes from before the publication existed: {said}",
                next_step="empty the topics and take a new snapshot with: headrace capture FILE --snapshot again",
            )
    if "max_wal_senders" in str(error):
        return CaptureError(
            f"all replication connections of {task.shown} are in use",
            next_step="type: ALTER SYSTEM SET max_wal_senders = 20; then restart the server",
        )
    if "no pg_hba.conf entry for replication" in str(error):
        return CaptureError(
            f"{task.shown} rejects replication connections: {said}",
            next_step="add a line for them to pg_hba.conf, then type: SELECT pg_reload_conf()",
        )
    if isinstance(error, psycopg2.OperationalError | psycopg2.InterfaceError | psycopg2.DatabaseError) and (
        error.pgcode is None or error.pgcode[:2] in ("08", "53", "57", "40")
    ):
        return PostgresUnavailable(f"{task.shown} is unavailable: {said}", next_step="start it, or correct its address")
    return CaptureError(f"{task.shown} could not be read: {said}")


class ReplicationStream:
    """The changes of a publication since what the slot has confirmed."""

    def __init__(self, task: Task) -> None:
        with replication_errors(task):
            self._connection = psycopg2.connect(
                task.address,
                connection_factory=psycopg2.extras.LogicalReplicationConnection,
                options=OPTIONS,
                **SETTINGS,
            )
            self._cursor = self._connection.cursor()
            self._cursor.start_replication(
                slot_name=task.slot,
                decode=False,
                status_interval=STATUS_SECONDS,
                options={
                    "proto_version": "1",
                    "publication_names": '"' + task.publication.replace('"', '""') + '"',
                    "messages": "true",
                },
            )
        self.read = self._cursor.read_message
        """The next message; None if none has arrived. Raises psycopg2's errors."""

    def wait(self, seconds: float) -> bool:
        """Wait for messages; whether there are any."""
        return bool(select.select([self._connection], [], [], seconds)[0])

    def confirm(self, lsn: int) -> None:
        """Everything before is kept elsewhere: the server may remove it from its log."""
        self._cursor.send_feedback(flush_lsn=lsn)

    def close(self) -> None:
        self._connection.close()


def connect_for_chunks(task: Task) -> Any:
    """A connection whose transactions each see one state of the database, and whose values are PostgreSQL's texts.

    Where policies would hide rows, which the stream has, PostgreSQL refuses.
    """
    with replication_errors(task):
        connection = psycopg2.connect(task.address, options=f"{OPTIONS} -c row_security=off", **SETTINGS)
        connection.set_session(isolation_level=psycopg2.extensions.ISOLATION_LEVEL_REPEATABLE_READ)
        return connection


def as_text(connection: Any, types: Sequence[int]) -> None:
    """Let values of these types come as PostgreSQL prints them."""
    raw = psycopg2.extensions.new_type(tuple(types), "TEXT AS PRINTED", psycopg2.extensions.UNICODE)
    psycopg2.extensions.register_type(raw, connection)
