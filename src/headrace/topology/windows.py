"""Windows as plain values: the second argument of `hr.windowed`."""

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from headrace.errors import InputError
from headrace.topology.duration import Duration, DurationLike
from headrace.topology.nearest import did_you_mean

__all__ = [
    "EventSession",
    "GapSession",
    "Hopping",
    "Since",
    "Sliding",
    "Tumbling",
    "Window",
    "hopping",
    "session",
    "sliding",
    "tumbling",
]


class Since(Enum):
    """From which event a session's timeout counts."""

    FIRST = "first"
    LAST = "last"


@dataclass(frozen=True, slots=True)
class Tumbling:
    """Windows of one size, one after the other, aligned to 1970-01-01 UTC."""

    size: Duration

    def __str__(self) -> str:
        return f"tumbling {self.size}"


@dataclass(frozen=True, slots=True)
class Hopping:
    """Windows of one size, a new one at every interval, so that they overlap."""

    size: Duration
    every: Duration

    def __str__(self) -> str:
        return f"hopping {self.size} every {self.every}"


@dataclass(frozen=True, slots=True)
class Sliding:
    """A window per event: the span that precedes it, itself included."""

    size: Duration

    def __str__(self) -> str:
        return f"sliding {self.size}"


@dataclass(frozen=True, slots=True)
class GapSession:
    """Events of a key with no pause between them as long as the gap."""

    gap: Duration

    def __str__(self) -> str:
        return f"session with gaps under {self.gap}"


@dataclass(frozen=True, slots=True)
class EventSession:
    """From an event that opens it to one that closes it, or to the timeout. Conditions are SQL on a row."""

    opens: str
    timeout: Duration
    since: Since
    closes: str | None

    def __str__(self) -> str:
        end = f"{self.timeout} after its {self.since.value} event"
        return f"session from {self.opens} to {f'{self.closes} or ' if self.closes else ''}{end}"


Window: TypeAlias = Tumbling | Hopping | Sliding | GapSession | EventSession


def tumbling(size: DurationLike) -> Tumbling:
    """Windows of one size, one after the other: each event is in exactly one."""
    return Tumbling(_span("a tumbling window's size", size))


def hopping(size: DurationLike, every: DurationLike) -> Hopping:
    """Windows of one size, a new one at every interval: an event is in all that cover it."""
    window = Hopping(_span("a hopping window's size", size), _span("a hopping window's `every`", every))
    if window.every > window.size:
        raise InputError(
            f"a hopping window of {window.size} every {window.every} leaves gaps that no window covers",
            next_step=f"set `every` to at most {window.size}",
        )
    return window


def sliding(size: DurationLike) -> Sliding:
    """For each event, the span that precedes it, the event included."""
    return Sliding(_span("a sliding window's size", size))


def session(
    gap: DurationLike | None = None,
    *,
    opens: str | None = None,
    timeout: DurationLike | None = None,
    since: str | None = None,
    closes: str | None = None,
) -> GapSession | EventSession:
    """Periods of activity: until a `gap` without events, or from an event that `opens` a session until a `timeout`.

    The timeout counts from the last event, or from the first with `since="first"`. An event that `closes` the session
    ends it earlier.
    """
    if gap is not None and opens is None and timeout is None and closes is None and since is None:
        return GapSession(_span("a session's gap", gap))
    if gap is not None or opens is None or timeout is None:
        raise InputError(
            "a session needs either a gap, or opens= and timeout=",
            next_step='write session("30 minutes"), or session(opens="type = 1", timeout="30 minutes")',
        )
    for name, condition in (("opens", opens), ("closes", closes)):
        if condition is not None and not condition.strip():
            raise InputError(f"a session's `{name}` is empty", next_step="write a condition in SQL")
    try:
        counted_from = Since.LAST if since is None else Since(since)
    except ValueError:
        step = did_you_mean(str(since), [choice.value for choice in Since])
        raise InputError(f"a session's `since` is {since!r}", next_step=step) from None
    return EventSession(opens, _span("a session's timeout", timeout), counted_from, closes)


def _span(what: str, value: DurationLike) -> Duration:
    duration = Duration.of(value)
    if not duration.microseconds:
        raise InputError(f"{what} is zero", next_step='write a duration such as "5 minutes"')
    return duration
