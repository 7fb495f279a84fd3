"""The ledger of the views: who owns each view, and which batch of which query it contains."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import psycopg
from psycopg.rows import TupleRow

__all__ = [
    "Coverage",
    "covered",
    "ensure_ledger",
    "epoch_of",
    "last_batch",
    "last_entry",
    "lock_number",
    "take_over",
    "write_batch",
]

Cursor = psycopg.Cursor[TupleRow]

LEDGER = """
CREATE SCHEMA IF NOT EXISTS headrace;
CREATE TABLE IF NOT EXISTS headrace.views (
    view text PRIMARY KEY,
    epoch bigint NOT NULL,
    owner text NOT NULL,
    taken_at timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE IF NOT EXISTS headrace.batches (
    view text NOT NULL,
    query_id text NOT NULL,
    batch bigint NOT NULL,
    epoch bigint NOT NULL,
    offsets jsonb NOT NULL,
    written_at timestamptz NOT NULL,
    PRIMARY KEY (view, query_id)
);
"""


class Coverage(NamedTuple):
    """How far a view has read its topics: by topic and partition, the offset after the last record."""

    batch: int
    offsets: Mapping[str, Mapping[str, int]]


def lock_number(name: str) -> int:
    """The number of the advisory lock of that name."""
    return int.from_bytes(hashlib.sha256(f"headrace {name}".encode()).digest()[:8], signed=True)


def ensure_ledger(cursor: Cursor) -> None:
    """Create the tables. The transaction must hold the lock for definitions."""
    cursor.execute(LEDGER)


def take_over(cursor: Cursor, view: str, owner: str) -> int:
    """Start a new epoch, in which the previous owner can no longer write the view."""
    row = cursor.execute(
        """
        INSERT INTO headrace.views (view, epoch, owner) VALUES (%s, 1, %s)
        ON CONFLICT (view) DO UPDATE SET epoch = views.epoch + 1, owner = excluded.owner, taken_at = now()
        RETURNING epoch
        """,
        (view, owner),
    ).fetchone()
    assert row is not None
    return int(row[0])


def epoch_of(cursor: Cursor, view: str) -> tuple[int, str] | None:
    """The current epoch and its owner."""
    return cursor.execute("SELECT epoch, owner FROM headrace.views WHERE view = %s", (view,)).fetchone()


def last_batch(cursor: Cursor, view: str, query_id: str) -> int | None:
    row = cursor.execute(
        "SELECT batch FROM headrace.batches WHERE view = %s AND query_id = %s", (view, query_id)
    ).fetchone()
    return None if row is None else int(row[0])


def last_entry(cursor: Cursor, view: str) -> tuple[str, int] | None:
    """The query that wrote last, and its last batch."""
    return cursor.execute(
        "SELECT query_id, batch FROM headrace.batches WHERE view = %s ORDER BY epoch DESC, written_at DESC LIMIT 1",
        (view,),
    ).fetchone()


def write_batch(cursor: Cursor, view: str, query_id: str, batch: int, epoch: int, offsets: Mapping[str, Any]) -> None:
    """Record a batch. A topic that is not among the offsets keeps its last ones."""
    cursor.execute(
        """
        INSERT INTO headrace.batches (view, query_id, batch, epoch, offsets, written_at)
        VALUES (%s, %s, %s, %s, %s, now())
        ON CONFLICT (view, query_id) DO UPDATE
        SET batch = excluded.batch, epoch = excluded.epoch, written_at = excluded.written_at,
            offsets = batches.offsets || excluded.offsets
        """,
        (view, query_id, batch, epoch, json.dumps(offsets)),
    )


def forget(cursor: Cursor, view: str) -> None:
    cursor.execute("DELETE FROM headrace.batches WHERE view = %s", (view,))


def covered(cursor: Cursor, view: str) -> Coverage | None:
    """The coverage of the query that wrote last; None before its first batch."""
    row = cursor.execute(
        """
        SELECT batch, offsets FROM headrace.batches WHERE view = %s
        ORDER BY epoch DESC, written_at DESC LIMIT 1
        """,
        (view,),
    ).fetchone()
    return None if row is None else Coverage(*row)
