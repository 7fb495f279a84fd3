"""The records of a partition that a share group is working on, from its start offset on: who holds which, how often.

    Available ──acquire──▶ Acquired ──accept──▶ Acknowledged (final)
        ▲                     │ │
        └──release, time-out──┘ └──reject, or delivered too often──▶ Archived (final)

An acknowledgement becomes final once it is durable. Until then its records are settling: nobody else can acquire or
acknowledge them. Each record has one byte for its state and one for its finished deliveries, so that what concerns
many records is done by the bytes' own methods, not in a loop.
"""

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from headrace.broker.errors import ApiError, ErrorCode
from headrace.broker.groups.share.locks import NO_LOCK, Lock, Locks

AVAILABLE, ACQUIRED, ACKNOWLEDGED, ARCHIVED = 0, 1, 2, 4
_SETTLING = 8  # with the state that the records have as soon as that is durable
_FINAL = bytes((ACKNOWLEDGED, ARCHIVED))

GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)
_ASKED = {
    GAP: ARCHIVED | _SETTLING,
    ACCEPT: ACKNOWLEDGED | _SETTLING,
    RELEASE: AVAILABLE | _SETTLING,
    REJECT: ARCHIVED | _SETTLING,
}


def _table(changes: dict[int, int]) -> bytes:
    return bytes(changes.get(value, value) for value in range(256))


_SETTLED = _table({state | _SETTLING: state for state in (AVAILABLE, ACKNOWLEDGED, ARCHIVED)})
# As it is stored: an acquisition is not, so that after a crash the record is available with the deliveries it had.
_STORED = _table({ACQUIRED: AVAILABLE} | {s | _SETTLING: s for s in (AVAILABLE, ACKNOWLEDGED, ARCHIVED)})
_ONE_MORE = _table({count: count + 1 for count in range(255)})


class Ack(NamedTuple):
    """What a member says of a range of offsets: one type for all of them, or one for each."""

    first: int
    last: int
    types: Sequence[int]


class Run(NamedTuple):
    """Neighbours that can be acquired and were delivered equally often."""

    first: int
    last: int
    deliveries: int

    @property
    def length(self) -> int:
        return self.last - self.first + 1


class Stored(NamedTuple):
    """A window as the store has it."""

    start: int
    states: bytes
    deliveries: bytes


Ranges = list[tuple[int, int]]


