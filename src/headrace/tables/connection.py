"""Connections to PostgreSQL, and its errors as ours: what failed, and whether a retry can help."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import TupleRow

from headrace.errors import InputError, PostgresUnavailable, TableError

__all__ = ["Connection", "check_postgres", "connect", "explained", "shown"]

Connection = psycopg.Connection[TupleRow]

SETTINGS: dict[str, Any] = {
    "application_name": "headrace",
    "client_encoding": "utf8",
    "connect_timeout": 10,
    # A server that disappears without closing the connection is noticed within half a minute.
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 4,
}
CONNECTING_IS_HOPELESS = ("authentication failed", "does not exist", "no pg_hba.conf entry", "no password supplied")


def connect(dsn: str) -> Connection:
    """A connection in autocommit mode: use `connection.transaction()` for a transaction."""
    settings = {name: value for name, value in SETTINGS.items() if name not in _parts(dsn)}
    with explained(dsn, "connect"):
        # Prepared statements do not survive a pooler that hands out connections by transaction.
        return psycopg.connect(dsn, autocommit=True, prepare_threshold=None, **settings)


def check_postgres(dsn: str) -> str:
    """The version of the server at the address. Raises TableError if it cannot be reached."""
    with connect(dsn) as connection:
        return str(connection.info.parameter_status("server_version"))


def shown(dsn: str) -> str:
    """The server and the database, without a password."""
    parts = _parts(dsn)
    host = parts.get("host") or parts.get("hostaddr") or "the local socket"
    return f"{host}:{parts.get('port') or 5432}/{parts.get('dbname') or ''}".rstrip("/")


@contextmanager
def explained(dsn: str, what: str, but: type[psycopg.Error] | tuple[type[psycopg.Error], ...] = ()) -> Iterator[None]:
    """Turn psycopg's errors into ours, except those the caller expects. `what` completes "could not ..."."""
    try:
        yield
    except psycopg.Error as error:
        if isinstance(error, but):
            raise
        raise _ours(error, dsn, what) from error


def _ours(error: psycopg.Error, dsn: str, what: str) -> TableError:
    said = _said(error)
    where = f"PostgreSQL at {shown(dsn)}"
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        return TableError(
            f"{where} could not {what}: {said}", next_step="grant the missing privileges to the role in --postgres"
        )
    if error.sqlstate is None and isinstance(error, psycopg.OperationalError):
        if any(sign in said for sign in CONNECTING_IS_HOPELESS):
            return TableError(f"{where} rejected the connection: {said}", next_step="correct --postgres")
        return PostgresUnavailable(
            f"{where} is unavailable, could not {what}: {said}",
            next_step="start it, or pass another address with --postgres",
        )
    # Classes 08, 40, 53, 57: connection, deadlock, insufficient resources, shutdown. All are temporary.
    kind = PostgresUnavailable if isinstance(error, psycopg.OperationalError) else TableError
    return kind(f"{where} could not {what}: {said}")


def _said(error: psycopg.Error) -> str:
    """PostgreSQL's message and detail in one line, without the part of the statement that it quotes."""
    if error.diag.message_primary is None:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        # libpq repeats the address, which our messages already contain.
        return lines[0].rpartition("failed: ")[2] if lines else type(error).__name__
    detail = error.diag.message_detail
    return error.diag.message_primary + (f" ({detail.rstrip('.')})" if detail else "")


def _parts(dsn: str) -> dict[str, Any]:
    try:
        return conninfo_to_dict(dsn)
    except psycopg.ProgrammingError as error:
        raise InputError(
            f"the address in --postgres is invalid: {_said(error)}",
            next_step="write postgresql://USER@HOST:PORT/DATABASE",
        ) from error
