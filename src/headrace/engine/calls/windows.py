"""`hr.windowed`: windows of event time, computed by Spark's own windows where Spark has them.

Spark's windows compute tumbling and hopping windows whose late rows are dropped. What Spark lacks (sliding windows,
sessions, late rows that are diverted or corrected, functions over whole windows) is computed by the operators of
`headrace.operators`; `_why_operator` decides.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from headrace.engine.calls.results import LateRows, PerEvent, Result, result_of
from headrace.engine.calls.window_operators import Applied, WindowSpec, input_of, operator_of
from headrace.engine.column_metadata import event_times_of, is_windowed, key_of, lateness_of, marked_time
from headrace.engine.spark_private.plans import ClassicDataFrame, with_the_plan_of
from headrace.engine.write.encoding import named
from headrace.errors import InputError
from headrace.operators.aggregates import result_type
from headrace.operators.hosting import arrow_schema, buckets_of, hosted, spark_schema
from headrace.operators.operator import RESULTS
from headrace.operators.windowing import BEFORE, REVISION, WINDOW_END, WINDOW_START
from headrace.topology import (
    Aggregate,
    AggregateKind,
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
from headrace.topology.declaring import names_of
from headrace.topology.duration import DurationLike
from headrace.topology.names import DELETED, FAILED, LATE
from headrace.topology.nearest import did_you_mean
from headrace.topology.schema import SchemaLike

__all__ = ["WINDOW_END", "WINDOW_START", "WindowUse", "Windowed", "WindowedRows", "uses_of_windows", "windowed"]

WINDOW = "_window"
REVISING = (REVISION, DELETED, BEFORE)
"""The columns that an operator adds to rows that can be written again."""
CONDITIONS = ("_opens", "_closes")
"""The columns that it adds to rows that open and close sessions."""
RESERVED = (WINDOW_START, WINDOW_END, *REVISING, *CONDITIONS)
NO_TIME = Duration(0)
SPARK_AGGREGATES = {"avg": "mean"} | {kind.value: kind.value for kind in AggregateKind}

C = TypeVar("C")


@dataclass(frozen=True, slots=True)
class WindowUse:
    """A window as a node used it: what its checkpoint depends on, and when its rows are written."""

    spec: WindowSpec
    emit: Emit | None
    """As it was asked for; None where the node decides."""
    why_operator: str | None
    """Why an operator of Headrace computes it; None if Spark's own window does."""
    buckets: int

    @property
    def identity(self) -> tuple[str, ...]:
        """The columns that tell the rows of its windows apart."""
        return (*self.spec.by, WINDOW_START)

    @property
    def revises(self) -> bool:
        return self.spec.revises

    def describe(self) -> dict[str, Any]:
        spec = self.spec
        described: dict[str, Any] = {
            "window": str(spec.window),
            "by": list(spec.by),
            "time": spec.time,
            "aggregates": {name: str(aggregate) for name, aggregate in spec.aggregates},
            "late": str(spec.late),
        }
        if spec.applied is not None:
            described["function"] = str(spec.applied)
        if self.why_operator is not None:
            described |= {"emit": str(spec.emit), "until": str(spec.until), "buckets": self.buckets}
        return described

    def explain(self) -> str:
        """What computes it, and why."""
        by = f" by {', '.join(self.spec.by)}" if self.spec.by else ""
        who = "Spark's own window" if self.why_operator is None else f"Headrace's operator: {self.why_operator}"
        return f"{self.spec.window}{by}: {who}"


@dataclass(slots=True)
class _Uses:
    emit: Emit
    diverts: bool
    found: list[WindowUse]


_uses: ContextVar[_Uses | None] = ContextVar("uses of windows", default=None)


@contextmanager
def uses_of_windows(emit: Emit = Emit.FINAL, *, diverts: bool = False) -> Iterator[list[WindowUse]]:
    """All windows that are made inside. `emit` is used for those that do not declare it.

    `diverts` says whether rows on which a window's function raises are diverted.
    """
    uses = _Uses(emit, diverts, [])
    token = _uses.set(uses)
    try:
        yield uses.found
    finally:
        _uses.reset(token)