class Window:
    def __init__(self, start: int, states: bytes = b"", deliveries: bytes = b"") -> None:
        self.start = start
        self._states = bytearray(states)
        self._deliveries = bytearray(deliveries)
        self._locked_by = array("Q", bytes(8 * len(states)))
        self.locks = Locks()

    @property
    def end(self) -> int:
        """The first offset that nobody has acquired yet."""
        return self.start + len(self._states)

    @property
    def final(self) -> int:
        """How many records past the start are acknowledged or archived."""
        return sum(self._states.count(state) for state in _FINAL)

    @property
    def acquired(self) -> int:
        return self._states.count(ACQUIRED)

    def state(self, offset: int) -> int:
        return self._states[offset - self.start]

    def next_available(self) -> int:
        """The first offset that can be acquired; past the window's end, if the log has more."""
        found = self._states.find(AVAILABLE)
        return self.end if found < 0 else self.start + found

    def available(self, first: int, last: int, width: int) -> Iterator[Run]:
        """What of a range can be acquired while the window is at most `width` offsets wide."""
        states, deliveries = self._states, self._deliveries
        at, stop = max(first - self.start, 0), min(last - self.start + 1, len(states))
        while at < stop and (at := states.find(AVAILABLE, at, stop)) >= 0:
            length = stop - at - len(states[at:stop].lstrip(b"\0"))
            equal = length - len(deliveries[at : at + length].lstrip(deliveries[at : at + 1]))
            yield Run(self.start + at, self.start + at + equal - 1, deliveries[at])
            at += equal
        beyond, most = max(first, self.end), min(last, self.start + width - 1)
        if beyond <= most:
            yield Run(beyond, most, 0)

    # Acquiring

    def acquire(self, run: Run, member: str, deadline: float) -> None:
        self._reach(run.last)
        at, stop = self._place(run)
        lock = self.locks.grant(member, deadline, run.first, run.last)
        self._states[at:stop] = bytes((ACQUIRED,)) * (stop - at)
        self._locked_by[at:stop] = array("Q", (lock.id,)) * (stop - at)

    def archive(self, first: int, last: int) -> None:
        """There is no record at these offsets that anybody could be given."""
        self._reach(last)
        for run in list(self.available(first, last, 0)):
            at, stop = self._place(run)
            self._states[at:stop] = bytes((ARCHIVED,)) * (stop - at)
        self._advance()

    def _reach(self, last: int) -> None:
        more = last + 1 - self.end
        if more > 0:
            self._states.extend(bytes(more))
            self._deliveries.extend(bytes(more))
            self._locked_by.frombytes(bytes(8 * more))

    def _place(self, run: Run) -> tuple[int, int]:
        return run.first - self.start, run.last - self.start + 1

    # Acknowledging

    def acknowledge(self, member: str, acks: Sequence[Ack], limit: int, renewed_until: float) -> Ranges:
        """Take all of it or raise ApiError; what has to become durable is returned, for `settle`."""
        held = [clipped for ack in acks if (clipped := self._held(member, ack)) is not None]
        settling: Ranges = []
        for first, last, types in held:
            at = first - self.start
            for kind, stop in _runs(types, last - first + 1):
                if kind == RENEW:
                    self._renew(at, first - self.start + stop, member, renewed_until)
                else:
                    self._ask(at, first - self.start + stop, kind, limit)
                    settling.append((self.start + at, first + stop - 1))
                at = first - self.start + stop
        return settling

    def _held(self, member: str, ack: Ack) -> Ack | None:
        """The part of an acknowledgement that is not over already, all of which the member holds."""
        first, last, types = ack
        if last >= self.end:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"offset {last} was never acquired")
        if last < self.start:
            return None
        if first < self.start:
            types = types if len(types) == 1 else types[self.start - first :]
            first = self.start
        at, stop = first - self.start, last - self.start + 1
        if self._states.count(ACQUIRED, at, stop) < stop - at or any(
            self.locks.member(number) != member for number in set(self._locked_by[at:stop])
        ):
            raise ApiError(ErrorCode.INVALID_RECORD_STATE, f"offsets {first} to {last} are not held by {member}")
        return Ack(first, last, types)

    def _ask(self, at: int, stop: int, kind: int, limit: int) -> None:
        self._states[at:stop] = bytes((_ASKED[kind],)) * (stop - at)
        if kind == RELEASE:
            self._count_delivery(at, stop, limit, ARCHIVED | _SETTLING)

    def _count_delivery(self, at: int, stop: int, limit: int, too_often: int) -> None:
        counted = self._deliveries[at:stop].translate(_ONE_MORE)
        self._deliveries[at:stop] = counted
        if max(counted) >= limit:
            for place, deliveries in enumerate(counted, at):
                if deliveries >= limit:
                    self._states[place] = too_often

    def _renew(self, at: int, stop: int, member: str, deadline: float) -> None:
        self._unlock(at, stop)
        lock = self.locks.grant(member, deadline, self.start + at, self.start + stop - 1)
        self._locked_by[at:stop] = array("Q", (lock.id,)) * (stop - at)

    def settle(self, ranges: Ranges, durable: bool) -> None:
        """What was asked is durable, or could not be made so: then its member holds the records as before."""
        for first, last in ranges:
            at, stop = max(first - self.start, 0), last - self.start + 1
            if at >= stop:
                continue  # the log's start has passed it
            if durable:
                self._states[at:stop] = self._states[at:stop].translate(_SETTLED)
                self._unlock(at, stop)
            else:
                for place in range(at, stop):
                    held = self.locks.member(self._locked_by[place]) is not None
                    self._states[place] = ACQUIRED if held else AVAILABLE
        self._advance()

    # Giving back

    def expire(self, now: float, limit: int) -> bool:
        """Give back what was held for too long; whether there was any."""
        return self._give_back(self.locks.due(now), limit)

    def release(self, member: str, limit: int) -> bool:
        """Give back all that a member holds."""
        return self._give_back(self.locks.of_member(member), limit)

    def _give_back(self, locks: Iterable[Lock], limit: int) -> bool:
        any_given = False
        for lock in locks:
            first = max(lock.first - self.start, 0)
            for place in range(first, lock.last - self.start + 1):
                if self._locked_by[place] == lock.id and self._states[place] == ACQUIRED:
                    self._states[place] = AVAILABLE
                    self._locked_by[place] = NO_LOCK
                    self._count_delivery(place, place + 1, limit, ARCHIVED)
                    any_given = True
            self.locks.end(lock)
        self._advance()
        return any_given

    def _unlock(self, at: int, stop: int) -> None:
        for number, count in Counter(self._locked_by[at:stop]).items():
            self.locks.less(number, count)
        self._locked_by[at:stop] = array("Q", bytes(8 * (stop - at)))

    # The start

    def move_start(self, offset: int) -> None:
        """The log begins later now: what was before is over, whoever holds it."""
        gone = min(offset - self.start, len(self._states))
        if gone > 0:
            self._unlock(0, gone)
            self._drop(gone)
        self.start = max(self.start, offset)
        self._advance()

    def _advance(self) -> None:
        final = len(self._states) - len(self._states.lstrip(_FINAL))
        if final:
            self._drop(final)

    def _drop(self, count: int) -> None:
        del self._states[:count], self._deliveries[:count], self._locked_by[:count]
        self.start += count

    def stored(self) -> Stored:
        """As it is to be stored, with the acknowledgements that are settling."""
        states = bytes(self._states.translate(_STORED))
        final = len(states) - len(states.lstrip(_FINAL))
        states, deliveries = states[final:], bytes(self._deliveries[final:])
        known = max(len(states.rstrip(b"\0")), len(deliveries.rstrip(b"\0")))
        return Stored(self.start + final, states[:known], deliveries[:known])


def _runs(types: Sequence[int], length: int) -> Iterator[tuple[int, int]]:
    """(type, where it ends) for neighbours of the same type."""
    if len(types) == 1:
        yield types[0], length
        return
    stop = 0
    for kind, members in groupby(types):
        stop += sum(1 for _ in members)
        yield kind, stop


def check_acks(acks: Sequence[Ack], highest_type: int) -> None:
    """Whether acknowledgements of one partition make sense at all, before anybody is asked who holds what."""
    before: int | None = None
    for first, last, types in acks:
        if last < first or (before is not None and first <= before):
            raise ApiError(ErrorCode.INVALID_REQUEST, f"offsets {first} to {last} are out of order")
        if len(types) not in (1, last - first + 1):
            raise ApiError(ErrorCode.INVALID_REQUEST, f"{len(types)} types are given for offsets {first} to {last}")
        if any(not GAP <= kind <= highest_type for kind in types):
            raise ApiError(ErrorCode.INVALID_REQUEST, "the type of an acknowledgement is not allowed here")
        before = last
