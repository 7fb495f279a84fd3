"""The words a declaration or a window chooses from: guarantees, latencies, formats, stores, late rows, emits."""

from enum import Enum
from typing import Self

from headrace.errors import InputError
from headrace.topology.nearest import did_you_mean

__all__ = ["Emit", "Format", "Guarantee", "Late", "Latency", "OnError", "StateStore"]


class Choice(Enum):
    """A choice among words: said as text, kept as a member."""

    @classmethod
    def of(cls, value: str | Self) -> Self:
        """Read the word; an unknown one is refused with the nearest that is known."""
        if isinstance(value, cls):
            return value
        for member in cls:
            if member.value == value:
                return member
        step = did_you_mean(str(value), [member.value for member in cls])
        raise InputError(f"{value!r} is unknown", next_step=step)

    def __str__(self) -> str:
        return str(self.value)


class Guarantee(Choice):
    """How often an event takes effect on the sink, whatever crashes. The strongest comes first."""

    EXACTLY_ONCE = "exactly-once"
    AT_LEAST_ONCE = "at-least-once"
    AT_MOST_ONCE = "at-most-once"


class Latency(Choice):
    """How Spark runs a node: batch by batch, or row by row in its real-time mode."""

    MICRO_BATCH = "micro-batch"
    REAL_TIME = "real-time"


class Format(Choice):
    """What the bytes of a record's value are."""

    JSON = "json"
    DEBEZIUM = "debezium"
    """Changes of a table as Debezium writes them: a JSON envelope with the row before and after."""
    STRING = "string"
    BYTES = "bytes"


class StateStore(Choice):
    """Where Spark keeps what a node remembers between batches."""

    ROCKSDB = "rocksdb"
    MEMORY = "memory"


class Late(Choice):
    """What becomes of a row that comes after its window was closed."""

    DROP = "drop"
    DIVERT = "divert"
    CORRECT = "correct"


class OnError(Choice):
    """What happens when a function raises on a row: the app stops, or the row goes to the channel `.failed`."""

    STOP = "stop"
    DIVERT = "divert"


class Emit(Choice):
    """When a window's row comes out: once, when it is closed, or whenever it changes."""

    FINAL = "final"
    CHANGES = "changes"
