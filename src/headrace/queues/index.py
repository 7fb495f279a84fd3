"""The index of delayed messages: what is due when, in SQLite.

It is what the topic's records say, folded up to an offset, and nothing else: if it is lost or behind, it is made again
from the topic. So its commits wait for no sync.
"""

import hashlib
import sqlite3
from collections.abc import Collection, Iterable
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from headrace.queues.delayed import Stored

__all__ = ["DelayIndex", "Entry", "Pending", "pending_counts"]

WALL, ELAPSED = 0, 1
"""Which time line a due time is on."""
SCHEMA = """
CREATE TABLE IF NOT EXISTS pending (
    offset INTEGER PRIMARY KEY, id BLOB NOT NULL, due INTEGER NOT NULL, line INTEGER NOT NULL, target INTEGER NOT NULL
);
CREATE UNIQUE INDEX IF NOT EXISTS pending_id ON pending (id);
CREATE INDEX IF NOT EXISTS pending_due ON pending (line, due);
CREATE TABLE IF NOT EXISTS targets (target INTEGER PRIMARY KEY, topic TEXT UNIQUE NOT NULL, messages INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS state (name TEXT PRIMARY KEY, value INTEGER NOT NULL);
"""
PENDING = "SELECT offset, due, line, target FROM pending"
CACHE_KIB = 8 << 10
BUSY_SECONDS = 5.0


class Entry(NamedTuple):
    """A record of the topic, with the due time that it has when it is indexed."""

    offset: int
    stored: Stored
    due: int
    line: int


class Pending(NamedTuple):
    offset: int
    due: int
    line: int
    target: int


class DelayIndex:
    """One file for one cluster. For one thread."""

    def __init__(self, path: Path) -> None:
        """A file that is damaged is made anew: the topic has everything."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._targets: dict[str, int] = {}
        self._beginning: int | None = None
        try:
            self._open(path)
        except sqlite3.DatabaseError as error:
            if error.sqlite_errorcode not in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
                raise
            for suffix in ("", "-wal", "-shm"):
                path.with_name(path.name + suffix).unlink(missing_ok=True)
            self._open(path)

    @property
    def next_offset(self) -> int | None:
        """The offset up to which the topic is indexed; None if nothing is."""
        return self._state("next")

    @property
    def shift(self) -> int:
        return self._state("shift") or 0

    def apply(self, entries: Iterable[Entry], next_offset: int, shift: int) -> list[tuple[bytes, int]]:
        """Index records in their order, in one commit. Returns id and offset of those that came too late to count."""
        void: list[tuple[bytes, int]] = []
        with self._database as database:
            for entry in entries:
                stored, id = entry.stored, _digest(entry.stored.id)
                if stored.plan is None:
                    self._remove(id, stored.of)
                elif stored.of is None or self._counts(id, stored.of, entry.offset):
                    self._remove(id, None)
                    target = self._target(stored.plan.to, 1)
                    database.execute(
                        "INSERT INTO pending VALUES (?, ?, ?, ?, ?)", (entry.offset, id, entry.due, entry.line, target)
                    )
                else:
                    void.append((stored.id, entry.offset))
            state = [("next", next_offset), ("shift", shift)]
            if self._beginning is None:
                self._beginning = next_offset
                state.append(("beginning", next_offset))
            database.executemany("INSERT OR REPLACE INTO state VALUES (?, ?)", state)
        return void

    def begin(self, offset: int) -> None:
        """Begin anew at the topic's beginning, and note where that is: records before it are not known here."""
        self._beginning = offset
        with self._database as database:
            database.execute("DELETE FROM pending")
            database.execute("UPDATE targets SET messages = 0")
            database.executemany(
                "INSERT OR REPLACE INTO state VALUES (?, ?)", [("beginning", offset), ("next", offset)]
            )

    def keep_shift(self, shift: int) -> None:
        with self._database as database:
            database.execute("INSERT OR REPLACE INTO state VALUES ('shift', ?)", (shift,))

    def due(self, line: int, until: int, limit: int, without: Collection[int] = ()) -> list[Pending]:
        """The messages that are due until a time, the earliest first; those of some targets are left out."""
        left_out = f"AND target NOT IN ({','.join(map(str, without))})" if without else ""
        question = f"{PENDING} WHERE line = ? AND due <= ? {left_out} ORDER BY due LIMIT ?"
        rows = self._database.execute(question, (line, until, limit))
        return [Pending(*row) for row in rows]

    def oldest(self, limit: int) -> list[Pending]:
        rows = self._database.execute(f"{PENDING} ORDER BY offset LIMIT ?", (limit,))
        return [Pending(*row) for row in rows]

    def next_due(self, line: int) -> int | None:
        row = self._database.execute("SELECT min(due) FROM pending WHERE line = ?", (line,)).fetchone()
        return None if row is None else row[0]

    def lowest_offset(self) -> int | None:
        row = self._database.execute("SELECT min(offset) FROM pending").fetchone()
        return None if row is None else row[0]

    def counts(self) -> dict[str, int]:
        """By topic: how many messages are pending for it."""
        return dict(self._database.execute("SELECT topic, messages FROM targets WHERE messages > 0"))

    def close(self) -> None:
        self._database.close()

    def _open(self, path: Path) -> None:
        self._database = sqlite3.connect(path, timeout=BUSY_SECONDS, check_same_thread=False)
        try:
            self._database.execute("PRAGMA journal_mode = WAL")
            self._database.execute("PRAGMA synchronous = NORMAL")
            self._database.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
            self._database.executescript(SCHEMA)
            self._targets = dict(self._database.execute("SELECT topic, target FROM targets"))
            self._beginning = self._state("beginning")
        except BaseException:
            self._database.close()
            raise

    def _state(self, name: str) -> int | None:
        row = self._database.execute("SELECT value FROM state WHERE name = ?", (name,)).fetchone()
        return None if row is None else int(row[0])

    def _counts(self, id: bytes, of: int, offset: int) -> bool:
        """Whether the record that is replaced is the one that counts, or is older than all that is known here.

        A record that is indexed once more counts as it did.
        """
        row = self._database.execute("SELECT offset FROM pending WHERE id = ?", (id,)).fetchone()
        if row is None:
            return self._beginning is None or of < self._beginning
        return row[0] in (of, offset)

    def _remove(self, id: bytes, of: int | None) -> None:
        question = "DELETE FROM pending WHERE id = ? {} RETURNING target"
        if of is None:
            rows = self._database.execute(question.format(""), (id,))
        else:
            rows = self._database.execute(question.format("AND offset = ?"), (id, of))
        for (target,) in rows.fetchall():
            self._database.execute("UPDATE targets SET messages = messages - 1 WHERE target = ?", (target,))

    def _target(self, topic: str, by: int) -> int:
        if topic not in self._targets:
            cursor = self._database.execute("INSERT INTO targets (topic, messages) VALUES (?, 0)", (topic,))
            assert cursor.lastrowid is not None
            self._targets[topic] = cursor.lastrowid
        target = self._targets[topic]
        self._database.execute("UPDATE targets SET messages = messages + ? WHERE target = ?", (by, target))
        return target


def pending_counts(path: Path) -> dict[str, int] | None:
    """By topic: how many messages are pending, in the index of a service that may be running; None if unknown."""
    try:
        with closing(
            sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", timeout=BUSY_SECONDS, uri=True)
        ) as database:
            return dict(database.execute("SELECT topic, messages FROM targets WHERE messages > 0"))
    except sqlite3.Error:
        return None


def _digest(id: bytes) -> bytes:
    return hashlib.blake2b(id, digest_size=16).digest()
