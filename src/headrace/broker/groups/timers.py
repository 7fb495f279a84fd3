"""Deadlines on the event loop's monotonic clock."""

import asyncio
from collections.abc import Callable

# Later than this, it was the loop that stood still. Those who are awaited may have been in time: their requests lie
# in sockets that were not read, and are served before anybody is given up.
STALL_S = 2.0


class Timer:
    """One deadline that can be moved or cancelled, any number of times.

    A heartbeat moves its member's deadline later, thousands of times a second in a big group. So a wake-up
    that comes before the deadline is kept and looks again, and moving costs no work in the loop's heap.
    """

    __slots__ = ("_callback", "_deadline", "_loop", "_wake_up")

    def __init__(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], object]) -> None:
        self._loop = loop
        self._callback = callback
        self._deadline: float | None = None
        self._wake_up: asyncio.TimerHandle | None = None

    @property
    def active(self) -> bool:
        return self._deadline is not None

    def set(self, delay_ms: float) -> None:
        """Call back once, `delay_ms` from now, whatever was set before."""
        self._deadline = self._loop.time() + max(delay_ms, 0) / 1000
        if self._wake_up is not None:
            if self._wake_up.when() <= self._deadline:
                return
            self._wake_up.cancel()
        self._wake_up = self._loop.call_at(self._deadline, self._look)

    def cancel(self) -> None:
        self._deadline = None
        if self._wake_up is not None:
            self._wake_up.cancel()
            self._wake_up = None

    def _look(self) -> None:
        self._wake_up = None
        if self._deadline is None:
            return
        now = self._loop.time()
        if now - self._deadline > STALL_S:
            self._deadline = now + STALL_S / 2
        # The loop wakes up to one tick of its clock early; what is due within that tick is due.
        if self._deadline - now > 0.001:
            self._wake_up = self._loop.call_at(self._deadline, self._look)
            return
        self._deadline = None
        self._callback()
