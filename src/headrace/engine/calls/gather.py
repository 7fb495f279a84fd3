"""`hr.gather`: the parts of an event from several streams as one row."""

from collections.abc import Sequence

from pyspark.sql import DataFrame

from headrace.engine.calls.arguments import (
    JoinUse,
    check_streams,
    check_types,
    columns_of,
    columns_on,
    event_time,
    note,
    span_of,
)
from headrace.engine.column_metadata import feed_of, marked_event_time
from headrace.engine.write.encoding import named
from headrace.errors import InputError
from headrace.operators.gathering import GATHERED_AT, MISSING, Gather
from headrace.operators.hosting import arrow_schema, buckets_of, hosted
from headrace.topology.duration import DurationLike

__all__ = ["gather"]


def gather(
    *parts: DataFrame,
    on: str | Sequence[str],
    within: DurationLike | None = None,
    names: Sequence[str] | None = None,
) -> DataFrame:
    """The parts of an event from several streams as one row, once all have arrived, or `within` after the first.

    A row has the columns of `on`, a struct for each part, named after its node or as `names` says, the names
    of the parts that are `missing`, and `gathered_at`: the time of the last part, or the end of the wait.
    """
    call = "gather()"
    if len(parts) < 2:
        raise InputError(f"{call} needs two or more parts", next_step="write hr.gather(paid, packed, on=...)")
    check_streams(call, **{f"part {number}": part for number, part in enumerate(parts, start=1)})
    first = parts[0]
    keys = columns_of(call, on, "first part", first.columns)
    for number, part in enumerate(parts[1:], start=2):
        columns_on(call, keys, ("first part", first.columns), (f"part {number}", part.columns))
        check_types(call, {name: name for name in keys}, first, part)
    span = span_of(call, within)
    titles = _names(call, parts, names, keys)
    operator = Gather(
        parts=tuple((title, arrow_schema(part.schema)) for title, part in zip(titles, parts, strict=True)),
        times=tuple(event_time(call, part) for part in parts),
        on=keys,
        within_us=span.microseconds,
    )
    buckets = buckets_of(first.sparkSession)
    described = {"gather": list(titles), "on": list(keys), "within": str(span), "buckets": buckets}
    explained = f"gather {', '.join(titles)} within {span}: Headrace's operator"
    note(JoinUse(described, added_disorder=span, explained=explained))
    given = dict(zip(titles, parts, strict=True))
    rows = hosted(operator, given, {title: [named(key) for key in keys] for title in titles}, buckets).rows()
    return rows.select(
        *(marked_event_time(named(name), name) if name == GATHERED_AT else named(name) for name in rows.columns)
    )


def _names(call: str, parts: Sequence[DataFrame], given: Sequence[str] | None, keys: Sequence[str]) -> tuple[str, ...]:
    """The names of the parts: those of their nodes, unless the user gives names."""
    titles = [feed_of(part) for part in parts] if given is None else list(given)
    known = [title.replace(".", "_") for title in titles if title]
    step = f"name them: names={[f'part{number}' for number in range(1, len(parts) + 1)]}"
    if len(known) < len(parts) or len(titles) != len(parts):
        raise InputError(f"{call} needs a name for each of its {len(parts)} parts", next_step=step)
    if len(set(known)) < len(known):
        raise InputError(f"{call}: two parts have the same name: {', '.join(known)}", next_step=step)
    taken = [title for title in known if title in (*keys, GATHERED_AT, MISSING)]
    if taken:
        raise InputError(f"{call}: a part has the name of a column of the result: {taken[0]!r}", next_step=step)
    return tuple(known)
