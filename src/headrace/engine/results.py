"""What an operator gives where rows leave it on two ways, or come out again: no DataFrame, but three of its words.

Everything stays one plan, a row of which is either a result or a late row: a plan that branches above an operator
runs it twice. Each word is said of the results as they are and, where they come out again, as they were told
before: so a row for which a condition no longer holds becomes a delete, and one that never held stays unseen.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NoReturn, cast

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from headrace.engine.analysis import is_projection
from headrace.engine.encoding import DELETED, RECORD, changelog, named, records
from headrace.engine.marks import marked_time
from headrace.errors import InputError
from headrace.operators.hosting import Hosted, spark_schema
from headrace.operators.operator import LATE, RESULTS
from headrace.operators.packing import OUTPUT, column_of
from headrace.topology import Schema

__all__ = [
    "LATE_RECORD",
    "STAYS",
    "LateRows",
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
HOLDS, HELD = "_headrace_holds", "_headrace_held"
IS_LATE, LATE_ROW = "_headrace_is_late", "_headrace_late"
BY_TIME = "_headrace_order"
LATE_RECORD = "_late"
"""Beside a view's rows: the record of a late row, null where it is none."""
STAYS = "_order_stays"
"""A view takes the greatest of a key: of one that a row gives up and another takes, the one that takes it."""
REVISION, BEFORE, WINDOW_END = "revision", "_before", "window_end"
FIRST = "0001-01-01 00:00:00"

Change = Callable[[DataFrame, Sequence[str]], DataFrame]
"""From rows with their columns, and others that must stay, to rows with other columns."""


@dataclass(frozen=True, slots=True)
class LateRows:
    """What the rows of the channel `.late` are: all columns of the operator's input."""

    schema: Schema
    key: tuple[str, ...]
    time: str


@dataclass(frozen=True)
class Result:
    """Returned as it is by a stream, a table or a view; what comes after belongs in the next node."""

    _frame: DataFrame
    _revises: bool
    _late: LateRows | None
    _identity: tuple[str, ...]
    """The columns that tell the operator's rows apart; none where only the user knows them."""
    _deletes: bool

    def having(self, condition: str | Column) -> "Result":
        """Only the rows for which the condition holds. One for which it no longer does is deleted."""
        holds = F.coalesce(F.expr(condition) if isinstance(condition, str) else condition, F.lit(False))
        now = self._changed(NOW, lambda rows, _: rows.withColumn(HOLDS, named(HOLDS) & holds))
        if not self._revises:
            return now
        both = now._changed(WAS, lambda rows, _: rows.withColumn(HELD, named(HELD) & holds))
        return replace(both, _deletes=True)

    def with_columns(self, **columns: str | Column) -> "Result":
        """More columns, as SQL or as columns of Spark's."""
        added = {name: F.expr(value) if isinstance(value, str) else value for name, value in columns.items()}
        return self._changed_both(lambda rows, _: rows.withColumns(added))

    def select(self, *columns: str | Column) -> "Result":
        """Some columns, by their names or as columns of Spark's."""

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
        if name == "_jdf":
            _refuse("cannot be joined or united")  # what Spark asks for of whatever it is given as a DataFrame
        if name.startswith("_"):
            raise AttributeError(f"a windowed result has no attribute {name!r}")
        _refuse(f"has no .{name}")

    def __getitem__(self, name: str) -> NoReturn:
        _refuse("has no columns to take")

    def _changed_both(self, change: Change) -> "Result":
        now = self._changed(NOW, change)
        return now._changed(WAS, change) if self._revises else now

    def _changed(self, side: str, change: Change) -> "Result":
        others = [name for name in self._frame.columns if name != side]
        changed = change(self._frame.select(f"{side}.*", *map(named, others)), others)
        problem = is_projection(changed)
        if problem is not None:
            _refuse(f"cannot do {problem}")
        own = [name for name in changed.columns if name not in others]
        return replace(self, _frame=changed.select(F.struct(*map(named, own)).alias(side), *map(named, others)))


def result_of(hosted: Hosted, late: LateRows | None, identity: Sequence[str], deletes: bool) -> Result:
    """The outputs of a window's operator. `deletes` says whether rows of it may cease to be, by themselves."""
    results = spark_schema(hosted.operator.outputs[RESULTS])
    again = BEFORE in results.names
    told = [field.name for field in cast(StructType, results[BEFORE].dataType)] if again else []

    def now(name: str) -> Column:
        return F.col(column_of(RESULTS)).getField(name)

    def was(name: str) -> Column:
        if name in told:
            return now(BEFORE).getField(name)
        return now(name) - 1 if name == REVISION else now(name)

    def row(value: Callable[[str], Column]) -> Column:
        names = [name for name in results.names if name not in (DELETED, BEFORE)]
        return F.struct(
            *(marked_time(value(name), name) if name == WINDOW_END else value(name).alias(name) for name in names)
        )

    is_result = F.col(OUTPUT) == RESULTS
    columns = [row(now).alias(NOW), (is_result & ~now(DELETED) if again else is_result).alias(HOLDS)]
    if again:
        columns += [row(was).alias(WAS), (is_result & now(BEFORE).isNotNull()).alias(HELD)]
    if late is not None:
        columns += [(~is_result).alias(IS_LATE), F.col(column_of(LATE)).alias(LATE_ROW)]
    return Result(hosted.tagged().select(*columns), again, late, tuple(identity), again and deletes)


