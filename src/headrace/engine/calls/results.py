"""The output of an operator whose late rows are kept, or whose rows can be written again. It is not a DataFrame.

Everything stays one plan, a row of which is either a result or a late row: a plan that branches above an operator
runs it twice. Each method is applied to the results as they are now and, where they can be written again, as they were
written before: a row that no longer passes a condition becomes a delete, and one that never passed is not written.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NoReturn, cast

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from headrace.engine.column_metadata import marked_time
from headrace.engine.plan.analysis import is_projection, origins
from headrace.engine.spark_private.plans import is_read_by_spark_of_a_dataframe
from headrace.engine.write.encoding import (
    HEADERS,
    ORDERED_RECORD,
    changelog,
    failed_headers,
    headers_of,
    named,
    records,
)
from headrace.errors import InputError
from headrace.operators.hosting import Hosted, spark_schema
from headrace.operators.operator import RESULTS
from headrace.operators.packing import OUTPUT, column_of
from headrace.operators.windowing import BEFORE, REVISION, WINDOW_END
from headrace.topology import Schema
from headrace.topology.names import DELETED, FAILED, LATE, STAYS

__all__ = [
    "LATE_RECORD",
    "LateRows",
    "PerEvent",
    "Result",
    "check_identity",
    "check_key",
    "late_rows",
    "result_of",
    "result_records",
    "result_rows",
    "revises",
    "shown",
]

NOW, WAS, ENTRY = "_headrace_now", "_headrace_was", "_headrace_entry"
HOLDS, HELD_BEFORE = "_headrace_holds", "_headrace_held"
IS_LATE, LATE_ROW = "_headrace_is_late", "_headrace_late"
"""Of a row that leaves by a channel, late or failed: that it does, and its columns."""
WHY = "_headrace_why"
"""The reason and the error of a row that failed; null in all others."""
BY_TIME = "_headrace_order"
LATE_RECORD = "_late"
"""Beside a view's rows: the record of a late row, null for other rows."""
FIRST = "0001-01-01 00:00:00"

Change = Callable[[DataFrame, Sequence[str]], DataFrame]
"""From rows with their columns, and others that must stay, to rows with other columns."""


@dataclass(frozen=True, slots=True)
class LateRows:
    """The rows of the channel `.late`: all columns of the operator's input."""

    schema: Schema
    key: tuple[str, ...]
    time: str


@dataclass(frozen=True, slots=True)
class PerEvent:
    """For results with a row for each event: the columns that identify an event, and those that do not."""

    shared: frozenset[str]
    """Columns that several events share: those of `by`, and what is computed from a window."""
    proposed: tuple[str, ...]
    """The columns of `by` and the event time, which identify an event unless there are others at the same time."""
    final: str
    """The options with which each row is written once."""


