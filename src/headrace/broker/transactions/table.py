"""Transactions and producer ids as rows of the store."""

import sqlite3
from uuid import UUID

from headrace.broker.transactions.state import PartitionKey, Producer, State, Transaction

SCHEMA = """
CREATE TABLE IF NOT EXISTS producer_ids (
    only INTEGER PRIMARY KEY CHECK (only = 0),
    next INTEGER NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS transactions (
    transactional_id TEXT PRIMARY KEY,
    producer_id INTEGER NOT NULL,
    producer_epoch INTEGER NOT NULL,
    predecessor_id INTEGER NOT NULL,
    predecessor_epoch INTEGER NOT NULL,
    timeout_ms INTEGER NOT NULL,
    state TEXT NOT NULL,
    started_ms INTEGER NOT NULL,
    updated_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS transaction_partitions (
    transactional_id TEXT NOT NULL,
    topic TEXT NOT NULL,
    partition INTEGER NOT NULL,
    topic_id BLOB NOT NULL,
    PRIMARY KEY (transactional_id, topic, partition)
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS transaction_groups (
    transactional_id TEXT NOT NULL,
    group_id TEXT NOT NULL,
    PRIMARY KEY (transactional_id, group_id)
) STRICT, WITHOUT ROWID;
"""


def load(connection: sqlite3.Connection) -> list[Transaction]:
    """Every transactional id there is."""
    partitions: dict[str, dict[PartitionKey, UUID]] = {}
    for name, topic, partition, topic_id in connection.execute("SELECT * FROM transaction_partitions"):
        partitions.setdefault(name, {})[topic, partition] = UUID(bytes=topic_id)
    groups: dict[str, set[str]] = {}
    for name, group_id in connection.execute("SELECT * FROM transaction_groups"):
        groups.setdefault(name, set()).add(group_id)
    return [
        Transaction(
            name,
            Producer(producer_id, epoch),
            Producer(predecessor_id, predecessor_epoch),
            timeout_ms,
            State(state),
            started_ms,
            updated_ms,
            partitions.get(name, {}),
            frozenset(groups.get(name, ())),
        )
        for (
            name,
            producer_id,
            epoch,
            predecessor_id,
            predecessor_epoch,
            timeout_ms,
            state,
            started_ms,
            updated_ms,
        ) in connection.execute("SELECT * FROM transactions")
    ]


def save(connection: sqlite3.Connection, old: Transaction, new: Transaction) -> None:
    """Make the rows of `old` those of `new`."""
    name = new.transactional_id
    connection.execute(
        "INSERT OR REPLACE INTO transactions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            name,
            *new.producer,
            *new.predecessor,
            new.timeout_ms,
            new.state.value,
            new.started_ms,
            new.updated_ms,
        ),
    )
    connection.executemany(
        "DELETE FROM transaction_partitions WHERE transactional_id = ? AND topic = ? AND partition = ?",
        [(name, *key) for key in old.partitions.keys() - new.partitions.keys()],
    )
    connection.executemany(
        "INSERT OR REPLACE INTO transaction_partitions VALUES (?, ?, ?, ?)",
        [(name, *key, id.bytes) for key, id in new.partitions.items() if old.partitions.get(key) != id],
    )
    connection.executemany(
        "DELETE FROM transaction_groups WHERE transactional_id = ? AND group_id = ?",
        [(name, group_id) for group_id in old.groups - new.groups],
    )
    connection.executemany(
        "INSERT OR REPLACE INTO transaction_groups VALUES (?, ?)",
        [(name, group_id) for group_id in new.groups - old.groups],
    )


def remove(connection: sqlite3.Connection, transactional_id: str) -> None:
    """Forget an id that has no transaction open, and so no partitions and no groups."""
    connection.execute("DELETE FROM transactions WHERE transactional_id = ?", (transactional_id,))


def reserve_producer_ids(connection: sqlite3.Connection, count: int) -> int:
    """The first of `count` producer ids that were never given out."""
    row = connection.execute(
        "INSERT INTO producer_ids VALUES (0, ?) ON CONFLICT DO UPDATE SET next = next + excluded.next RETURNING next",
        (count,),
    ).fetchone()
    return int(row[0]) - count
