"""Committed offsets: durable before they are visible, visible before they are acknowledged.

Each commit gets a number. An offset staged in a transaction keeps the number it was staged with, so that a plain
commit made later is not overwritten when the transaction ends.
"""

import asyncio
import sqlite3
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from headrace.broker.clock import Clock
from headrace.broker.errors import ApiError, ErrorCode
from headrace.broker.settings import BrokerSettings
from headrace.broker.store import Store

SCHEMA = """
CREATE TABLE IF NOT EXISTS committed_offsets (
    group_id TEXT NOT NULL,
    topic TEXT NOT NULL,
    partition INTEGER NOT NULL,
    committed INTEGER NOT NULL,
    leader_epoch INTEGER NOT NULL,
    metadata TEXT NOT NULL,
    committed_at_ms INTEGER NOT NULL,
    expires_at_ms INTEGER,
    number INTEGER NOT NULL,
    PRIMARY KEY (group_id, topic, partition)
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS pending_offsets (
    producer_id INTEGER NOT NULL,
    group_id TEXT NOT NULL,
    topic TEXT NOT NULL,
    partition INTEGER NOT NULL,
    committed INTEGER NOT NULL,
    leader_epoch INTEGER NOT NULL,
    metadata TEXT NOT NULL,
    committed_at_ms INTEGER NOT NULL,
    expires_at_ms INTEGER,
    number INTEGER NOT NULL,
    PRIMARY KEY (producer_id, group_id, topic, partition)
) STRICT, WITHOUT ROWID;
"""

# A row that is there with a higher number was committed later, and stays.
_PUT = """
INSERT INTO committed_offsets {rows}
ON CONFLICT (group_id, topic, partition) DO UPDATE SET
    committed = excluded.committed, leader_epoch = excluded.leader_epoch, metadata = excluded.metadata,
    committed_at_ms = excluded.committed_at_ms, expires_at_ms = excluded.expires_at_ms, number = excluded.number
WHERE excluded.number > number
"""
_PUT_ROW = _PUT.format(rows="VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)")
_PUT_PENDING = _PUT.format(
    rows="SELECT group_id, topic, partition, committed, leader_epoch, metadata, committed_at_ms, expires_at_ms,"
    " number FROM pending_offsets WHERE producer_id = ?"
)


