"""Time as the broker sees it: what is written into records, and what makes things expire."""

import time


class Clock:
    """Stamps follow the wall clock; every expiry the monotonic one, so that a jump of the wall expires nothing."""

    def __init__(self) -> None:
        self._wall_at_start = time.time()
        self._monotonic_at_start = time.monotonic()

    def monotonic(self) -> float:
        """Seconds that only ever go forward."""
        return time.monotonic()

    def wall_ms(self) -> int:
        """The time of day, for timestamps that clients see."""
        return time.time_ns() // 1_000_000

    def steady_ms(self) -> int:
        """The wall clock at the start plus the time gone since: for ages of things that outlive the process."""
        return int((self._wall_at_start + time.monotonic() - self._monotonic_at_start) * 1000)
