"""`hr.join` and `hr.merge`: events brought together with other events, and tables with tables."""

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import and_
from typing import overload

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from headrace.engine.calls.arguments import (
    How,
    JoinUse,
    OnLike,
    check_clash,
    check_streams,
    check_types,
    chosen,
    columns_on,
    duration,
    event_time,
    note,
    span_of,
)
from headrace.engine.calls.table_join import join_tables
from headrace.engine.column_marks import event_times_of, marked_time
from headrace.engine.read.parsing import interval
from headrace.engine.read.tables import Table
from headrace.engine.write.encoding import named
from headrace.errors import InputError
from headrace.topology.duration import DurationLike

__all__ = ["JOINED_AT", "join", "merge"]

JOINED_AT = "joined_at"
"""When a joined row was known: the later of both times, or the end of the wait where there was no partner."""
RIGHT = "_right_"


@overload
def join(
    left: DataFrame, right: DataFrame, *, on: OnLike, within: DurationLike | None = None, how: str = "inner"
) -> DataFrame: ...


@overload
def join(left: Table, right: Table, *, on: OnLike, how: str = "inner") -> Table: ...


def join(
    left: DataFrame | Table,
    right: DataFrame | Table,
    *,
    on: OnLike,
    within: DurationLike | None = None,
    how: str = "inner",
) -> DataFrame | Table:
    """Pairs of events of two streams, or of rows of two tables, that agree in `on`.

    `on` is a column of both, several, or `{"ad": "id"}` where their names differ; the left one's stays. With `how`
    left, right or full, what has no partner comes out too, with nulls. Events are no further apart in time than
    `within`; what comes out of them has the columns of both and `joined_at`, the time at which it was known. Two
    tables give a table, which changes as they do.
    """
    if isinstance(left, Table) and isinstance(right, Table):
        if within is not None:
            raise InputError(
                "join(): within is how long events wait for a partner, and rows of tables need not",
                next_step="leave it out",
            )
        return join_tables(left, right, on, how)
    check_streams("join()", left=left, right=right)
    assert isinstance(left, DataFrame)
    assert isinstance(right, DataFrame)
    pairs = columns_on("join()", on, ("left", left.columns), ("right", right.columns))
    check_types("join()", pairs, left, right)
    kind = chosen("join()", "how", How, how)
    span = span_of("join()", within, "how long to wait for a partner")
    left_time, right_time = (event_time("join()", side) for side in (left, right))
    kept = [name for name in right.columns if name not in pairs.values()]
    check_clash("join()", [*left.columns, JOINED_AT], kept, "right.withColumnRenamed({0!r}, 'right_{0}')")
    if JOINED_AT in left.columns:
        raise InputError(f"join(): {JOINED_AT!r} is what its rows have themselves", next_step="rename the column")
    described = {"join": kind.value, "on": dict(pairs), "within": str(span)}
    note(JoinUse(described, spread=span, explained=f"{kind} join within {span}: Spark's own join"))

    other = right.select(*(named(name).alias(RIGHT + name) for name in right.columns))
    earlier, later = named(left_time), named(RIGHT + right_time)
    near = (later >= earlier - interval(span)) & (later <= earlier + interval(span))
    equal = [named(one) == named(RIGHT + another) for one, another in pairs.items()]
    if kind is How.FULL:
        # Spark keeps rows of null keys for what has no partner, and would find them equal: of a full join alone, since
        # it filters null keys out where only one side may be without.
        equal += [named(one).isNotNull() for one in pairs]
    joined = left.join(other, reduce(and_, equal) & near, kind.value)
    known = (
        F.when(later.isNull(), earlier + interval(span))
        .when(earlier.isNull(), later + interval(span))
        .otherwise(F.greatest(earlier, later))
    )
    return joined.select(
        *(_side_by_side(name, pairs, kind) for name in left.columns),
        *(named(RIGHT + name).alias(name) for name in kept),
        marked_time(known, JOINED_AT),
    )


def merge(*streams: DataFrame, idle: DurationLike = "1 minute") -> DataFrame:
    """The events of several streams in one, which have the same columns.

    The watermark is that of the slowest; but a stream that has been read to its end and silent for `idle` holds
    nobody back.
    """
    if len(streams) < 2:
        raise InputError("merge() takes two streams or more", next_step="name them: hr.merge(orders, returns)")
    numbered = {f"stream {number}": stream for number, stream in enumerate(streams, start=1)}
    check_streams("merge()", **numbered)
    first = streams[0]
    for place, stream in list(numbered.items())[1:]:
        ours, theirs = ({field.name: field.dataType.simpleString() for field in one.schema} for one in (first, stream))
        if ours != theirs:
            odd = next(name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name))
            raise InputError(
                f"merge(): {place} has {odd!r} as {theirs.get(odd, 'nothing')}, and stream 1 as "
                f"{ours.get(odd, 'nothing')}",
                next_step="select the same columns of each",
            )
        if (ours_at := event_times_of(first)) != (theirs_at := event_times_of(stream)):
            raise InputError(
                f"merge(): the event time of {place} is {_listed(theirs_at)}, and that of stream 1 {_listed(ours_at)}",
                next_step="give them the same column of event time",
            )
    pause = duration("merge()", "idle", idle)
    note(JoinUse({"merge": len(streams)}, idle=pause))
    return reduce(DataFrame.unionByName, streams)


def _listed(times: Sequence[str]) -> str:
    return ", ".join(map(repr, times)) or "none"


def _side_by_side(name: str, pairs: Mapping[str, str], how: How) -> Column:
    """A column of the left; one that both sides agree in is the right's where there is no left."""
    if name in pairs and how in (How.RIGHT, How.FULL):
        return F.coalesce(named(name), named(RIGHT + pairs[name])).alias(name)
    return named(name)
