"""What Headrace writes down beside the views: who owns each, and which batch of which query it holds."""

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
    """How far the sources have been read into a view: by topic and partition, the offset after the last."""

    batch: int
    offsets: Mapping[str, Mapping[str, int]]


def lock_number(name: str) -> int:
    """The number of the advisory lock of that name."""
    return int.from_bytes(hashlib.sha256(f"headrace {name}".encode()).digest()[:8], signed=True)


def ensure_ledger(cursor: Cursor) -> None:
    """Make the tables, in a transaction that holds the lock of all such changes."""
    cursor.execute(LEDGER)


def take_over(cursor: Cursor, view: str, owner: str) -> int:
    """A new epoch, in which whoever had the view before can write no more."""
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
    """The present epoch and its owner."""
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
    """A source that the batch says nothing of stays where it was."""
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
    """What the query that wrote last has covered; None before its first batch."""
    row = cursor.execute(
        """
        SELECT batch, offsets FROM headrace.batches WHERE view = %s
        ORDER BY epoch DESC, written_at DESC LIMIT 1
        """,
        (view,),
    ).fetchone()
    return None if row is None else Coverage(*row)