@dataclass(frozen=True)
class Result:
    """Returned as it is from a stream, a table or a view; further processing belongs in the next node."""

    _frame: DataFrame
    _revises: bool
    _late: LateRows | None
    _identity: tuple[str, ...]
    """The columns that identify a row of the operator; empty if only the user knows them."""
    _deletes: bool
    _failed: LateRows | None = None
    """What the rows of the channel `.failed` are, where a function of the operator may raise."""
    _per_event: PerEvent | None = None
    _origins: dict[str, frozenset[str]] = field(default_factory=dict)
    """The columns that each column of such results is computed from; a missing one is unchanged."""

    def having(self, condition: str | Column) -> "Result":
        """Only the rows for which the condition is true. A row for which it becomes false is deleted."""
        holds = F.coalesce(F.expr(condition) if isinstance(condition, str) else condition, F.lit(False))
        now = self._changed(NOW, lambda rows, _: rows.withColumn(HOLDS, named(HOLDS) & holds))
        if not self._revises:
            return now
        both = now._changed(WAS, lambda rows, _: rows.withColumn(HELD_BEFORE, named(HELD_BEFORE) & holds))
        return replace(both, _deletes=True)

    def with_columns(self, **columns: str | Column) -> "Result":
        """Additional columns, as SQL or as Spark columns."""
        added = {name: F.expr(value) if isinstance(value, str) else value for name, value in columns.items()}
        return self._changed_both(lambda rows, _: rows.withColumns(added))

    def select(self, *columns: str | Column) -> "Result":
        """Some of the columns, by name or as Spark columns."""

        def chosen(rows: DataFrame, others: Sequence[str]) -> DataFrame:
            own = [named(name) for name in rows.columns if name not in others]
            wanted = [part for one in columns for part in (own if isinstance(one, str) and one == "*" else [one])]
            return rows.select(*wanted, *map(named, others))

        return self._changed_both(chosen)

    @property
    def columns(self) -> list[str]:
        """The names of its columns."""
        return list(shown(self).columns)

    def __getattr__(self, name: str) -> NoReturn:
        if is_read_by_spark_of_a_dataframe(name):
            _refuse("cannot be joined or unioned")
        if name.startswith("_"):
            raise AttributeError(f"a windowed result has no attribute {name!r}")
        _refuse(f"has no .{name}")

    def __getitem__(self, name: str) -> NoReturn:
        _refuse("has no columns")

    def _changed_both(self, change: Change) -> "Result":
        now = self._changed(NOW, change)
        return now._changed(WAS, change) if self._revises else now

    def _changed(self, side: str, change: Change) -> "Result":
        others = [name for name in self._frame.columns if name != side]
        before = self._frame.select(f"{side}.*", *map(named, others))
        changed = change(before, others)
        problem = is_projection(changed)
        if problem is not None:
            _refuse(f"cannot do {problem}")
        own = [name for name in changed.columns if name not in others]
        traced = self._origins
        if self._per_event is not None and side == NOW:
            found = origins(changed, before)
            traced = {name: frozenset().union(*(self._origin(one) for one in found[name])) for name in own}
        frame = changed.select(F.struct(*map(named, own)).alias(side), *map(named, others))
        return replace(self, _frame=frame, _origins=traced)

    def _origin(self, name: str) -> frozenset[str]:
        return self._origins.get(name, frozenset([name]))


def result_of(
    hosted: Hosted,
    late: LateRows | None,
    failed: LateRows | None,
    identity: Sequence[str],
    deletes: bool,
    per_event: PerEvent | None = None,
) -> Result:
    """The outputs of a window's operator. `deletes` says whether the operator itself can delete rows."""
    results = spark_schema(hosted.operator.outputs[RESULTS])
    can_be_revised = BEFORE in results.names
    kept_before = [field.name for field in cast(StructType, results[BEFORE].dataType)] if can_be_revised else []

    def now(name: str) -> Column:
        return F.col(column_of(RESULTS)).getField(name)

    def was(name: str) -> Column:
        if name in kept_before:
            return now(BEFORE).getField(name)
        return now(name) - 1 if name == REVISION else now(name)

    def row(value: Callable[[str], Column]) -> Column:
        names = [name for name in results.names if name not in (DELETED, BEFORE)]
        return F.struct(
            *(marked_time(value(name), name) if name == WINDOW_END else value(name).alias(name) for name in names)
        )

    is_result = F.col(OUTPUT) == RESULTS
    columns = [row(now).alias(NOW), (is_result & ~now(DELETED) if can_be_revised else is_result).alias(HOLDS)]
    if can_be_revised:
        columns += [row(was).alias(WAS), (is_result & now(BEFORE).isNotNull()).alias(HELD_BEFORE)]
    if late is not None or failed is not None:
        aside = [F.col(column_of(LATE))] if late is not None else []
        if failed is not None:
            fault = F.col(column_of(FAILED))
            aside.append(fault.getField("row"))
            columns.append(F.when(F.col(OUTPUT) == FAILED, fault.dropFields("row")).alias(WHY))
        columns += [(~is_result).alias(IS_LATE), F.coalesce(*aside).alias(LATE_ROW)]
    return Result(
        hosted.tagged().select(*columns),
        can_be_revised,
        late,
        tuple(identity),
        can_be_revised and deletes,
        failed,
        per_event,
    )


def shown(result: Result) -> DataFrame:
    """The results alone, to see their columns: to run this would run the operator once more."""
    return result._frame.select(f"{NOW}.*")


def revises(result: Result) -> bool:
    """Whether its rows can be written again, so that they are a changelog."""
    return result._revises


