"""`hr.enrich`: events with the row of a table that was valid at their time, or is valid now."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from headrace.engine.calls.arguments import (
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
)
from headrace.engine.column_metadata import event_times_of, marked_event_time
from headrace.engine.read.tables import Table, versions_of
from headrace.engine.write.encoding import named
from headrace.errors import InputError
from headrace.operators.enriching import STREAM, TABLE, Enrich
from headrace.operators.hosting import arrow_schema, buckets_of, hosted
from headrace.topology.choices import Choice
from headrace.topology.duration import DurationLike
from headrace.topology.names import DELETED, ORDER, VALID_FROM

__all__ = ["enrich"]

CALL = "enrich()"
NO_EVENT_TIME = "_headrace_no_time"


class AsOf(Choice):
    """Which row of a table an event sees."""

    EVENT = "event"
    NOW = "now"


class Kept(Choice):
    """Whether events for which the table has no row are kept."""

    INNER = "inner"
    LEFT = "left"


def enrich(
    stream: DataFrame,
    table: Table,
    *,
    on: OnLike,
    as_of: str = "event",
    how: str = "inner",
    wait: DurationLike = "0 seconds",
) -> DataFrame:
    """Each event with the columns of the table's row for it.

    `on` is the table's key: columns that both have, or `{"ad": "id"}` if their names differ. `as_of="event"` takes the
    row that was valid at the event's time, `"now"` the latest row. With `how="left"` events without a row are kept,
    with nulls. `wait` holds each event for that long, so that rows of the table that arrive later are still used. If
    the table has no event_time, the first row of a key is used for earlier events too.
    """
    check_streams(CALL, stream=stream)
    if not isinstance(table, Table):
        step = "declare it with app.table(...)" if isinstance(table, DataFrame) else None
        raise InputError(f"{CALL}: the second argument is {type(table).__name__}, not a table", next_step=step)
    versions = versions_of(table)
    pairs = columns_on(CALL, on, ("stream", stream.columns), ("table", table.columns))
    if sorted(pairs.values()) != sorted(table.key):
        raise InputError(
            f"{CALL}: on: a table is looked up by its key, {', '.join(table.key)}, not by {', '.join(pairs.values())}",
            next_step=f"say on={list(table.key)!r}, or join two tables with hr.join",
        )
    check_types(CALL, pairs, stream, versions)
    added = [name for name in table.columns if name not in pairs.values()]
    check_clash(CALL, stream.columns, added, "table.select(..., '{0} AS its_{0}')")
    seen, kept = chosen(CALL, "as_of", AsOf, as_of), chosen(CALL, "how", Kept, how)
    waited = duration(CALL, "wait", wait)
    needs_time = seen is AsOf.EVENT or waited.microseconds or event_times_of(stream)
    time = event_time(CALL, stream) if needs_time else NO_EVENT_TIME
    events = stream if needs_time else stream.withColumn(NO_EVENT_TIME, F.lit(0).cast("timestamp"))
    rows = versions.select(*(named(name) for name in [*pairs.values(), *added, VALID_FROM, ORDER, DELETED]))
    operator = Enrich(
        on=tuple(pairs.items()),
        time=time,
        stream=arrow_schema(events.schema),
        table=arrow_schema(rows.schema),
        as_of=seen.value,
        how=kept.value,
        wait_us=waited.microseconds,
        backdates_first=not table.is_timed,
    )
    buckets = buckets_of(stream.sparkSession)
    described = {"enrich": str(table), "on": dict(pairs), "as_of": str(seen), "how": str(kept), "wait": str(waited)}
    note(
        JoinUse(
            described | {"buckets": buckets},
            behind_watermark=waited,
            explained=f"enrich with {table}: Headrace's operator",
            looks_up_table=True,
        )
    )
    keys = {STREAM: [named(here) for here in pairs], TABLE: [named(there) for there in pairs.values()]}
    instead = "use as_of='now'" if table.is_timed else "give the table an event_time, or use as_of='now'"
    hint = f"events are older than the first row of their key in the table {table}: {instead}"
    enriched = hosted(operator, {STREAM: events, TABLE: rows}, keys, buckets, hint).rows()
    return enriched.select(
        *(
            marked_event_time(named(name), name) if name == time else named(name)
            for name in enriched.columns
            if name != NO_EVENT_TIME
        )
    )