class WindowedRows(ClassicDataFrame):
    """The rows of windows: a DataFrame that also has the methods of a window's result."""

    _deletes = False
    """Whether a row that no longer passes a condition must be deleted: it was written before."""

    def having(self, condition: str | Column) -> "WindowedRows":
        """Only the windows for which the condition is true."""
        if not self._deletes:
            return _as_rows(self.filter(condition))
        holds = F.coalesce(F.expr(condition) if isinstance(condition, str) else condition, F.lit(False))
        gone = named(DELETED) | ~holds if DELETED in self.columns else ~holds
        return _as_rows(self.withColumn(DELETED, gone), deletes=True)

    def select(self, *columns: Any) -> "WindowedRows":
        """Some of the columns; the mark of a deleted row is kept."""
        stays = self._deletes and DELETED in self.columns and not {"*", DELETED} & set(map(str, columns))
        kept = [named(DELETED)] if stays else []
        return _as_rows(super().select(*columns, *kept), deletes=self._deletes)

    def with_columns(self, **columns: str | Column) -> "WindowedRows":
        """Additional columns, as SQL or as Spark columns."""
        added = {name: F.expr(value) if isinstance(value, str) else value for name, value in columns.items()}
        return _as_rows(self.withColumns(added), deletes=self._deletes)


@dataclass(frozen=True, slots=True)
class Windowed:
    """A stream divided into windows; `.agg` or `.apply` compute the rows."""

    stream: DataFrame
    window: Window
    by: tuple[str, ...]
    time: str
    late: Late
    until: Duration
    emit: Emit | None

    def agg(self, *unnamed: Aggregate, **aggregates: Aggregate) -> "WindowedRows | Result":
        """One row for each window: the `by` columns, `window_start`, `window_end`, and the aggregates by their names.

        For sliding windows one row for each event, with the event's own columns. Where late rows are kept, or rows
        can be written again, this is not a DataFrame but a result, with `.having`, `.select` and `.with_columns`.
        """
        _check_named(unnamed, aggregates)
        taken = self.stream.columns if isinstance(self.window, Sliding) else self.by
        _check_aggregates(aggregates, self.stream, taken)
        spec = self._spec(aggregates)
        _check_columns(self.stream.columns, taken, spec)
        why = _why_operator(spec)
        self._note(spec, why)
        return self._operated(spec) if why is not None else self._native(spec)

    def apply(self, function: Callable[[Any], Any], *, schema: SchemaLike) -> "WindowedRows | Result":
        """The rows that a function returns for the rows of all windows that close in a batch.

        Its argument is one Arrow table, or a polars DataFrame if its parameter is annotated so: the `by` columns,
        `window_start`, `window_end`, then the other columns of the rows. It returns such a table with the columns of
        `schema`.
        """
        if isinstance(self.window, Sliding):
            raise InputError(
                "apply() does not support sliding windows: each row would be in many windows",
                next_step="use agg(), or a hopping window",
            )
        if not callable(function):
            raise InputError(f"apply() takes a function, not {type(function).__name__}")
        emit = self.emit or Emit.FINAL
        applied = Applied(function, _choice("schema", Schema.of, schema))
        uses = _uses.get()
        diverts = uses is not None and uses.diverts
        spec = WindowSpec(self.window, self.by, self.time, (), self.late, self.until, emit, applied, diverts)
        self._note(spec, "Spark has no functions over windows that close together")
        return self._operated(spec)

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(f"a windowed stream has no attribute {name!r}")
        kind = SPARK_AGGREGATES.get(name)
        if kind is None:
            step = "call .agg(...) or .apply(...) first"
        else:
            step = "write .agg(n=hr.count())" if name == "count" else f'write .agg({kind}=hr.{kind}("amount"))'
        raise InputError(f"windowed() has no .{name}", next_step=step)

    def _spec(self, aggregates: dict[str, Aggregate]) -> WindowSpec:
        uses = _uses.get()
        emit = self.emit or (Emit.FINAL if uses is None else uses.emit)
        return WindowSpec(self.window, self.by, self.time, tuple(aggregates.items()), self.late, self.until, emit)

    def _note(self, spec: WindowSpec, why: str | None) -> None:
        if (uses := _uses.get()) is not None:
            uses.found.append(WindowUse(spec, self.emit, why, buckets_of(self.stream.sparkSession)))

    def _native(self, spec: WindowSpec) -> "WindowedRows":
        computed = [_computed(aggregate, self.time).alias(name) for name, aggregate in spec.aggregates]
        grouped = self.stream.groupBy(*map(named, self.by), _span(self.window, self.time)).agg(*computed)
        return _as_rows(
            grouped.select(
                *map(named, self.by),
                F.col(WINDOW).getField("start").alias(WINDOW_START),
                marked_time(F.col(WINDOW).getField("end"), WINDOW_END),
                *(named(name) for name, _ in spec.aggregates),
            ),
            deletes=spec.emit is Emit.CHANGES,
        )

    def _operated(self, spec: WindowSpec) -> "WindowedRows | Result":
        rows = input_of(self.stream, spec)
        operator = operator_of(rows.schema, spec)
        keys = {RESULTS: [named(name) for name in self.by]}
        host = hosted(operator, {RESULTS: rows}, keys, buckets_of(self.stream.sparkSession))
        if spec.late is Late.DROP and not spec.revises and not spec.diverts:
            frame = host.rows()
            marked = (marked_time(named(name), name) if name == WINDOW_END else named(name) for name in frame.columns)
            return _as_rows(frame.select(*marked))
        late = None
        if LATE in operator.outputs:
            late = LateRows(Schema.of(spark_schema(operator.outputs[LATE])), self.by, self.time)
        sliding, session = isinstance(self.window, Sliding), isinstance(self.window, GapSession | EventSession)
        failed = None
        if FAILED in operator.outputs:
            columns = pa.schema(list(operator.outputs[FAILED].field("row").type))
            failed = LateRows(Schema.of(spark_schema(columns)), self.by, self.time)
        identity = () if sliding else (*self.by, WINDOW_START)
        return result_of(host, late, failed, identity, deletes=session, per_event=_per_event(spec) if sliding else None)


