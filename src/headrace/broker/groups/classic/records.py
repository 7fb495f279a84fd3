"""Groups in the metadata store: what a restart needs so that no member has to rejoin."""

import sqlite3
from collections import defaultdict
from typing import NamedTuple

from headrace.broker.groups.classic.group import ClassicGroup, GroupState
from headrace.broker.groups.classic.messages import Protocol

SCHEMA = """
CREATE TABLE IF NOT EXISTS classic_groups (
    group_id TEXT PRIMARY KEY,
    state TEXT NOT NULL,
    state_since_ms INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    protocol_type TEXT,
    protocol_name TEXT,
    leader TEXT
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS classic_members (
    group_id TEXT NOT NULL,
    position INTEGER NOT NULL,
    member_id TEXT NOT NULL,
    group_instance_id TEXT,
    client_id TEXT NOT NULL,
    client_host TEXT NOT NULL,
    rebalance_timeout_ms INTEGER NOT NULL,
    session_timeout_ms INTEGER NOT NULL,
    assignment BLOB NOT NULL,
    PRIMARY KEY (group_id, position)
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS classic_protocols (
    group_id TEXT NOT NULL,
    member_position INTEGER NOT NULL,
    position INTEGER NOT NULL,
    name TEXT NOT NULL,
    metadata BLOB NOT NULL,
    PRIMARY KEY (group_id, member_position, position)
) STRICT, WITHOUT ROWID;
"""


class MemberRecord(NamedTuple):
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    assignment: bytes
    protocols: tuple[Protocol, ...]


class GroupRecord(NamedTuple):
    """A group as it was at one moment: safe to hand to another thread."""

    group_id: str
    state: GroupState
    state_since_ms: int
    generation: int
    protocol_type: str | None
    protocol_name: str | None
    leader: str | None
    members: tuple[MemberRecord, ...]


def record_of(group: ClassicGroup, assignments: dict[str, bytes] | None = None) -> GroupRecord:
    """The group as it is; with `assignments`, as it will be once these are what its members have."""
    return GroupRecord(
        group.group_id,
        group.state if assignments is None else GroupState.STABLE,
        group.state_since_ms,
        group.generation,
        group.protocol_type,
        group.protocol_name,
        group.leader,
        tuple(
            MemberRecord(
                m.member_id,
                m.group_instance_id,
                m.client_id,
                m.client_host,
                m.rebalance_timeout_ms,
                m.session_timeout_ms,
                m.assignment if assignments is None else assignments.get(m.member_id, b""),
                m.protocols,
            )
            for m in group.members.values()
        ),
    )


def save(connection: sqlite3.Connection, record: GroupRecord) -> None:
    delete(connection, record.group_id)
    connection.execute(
        "INSERT INTO classic_groups VALUES (?, ?, ?, ?, ?, ?, ?)",
        (
            record.group_id,
            record.state.value,
            record.state_since_ms,
            record.generation,
            record.protocol_type,
            record.protocol_name,
            record.leader,
        ),
    )
    connection.executemany(
        "INSERT INTO classic_members VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        ((record.group_id, position, *member[:-1]) for position, member in enumerate(record.members)),
    )
    connection.executemany(
        "INSERT INTO classic_protocols VALUES (?, ?, ?, ?, ?)",
        (
            (record.group_id, member_position, position, *protocol)
            for member_position, member in enumerate(record.members)
            for position, protocol in enumerate(member.protocols)
        ),
    )


def delete(connection: sqlite3.Connection, group_id: str) -> None:
    for table in ("classic_groups", "classic_members", "classic_protocols"):
        connection.execute(f"DELETE FROM {table} WHERE group_id = ?", (group_id,))


def load(connection: sqlite3.Connection) -> list[GroupRecord]:
    protocols: defaultdict[tuple[str, int], tuple[Protocol, ...]] = defaultdict(tuple)
    for group_id, member_position, name, metadata in connection.execute(
        "SELECT group_id, member_position, name, metadata FROM classic_protocols ORDER BY 1, 2, position"
    ):
        protocols[group_id, member_position] += (Protocol(name, metadata),)
    members: defaultdict[str, tuple[MemberRecord, ...]] = defaultdict(tuple)
    for row in connection.execute("SELECT * FROM classic_members ORDER BY group_id, position"):
        group_id, position = row[:2]
        members[group_id] += (MemberRecord._make((*row[2:], protocols[group_id, position])),)
    return [
        GroupRecord._make((row[0], GroupState(row[1]), *row[2:], members[row[0]]))
        for row in connection.execute("SELECT * FROM classic_groups")
    ]
