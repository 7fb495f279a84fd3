"""`hr.join` and `hr.merge`: joins of streams and of tables, and several streams as one."""

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
from headrace.engine.column_metadata import event_times_of, marked_time
from headrace.engine.read.parsing import interval
from headrace.engine.read.tables import Table
from headrace.engine.write.encoding import named
from headrace.errors import InputError
from headrace.topology.duration import DurationLike

__all__ = ["JOINED_AT", "join", "merge"]

JOINED_AT = "joined_at"
"""The event time of a joined row: the later of both times, or the end of the wait if there was no match."""
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
    """Pairs of events of two streams, or of rows of two tables, that are equal in `on`.

    `on` is a column of both, several columns, or `{"ad": "id"}` if their names differ; the left name is kept. With
    `how` left, right or full, rows without a match are kept too, with nulls. Events are at most `within` apart in
    time; the result has the columns of both and its event time, `joined_at`. The join of two tables is a table that
    is updated when they change.
    """
    if isinstance(left, Table) and isinstance(right, Table):
        if within is not None:
            raise InputError(
                "join(): within is for streams, and these are tables",
                next_step="remove within",
            )
        return join_tables(left, right, on, how)
    check_streams("join()", left=left, right=right)
    assert isinstance(left, DataFrame)
    assert isinstance(right, DataFrame)
    pairs = columns_on("join()", on, ("left", left.columns), ("right", right.columns))
    check_types("join()", pairs, left, right)
    kind = chosen("join()", "how", How, how)
    span = span_of("join()", within)
    left_time, right_time = (event_time("join()", side) for side in (left, right))
    kept = [name for name in right.columns if name not in pairs.values()]
    check_clash("join()", [*left.columns, JOINED_AT], kept, "right.withColumnRenamed({0!r}, 'right_{0}')")
    if JOINED_AT in left.columns:
        raise InputError(f"join(): {JOINED_AT!r} is a column that the join adds", next_step="rename the column")
    described = {"join": kind.value, "on": dict(pairs), "within": str(span)}
    explained = f"{kind} join within {span}: Spark's own join"
    note(JoinUse(described, added_disorder=span, explained=explained, joins_streams=True))

    other = right.select(*(named(name).alias(RIGHT + name) for name in right.columns))
    earlier, later = named(left_time), named(RIGHT + right_time)
    near = (later >= earlier - interval(span)) & (later <= earlier + interval(span))
    equal = [named(one) == named(RIGHT + another) for one, another in pairs.items()]
    if kind is How.FULL:
        # Spark keeps rows with null keys as rows without a match, and would find them equal: in a full join only, since
        # it filters null keys out if only one side may lack a match.
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
    """The events of several streams with the same columns as one stream.

    The watermark is that of the slowest; but a stream that was read to its end and has had no events for `idle` does
    not delay the others.
    """
    if len(streams) < 2:
        raise InputError("merge() needs two or more streams", next_step="write hr.merge(orders, returns)")
    numbered = {f"stream {number}": stream for number, stream in enumerate(streams, start=1)}
    check_streams("merge()", **numbered)
    first = streams[0]
    for place, stream in list(numbered.items())[1:]:
        ours, theirs = ({field.name: field.dataType.simpleString() for field in one.schema} for one in (first, stream))
        if ours != theirs:
            odd = next(name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name))
            raise InputError(
                f"merge(): the column {odd!r} is {theirs.get(odd, 'missing')} in {place}, and "
                f"{ours.get(odd, 'missing')} in stream 1",
                next_step="select the same columns of each",
            )
        if (ours_at := event_times_of(first)) != (theirs_at := event_times_of(stream)):
            raise InputError(
                f"merge(): the event time of {place} is {_listed(theirs_at)}, and that of stream 1 {_listed(ours_at)}",
                next_step="use the same event time column in each",
            )
    pause = duration("merge()", "idle", idle)
    note(JoinUse({"merge": len(streams)}, idle=pause))
    return reduce(DataFrame.unionByName, streams)


def _listed(times: Sequence[str]) -> str:
    return ", ".join(map(repr, times)) or "none"


def _side_by_side(name: str, pairs: Mapping[str, str], how: How) -> Column:
    """A column of the left; one of `on` is taken from the right where there is no left row."""
    if name in pairs and how in (How.RIGHT, How.FULL):
        return F.coalesce(named(name), named(RIGHT + pairs[name])).alias(name)
    return named(name)