def windowed(
    stream: DataFrame,
    window: Window,
    *,
    by: str | Sequence[str] | None = None,
    late: str = "drop",
    until: DurationLike | None = None,
    emit: str | None = None,
) -> Windowed:
    """Divide a stream into windows of its event time, for each value of `by` (default: the key of its topic).

    `late` says what happens to rows that arrive after their window was closed: `"drop"` counts them, `"divert"` writes
    them to the node's channel `.late`, `"correct"` writes the window's row again for as long as `until` says, and
    diverts them after that. `emit="final"` writes a window's row once, when the window closes (the default of
    streams), `"changes"` whenever it changes (the default of views and tables).
    """
    if not isinstance(stream, DataFrame):
        raise InputError(f"windowed() takes a DataFrame, not {type(stream).__name__}")
    if not isinstance(window, Window):
        raise InputError(
            f"{window!r} is not a window",
            next_step='write hr.tumbling("1 minute"), hr.hopping(...), hr.sliding(...) or hr.session(...)',
        )
    kept = _choice("late", Late.of, late)
    when = None if emit is None else _choice("emit", Emit.of, emit)
    names = _by(stream, by)
    time = _event_time(stream)
    horizon = _horizon(kept, until, lateness_of(stream, time))
    return Windowed(stream, window, names, time, kept, horizon, when)


def _horizon(late: Late, until: DurationLike | None, lateness: Duration) -> Duration:
    if late is not Late.CORRECT:
        if until is not None:
            raise InputError(
                f'windowed(): until needs late="correct", and late is "{late}"',
                next_step='set late="correct", or remove until',
            )
        return NO_TIME
    if until is None:
        raise InputError('windowed(): late="correct" needs until=', next_step='add until="1 day"')
    horizon = _choice("until", Duration.of, until)
    if horizon < lateness:
        raise InputError(
            f"windowed(): until is {horizon}, which is shorter than the lateness of the rows, {lateness}",
            next_step=f"set until to at least {lateness}",
        )
    return horizon


def _why_operator(spec: WindowSpec) -> str | None:
    """Why Spark's own window cannot compute it; None if it can."""
    match spec.window:
        case Sliding():
            return "Spark has no windows per event"
        case GapSession():
            return "Spark's sessions write nothing before they close, and drop late rows"
        case EventSession():
            return "Spark has no sessions that an event opens"
    return None if spec.late is Late.DROP else f"Spark drops late rows, and these are {_done_with[spec.late]}"


_done_with = {Late.DIVERT: "diverted", Late.CORRECT: "corrections"}


def _choice(option: str, parse: Callable[[Any], C], value: Any) -> C:
    try:
        return parse(value)
    except InputError as error:
        raise InputError(f"windowed(): {option}: {error.problem}", next_step=error.next_step) from None


