"""What is known of one transactional id, and how each request changes it: plain values."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NamedTuple
from uuid import UUID

from headrace.broker.errors import ApiError, ErrorCode

NO_EPOCH = -1
# The highest epoch is the coordinator's own, so that it can fence even the client that has the one below.
FENCING_EPOCH = 2**15 - 1
LAST_EPOCH = FENCING_EPOCH - 1

PartitionKey = tuple[str, int]


class State(StrEnum):
    """The state of a transactional id, by Kafka's names. (Kafka's Dead is one that was removed.)"""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"

    @property
    def prepared(self) -> bool:
        return self is State.PREPARE_COMMIT or self is State.PREPARE_ABORT


class Producer(NamedTuple):
    """One incarnation of a producer."""

    id: int
    epoch: int


NOBODY = Producer(-1, NO_EPOCH)


@dataclass(frozen=True, slots=True)
class Transaction:
    """The durable facts of one transactional id. A change makes a new value, valid once the store has it."""

    transactional_id: str
    producer: Producer = NOBODY
    predecessor: Producer = NOBODY
    """Who the client was when it asked to become `producer`. Asking once more as that one is a retry."""
    timeout_ms: int = 0
    state: State = State.EMPTY
    started_ms: int = -1
    updated_ms: int = -1
    partitions: Mapping[PartitionKey, UUID] = field(default_factory=dict)
    """Each with the id its topic had: one that is made again under the same name is another topic."""
    groups: frozenset[str] = frozenset()

    @property
    def known(self) -> bool:
        """Whether any producer was ever given out under this id."""
        return self.producer.epoch != NO_EPOCH

    def check(self, producer: Producer) -> None:
        """Refuse anyone but the current incarnation."""
        if not self.known or producer.id != self.producer.id:
            raise ApiError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        if producer.epoch != self.producer.epoch:
            raise ApiError(ErrorCode.PRODUCER_FENCED)

    # -- a new incarnation -----------------------------------------------------------------------------------

    def admits(self, expected: Producer | None) -> bool:
        """Whether a client that names its id and epoch may have a new epoch: only the current one, or its retry."""
        if expected is None or not self.known or expected == self.producer:
            return True
        # Once a transaction is open, the answer to the first try must have arrived: this one is a straggler.
        return expected == self.predecessor and self.state is not State.ONGOING

    def _retried(self, expected: Producer | None) -> bool:
        return self.known and expected is not None and expected == self.predecessor

    def needs_fresh_id(self, expected: Producer | None) -> bool:
        """Whether the next incarnation needs a new producer id: the first does, and after the last epoch."""
        if self._retried(expected):
            return self.producer.epoch == FENCING_EPOCH
        return not self.known or self.producer.epoch >= LAST_EPOCH

    def initialised(self, expected: Producer | None, fresh_id: int | None, timeout_ms: int, now: int) -> "Transaction":
        """The next incarnation; `fresh_id` is given where `needs_fresh_id` asked for it."""
        retried = self._retried(expected)
        if fresh_id is not None:
            producer = Producer(fresh_id, 0)
        elif retried:
            producer = self.producer
        else:
            producer = Producer(self.producer.id, self.producer.epoch + 1)
        if retried:
            predecessor = self.predecessor
        elif expected is not None and self.known:
            predecessor = self.producer
        else:
            predecessor = NOBODY
        return Transaction(self.transactional_id, producer, predecessor, timeout_ms, State.EMPTY, updated_ms=now)

    # -- a transaction ---------------------------------------------------------------------------------------

    def with_partitions(self, partitions: Mapping[PartitionKey, UUID], now: int) -> "Transaction":
        return replace(self._opened(now), partitions={**self.partitions, **partitions})

    def with_group(self, group_id: str, now: int) -> "Transaction":
        return replace(self._opened(now), groups=self.groups | {group_id})

    def _opened(self, now: int) -> "Transaction":
        started = self.started_ms if self.state is State.ONGOING else now
        return replace(self, state=State.ONGOING, started_ms=started, updated_ms=now)

    def prepared(self, commit: bool, now: int) -> "Transaction":
        return replace(self, state=State.PREPARE_COMMIT if commit else State.PREPARE_ABORT, updated_ms=now)

    def fenced(self, expected: Producer | None, now: int) -> "Transaction":
        """Aborting, with an epoch that fences the producer of the transaction.

        If that producer itself asks, as `expected`, it may have that epoch when it is asked for in a retry.
        """
        return replace(
            self.prepared(False, now),
            producer=Producer(self.producer.id, self.producer.epoch + 1),
            predecessor=expected or NOBODY,
        )

    def completed(self, now: int) -> "Transaction":
        state = State.COMPLETE_COMMIT if self.state is State.PREPARE_COMMIT else State.COMPLETE_ABORT
        return replace(self, state=state, updated_ms=now, partitions={}, groups=frozenset())

    def touched(self, now: int) -> "Transaction":
        return replace(self, updated_ms=now)
