"""`hr.windowed`: rows of a span of event time brought together, by Spark's own window where it has one.

Spark's window serves tumbling and hopping windows whose late rows are dropped. What it lacks (sliding windows,
sessions, late rows that are diverted or corrected) belongs to the vectorised operator; `_refuse_unserved` is where
the ways part.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

from headrace.engine.encoding import named
from headrace.engine.marks import event_times_of, key_of, marked_time
from headrace.errors import InputError
from headrace.topology import Aggregate, AggregateKind, Emit, Hopping, Late, Tumbling, Window
from headrace.topology.declaring import names_of
from headrace.topology.nearest import did_you_mean

__all__ = ["WINDOW_END", "WINDOW_START", "WindowUse", "Windowed", "WindowedRows", "uses_of_windows", "windowed"]

WINDOW_START, WINDOW_END = "window_start", "window_end"
WINDOW = "_window"


@dataclass(frozen=True, slots=True)
class WindowUse:
    """A window as a node used it: what its checkpoint depends on, and when its rows come out."""

    window: Window
    by: tuple[str, ...]
    time: str
    aggregates: tuple[tuple[str, Aggregate], ...]
    late: Late
    emit: Emit | None

    def describe(self) -> dict[str, Any]:
        return {
            "window": str(self.window),
            "by": list(self.by),
            "time": self.time,
            "aggregates": {name: str(aggregate) for name, aggregate in self.aggregates},
            "late": str(self.late),
        }


_uses: ContextVar[list[WindowUse] | None] = ContextVar("uses of windows", default=None)


@contextmanager
def uses_of_windows() -> Iterator[list[WindowUse]]:
    """All windows that are made inside: a DataFrame cannot say how it was asked to be emitted."""
    uses: list[WindowUse] = []
    token = _uses.set(uses)
    try:
        yield uses
    finally:
        _uses.reset(token)


class WindowedRows(ClassicDataFrame):
    """The rows of windows: a DataFrame that also has the words of a window's result."""

    def having(self, condition: str | Column) -> "WindowedRows":
        """Only the windows for which the condition holds."""
        return _as_rows(self.filter(condition))

    def with_columns(self, **columns: str | Column) -> "WindowedRows":
        """More columns, as SQL or as columns of Spark's."""
        added = {name: F.expr(value) if isinstance(value, str) else value for name, value in columns.items()}
        return _as_rows(self.withColumns(added))


@dataclass(frozen=True, slots=True)
class Windowed:
    """A stream cut into windows; `.agg` says what is wanted of each."""

    stream: DataFrame
    window: Window
    by: tuple[str, ...]
    time: str
    late: Late
    emit: Emit | None

    def agg(self, **aggregates: Aggregate) -> WindowedRows:
        """One row a window: the `by` columns, `window_start`, `window_end`, and the aggregates by their names."""
        _check_aggregates(aggregates, self.stream.columns, self.by)
        uses = _uses.get()
        if uses is not None:
            use = WindowUse(self.window, self.by, self.time, tuple(aggregates.items()), self.late, self.emit)
            uses.append(use)
        computed = [_computed(aggregate, self.time).alias(name) for name, aggregate in aggregates.items()]
        grouped = self.stream.groupBy(*map(named, self.by), _span(self.window, self.time)).agg(*computed)
        return _as_rows(
            grouped.select(
                *map(named, self.by),
                F.col(WINDOW).getField("start").alias(WINDOW_START),
                marked_time(F.col(WINDOW).getField("end"), WINDOW_END),
                *map(named, aggregates),
            )
        )


def windowed(
    stream: DataFrame,
    window: Window,
    *,
    by: str | Sequence[str] | None = None,
    late: str = "drop",
    emit: str | None = None,
) -> Windowed:
    """Cut a stream into windows of its event time, for each value of `by`: the key of its topic unless said.

    `late` says what becomes of rows that come after their window was closed. `emit="final"` gives a window's row
    once, when it is closed (a stream's default), `"changes"` whenever it changes (a view's default).
    """
    if not isinstance(stream, DataFrame):
        raise InputError(f"windowed() takes a DataFrame, not {type(stream).__name__}")
    if not isinstance(window, Window):
        raise InputError(f"{window!r} is no window", next_step='write hr.tumbling("1 minute") or one of its kin')
    kept = _choice("late", Late.of, late)
    when = None if emit is None else _choice("emit", Emit.of, emit)
    _refuse_unserved(window, kept)
    return Windowed(stream, window, _by(stream, by), _event_time(stream), kept, when)


