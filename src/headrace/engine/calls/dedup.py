"""`hr.dedup`: duplicate events are dropped."""

from collections.abc import Sequence

from pyspark.sql import DataFrame

from headrace.engine.calls.arguments import JoinUse, check_streams, columns_of, event_time, note, span_of
from headrace.engine.column_metadata import marked_event_time
from headrace.engine.write.encoding import named
from headrace.operators.dedup import Dedup
from headrace.operators.hosting import arrow_schema, buckets_of, hosted
from headrace.operators.operator import RESULTS
from headrace.topology.duration import DurationLike

__all__ = ["dedup"]


def dedup(stream: DataFrame, *, on: str | Sequence[str], within: DurationLike | None = None) -> DataFrame:
    """Each event once: of those that are equal in `on` and less than `within` apart in time, the first to arrive.

    It is written at once. An event so old that an equal one may have been removed from the state is dropped, and
    counted as late.
    """
    call = "dedup()"
    check_streams(call, stream=stream)
    names = columns_of(call, on, "stream", stream.columns)
    span = span_of(call, within)
    time = event_time(call, stream)
    operator = Dedup(on=names, time=time, within_us=span.microseconds, input=arrow_schema(stream.schema))
    buckets = buckets_of(stream.sparkSession)
    described = {"dedup": list(names), "within": str(span), "buckets": buckets}
    note(JoinUse(described, explained=f"dedup by {', '.join(names)} within {span}: Headrace's operator"))
    keys = {RESULTS: [named(name) for name in names]}
    rows = hosted(operator, {RESULTS: stream}, keys, buckets).rows()
    return rows.select(
        *(marked_event_time(named(name), name) if name == time else named(name) for name in rows.columns)
    )
