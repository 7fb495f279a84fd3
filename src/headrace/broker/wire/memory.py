"""The bytes of requests that are still arriving: bounded in all, and reused."""

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.broker.wire.connection import Connection

_KEPT_FREE = 8 * 1024 * 1024
_GRAIN = 64 * 1024


class RequestMemory:
    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._used = 0
        self._free: list[bytearray] = []
        self._free_bytes = 0
        self._waiting: deque[Connection] = deque()

    @property
    def exhausted(self) -> bool:
        return bool(self._waiting)

    def grant(self, size: int) -> memoryview | None:
        """Memory for a frame, or None while the limit is reached. A frame above the limit is accepted alone."""
        if self._used and self._used + size > self._limit:
            return None
        self._used += size
        for number, buffer in enumerate(self._free):
            if size <= len(buffer) <= 4 * size:
                del self._free[number]
                self._free_bytes -= len(buffer)
                return memoryview(buffer)[:size]
        return memoryview(bytearray(-(-size // _GRAIN) * _GRAIN))[:size]

    def give_back(self, frame: memoryview) -> None:
        self._used -= len(frame)
        buffer = frame.obj
        if isinstance(buffer, bytearray) and self._free_bytes + len(buffer) <= _KEPT_FREE:
            self._free.append(buffer)
            self._free_bytes += len(buffer)
        waiting, self._waiting = self._waiting, deque()
        for connection in waiting:
            connection.memory_granted()

    def queue(self, connection: "Connection") -> None:
        self._waiting.append(connection)