def late_rows(result: Result) -> LateRows | None:
    return result._late


def check_key(result: Result, key: Sequence[str], order_by: Sequence[str] | None = None) -> None:
    """Refuse a key that does not identify a row that can be written again or deleted.

    `order_by` is that of a view, None of another node.
    """
    proposed = f"say key={list(result._identity)!r}" if result._identity else "name the columns that identify an event"
    if result._revises and not key:
        raise InputError("the output is a changelog, so the node needs a key", next_step=proposed)
    missing = ", ".join(repr(name) for name in result._identity if name not in key)
    if result._deletes and missing:
        raise InputError(
            f"rows can be deleted later, and the key without {missing} does not identify one row",
            next_step=proposed,
        )
    if result._revises:
        check_identity(result._identity, shown(result).columns, key, order_by)
    if result._revises and result._per_event is not None:
        _check_event(result, result._per_event, key, is_view=order_by is not None)


def _check_event(result: Result, per_event: PerEvent, key: Sequence[str], is_view: bool) -> None:
    """Refuse a key that several events share: a change of an old one would replace or delete the row of the newest."""
    if any(result._origin(name) - per_event.shared for name in key):
        return
    columns = shown(result).columns
    named_now = {wanted: _named_now(result, wanted, columns) for wanted in per_event.proposed}
    proposed = [now or wanted for wanted, now in named_now.items()]
    dropped = [wanted for wanted, now in named_now.items() if now is None]
    keep = f" (keep {', '.join(dropped)} in .select)" if dropped else ""
    time = proposed[-1]
    newest = f'{per_event.final} and order_by="{time}"{"" if time in columns else keep}' if is_view else per_event.final
    raise InputError(
        f"the row of an event can change or be deleted later, and the key {', '.join(key)} does not identify one "
        "event: the row of another event would be replaced or deleted",
        next_step=f"say key={proposed!r}{keep}, or other columns that identify an event, such as an id; "
        f"or say {newest}, so that each row is written once",
    )


def _named_now(result: Result, wanted: str, columns: Sequence[str]) -> str | None:
    """The present name of a column that is unchanged; None if it was left out."""
    found = [name for name in columns if result._origin(name) == {wanted}]
    return wanted if wanted in found else next(iter(found), None)


def check_identity(
    identity: Sequence[str],
    columns: Sequence[str],
    key: Sequence[str],
    order_by: Sequence[str] | None = None,
    deletes: bool = False,
) -> None:
    """Refuse a key that several windows share, each of which changes by itself: the last to change would replace all.

    `order_by` is that of a view, None of another node: a view by the order of its windows keeps the newest. That is
    not known where windows are deleted, since the one before is no longer there.

    A key with columns that are made of others may stand for the window: only the user knows.
    """
    lacking = [name for name in identity if name not in key]
    if not key or not lacking or not (set(key) <= set(identity) or set(lacking) & set(columns)):
        return
    is_ordered = order_by is not None and not deletes
    if is_ordered and set(lacking) <= {*(order_by or ()), *(identity[-1:] if WINDOW_END in (order_by or ()) else ())}:
        return
    ways = [f"for a row of each window, say key={_quoted([*key, *lacking])}"]
    if is_ordered:
        by = [*key, *(name for name in lacking if name != identity[-1])]
        ways.append(f'for the newest window of each key, say key={_quoted(by)}, order_by="{identity[-1]}"')
    elif order_by is None:
        ways.append('for closed windows only, say emit="final"')
    left_out = [name for name in lacking if name not in columns]
    kept = f"keep {', '.join(map(repr, left_out))} among the columns; " if left_out else ""
    raise InputError(
        f"several windows share its key: the key lacks {', '.join(map(repr, lacking))}, so a change of an old window "
        "would replace the newest",
        next_step=kept + "; ".join(ways),
    )


def _quoted(names: Sequence[str]) -> str:
    return f"[{', '.join(json.dumps(name) for name in names)}]"


