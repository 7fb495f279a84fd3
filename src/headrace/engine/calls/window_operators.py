"""From the arguments of `hr.windowed` to the operator that computes it, and to the operator's input."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from headrace.engine.write.encoding import named
from headrace.errors import InputError
from headrace.operators.applying import Applying, Closing
from headrace.operators.event_sessions import CLOSES, OPENS, EventSessions
from headrace.operators.hosting import arrow_schema
from headrace.operators.operator import Operator
from headrace.operators.sessions import Sessions
from headrace.operators.slices import Slices
from headrace.operators.sliding import SlidingWindows
from headrace.topology import (
    Aggregate,
    Duration,
    Emit,
    EventSession,
    GapSession,
    Hopping,
    Late,
    Schema,
    Sliding,
    Tumbling,
    Window,
)

__all__ = ["Applied", "WindowSpec", "input_of", "operator_of"]


@dataclass(frozen=True, slots=True)
class Applied:
    """A function of the user's, and the columns that it returns."""

    function: Callable[[Any], Any]
    schema: Schema

    def __str__(self) -> str:
        return f"{getattr(self.function, '__qualname__', 'a function')} -> {self.schema.ddl}"


@dataclass(frozen=True, slots=True)
class WindowSpec:
    """A window with all its options and aggregates."""

    window: Window
    by: tuple[str, ...]
    time: str
    aggregates: tuple[tuple[str, Aggregate], ...]
    late: Late
    until: Duration
    emit: Emit
    applied: Applied | None = None
    diverts: bool = False
    """Whether rows on which the function raises are diverted."""

    @property
    def revises(self) -> bool:
        """Whether a row can be written more than once."""
        return self.emit is Emit.CHANGES or self.late is Late.CORRECT


def input_of(stream: DataFrame, spec: WindowSpec) -> DataFrame:
    """The rows for the operator: all columns if rows are written as they are, otherwise those that it uses."""
    columns = stream.columns
    if spec.late is Late.DROP and spec.applied is None and not isinstance(spec.window, Sliding):
        needed = {*spec.by, spec.time, *(aggregate.column for _, aggregate in spec.aggregates)}
        columns = [name for name in columns if name in needed]
    chosen = [named(name) for name in columns]
    if isinstance(spec.window, EventSession):
        chosen.append(_condition(stream, "opens", spec.window.opens).alias(OPENS))
        chosen.append(_condition(stream, "closes", spec.window.closes or "false").alias(CLOSES))
    return stream.select(*chosen)


def _condition(stream: DataFrame, option: str, said: str) -> Column:
    kind = stream.select(F.expr(said)).schema[0].dataType.simpleString()
    if kind != "boolean":
        raise InputError(
            f"session(): {option}: {said!r} is {kind}, not a condition",
            next_step="write a condition, such as \"type = 'login'\"",
        )
    return F.expr(said)


def operator_of(schema: StructType, spec: WindowSpec) -> Operator:
    window = _window_of(schema, spec)
    if spec.applied is None:
        return window
    assert isinstance(window, Closing)
    result = StructType.fromDDL(spec.applied.schema.ddl)
    assert isinstance(result, StructType)
    return Applying(window=window, function=spec.applied.function, result=arrow_schema(result), diverts=spec.diverts)


def _window_of(schema: StructType, spec: WindowSpec) -> Closing | SlidingWindows:
    rows = arrow_schema(schema)
    common: dict[str, Any] = {
        "by": spec.by,
        "time": spec.time,
        "aggregates": spec.aggregates,
        "late": spec.late,
        "until_us": spec.until.microseconds,
        "emit": spec.emit,
        "input": rows,
    }
    match spec.window:
        case Tumbling(size):
            return Slices(size_us=size.microseconds, every_us=size.microseconds, **common)
        case Hopping(size, every):
            return Slices(size_us=size.microseconds, every_us=every.microseconds, **common)
        case Sliding(size):
            return SlidingWindows(size_us=size.microseconds, **common)
        case GapSession(gap):
            return Sessions(gap_us=gap.microseconds, **common)
        case EventSession(_, timeout, since, _):
            return EventSessions(timeout_us=timeout.microseconds, since=since, **common)