class OffsetEntry(NamedTuple):
    """An offset to commit."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int = -1
    metadata: str = ""


class CommittedOffset(NamedTuple):
    offset: int
    leader_epoch: int
    metadata: str
    committed_at_ms: int
    expires_at_ms: int | None
    number: int


class PartitionKey(NamedTuple):
    topic: str
    partition: int


class Settlement:
    """A change of offsets that is part of another write.

    `write` runs inside that write; then, on the loop, `apply` if it was committed and `abandon` if it was not.
    """

    def __init__(
        self,
        write: Callable[[sqlite3.Connection], None],
        apply: Callable[[], None] = lambda: None,
        abandon: Callable[[], None] = lambda: None,
    ) -> None:
        self.write = write
        self.apply = apply
        self.abandon = abandon


def together(*settlements: Settlement) -> Settlement:
    """Several as one."""

    def write(connection: sqlite3.Connection) -> None:
        for settlement in settlements:
            settlement.write(connection)

    def apply() -> None:
        for settlement in settlements:
            settlement.apply()

    def abandon() -> None:
        for settlement in settlements:
            settlement.abandon()

    return Settlement(write, apply, abandon)


GroupOffsets = dict[PartitionKey, CommittedOffset]


class Offsets:
    """Every group's committed offsets, and those that wait for the end of a transaction."""

    def __init__(self, store: Store, settings: BrokerSettings, clock: Clock) -> None:
        self._store = store
        self._max_metadata = settings.offset_metadata_max_bytes
        self._clock = clock
        self._committed: dict[str, GroupOffsets] = {}
        self._pending: dict[int, dict[str, GroupOffsets]] = {}
        self._next_number = 1
        self._last_write: dict[str, asyncio.Future[None]] = {}
        self._topics_going: Counter[str] = Counter()

    def load(self) -> None:
        self._store.load(self._load)

    def _load(self, connection: sqlite3.Connection) -> None:
        for group_id, topic, partition, *fields in connection.execute("SELECT * FROM committed_offsets"):
            self._put(self._committed, group_id, PartitionKey(topic, partition), CommittedOffset(*fields))
        for producer_id, group_id, topic, partition, *fields in connection.execute("SELECT * FROM pending_offsets"):
            groups = self._pending.setdefault(producer_id, {})
            self._put(groups, group_id, PartitionKey(topic, partition), CommittedOffset(*fields))

    # Commit

    def metadata_too_large(self, metadata: str | None) -> bool:
        """Kafka counts characters here, although the setting's name says bytes."""
        return metadata is not None and len(metadata) > self._max_metadata

    async def commit(self, group_id: str, entries: Sequence[OffsetEntry], *, retention_ms: int | None = None) -> None:
        """Durable, then visible. `retention_ms` is what old clients may ask for in place of the broker's setting."""
        stamped = self._stamp(entries, retention_ms)
        rows = [(group_id, *key, *offset) for key, offset in stamped]

        def write(connection: sqlite3.Connection) -> None:
            connection.executemany(_PUT_ROW, rows)

        def apply() -> None:
            for key, offset in stamped:
                self._put(self._committed, group_id, key, offset)

        await self._write(group_id, write, apply)

    async def stage(self, group_id: str, producer_id: int, entries: Sequence[OffsetEntry]) -> None:
        """Durable, but invisible until the producer's transaction is committed."""
        stamped = self._stamp(entries, None)
        rows = [(producer_id, group_id, *key, *offset) for key, offset in stamped]

        def write(connection: sqlite3.Connection) -> None:
            connection.executemany("INSERT OR REPLACE INTO pending_offsets VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)

        def apply() -> None:
            groups = self._pending.setdefault(producer_id, {})
            for key, offset in stamped:
                self._put(groups, group_id, key, offset)

        await self._write(group_id, write, apply)

    def settle(self, producer_id: int, commit: bool) -> Settlement:
        """The end of a transaction: what it staged becomes visible, or is forgotten."""

        def write(connection: sqlite3.Connection) -> None:
            if commit:
                connection.execute(_PUT_PENDING, (producer_id,))
            connection.execute("DELETE FROM pending_offsets WHERE producer_id = ?", (producer_id,))

        def apply() -> None:
            staged = self._pending.pop(producer_id, {})
            if commit:
                for group_id, offsets in staged.items():
                    for key, offset in offsets.items():
                        self._put(self._committed, group_id, key, offset)

        return Settlement(write, apply)

    # Look

    def fetch(self, group_id: str, topic: str, partition: int) -> CommittedOffset | None:
        return self._committed.get(group_id, {}).get(PartitionKey(topic, partition))

    def of_group(self, group_id: str) -> Mapping[PartitionKey, CommittedOffset]:
        return self._committed.get(group_id, {})

    def pending(self, group_id: str, topic: str, partition: int) -> bool:
        """Whether an open transaction holds an offset of this partition."""
        key = PartitionKey(topic, partition)
        return any(key in groups.get(group_id, ()) for groups in self._pending.values())

    def has_pending(self, group_id: str) -> bool:
        return any(group_id in groups for groups in self._pending.values())

    def has_group(self, group_id: str) -> bool:
        return group_id in self._committed or self.has_pending(group_id)

    def group_ids(self) -> set[str]:
        """The groups that have offsets, visible or pending."""
        return {*self._committed, *(group_id for groups in self._pending.values() for group_id in groups)}

    async def caught_up(self, group_id: str) -> None:
        """Wait until what is being committed for the group right now is visible."""
        last_write = self._last_write.get(group_id)
        if last_write is not None:
            await asyncio.wait([last_write])

    # Forget

    async def delete(self, group_id: str, keys: Collection[PartitionKey]) -> None:
        """Forget these partitions of the group, pending ones included."""
        rows = [(group_id, *key) for key in keys]

        def write(connection: sqlite3.Connection) -> None:
            for table in ("committed_offsets", "pending_offsets"):
                connection.executemany(f"DELETE FROM {table} WHERE group_id = ? AND topic = ? AND partition = ?", rows)

        def apply() -> None:
            for groups in (self._committed, *self._pending.values()):
                offsets = groups.get(group_id, {})
                for key in keys:
                    offsets.pop(key, None)
                if not offsets:
                    groups.pop(group_id, None)

        await self._write(group_id, write, apply)

    def expire(self, group_id: str, expired: Mapping[PartitionKey, CommittedOffset]) -> Settlement:
        """Forget these offsets, unless something newer has been committed meanwhile."""
        rows = [(group_id, *key, offset.number) for key, offset in expired.items()]

        def write(connection: sqlite3.Connection) -> None:
            connection.executemany(
                "DELETE FROM committed_offsets WHERE group_id = ? AND topic = ? AND partition = ? AND number = ?",
                rows,
            )

        def apply() -> None:
            offsets = self._committed.get(group_id, {})
            for key, offset in expired.items():
                if offsets.get(key) == offset:
                    del offsets[key]
            if not offsets:
                self._committed.pop(group_id, None)

        return Settlement(write, apply)

    def forget_group(self, group_id: str) -> Settlement:
        """The group is deleted. Nothing may be committed for it until the settlement is applied or abandoned."""

        def write(connection: sqlite3.Connection) -> None:
            for table in ("committed_offsets", "pending_offsets"):
                connection.execute(f"DELETE FROM {table} WHERE group_id = ?", (group_id,))

        def apply() -> None:
            for groups in (self._committed, *self._pending.values()):
                groups.pop(group_id, None)

        return Settlement(write, apply)

    def forget_topic(self, topic: str) -> Settlement:
        """The topic is deleted. Until the settlement is applied or abandoned, commits to it are refused: they
        would come after the deletion, and a new topic of that name would begin with them."""
        self._topics_going[topic] += 1

        def write(connection: sqlite3.Connection) -> None:
            for table in ("committed_offsets", "pending_offsets"):
                connection.execute(f"DELETE FROM {table} WHERE topic = ?", (topic,))

        def abandon() -> None:
            self._topics_going -= Counter([topic])

        def apply() -> None:
            for groups in (self._committed, *self._pending.values()):
                for group_id, offsets in list(groups.items()):
                    for key in [key for key in offsets if key.topic == topic]:
                        del offsets[key]
                    if not offsets:
                        del groups[group_id]
            abandon()

        return Settlement(write, apply, abandon)

    def topic_is_going(self, topic: str) -> bool:
        return self._topics_going[topic] > 0

    # Inside

    def _stamp(
        self, entries: Iterable[OffsetEntry], retention_ms: int | None
    ) -> list[tuple[PartitionKey, CommittedOffset]]:
        return list(self._stamped(entries, retention_ms))

    def _stamped(
        self, entries: Iterable[OffsetEntry], retention_ms: int | None
    ) -> Iterator[tuple[PartitionKey, CommittedOffset]]:
        now_ms = self._clock.steady_ms()
        expires_at_ms = None if retention_ms is None else now_ms + retention_ms
        for topic, partition, offset, leader_epoch, metadata in entries:
            if self.topic_is_going(topic):
                raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            number = self._next_number
            self._next_number += 1
            yield (
                PartitionKey(topic, partition),
                CommittedOffset(offset, leader_epoch, metadata, now_ms, expires_at_ms, number),
            )

    def _put(self, groups: dict[str, GroupOffsets], group_id: str, key: PartitionKey, offset: CommittedOffset) -> None:
        self._next_number = max(self._next_number, offset.number + 1)
        offsets = groups.setdefault(group_id, {})
        current = offsets.get(key)
        if current is None or current.number < offset.number:
            offsets[key] = offset

    async def _write(
        self, group_id: str, change: Callable[[sqlite3.Connection], None], apply: Callable[[], None]
    ) -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._last_write[group_id] = done

        def written(write: asyncio.Future[None]) -> None:
            if write.exception() is None:
                apply()
            if self._last_write.get(group_id) is done:
                del self._last_write[group_id]
            done.set_result(None)

        write = self._store.write(change)
        write.add_done_callback(written)
        # Whoever asked may go away; what is written is applied all the same.
        await asyncio.shield(write)
