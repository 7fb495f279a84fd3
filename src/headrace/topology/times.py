"""What a topic's time is: a column, the broker's clock, Spark's clock, or a device's clock put right."""

from dataclasses import dataclass
from typing import TypeAlias

from headrace.errors import InputError

__all__ = [
    "UNITS",
    "ColumnTime",
    "CorrectedTime",
    "EventTime",
    "EventTimeLike",
    "IngestionTime",
    "ProcessingTime",
    "corrected_time",
    "event_time_of",
    "ingestion_time",
    "looks_like",
    "processing_time",
    "unit_of",
]

COMPUTED_TIME_COLUMN = "_event_time"
UNITS = {"12,14": "milliseconds", "15,17": "microseconds", "18,20": "nanoseconds"}
"""How many digits a time of the last decades, or of the next, has in each unit; in seconds it has ten."""


@dataclass(frozen=True, slots=True)
class ColumnTime:
    """When it happened, as the event itself says."""

    column: str

    def __str__(self) -> str:
        return self.column


@dataclass(frozen=True, slots=True)
class IngestionTime:
    """When the broker appended the record; a topic whose timestamps are the producer's cannot say."""

    column = "_timestamp"

    def __str__(self) -> str:
        return "ingestion time"


@dataclass(frozen=True, slots=True)
class ProcessingTime:
    """When Spark reads the record: replays give other times."""

    column = COMPUTED_TIME_COLUMN

    def __str__(self) -> str:
        return "processing time"


@dataclass(frozen=True, slots=True)
class CorrectedTime:
    """When it happened, by the server's clock: `occurred + (received - sent)`.

    The three are columns; `sent` and `received` are one moment on two clocks, give or take the way.
    """

    occurred: str
    sent: str
    received: str

    column = COMPUTED_TIME_COLUMN

    def __str__(self) -> str:
        return f"{self.occurred} + ({self.received} - {self.sent})"


EventTime: TypeAlias = ColumnTime | IngestionTime | ProcessingTime | CorrectedTime
EventTimeLike: TypeAlias = str | EventTime


def ingestion_time() -> IngestionTime:
    """Event time is the time at which the broker appended the record."""
    return IngestionTime()


def processing_time() -> ProcessingTime:
    """Event time is the time at which the record is processed."""
    return ProcessingTime()


def corrected_time(occurred: str, sent: str, received: str = "_timestamp") -> CorrectedTime:
    """Event time is `occurred`, moved by what the device's clock was off when it sent."""
    return CorrectedTime(occurred, sent, received)


def event_time_of(value: EventTimeLike) -> EventTime:
    """Read a column's name, or one of the times above."""
    if isinstance(value, EventTime):
        return value
    if isinstance(value, str) and value:
        return ColumnTime(value)
    raise InputError(
        f"{value!r} is not an event time",
        next_step="name a column, or write ingestion_time(), processing_time() or corrected_time(...)",
    )


def unit_of(number: int) -> str | None:
    """The unit, other than seconds, in which a number looks like a time."""
    digits = len(str(abs(number)))
    spans = {unit: map(int, span.split(",")) for span, unit in UNITS.items()}
    return next((unit for unit, (least, most) in spans.items() if least <= digits <= most), None)


def looks_like(column: str, unit: str) -> str:
    return (
        f"{column!r} looks like {unit}, and a number is read as seconds since 1970; "
        "send whole seconds, or text such as 2026-01-31T12:00:00Z"
    )
