"""The transaction coordinator: which producer may use a transactional id, and what each request changes."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from headrace.broker.errors import ApiError, ErrorCode
from headrace.broker.store import StoreError
from headrace.broker.transactions import table
from headrace.broker.transactions.ending import Ending, Entry
from headrace.broker.transactions.producer_ids import ProducerIds
from headrace.broker.transactions.state import PartitionKey, Producer, State, Transaction

if TYPE_CHECKING:
    from headrace.broker.clock import Clock
    from headrace.broker.groups.classic.coordinator import ClassicGroups
    from headrace.broker.groups.offsets import OffsetEntry, Offsets
    from headrace.broker.settings import BrokerSettings
    from headrace.broker.store import Store
    from headrace.broker.topics import Topics

logger = logging.getLogger(__name__)

T = TypeVar("T")

FIRST_RETRY_S = 0.1
LAST_RETRY_S = 10.0


class TransactionCoordinator:
    """Serves one request at a time for each transactional id; further requests wait."""

    def __init__(
        self,
        store: "Store",
        settings: "BrokerSettings",
        clock: "Clock",
        topics: "Topics",
        offsets: "Offsets",
        groups: "ClassicGroups",
    ) -> None:
        self._store = store
        self._settings = settings
        self._clock = clock
        self._topics = topics
        self._offsets = offsets
        self._groups = groups
        self._producer_ids = ProducerIds(store)
        self._ending = Ending(store, clock, topics, offsets)
        self._entries: dict[str, Entry] = {}
        self._by_producer: dict[int, Entry] = {}
        self._working: set[asyncio.Task[Any]] = set()
        self._sweeps: list[asyncio.Task[None]] = []
        self._closed = False

    # -- life ------------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Read every transactional id. Open transactions stay open, and their timeouts restart."""
        now = self._clock.steady_ms()
        for transaction in self._store.load(table.load):
            # The wall clock may have been set back between two runs: no id lives longer for that.
            entry = Entry(transaction.touched(min(transaction.updated_ms, now)))
            entry.deadline = self._clock.monotonic() + transaction.timeout_ms / 1000
            self._entries[transaction.transactional_id] = entry
            self._by_producer[transaction.producer.id] = entry

    async def recover(self) -> None:
        """Finish every transaction whose end was decided; what cannot be done yet is retried."""
        await self._for_each(self._complete_prepared, lambda entry: entry.current.state.prepared)
        settings = self._settings
        self._sweep(self.abort_timed_out, settings.transaction_abort_timed_out_transaction_cleanup_interval_ms)
        self._sweep(self.expire_ids, settings.transaction_remove_expired_transaction_cleanup_interval_ms)

    def close(self) -> None:
        """Stop the timers. A transaction that is being ended is finished now, or after the next start."""
        self._closed = True
        retries = [entry.retrying for entry in self._entries.values() if entry.retrying is not None]
        for task in [*self._sweeps, *retries]:
            task.cancel()
        self._sweeps.clear()

    async def settle(self, limit_s: float = 3.0) -> None:
        """Wait, up to a limit, for requests in progress, including those whose client has disconnected."""
        if self._working:
            await asyncio.wait(self._working, timeout=limit_s)

    # -- requests --------------------------------------------------------------------------------------------

    async def init_producer_id(
        self, transactional_id: str | None, timeout_ms: int, expected: Producer | None = None
    ) -> Producer:
        """A producer id and epoch that fence the previous producer of the transactional id.

        `expected` is who the client is already, if it only wants a new epoch to go on with after an error.
        """
        if transactional_id is None:
            return Producer(await self._detached(self._fresh_id()), 0)
        longest = self._settings.transaction_max_timeout_ms
        if transactional_id and not 0 < timeout_ms <= longest:
            raise ApiError(
                ErrorCode.INVALID_TRANSACTION_TIMEOUT,
                f"the timeout must lie between 1 and transaction.max.timeout.ms, which is {longest}",
            )

        async def initialise(entry: Entry) -> Producer:
            return await self._initialise(entry, timeout_ms, expected)

        return await self._alone(transactional_id, initialise, create=True)

    async def add_partitions(
        self,
        transactional_id: str,
        producer: Producer,
        partitions: Iterable[PartitionKey],
        connection: int = 0,
    ) -> None:
        """Let the producer write to these partitions in its transaction; opens one if none is open."""
        keys = list(partitions)

        async def add(entry: Entry) -> None:
            self._check_request(entry, producer, connection)
            self._check_not_ending(entry)
            current = entry.current
            added = {key: self._topic_id(key) for key in keys}
            if current.state is not State.ONGOING or not added.items() <= current.partitions.items():
                await self._open(entry, current.with_partitions(added, self._clock.steady_ms()))

        await self._alone(transactional_id, add)

    async def add_offsets(self, transactional_id: str, producer: Producer, group_id: str, connection: int = 0) -> None:
        """Let the producer commit offsets of this group in its transaction; opens one if none is open."""

        async def add(entry: Entry) -> None:
            self._check_request(entry, producer, connection)
            self._check_not_ending(entry)
            current = entry.current
            if current.state is not State.ONGOING or group_id not in current.groups:
                await self._open(entry, current.with_group(group_id, self._clock.steady_ms()))

        await self._alone(transactional_id, add)

    async def commit_offsets(
        self,
        transactional_id: str,
        producer: Producer,
        group_id: str,
        member_id: str,
        generation: int,
        group_instance_id: str | None,
        entries: "Sequence[OffsetEntry]",
    ) -> None:
        """Keep a group's offsets with the open transaction: they count once it is committed."""

        async def stage(entry: Entry) -> None:
            entry.current.check(producer)
            if entry.current.state is not State.ONGOING or group_id not in entry.current.groups:
                raise ApiError(ErrorCode.INVALID_TXN_STATE, f"group {group_id!r} was not added to the transaction")
            self._groups.check_commit(group_id, member_id, generation, group_instance_id, transactional=True)
            await self._offsets.stage(group_id, producer.id, entries)

        await self._alone(transactional_id, stage)

    async def end(self, transactional_id: str, producer: Producer, commit: bool, connection: int = 0) -> None:
        """Commit or abort the open transaction; returns once that is complete on every partition."""

        async def end(entry: Entry) -> None:
            self._check_request(entry, producer, connection)
            state = entry.current.state
            if state is State.ONGOING:
                await self._ending.decide(entry, entry.current.prepared(commit, self._clock.steady_ms()))
                await self._ending.complete(entry)
            elif state is (State.PREPARE_COMMIT if commit else State.PREPARE_ABORT):
                await self._ending.complete(entry)
            elif state is not (State.COMPLETE_COMMIT if commit else State.COMPLETE_ABORT):
                wish = "commit" if commit else "abort"
                raise ApiError(ErrorCode.INVALID_TXN_STATE, f"cannot {wish} a transaction in state {state}")

        await self._alone(transactional_id, end)

    def check_produce(
        self, transactional_id: str | None, producer_id: int, producer_epoch: int, topic: str, partition: int
    ) -> None:
        """Refuse a batch that belongs to no open transaction. To be called right before it is appended."""
        entry = self._by_producer.get(producer_id)
        if entry is None or entry.current.transactional_id != transactional_id:
            if transactional_id is None:
                raise ApiError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "the request names no transactional id")
            raise ApiError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        current = entry.current
        if producer_epoch != current.producer.epoch:
            raise ApiError(ErrorCode.INVALID_PRODUCER_EPOCH)
        if entry.barred is not None:
            raise ApiError(entry.barred)
        if current.state is not State.ONGOING or (topic, partition) not in current.partitions:
            raise ApiError(ErrorCode.INVALID_TXN_STATE, f"{topic}-{partition} was not added to the transaction")

    def get(self, transactional_id: str) -> Transaction | None:
        entry = self._entries.get(transactional_id)
        return entry.current if entry is not None and entry.current.known else None

    def all(self) -> list[Transaction]:
        return [entry.current for entry in self._entries.values() if entry.current.known]

    # -- time ------------------------------------------------------------------------------------------------

    async def abort_timed_out(self) -> None:
        """Abort the transactions that exceed their timeout, and fence their producers."""

        async def abort(entry: Entry) -> None:
            if self._timed_out(entry):
                logger.info("the transaction of %r timed out and is aborted", entry.current.transactional_id)
                await self._ending.decide(entry, entry.current.fenced(None, self._clock.steady_ms()))
                await self._ending.complete(entry)

        await self._for_each(abort, self._timed_out)

    async def expire_ids(self) -> None:
        """Forget the transactional ids that were idle for transactional.id.expiration.ms."""

        async def expire(entry: Entry) -> None:
            if self._idle_too_long(entry):
                name = entry.current.transactional_id
                await self._store.write(lambda connection: table.remove(connection, name))
                del self._entries[name]
                del self._by_producer[entry.current.producer.id]

        await self._for_each(expire, self._idle_too_long)

    def _timed_out(self, entry: Entry) -> bool:
        return entry.current.state is State.ONGOING and entry.deadline < self._clock.monotonic()

    def _idle_too_long(self, entry: Entry) -> bool:
        current = entry.current
        if not current.known or current.state is State.ONGOING or current.state.prepared:
            return False
        return self._clock.steady_ms() - current.updated_ms >= self._settings.transactional_id_expiration_ms

    async def _for_each(self, action: Callable[[Entry], Awaitable[None]], due: Callable[[Entry], bool]) -> None:
        names = [name for name, entry in self._entries.items() if due(entry)]
        outcomes = await asyncio.gather(*(self._alone(name, action) for name in names), return_exceptions=True)
        for name, outcome in zip(names, outcomes, strict=True):
            if isinstance(outcome, ApiError):
                logger.warning("transactional id %r: %s; it will be tried again", name, outcome)
            elif isinstance(outcome, BaseException):
                raise outcome

    def _sweep(self, action: Callable[[], Awaitable[None]], interval_ms: int) -> None:
        async def sweep() -> None:
            while True:
                await asyncio.sleep(interval_ms / 1000)
                try:
                    await action()
                except Exception:
                    logger.exception("looking through the transactional ids failed; it will be tried again")

        self._sweeps.append(asyncio.create_task(sweep()))

    # -- one at a time ---------------------------------------------------------------------------------------

    async def _alone(
        self, transactional_id: str, action: Callable[[Entry], Awaitable[T]], *, create: bool = False
    ) -> T:
        """Run `action` while no other runs for this id, and to its end even if the client goes away."""
        return await self._detached(self._locked(transactional_id, action, create))

    async def _detached(self, work: Coroutine[Any, Any, T]) -> T:
        task = asyncio.create_task(work)
        self._working.add(task)
        task.add_done_callback(self._working.discard)
        return await asyncio.shield(task)

    async def _locked(self, transactional_id: str, action: Callable[[Entry], Awaitable[T]], create: bool) -> T:
        if not transactional_id:
            raise ApiError(ErrorCode.INVALID_REQUEST, "the transactional id is empty")
        while True:
            entry = self._entries.get(transactional_id)
            if entry is None:
                if not create:
                    raise ApiError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
                entry = self._entries[transactional_id] = Entry(Transaction(transactional_id))
            async with entry.lock:
                if self._entries.get(transactional_id) is not entry:
                    continue  # it expired while this request waited
                try:
                    return await action(entry)
                except StoreError as error:
                    raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(error)) from error
                finally:
                    if not entry.current.known:
                        del self._entries[transactional_id]
                    if entry.current.state.prepared and entry.retrying is None and not self._closed:
                        entry.retrying = asyncio.create_task(self._keep_completing(entry))

    async def _keep_completing(self, entry: Entry) -> None:
        delay = FIRST_RETRY_S
        while entry.current.state.prepared:
            await asyncio.sleep(delay)
            delay = min(2 * delay, LAST_RETRY_S)
            try:
                await self._alone(entry.current.transactional_id, self._complete_prepared)
            except ApiError as error:
                logger.warning("transactional id %r: %s; retrying", entry.current.transactional_id, error)
        entry.retrying = None

    async def _complete_prepared(self, entry: Entry) -> None:
        if entry.current.state.prepared:
            await self._ending.complete(entry)

    # -- what requests are made of ---------------------------------------------------------------------------

    async def _initialise(self, entry: Entry, timeout_ms: int, expected: Producer | None) -> Producer:
        if not entry.current.admits(expected):
            raise ApiError(ErrorCode.PRODUCER_FENCED)
        if entry.current.state is State.ONGOING:
            await self._ending.decide(entry, entry.current.fenced(expected, self._clock.steady_ms()))
        await self._complete_prepared(entry)
        old = entry.current
        fresh_id = await self._fresh_id() if old.needs_fresh_id(expected) else None
        new = old.initialised(expected, fresh_id, timeout_ms, self._clock.steady_ms())
        await self._save(entry, new)
        self._by_producer.pop(old.producer.id, None)
        self._by_producer[new.producer.id] = entry
        entry.connection = 0
        return new.producer

    async def _fresh_id(self) -> int:
        try:
            return await self._producer_ids.allocate()
        except StoreError as error:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(error)) from error

    def _check_request(self, entry: Entry, producer: Producer, connection: int) -> None:
        """Refuse an unknown producer, a fenced producer, and a request that its sender has given up.

        A client opens a new connection once it has given up the old one. What still arrives on the old one
        was meant for an earlier transaction, and must neither end nor open a later one (KAFKA-17754).
        """
        entry.current.check(producer)
        if connection < entry.connection:
            raise ApiError(ErrorCode.INVALID_TXN_STATE, "the producer has a newer connection")
        entry.connection = connection

    @staticmethod
    def _check_not_ending(entry: Entry) -> None:
        if entry.current.state.prepared:
            raise ApiError(ErrorCode.CONCURRENT_TRANSACTIONS)

    def _topic_id(self, key: PartitionKey) -> UUID:
        partition = self._topics.partition(*key)
        if partition is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return partition.topic_id

    async def _open(self, entry: Entry, opened: Transaction) -> None:
        first = entry.current.state is not State.ONGOING
        await self._save(entry, opened)
        if first:
            entry.deadline = self._clock.monotonic() + opened.timeout_ms / 1000

    async def _save(self, entry: Entry, new: Transaction) -> None:
        old = entry.current
        await self._store.write(lambda connection: table.save(connection, old, new))
        entry.current = new
