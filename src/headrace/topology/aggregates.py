"""Aggregates as plain values: the arguments of a window's `.agg(...)`.

Some have the names of Python's built-in functions: use them through the package, as in `hr.sum("amount")`.
"""

from dataclasses import dataclass
from enum import Enum
from typing import NoReturn

from headrace.errors import InputError

__all__ = [
    "Aggregate",
    "AggregateKind",
    "collect",
    "count",
    "count_distinct",
    "first",
    "last",
    "max",
    "mean",
    "min",
    "sum",
]


SPARK_NAMES = ("alias", "name", "as_")


class AggregateKind(Enum):
    COUNT = "count"
    SUM = "sum"
    MIN = "min"
    MAX = "max"
    MEAN = "mean"
    FIRST = "first"
    LAST = "last"
    COUNT_DISTINCT = "count_distinct"
    COLLECT = "collect"


@dataclass(frozen=True, slots=True)
class Aggregate:
    """One value computed from the rows of a window; the column is None only if rows are counted."""

    kind: AggregateKind
    column: str | None

    def __str__(self) -> str:
        return f"{self.kind.value}({self.column or '*'})"

    @property
    def call(self) -> str:
        """What it is written as."""
        column = "" if self.column is None else f'"{self.column}"'
        return f"hr.{self.kind.value}({column})"

    def __getattr__(self, name: str) -> NoReturn:
        if name in SPARK_NAMES:
            raise InputError(
                f"hr.{self.kind.value} has no .{name}: the keyword in .agg() is the name of the result",
                next_step=f"write .agg(total={self.call})",
            )
        raise AttributeError(f"an aggregate has no attribute {name!r}")


def count(column: str | None = None) -> Aggregate:
    """The number of rows, or of values of a column that are not null."""
    if column == "*":
        raise InputError('count("*"): "*" is not a column', next_step="write hr.count() to count rows")
    return Aggregate(AggregateKind.COUNT, None) if column is None else _of(AggregateKind.COUNT, column)


def sum(column: str) -> Aggregate:
    """The sum of the values; null if there are none."""
    return _of(AggregateKind.SUM, column)


def min(column: str) -> Aggregate:
    """The smallest value."""
    return _of(AggregateKind.MIN, column)


def max(column: str) -> Aggregate:
    """The largest value."""
    return _of(AggregateKind.MAX, column)


def mean(column: str) -> Aggregate:
    """The average of the values that are not null."""
    return _of(AggregateKind.MEAN, column)


def first(column: str) -> Aggregate:
    """The value of the earliest row by event time."""
    return _of(AggregateKind.FIRST, column)


def last(column: str) -> Aggregate:
    """The value of the latest row by event time."""
    return _of(AggregateKind.LAST, column)


def count_distinct(column: str) -> Aggregate:
    """The number of different values that are not null."""
    return _of(AggregateKind.COUNT_DISTINCT, column)


def collect(column: str) -> Aggregate:
    """All values that are not null, as an array in the order of event time."""
    return _of(AggregateKind.COLLECT, column)


def _of(kind: AggregateKind, column: str) -> Aggregate:
    if not isinstance(column, str) or not column.strip():
        raise InputError(
            f"{kind.value} of {column!r}: an aggregate needs the name of a column",
            next_step=f'write {kind.value}("amount"); compute new columns before the window',
        )
    return Aggregate(kind, column)
