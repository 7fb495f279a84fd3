"""The state of a partition at a synced point of its log: where recovery begins after a crash."""

import sqlite3
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from headrace.broker.storage.aborted import Aborted
from headrace.broker.storage.epochs import Epochs

if TYPE_CHECKING:
    from headrace.broker.storage.partition import Partition

SCHEMA = """
CREATE TABLE IF NOT EXISTS partitions (
    topic_id BLOB NOT NULL, partition INTEGER NOT NULL,
    log_start INTEGER NOT NULL, segment INTEGER NOT NULL, byte INTEGER NOT NULL, offset INTEGER NOT NULL,
    producers BLOB NOT NULL,
    PRIMARY KEY (topic_id, partition)
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS segments (
    topic_id BLOB NOT NULL, partition INTEGER NOT NULL, base_offset INTEGER NOT NULL,
    size INTEGER NOT NULL, max_timestamp INTEGER NOT NULL, first_timestamp INTEGER NOT NULL,
    PRIMARY KEY (topic_id, partition, base_offset)
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS aborted (
    topic_id BLOB NOT NULL, partition INTEGER NOT NULL, last_offset INTEGER NOT NULL,
    first_offset INTEGER NOT NULL, producer_id INTEGER NOT NULL,
    PRIMARY KEY (topic_id, partition, last_offset)
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS leader_epochs (
    topic_id BLOB NOT NULL, partition INTEGER NOT NULL, epoch INTEGER NOT NULL, start_offset INTEGER NOT NULL,
    PRIMARY KEY (topic_id, partition, epoch)
) STRICT, WITHOUT ROWID;
"""
TABLES = ("partitions", "segments", "aborted", "leader_epochs")


class SegmentRow(NamedTuple):
    base_offset: int
    size: int
    max_timestamp: int
    first_timestamp: int


class Checkpoint(NamedTuple):
    """All before `offset`, which stands at `byte` of the segment `segment`, is synced; this is what it adds up to."""

    partition: "Partition"
    log_start: int
    segment: int
    byte: int
    offset: int
    producers: bytes
    segments: list[SegmentRow]
    aborted: list[Aborted]


class Saved(NamedTuple):
    """What the store knows of a partition at the start."""

    log_start: int
    segment: int
    byte: int
    offset: int
    producers: bytes
    segments: dict[int, SegmentRow]
    aborted: list[Aborted]


def save(connection: sqlite3.Connection, checkpoints: Iterable[Checkpoint]) -> None:
    for point in checkpoints:
        key = (point.partition.topic_id.bytes, point.partition.index)
        # The log's start is moved by a write of its own and must never go back.
        connection.execute(
            "INSERT INTO partitions VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET"
            " log_start = max(log_start, excluded.log_start), segment = excluded.segment, byte = excluded.byte,"
            " offset = excluded.offset, producers = excluded.producers WHERE excluded.offset >= offset",
            (*key, point.log_start, point.segment, point.byte, point.offset, point.producers),
        )
        connection.executemany(
            # Two captures may be saved in the other order, and a segment never shrinks.
            "INSERT INTO segments VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET size = excluded.size,"
            " max_timestamp = excluded.max_timestamp, first_timestamp = excluded.first_timestamp"
            " WHERE excluded.size >= size",
            [(*key, *row) for row in point.segments],
        )
        connection.executemany(
            "INSERT OR REPLACE INTO aborted VALUES (?, ?, ?, ?, ?)",
            [(*key, entry.last_offset, entry.first_offset, entry.producer_id) for entry in point.aborted],
        )


def move_log_start(connection: sqlite3.Connection, topic_id: UUID, index: int, log_start: int) -> None:
    key = (topic_id.bytes, index)
    connection.execute(
        "UPDATE partitions SET log_start = max(log_start, ?) WHERE topic_id = ? AND partition = ?", (log_start, *key)
    )
    connection.execute(
        "DELETE FROM aborted WHERE topic_id = ? AND partition = ? AND last_offset < ?", (*key, log_start)
    )


def forget_segments(connection: sqlite3.Connection, topic_id: UUID, index: int, before: int) -> None:
    connection.execute(
        "DELETE FROM segments WHERE topic_id = ? AND partition = ? AND base_offset < ?",
        (topic_id.bytes, index, before),
    )


def forget_topic(connection: sqlite3.Connection, topic_id: UUID) -> None:
    for table in TABLES:
        connection.execute(f"DELETE FROM {table} WHERE topic_id = ?", (topic_id.bytes,))


def save_epochs(connection: sqlite3.Connection, topic_id: UUID, index: int, epochs: Epochs) -> None:
    key = (topic_id.bytes, index)
    connection.execute("DELETE FROM leader_epochs WHERE topic_id = ? AND partition = ?", key)
    connection.executemany(
        "INSERT INTO leader_epochs VALUES (?, ?, ?, ?)", [(*key, epoch, start) for epoch, start in epochs.entries]
    )


def load(connection: sqlite3.Connection) -> tuple[dict[tuple[bytes, int], Saved], dict[tuple[bytes, int], Epochs]]:
    """All partitions' checkpoints and leader epochs, by topic id and partition."""
    saved: dict[tuple[bytes, int], Saved] = {}
    for topic_id, partition, *rest in connection.execute("SELECT * FROM partitions"):
        log_start, segment, byte, offset, producers = rest
        saved[topic_id, partition] = Saved(log_start, segment, byte, offset, producers, {}, [])
    for topic_id, partition, *row in connection.execute("SELECT * FROM segments"):
        if (topic_id, partition) in saved:
            saved[topic_id, partition].segments[row[0]] = SegmentRow(*row)
    for topic_id, partition, last, first, producer_id in connection.execute(
        "SELECT topic_id, partition, last_offset, first_offset, producer_id FROM aborted ORDER BY last_offset"
    ):
        if (topic_id, partition) in saved:
            saved[topic_id, partition].aborted.append(Aborted(producer_id, first, last))
    starts: dict[tuple[bytes, int], list[tuple[int, int]]] = {}
    for topic_id, partition, epoch, start in connection.execute("SELECT * FROM leader_epochs ORDER BY epoch"):
        starts.setdefault((topic_id, partition), []).append((epoch, start))
    return saved, {key: Epochs(entries) for key, entries in starts.items()}
