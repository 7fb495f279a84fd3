"""What a partition remembers of its producers: sequences, so that a retry is no duplicate, and open transactions."""

import struct
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from headrace.broker.storage.aborted import Aborted, AbortedTransactions
from headrace.broker.storage.batch import Batch, following
from headrace.broker.wire.errors import ApiError, ErrorCode

REMEMBERED_BATCHES = 5  # as many as a producer may have in flight

_HEAD = struct.Struct(">BI")
_PRODUCER = struct.Struct(">qhqqqB")
_BATCH = struct.Struct(">iiqqq")
_VERSION = 1
_NONE = -1


class Written(NamedTuple):
    """A batch of a producer that is in the log."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    next_offset: int
    timestamp: int


class Producer:
    __slots__ = ("batches", "epoch", "last_timestamp", "touched_ms", "transaction_start")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.batches: deque[Written] = deque(maxlen=REMEMBERED_BATCHES)
        self.transaction_start: int | None = None
        self.last_timestamp = _NONE
        self.touched_ms = 0

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else _NONE


class ProducerStates:
    def __init__(self) -> None:
        self.entries: dict[int, Producer] = {}
        self.aborted = AbortedTransactions()
        self._open: dict[int, int] = {}  # producer id -> first offset, in the order of first offsets
        self._unsynced_ends: deque[tuple[int, int]] = deque()  # (offset of the marker, first offset)

    def check(self, batch: Batch) -> Written | None:
        """None if the batch is the producer's next; where it is a retry, what was written then."""
        producer = self.entries.get(batch.producer_id)
        if producer is None:
            return None
        if batch.producer_epoch < producer.epoch:
            raise ApiError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {batch.producer_id} has epoch {batch.producer_epoch}, but {producer.epoch} was seen",
            )
        if batch.producer_epoch > producer.epoch:
            if batch.base_sequence != 0:
                raise ApiError(
                    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                    f"a new epoch of producer {batch.producer_id} starts at sequence 0, not {batch.base_sequence}",
                )
            return None
        last_sequence = batch.last_sequence
        for written in producer.batches:
            if written.first_sequence == batch.base_sequence and written.last_sequence == last_sequence:
                return written
        if producer.batches and batch.base_sequence != following(producer.last_sequence, 1):
            raise ApiError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {batch.producer_id} sent sequence {batch.base_sequence} after {producer.last_sequence}",
            )
        if producer.transaction_start is not None and not batch.transactional:
            raise ApiError(
                ErrorCode.INVALID_TXN_STATE, f"producer {batch.producer_id} is in a transaction, the batch is not"
            )
        return None

    def appended(self, batch: Batch, base_offset: int, now_ms: int) -> None:
        producer = self._touch(batch.producer_id, batch.producer_epoch, batch.max_timestamp, now_ms)
        producer.batches.append(
            Written(
                batch.base_sequence,
                batch.last_sequence,
                base_offset,
                base_offset + batch.last_offset_delta + 1,
                batch.max_timestamp,
            )
        )
        if batch.transactional and producer.transaction_start is None:
            producer.transaction_start = base_offset
            self._open[batch.producer_id] = base_offset

    def ended(self, producer_id: int, epoch: int, commit: bool, offset: int, timestamp: int, now_ms: int) -> None:
        """A marker was appended at `offset`: it counts for readers once it is synced."""
        producer = self._touch(producer_id, epoch, timestamp, now_ms)
        first = producer.transaction_start
        if first is None:
            return
        producer.transaction_start = None
        del self._open[producer_id]
        self._unsynced_ends.append((offset, first))
        if not commit:
            self.aborted.add(Aborted(producer_id, first, offset))

    def synced_to(self, high_watermark: int) -> None:
        while self._unsynced_ends and self._unsynced_ends[0][0] < high_watermark:
            self._unsynced_ends.popleft()

    def first_undecided(self) -> int | None:
        """Where the earliest transaction begins whose end is not yet durable."""
        first = next(iter(self._open.values()), None)
        for _, start in self._unsynced_ends:
            if first is None or start < first:
                first = start
        return first

    def transaction_start(self, producer_id: int) -> int | None:
        return self._open.get(producer_id)

    def forget_before(self, log_start: int) -> None:
        self.aborted = AbortedTransactions(self.aborted.ended_from(log_start))

    def expire(self, before_ms: int) -> bool:
        """Forget producers unused since `before_ms`; one with an open transaction stays."""
        idle = [
            producer_id
            for producer_id, producer in self.entries.items()
            if producer.touched_ms < before_ms and producer.transaction_start is None
        ]
        for producer_id in idle:
            del self.entries[producer_id]
        return bool(idle)

    def encode(self) -> bytes:
        parts = [_HEAD.pack(_VERSION, len(self.entries))]
        for producer_id, producer in self.entries.items():
            start = _NONE if producer.transaction_start is None else producer.transaction_start
            parts.append(
                _PRODUCER.pack(
                    producer_id,
                    producer.epoch,
                    start,
                    producer.touched_ms,
                    producer.last_timestamp,
                    len(producer.batches),
                )
            )
            parts.extend(_BATCH.pack(*written) for written in producer.batches)
        return b"".join(parts)

    @classmethod
    def decode(cls, data: bytes, aborted: Iterable[Aborted]) -> "ProducerStates":
        states = cls()
        states.aborted = AbortedTransactions(aborted)
        version, count = _HEAD.unpack_from(data)
        if version != _VERSION:
            raise ValueError(f"producer state of version {version} is unknown")
        position = _HEAD.size
        open_starts = []
        for _ in range(count):
            producer_id, epoch, start, touched, last_timestamp, batches = _PRODUCER.unpack_from(data, position)
            position += _PRODUCER.size
            producer = states.entries[producer_id] = Producer(epoch)
            producer.touched_ms = touched
            producer.last_timestamp = last_timestamp
            if start != _NONE:
                producer.transaction_start = start
                open_starts.append((start, producer_id))
            for _ in range(batches):
                producer.batches.append(Written._make(_BATCH.unpack_from(data, position)))
                position += _BATCH.size
        states._open = {producer_id: start for start, producer_id in sorted(open_starts)}
        return states

    def _touch(self, producer_id: int, epoch: int, timestamp: int, now_ms: int) -> Producer:
        producer = self.entries.get(producer_id)
        if producer is None:
            producer = self.entries[producer_id] = Producer(epoch)
        elif epoch > producer.epoch:
            producer.epoch = epoch
            producer.batches.clear()
        producer.last_timestamp = timestamp
        producer.touched_ms = now_ms
        return producer
