"""Spans of time as plain values, in whole microseconds."""

import re
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeAlias

from headrace.errors import InputError
from headrace.topology.nearest import nearest

__all__ = ["Duration", "DurationLike"]

MICROSECONDS = {
    "day": 86_400_000_000,
    "hour": 3_600_000_000,
    "minute": 60_000_000,
    "second": 1_000_000,
    "millisecond": 1_000,
    "microsecond": 1,
}
# A week is read but never written: "7 days" says the same, and every reader of the text knows days. So are short forms.
READ_ALSO = {"week": 7 * MICROSECONDS["day"]}
SHORT_FORMS = {
    "us": "microseconds",
    "ms": "milliseconds",
    "s": "seconds",
    "sec": "seconds",
    "m": "minutes",
    "min": "minutes",
    "mins": "minutes",
    "h": "hours",
    "hr": "hours",
    "hrs": "hours",
    "d": "days",
    "w": "weeks",
}
# Spark keeps times and intervals as signed 64-bit microseconds.
LONGEST = 2**63 - 1

PIECE = re.compile(r"\s*([0-9]{1,19})\s*([A-Za-z]+)\s*")


@dataclass(frozen=True, slots=True, order=True)
class Duration:
    """A span of time that is not negative. `str()` gives words that `Duration.of` and Spark both read."""

    microseconds: int

    def __post_init__(self) -> None:
        if self.microseconds < 0:
            raise InputError(f"a duration of {self.microseconds} microseconds is negative")
        if self.microseconds > LONGEST:
            raise InputError("the duration is longer than 64 bits of microseconds can hold")

    @classmethod
    def of(cls, value: "DurationLike") -> "Duration":
        """Read `"1 hour 30 minutes"`, a timedelta, or a Duration."""
        if isinstance(value, Duration):
            return value
        if isinstance(value, timedelta):
            return cls(value // timedelta(microseconds=1))
        if isinstance(value, str):
            return cls(_microseconds_of(value))
        raise InputError(f"{value!r} is not a duration", next_step='write it as "5 minutes" or as a datetime.timedelta')

    @property
    def timedelta(self) -> timedelta:
        return timedelta(microseconds=self.microseconds)

    def __str__(self) -> str:
        if not self.microseconds:
            return "0 seconds"
        words = []
        rest = self.microseconds
        for unit, size in MICROSECONDS.items():
            count, rest = divmod(rest, size)
            if count:
                words.append(f"{count} {unit}" if count == 1 else f"{count} {unit}s")
        return " ".join(words)


DurationLike: TypeAlias = str | timedelta | Duration


def _microseconds_of(text: str) -> int:
    total, position, seen = 0, 0, set()
    while position < len(text):
        piece = PIECE.match(text, position)
        if piece is None:
            raise InputError(
                f"{text!r} is not a duration",
                next_step='write whole numbers with units, as in "1 hour 30 minutes"',
            )
        number, word = piece.groups()
        size = _unit_size(word, text)
        if size in seen:
            raise InputError(f"the duration {text!r} names {word} twice")
        seen.add(size)
        total += int(number) * size
        position = piece.end()
    if not seen:
        raise InputError("an empty string is not a duration", next_step='write it as "5 minutes"')
    return total


def _unit_size(word: str, text: str) -> int:
    units = MICROSECONDS | READ_ALSO
    unit = SHORT_FORMS.get(word.lower(), word.lower())
    size = units.get(unit) or units.get(unit.removesuffix("s"))
    if size is not None:
        return size
    if unit.removesuffix("s") in ("month", "year", "quarter"):
        raise InputError(
            f"the duration {text!r} has no fixed length: {word} vary",
            next_step='write it in days, as "30 days"',
        )
    meant = nearest(unit, [f"{name}s" for name in units])
    known = ", ".join(f"{name}s" for name in units)
    raise InputError(
        f"the duration {text!r} has an unknown unit {word!r}",
        next_step=f"did you mean {meant!r}?" if meant else f"the units are {known}",
    )