def result_records(
    result: Result,
    schema: Schema,
    topic: str,
    key: Sequence[str],
    time: str | None,
    late_topic: str,
    failed_topic: str,
) -> DataFrame:
    """Results, late and failed rows as records of their topics; one that is deleted has no value."""
    entries = _entries(result, key)
    kept = _aside(result)
    if result._revises:
        first = F.when(named(DELETED), F.lit(FIRST).cast("timestamp"))
        by_time = first if time is None else first.otherwise(named(time))
        ordered = entries.withColumn(BY_TIME, by_time)
        written = changelog(ordered, schema, topic, key, time, BY_TIME, keep=kept)
    else:
        written = records(entries, schema, topic, key, time, keep=kept)
    if not kept:
        return written
    separated = _with_late_records(written, result, late_topic, failed_topic)
    return separated.select(
        *(
            F.when(named(IS_LATE), named(name)).otherwise(F.col(ENTRY).getField(name)).alias(name)
            for name in ORDERED_RECORD
        )
    )


def result_rows(result: Result, key: Sequence[str], late_topic: str, failed_topic: str) -> DataFrame:
    """Results for a view, with `_deleted` where they may go, and the record of a late or failed row in `_late`."""
    entries = _entries(result, key)
    if result._revises:
        # Of a key that a row gives up and another takes, the one that takes it.
        entries = entries.withColumn(STAYS, ~named(DELETED))
    if not _aside(result):
        return entries
    separated = _with_late_records(entries, result, late_topic, failed_topic)
    record = F.struct(*map(named, ORDERED_RECORD))
    return separated.select(f"{ENTRY}.*", F.when(named(IS_LATE), record).alias(LATE_RECORD))


def _entries(result: Result, key: Sequence[str]) -> DataFrame:
    """A row for each result to be written, and for each late row: its own columns, and whether it is deleted."""
    late = _aside(result)
    seen = named(HOLDS) | named(IS_LATE) if late else named(HOLDS)
    if not result._revises:
        return result._frame.filter(seen).select(f"{NOW}.*", *late)
    moved = F.lit(False)
    for name in key:
        moved |= ~F.col(NOW).getField(name).eqNullSafe(F.col(WAS).getField(name))
    gone = F.struct(F.lit(True).alias(DELETED), named(WAS).alias("row"))
    here = F.struct(F.lit(False).alias(DELETED), named(NOW).alias("row"))
    is_gone = named(HELD_BEFORE) & (~named(HOLDS) | moved)
    changes = F.array_compact(F.array(F.when(is_gone, gone), F.when(named(HOLDS), here)))
    some = result._frame.filter(seen | named(HELD_BEFORE)).select(F.explode_outer(changes).alias(ENTRY), *late)
    return some.select(f"{ENTRY}.row.*", f"{ENTRY}.{DELETED}", *late)


def _aside(result: Result) -> list[str]:
    """The columns of the rows that leave by a channel, if there are such."""
    if result._failed is not None:
        return [IS_LATE, LATE_ROW, WHY]
    return [] if result._late is None else [IS_LATE, LATE_ROW]


def _with_late_records(rows: DataFrame, result: Result, late_topic: str, failed_topic: str) -> DataFrame:
    """Each row with its own columns in one, and beside them a record of the late or failed row that it may be."""
    aside = result._failed or result._late
    assert aside is not None
    kept = [name for name in _aside(result) if name != LATE_ROW]
    own = [named(name) for name in rows.columns if name not in (LATE_ROW, *kept)]
    opened = rows.select(F.struct(*own).alias(ENTRY), *map(named, kept), f"{LATE_ROW}.*")
    rows = records(opened, aside.schema, late_topic, aside.key, aside.time, keep=[ENTRY, *kept])
    if result._failed is None:
        return rows
    is_failed = named(WHY).isNotNull()
    headers = headers_of(failed_headers(F.col(WHY).getField("reason"), F.col(WHY).getField("error")))
    return rows.withColumns(
        {
            "topic": F.when(is_failed, F.lit(failed_topic)).otherwise(F.col("topic")),
            "headers": F.when(is_failed, headers.cast(HEADERS)).otherwise(F.col("headers")),
        }
    )


def _refuse(problem: str) -> NoReturn:
    raise InputError(
        f"a windowed result with late rows, failed rows or changes {problem}: it supports .having, .select and "
        ".with_columns, and is returned from the node",
        next_step="move this to the next node",
    )