def shown(result: Result) -> DataFrame:
    """The results alone, to see what columns they have: to run it would run the operator once more."""
    return result._frame.select(f"{NOW}.*")


def revises(result: Result) -> bool:
    """Whether its rows come out again, so that they are a changelog."""
    return result._revises


def late_rows(result: Result) -> LateRows | None:
    return result._late


def check_key(result: Result, key: Sequence[str], order_by: Sequence[str] | None = None) -> None:
    """Refuse a key by which a row that comes out again, or goes, would not be known."""
    proposed = f"say key={list(result._identity)!r}" if result._identity else "name the columns that tell events apart"
    if result._revises and not key:
        raise InputError(
            "its rows come out again when they change, and it has no key to know them by", next_step=proposed
        )
    missing = ", ".join(repr(name) for name in result._identity if name not in key)
    if result._deletes and missing:
        raise InputError(
            f"its rows are deleted one by one, and its key, without {missing}, is that of several",
            next_step=proposed,
        )
    if result._revises:
        check_identity(result._identity, shown(result).columns, key, order_by)


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
    result: Result, schema: Schema, topic: str, key: Sequence[str], time: str | None, late_topic: str
) -> DataFrame:
    """Results and late rows as records of their topics; one that is deleted has no value."""
    entries = _entries(result, key)
    kept = [] if result._late is None else [IS_LATE, LATE_ROW]
    if result._revises:
        first = F.when(named(DELETED), F.lit(FIRST).cast("timestamp"))
        by_time = first if time is None else first.otherwise(named(time))
        ordered = entries.withColumn(BY_TIME, by_time)
        told = changelog(ordered, schema, topic, key, time, BY_TIME, keep=kept)
    else:
        told = records(entries, schema, topic, key, time, keep=kept)
    if result._late is None:
        return told
    beside = _late_beside(told, result._late, late_topic)
    return beside.select(
        *(F.when(named(IS_LATE), named(name)).otherwise(F.col(ENTRY).getField(name)).alias(name) for name in RECORD)
    )


def result_rows(result: Result, key: Sequence[str], late_topic: str) -> DataFrame:
    """Results for a view, with `_deleted` where they may go, and the record of a late row in `_late`."""
    entries = _entries(result, key)
    if result._revises:
        entries = entries.withColumn(STAYS, ~named(DELETED))
    if result._late is None:
        return entries
    beside = _late_beside(entries, result._late, late_topic)
    record = F.struct(*map(named, RECORD))
    return beside.select(f"{ENTRY}.*", F.when(named(IS_LATE), record).alias(LATE_RECORD))


def _entries(result: Result, key: Sequence[str]) -> DataFrame:
    """A row for each result that is to be told, and for each late row: its own columns, and whether it is deleted."""
    late = [] if result._late is None else [IS_LATE, LATE_ROW]
    seen = named(HOLDS) if result._late is None else named(HOLDS) | named(IS_LATE)
    if not result._revises:
        return result._frame.filter(seen).select(f"{NOW}.*", *late)
    moved = F.lit(False)
    for name in key:
        moved |= ~F.col(NOW).getField(name).eqNullSafe(F.col(WAS).getField(name))
    gone = F.struct(F.lit(True).alias(DELETED), named(WAS).alias("row"))
    here = F.struct(F.lit(False).alias(DELETED), named(NOW).alias("row"))
    told = F.array_compact(F.array(F.when(named(HELD) & (~named(HOLDS) | moved), gone), F.when(named(HOLDS), here)))
    some = result._frame.filter(seen | named(HELD)).select(F.explode_outer(told).alias(ENTRY), *late)
    return some.select(f"{ENTRY}.row.*", f"{ENTRY}.{DELETED}", *late)


def _late_beside(rows: DataFrame, late: LateRows, topic: str) -> DataFrame:
    """Each row with its own columns in one, and beside them a record of the late row that it may be."""
    own = [named(name) for name in rows.columns if name not in (IS_LATE, LATE_ROW)]
    opened = rows.select(F.struct(*own).alias(ENTRY), IS_LATE, f"{LATE_ROW}.*")
    return records(opened, late.schema, topic, late.key, late.time, keep=[ENTRY, IS_LATE])


def _refuse(problem: str) -> NoReturn:
    raise InputError(
        f"a windowed result whose rows may be late or come out again {problem}: it has .having, .select and "
        ".with_columns, and is returned",
        next_step="put it in the next node",
    )
