"""The two clocks of delayed messages: `at=` follows the wall clock, `delay=` counts elapsed time."""

import time
from typing import Protocol

__all__ = ["Clock", "ElapsedTime", "SystemClock"]


class Clock(Protocol):
    """Milliseconds."""

    def wall(self) -> int:
        """Since 1970. It may jump, when somebody sets it."""

    def steady(self) -> int:
        """Since some moment. It never jumps, and goes on while the machine sleeps."""


class SystemClock:
    def wall(self) -> int:
        return time.time_ns() // 1_000_000

    def steady(self) -> int:
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


class ElapsedTime:
    """A time line that does not jump with the wall clock.

    `shift` is how far the wall clock is ahead of it. It is kept over restarts: then the wall clock tells how long the
    service was down.
    """

    def __init__(self, clock: Clock, shift: int = 0) -> None:
        self._clock = clock
        self._origin = clock.wall() - shift - clock.steady()

    def now(self) -> int:
        return self._origin + self._clock.steady()

    @property
    def shift(self) -> int:
        return self._clock.wall() - self.now()
