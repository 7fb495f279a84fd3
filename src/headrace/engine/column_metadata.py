"""Marks of columns in their metadata, which filters, projections and renamings keep."""

from pyspark.sql import Column, DataFrame

from headrace.engine.spark_private.plans import WATERMARK_DELAY
from headrace.engine.write.encoding import named
from headrace.topology import Duration

__all__ = [
    "event_times_of",
    "feed_of",
    "is_window_time",
    "is_windowed",
    "key_of",
    "lateness_of",
    "marked_event_time",
    "marked_key",
    "marked_time",
    "output_time",
]

KEY = "headrace.key"
"""Place in the key, and how many columns the key has: of a feed's key."""
TIME = "headrace.time"
"""The event time of rows that no longer have a watermark: a window's end, or that of each event."""
EACH = "each"
FEED = "headrace.feed"
"""On an event time: the feed that the rows come from."""


def marked_key(name: str, key: tuple[str, ...], feed: str | None = None) -> Column:
    """A feed's column, marked if it is in the key; the feed is named if it is the event time."""
    marks: dict[str, object] = {KEY: [key.index(name), len(key)]} if name in key else {}
    if feed is not None:
        marks[FEED] = feed
    return named(name).alias(name, metadata=marks) if marks else named(name)


def marked_time(value: Column, name: str) -> Column:
    return value.alias(name, metadata={TIME: True})


def marked_event_time(value: Column, name: str) -> Column:
    """The event time of an operator's rows that are not rows of windows."""
    return value.alias(name, metadata={TIME: EACH})


def key_of(frame: DataFrame) -> tuple[str, ...] | None:
    """The columns of the key of the feed that the rows come from; None unless all are there, each once."""
    places: dict[int, str] = {}
    sizes: set[int] = set()
    marked = [field for field in frame.schema if KEY in field.metadata]
    for field in marked:
        place, size = field.metadata[KEY]
        places[place] = field.name
        sizes.add(size)
    if len(sizes) != 1 or len(places) != len(marked) or len(places) != sizes.pop():
        return None
    return tuple(places[place] for place in sorted(places))


def event_times_of(frame: DataFrame) -> list[str]:
    """The columns that have a watermark."""
    return [field.name for field in frame.schema if WATERMARK_DELAY in field.metadata]


def feed_of(frame: DataFrame) -> str | None:
    """The feed that the rows come from, if their event time says so."""
    feeds = {field.metadata[FEED] for field in frame.schema if FEED in field.metadata}
    return str(feeds.pop()) if len(feeds) == 1 else None


def output_time(frame: DataFrame) -> str | None:
    """The event time of a node's output: the end of its window, otherwise the first column with a watermark."""
    ends = [field.name for field in frame.schema if TIME in field.metadata]
    return next(iter([*ends, *event_times_of(frame)]), None)


def is_window_time(frame: DataFrame, name: str | None) -> bool:
    """Whether a column is the end of a window, so that all rows of a window have the same."""
    return name is not None and frame.schema[name].metadata.get(TIME) is True


def is_windowed(frame: DataFrame) -> bool:
    """Whether the rows are those of a window, or of another operator."""
    return any(TIME in field.metadata for field in frame.schema)


def lateness_of(frame: DataFrame, time: str) -> Duration:
    """How far the watermark of a column is behind the newest event time."""
    return Duration(1000 * int(frame.schema[time].metadata[WATERMARK_DELAY]))
