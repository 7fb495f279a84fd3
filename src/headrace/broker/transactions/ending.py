"""How a transaction ends: on all of its partitions and with all of its offsets, or not at all.

    data synced -> PREPARE committed in the store -> markers synced on every partition
    -> COMPLETE and the offsets committed in the store, together

PREPARE is the decision: what fails after it is tried again, over restarts too, until all is complete.
"""

import asyncio
import logging
import sqlite3
from typing import TYPE_CHECKING

from headrace.broker.errors import ApiError, ErrorCode
from headrace.broker.transactions import table
from headrace.broker.transactions.state import State, Transaction

if TYPE_CHECKING:
    from headrace.broker.clock import Clock
    from headrace.broker.groups.offsets import Offsets
    from headrace.broker.storage.partition import Partition
    from headrace.broker.store import Store
    from headrace.broker.topics import Topics

logger = logging.getLogger(__name__)


class Entry:
    """One transactional id in memory: its durable facts, and what is forgotten at a restart."""

    __slots__ = ("barred", "connection", "current", "deadline", "lock", "marked", "retrying")

    def __init__(self, current: Transaction) -> None:
        self.current = current
        self.lock = asyncio.Lock()
        self.barred: ErrorCode | None = None
        """Why nothing more may be produced, while the end of the transaction is on its way to the store."""
        self.deadline = 0.0
        self.connection = 0
        """The newest connection on which this incarnation of the producer spoke of its transactions."""
        self.marked: set[Partition] = set()
        """The partitions that already have the marker of the prepared transaction."""
        self.retrying: asyncio.Task[None] | None = None


class Ending:
    """The steps; the caller holds the entry's lock."""

    def __init__(self, store: "Store", clock: "Clock", topics: "Topics", offsets: "Offsets") -> None:
        self._store = store
        self._clock = clock
        self._topics = topics
        self._offsets = offsets

    async def decide(self, entry: Entry, prepared: Transaction) -> None:
        """From an open transaction to PREPARE. Raises ApiError or StoreError, and then it is still open."""
        fenced = prepared.producer != entry.current.producer
        entry.barred = ErrorCode.INVALID_PRODUCER_EPOCH if fenced else ErrorCode.INVALID_TXN_STATE
        try:
            if prepared.state is State.PREPARE_COMMIT:
                await self._sync_data(entry.current)
            old = entry.current
            await self._store.write(lambda connection: table.save(connection, old, prepared))
            entry.current = prepared
        finally:
            entry.barred = None

    async def complete(self, entry: Entry) -> None:
        """From PREPARE to COMPLETE. Raises ApiError or StoreError, and then it can be called again."""
        transaction = entry.current
        await self._write_markers(entry)
        settlement = self._offsets.settle(transaction.producer.id, transaction.state is State.PREPARE_COMMIT)
        completed = transaction.completed(self._clock.steady_ms())

        def change(connection: sqlite3.Connection) -> None:
            table.save(connection, transaction, completed)
            settlement.write(connection)

        try:
            await self._store.write(change)
        except BaseException:
            settlement.abandon()
            raise
        settlement.apply()
        entry.current = completed
        entry.marked.clear()

    async def _sync_data(self, transaction: Transaction) -> None:
        """What is committed must be there after a crash; what is aborted need not."""
        partitions = self._partitions(transaction)
        outcomes = await asyncio.gather(*(each.synced() for each in partitions), return_exceptions=True)
        for partition, outcome in zip(partitions, outcomes, strict=True):
            if outcome is not None and self._exists(partition):
                raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"the data is not synced: {outcome}")

    async def _write_markers(self, entry: Entry) -> None:
        """Append the marker to every partition that lacks it, and wait until all are synced."""
        transaction = entry.current
        id, epoch = transaction.producer
        commit = transaction.state is State.PREPARE_COMMIT
        partitions = [each for each in self._partitions(transaction) if each not in entry.marked]
        appended = [each.append_marker(id, epoch, commit) for each in partitions]
        outcomes = await asyncio.gather(*appended, return_exceptions=True)
        failures = []
        for partition, outcome in zip(partitions, outcomes, strict=True):
            if outcome is None:
                entry.marked.add(partition)
            elif self._exists(partition):
                failures.append(outcome)
        if failures:
            raise ApiError(ErrorCode.CONCURRENT_TRANSACTIONS, f"no marker could be written: {failures[0]}")

    def _partitions(self, transaction: Transaction) -> "list[Partition]":
        """The partitions that are still there.

        A partition of a topic that was created again by the same name is left out, unless it was written to since.
        """
        found = []
        for key, topic_id in transaction.partitions.items():
            partition = self._topics.partition(*key)
            if partition is not None and (
                partition.topic_id == topic_id or partition.transaction_start(transaction.producer.id) is not None
            ):
                found.append(partition)
        return found

    def _exists(self, partition: "Partition") -> bool:
        return self._topics.partition(partition.topic_name, partition.index) is partition
