"""One partition as a share group reads it: which records can be given out, to whom, and who waits for more."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from headrace.broker.errors import ApiError, ErrorCode
from headrace.broker.group_settings import READ_COMMITTED, GroupConfig
from headrace.broker.groups.share.window import Ack, Ranges, Run, Stored, Window
from headrace.broker.groups.timers import Timer
from headrace.broker.storage.partition import Partition
from headrace.broker.storage.reading import Slice, headers, read

# So much of the log is looked at for one answer: what is read ahead of the records asked for costs time.
_BYTES_AT_ONCE = 1024 * 1024


class Acquired(NamedTuple):
    first: int
    last: int
    delivery_count: int


class Waiter(Protocol):
    """A fetch that found nothing."""

    def wake(self) -> None: ...


@dataclass(slots=True)
class Plan:
    """What an answer could give out of one partition; nothing is acquired yet."""

    runs: list[Run] = field(default_factory=list)
    records: Slice | None = None
    count: int = 0


class SharePartition:
    def __init__(
        self,
        log: Partition,
        window: Window,
        config: Callable[[], GroupConfig],
        changed: Callable[["SharePartition"], asyncio.Future[None]],
        state_epoch: int = 0,
    ) -> None:
        self.log = log
        self.window = window
        self.state_epoch = state_epoch
        self.waiting: dict[Waiter, None] = {}
        self.gone = False
        self._config = config
        self._changed = changed
        self._settling: Ranges = []
        self._loop = asyncio.get_running_loop()
        self._locks_over = Timer(self._loop, self._expire)

    # Giving out

    @property
    def _limit(self) -> int:
        """Before it, records may be read."""
        committed = self._config().share_isolation_level == READ_COMMITTED
        return self.log.last_stable_offset if committed else self.log.high_watermark

    @property
    def has_more(self) -> bool:
        window = self.window
        offset = window.next_available()
        if offset >= self._limit:
            return False
        return offset < window.end or offset < window.start + self._config().share_partition_max_record_locks

    def plan(self, most: int, max_bytes: int) -> Plan | None:
        """Find up to `most` records. Raises NotReady where the log's bytes are not at hand.

        Offsets on the way that nobody can be given are archived: transaction markers, aborted records, and gaps.
        """
        self._follow_log()
        if most <= 0 or not self.has_more:
            return None
        limit, width = self._limit, self._config().share_partition_max_record_locks
        expected = self.window.next_available()
        found = read(self.log, expected, limit, min(max_bytes, _BYTES_AT_ONCE), at_least_one=True)
        if found is None:
            return None
        aborted = self._aborted(expected, limit)
        plan = Plan()
        without_record: Ranges = []
        for byte, batch in headers(found):
            if batch.base_offset > expected:
                without_record.append((expected, batch.base_offset - 1))
            first, last = max(batch.base_offset, expected), batch.next_offset - 1
            expected = batch.next_offset
            if batch.control or (
                batch.transactional
                and any(start <= batch.base_offset <= end for start, end in aborted.get(batch.producer_id, ()))
            ):
                without_record.append((first, last))
                continue
            before = plan.count
            on = self._add(plan, self.window.available(first, last, width), most)
            if plan.count > before:
                begin = byte if plan.records is None else plan.records.byte
                plan.records = Slice(found.file, begin, byte + batch.size - begin)
            if not on or (plan.count and plan.count == before):
                break
        for first, last in without_record:
            self.window.archive(first, last)
        if without_record:
            self._changed(self)
        return plan if plan.count else None

    def _add(self, plan: Plan, runs: Iterable[Run], most: int) -> bool:
        """Put runs of one batch into the plan; whether it may go on with the next batch."""
        for run in runs:
            suspicion = self._suspicion(run)
            if suspicion and plan.runs:
                return False
            length = max(min(run.length, most - plan.count) >> suspicion, 1)
            plan.runs.append(Run(run.first, run.first + length - 1, run.deliveries))
            plan.count += length
            if suspicion or plan.count >= most:
                return False
        return True

    def _suspicion(self, run: Run) -> int:
        """How often to halve what is given out: of records that came back again and again, one may be the cause.

        It would take the others along until all of them were delivered too often. So they are given out in smaller
        and smaller parts, alone, and at the last delivery one by one.
        """
        limit = self._config().share_delivery_count_limit
        suspicious = max(limit // 2, 2)
        if run.deliveries + 1 >= limit:
            return run.length.bit_length()
        return max(run.deliveries - suspicious + 1, 0)

    def _aborted(self, start: int, end: int) -> dict[int, Ranges]:
        """For readers of committed records: from where to where each producer's aborted transactions go."""
        found: dict[int, Ranges] = {}
        if self._config().share_isolation_level == READ_COMMITTED:
            for entry in self.log.aborted_between(start, end):
                found.setdefault(entry.producer_id, []).append((entry.first_offset, entry.last_offset))
        return found

    def take(self, plan: Plan, member: str, batch_size: int) -> list[Acquired]:
        """Acquire what was planned a moment ago."""
        deadline = self._loop.time() + self._config().share_record_lock_duration_ms / 1000
        acquired = []
        for run in plan.runs:
            step = batch_size if batch_size > 0 else run.length
            for first in range(run.first, run.last + 1, step):
                part = Run(first, min(first + step - 1, run.last), run.deliveries)
                self.window.acquire(part, member, deadline)
                acquired.append(Acquired(part.first, part.last, part.deliveries + 1))
        self._watch_locks()
        return acquired

    # Taking back

    def acknowledge(self, member: str, acks: Sequence[Ack]) -> asyncio.Future[None] | None:
        """Take what the member says of records it holds; durable once the future is done. None: nothing to write."""
        self._check_there()
        self._follow_log()
        config = self._config()
        until = self._loop.time() + config.share_record_lock_duration_ms / 1000
        settling = self.window.acknowledge(member, acks, config.share_delivery_count_limit, until)
        self._watch_locks()
        if not settling:
            return None
        self._settling += settling
        return self._changed(self)

    def release(self, member: str) -> asyncio.Future[None] | None:
        """Give back all that the member holds."""
        if not self.window.release(member, self._config().share_delivery_count_limit):
            return None
        durable = self._changed(self)
        self.wake()
        return durable

    def _expire(self) -> None:
        if self.window.expire(self._loop.time() + 0.001, self._config().share_delivery_count_limit):
            self._changed(self)
        self._watch_locks()
        self.wake()

    def _watch_locks(self) -> None:
        deadline = self.window.locks.next_deadline()
        if deadline is None:
            self._locks_over.cancel()
        else:
            self._locks_over.set((deadline - self._loop.time()) * 1000)

    def _follow_log(self) -> None:
        if self.log.log_start > self.window.start:
            self.window.move_start(self.log.log_start)

    def _check_there(self) -> None:
        if self.gone or self.log.deleted:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    # Writing

    def begin_write(self) -> tuple[Stored, Ranges]:
        settling, self._settling = self._settling, []
        return self.window.stored(), settling

    def end_write(self, settled: Ranges, durable: bool) -> None:
        self.window.settle(settled, durable)
        self._watch_locks()
        self.wake()

    # Waiting

    def wait(self, waiter: Waiter) -> None:
        self.waiting[waiter] = None
        self.log.waiters[self] = None

    def stop_waiting(self, waiter: Waiter) -> None:
        self.waiting.pop(waiter, None)
        if not self.waiting:
            self.log.waiters.pop(self, None)

    def wake(self) -> None:
        """Let those who wait have what is there now: one after the other, as long as there is any."""
        for waiter in list(self.waiting):
            if not self.has_more:
                return
            waiter.wake()

    def close(self) -> None:
        self.gone = True
        self._locks_over.cancel()
        self.log.waiters.pop(self, None)