def _by(stream: DataFrame, by: str | Sequence[str] | None) -> tuple[str, ...]:
    if by is None:
        key = key_of(stream)
        if key is None:
            raise InputError(
                "windowed() needs by=: the rows do not have the columns of a topic's key",
                next_step='add by="card", or by=[] for one window over all rows',
            )
        return key
    names = names_of(by)
    for name in names:
        if name not in stream.columns:
            step = did_you_mean(name, stream.columns)
            raise InputError(f"windowed(): by: {name!r} is not a column of the rows", next_step=step)
    for name in (WINDOW_START, WINDOW_END):
        if name in names:
            raise InputError(
                f"windowed(): by: {name!r} is a column that the window adds", next_step="rename the column"
            )
    return names


def _event_time(stream: DataFrame) -> str:
    times = event_times_of(stream)
    if not times and is_windowed(stream):
        raise InputError(
            "windowed(): the rows are the result of a window, and have no watermark",
            next_step="move this window to the next node",
        )
    if not times:
        raise InputError(
            "windowed(): the rows have no event time",
            next_step="declare event_time= and lateness= of the topic, and keep that column",
        )
    if len(times) > 1:
        raise InputError(
            f"windowed(): the rows have several event times: {', '.join(times)}",
            next_step="drop all but one before the window",
        )
    return times[0]


def _check_columns(columns: Sequence[str], kept: Sequence[str], spec: WindowSpec) -> None:
    """Refuse columns of the rows with the name of a column that the window adds; Spark ignores the case of names."""
    added = {
        *((WINDOW_START, WINDOW_END) if isinstance(spec.window, Sliding) else ()),
        *(REVISING if spec.revises else ()),
    }
    clash = [name for name in kept if name.casefold() in added]
    if isinstance(spec.window, EventSession):
        clash += [name for name in columns if name.casefold() in CONDITIONS]
    if clash:
        raise InputError(
            f"windowed(): the rows have {clash[0]!r}, which is a column that the window adds",
            next_step=f"rename it before the window: .withColumnRenamed({clash[0]!r}, ...)",
        )


def _check_named(unnamed: Sequence[object], aggregates: dict[str, Aggregate]) -> None:
    for one in unnamed:
        if not isinstance(one, Aggregate):
            raise _no_aggregate(type(one).__name__)
        name = one.kind.value if one.column is None else f"{one.column}_{one.kind.value}"
        others = "".join(f", {other}=..." for other in aggregates)
        raise InputError(f"agg(): {one} has no name", next_step=f"write agg({name}={one.call}{others})")


def _no_aggregate(what: str) -> InputError:
    return InputError(
        f"agg(): {what} is not an aggregate",
        next_step="write hr.count(), hr.sum(...) or another of Headrace's; Spark's go with groupBy(F.window(...))",
    )


def _check_aggregates(aggregates: dict[str, Aggregate], stream: DataFrame, taken: Sequence[str]) -> None:
    if not aggregates:
        raise InputError("agg() has no aggregates", next_step="write agg(n=hr.count())")
    columns, names = stream.columns, {name.casefold() for name in (*taken, *RESERVED)}
    for name, aggregate in aggregates.items():
        if not isinstance(aggregate, Aggregate):
            raise _no_aggregate(f"{name}={type(aggregate).__name__}")
        if name.casefold() in names:
            raise InputError(f"agg(): {name!r} is the name of another column", next_step="choose another name")
        names.add(name.casefold())
        if aggregate.column is not None and aggregate.column not in columns:
            step = did_you_mean(aggregate.column, columns)
            raise InputError(f"agg(): {aggregate}: there is no column {aggregate.column!r}", next_step=step)
        if aggregate.column is not None:
            result_type(aggregate.kind, arrow_schema(stream.select(named(aggregate.column)).schema)[0].type)


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


def _per_event(spec: WindowSpec) -> PerEvent:
    shared = frozenset([*spec.by, *(name for name, _ in spec.aggregates), *REVISING])
    final = 'emit="final"' if spec.late is not Late.CORRECT else 'emit="final", late="divert"'
    return PerEvent(shared, (*spec.by, spec.time), final)


def _as_rows(frame: DataFrame, deletes: bool = False) -> WindowedRows:
    rows = with_the_plan_of(frame, WindowedRows)
    rows._deletes = deletes
    return rows
