"""From what `hr.windowed` was asked to the operator that does it, and to the rows that it takes."""

from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from headrace.engine.encoding import named
from headrace.errors import InputError
from headrace.operators.hosting import arrow_schema
from headrace.operators.operator import Operator
from headrace.operators.sessions import Sessions
from headrace.operators.slices import Slices
from headrace.operators.sliding import SlidingWindows
from headrace.topology import Aggregate, Duration, Emit, GapSession, Hopping, Late, Sliding, Tumbling, Window

__all__ = ["WindowSpec", "input_of", "operator_of"]

OPENS, CLOSES = "_opens", "_closes"


@dataclass(frozen=True, slots=True)
class WindowSpec:
    """All that was said of a window, and of what is wanted of it."""

    window: Window
    by: tuple[str, ...]
    time: str
    aggregates: tuple[tuple[str, Aggregate], ...]
    late: Late
    until: Duration
    emit: Emit

    @property
    def revises(self) -> bool:
        """Whether a row can come out more than once."""
        return self.emit is Emit.CHANGES or self.late is Late.CORRECT


def input_of(stream: DataFrame, spec: WindowSpec) -> DataFrame:
    """The rows for the operator: all columns where rows come out as they came, else those that it looks at."""
    columns = stream.columns
    if spec.late is Late.DROP and not isinstance(spec.window, Sliding):
        needed = {*spec.by, spec.time, *(aggregate.column for _, aggregate in spec.aggregates)}
        columns = [name for name in columns if name in needed]
    return stream.select(*map(named, columns))


def operator_of(schema: StructType, spec: WindowSpec) -> Operator:
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
        case _:
            raise InputError(f"{spec.window} is not served yet", next_step="hr.tumbling, hr.hopping and hr.sliding are")