def _refuse_unserved(window: Window, late: Late) -> None:
    if not isinstance(window, Tumbling | Hopping):
        raise InputError(
            f"a {str(window).split()[0]} window is not served yet: {window}",
            next_step="hr.tumbling and hr.hopping are",
        )
    if late is not Late.DROP:
        raise InputError(
            f'late="{late}" is not served yet', next_step='leave it out: late="drop" counts late rows and drops them'
        )


def _choice(option: str, parse: Callable[[Any], Any], value: Any) -> Any:
    try:
        return parse(value)
    except InputError as error:
        raise InputError(f"windowed(): {option}: {error.problem}", next_step=error.next_step) from None


def _by(stream: DataFrame, by: str | Sequence[str] | None) -> tuple[str, ...]:
    if by is None:
        key = key_of(stream)
        if key is None:
            raise InputError(
                "windowed() does not know by what: the columns of a topic's key are not among the rows",
                next_step='say it: by="card", or by=[] for one window over all rows',
            )
        return key
    names = names_of(by)
    for name in names:
        if name not in stream.columns:
            step = did_you_mean(name, stream.columns)
            raise InputError(f"windowed(): by: {name!r} is no column of the rows", next_step=step)
    for name in (WINDOW_START, WINDOW_END):
        if name in names:
            raise InputError(
                f"windowed(): by: {name!r} is what a window's result has itself", next_step="rename the column"
            )
    return names


def _event_time(stream: DataFrame) -> str:
    times = event_times_of(stream)
    if not times:
        raise InputError(
            "windowed() finds no event time among the rows",
            next_step="declare event_time= and lateness= of the topic, and keep that column",
        )
    if len(times) > 1:
        raise InputError(
            f"windowed() finds several event times among the rows: {', '.join(times)}",
            next_step="drop all but one before the window",
        )
    return times[0]


def _check_aggregates(aggregates: dict[str, Aggregate], columns: Sequence[str], by: Sequence[str]) -> None:
    if not aggregates:
        raise InputError("agg() was given nothing to compute", next_step="write agg(n=hr.count())")
    for name, aggregate in aggregates.items():
        if not isinstance(aggregate, Aggregate):
            raise InputError(
                f"agg(): {name} is {type(aggregate).__name__}, no aggregate",
                next_step="write hr.count() or one of its kin; Spark's own go with groupBy(F.window(...))",
            )
        if name in (*by, WINDOW_START, WINDOW_END):
            raise InputError(f"agg(): {name!r} is taken by the window's own column", next_step="choose another name")
        if aggregate.column is not None and aggregate.column not in columns:
            step = did_you_mean(aggregate.column, columns)
            raise InputError(f"agg(): {aggregate}: there is no column {aggregate.column!r}", next_step=step)


def _span(window: Window, time: str) -> Column:
    match window:
        case Hopping(size, every):
            span = F.window(named(time), str(size), str(every))
        case Tumbling(size):
            span = F.window(named(time), str(size))
        case _:
            raise AssertionError(f"{window} was refused before")
    return span.alias(WINDOW)


def _computed(aggregate: Aggregate, time: str) -> Column:
    if aggregate.column is None:
        return F.count(F.lit(1))
    value = named(aggregate.column)
    match aggregate.kind:
        case AggregateKind.COUNT:
            return F.count(value)
        case AggregateKind.SUM:
            return F.sum(value)
        case AggregateKind.MIN:
            return F.min(value)
        case AggregateKind.MAX:
            return F.max(value)
        case AggregateKind.MEAN:
            return F.avg(value)
        case AggregateKind.FIRST:
            return F.min_by(value, named(time))
        case AggregateKind.LAST:
            return F.max_by(value, named(time))
        case AggregateKind.COUNT_DISTINCT:
            # Spark refuses count(DISTINCT ...) on a stream, not the set of all values, which is as exact.
            return F.size(F.collect_set(value)).cast("bigint")
        case AggregateKind.COLLECT:
            pair = F.struct(named(time).alias("time"), value.alias("value"))
            in_order = F.array_sort(F.collect_list(F.when(value.isNotNull(), pair)))
            return F.transform(in_order, lambda one: one.value)


def _as_rows(frame: DataFrame) -> WindowedRows:
    return WindowedRows(frame._jdf, frame.sparkSession)
