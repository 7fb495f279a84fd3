"""Share groups in the metadata store: their members, and where each partition stands."""

import json
import sqlite3
from collections.abc import Iterable
from typing import NamedTuple
from uuid import UUID

from headrace.broker.groups.share.window import Stored
from headrace.broker.storage.partition import Partition

SCHEMA = """
CREATE TABLE IF NOT EXISTS share_groups (
    group_id TEXT PRIMARY KEY,
    epoch INTEGER NOT NULL,
    members TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS share_partitions (
    group_id TEXT NOT NULL,
    topic_id BLOB NOT NULL,
    partition INTEGER NOT NULL,
    state_epoch INTEGER NOT NULL,
    start_offset INTEGER NOT NULL,
    states BLOB NOT NULL,
    deliveries BLOB NOT NULL,
    PRIMARY KEY (group_id, topic_id, partition)
) STRICT, WITHOUT ROWID;
"""

PartitionRow = tuple[str, bytes, int, int, int, bytes, bytes]


class MemberRecord(NamedTuple):
    member_id: str
    epoch: int
    rack_id: str | None
    client_id: str
    client_host: str
    topics: tuple[str, ...]
    assigned: tuple[tuple[UUID, int], ...]


class GroupRecord(NamedTuple):
    group_id: str
    epoch: int
    members: tuple[MemberRecord, ...]


class PartitionRecord(NamedTuple):
    group_id: str
    topic_id: UUID
    partition: int
    state_epoch: int
    stored: Stored


def save_group(connection: sqlite3.Connection, record: GroupRecord) -> None:
    members = [
        member._asdict() | {"assigned": [(topic_id.hex, index) for topic_id, index in member.assigned]}
        for member in record.members
    ]
    connection.execute(
        "INSERT OR REPLACE INTO share_groups VALUES (?, ?, ?)", (record.group_id, record.epoch, json.dumps(members))
    )


def partition_row(group_id: str, log: Partition, state_epoch: int, stored: Stored) -> PartitionRow:
    return (group_id, log.topic_id.bytes, log.index, state_epoch, *stored)


def save_partitions(connection: sqlite3.Connection, rows: Iterable[PartitionRow]) -> None:
    """A group that was deleted meanwhile is not brought back by a late write."""
    connection.executemany(
        "INSERT OR REPLACE INTO share_partitions SELECT ?, ?, ?, ?, ?, ?, ?"
        " WHERE EXISTS (SELECT 1 FROM share_groups WHERE group_id = ?)",
        ((*row, row[0]) for row in rows),
    )


def delete_partitions(connection: sqlite3.Connection, group_id: str, topic_id: UUID) -> None:
    connection.execute("DELETE FROM share_partitions WHERE group_id = ? AND topic_id = ?", (group_id, topic_id.bytes))


def delete_topic(connection: sqlite3.Connection, topic_id: UUID) -> None:
    connection.execute("DELETE FROM share_partitions WHERE topic_id = ?", (topic_id.bytes,))


def delete_group(connection: sqlite3.Connection, group_id: str) -> None:
    for table in ("share_groups", "share_partitions"):
        connection.execute(f"DELETE FROM {table} WHERE group_id = ?", (group_id,))


def load_groups(connection: sqlite3.Connection) -> list[GroupRecord]:
    found = []
    for group_id, epoch, members in connection.execute("SELECT * FROM share_groups"):
        restored = []
        for member in json.loads(members):
            member["topics"] = tuple(member["topics"])
            member["assigned"] = tuple((UUID(hex=topic_id), index) for topic_id, index in member["assigned"])
            restored.append(MemberRecord(**member))
        found.append(GroupRecord(group_id, epoch, tuple(restored)))
    return found


def load_partitions(connection: sqlite3.Connection) -> list[PartitionRecord]:
    return [
        PartitionRecord(group_id, UUID(bytes=topic_id), partition, state_epoch, Stored(*stored))
        for group_id, topic_id, partition, state_epoch, *stored in connection.execute("SELECT * FROM share_partitions")
    ]
