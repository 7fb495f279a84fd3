"""Who holds which records, and until when: one lock for each range that was acquired at once."""

import heapq
from dataclasses import dataclass

NO_LOCK = 0
_FORGOTTEN = 64  # deadlines of locks that ended early, before they are worth sorting out


@dataclass(slots=True)
class Lock:
    id: int
    member: str
    deadline: float
    first: int
    last: int
    left: int


class Locks:
    def __init__(self) -> None:
        self._locks: dict[int, Lock] = {}
        self._deadlines: list[tuple[float, int]] = []
        self._next_id = NO_LOCK + 1

    def grant(self, member: str, deadline: float, first: int, last: int) -> Lock:
        lock = Lock(self._next_id, member, deadline, first, last, last - first + 1)
        self._next_id += 1
        self._locks[lock.id] = lock
        heapq.heappush(self._deadlines, (deadline, lock.id))
        return lock

    def member(self, number: int) -> str | None:
        lock = self._locks.get(number)
        return None if lock is None else lock.member

    def less(self, number: int, count: int) -> None:
        """So many records of a lock are not held by it any more."""
        lock = self._locks.get(number)
        if lock is None:
            return
        lock.left -= count
        if not lock.left:
            self.end(lock)

    def end(self, lock: Lock) -> None:
        self._locks.pop(lock.id, None)
        if len(self._deadlines) > 2 * len(self._locks) + _FORGOTTEN:
            self._deadlines = [(one.deadline, one.id) for one in self._locks.values()]
            heapq.heapify(self._deadlines)

    def next_deadline(self) -> float | None:
        while self._deadlines and self._deadlines[0][1] not in self._locks:
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def due(self, now: float) -> list[Lock]:
        found = []
        while (deadline := self.next_deadline()) is not None and deadline <= now:
            found.append(self._locks[heapq.heappop(self._deadlines)[1]])
        return found

    def of_member(self, member: str) -> list[Lock]:
        return [lock for lock in self._locks.values() if lock.member == member]
