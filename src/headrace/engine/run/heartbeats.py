"""How the watermark moves without events: markers, each for one query and written only when they are true.

A marker says that all rows of a topic up to a time are known, so it must be read after them. That is so once the
query has read everything that the topic contained when the time was taken: until then the marker waits.

Three things move a topic's time:
- its heartbeat: after that long without events, the time is that of the clock;
- its writer, if that is a node of the app: it will write no row older than its own watermark;
- other topics, where a node merges them: one without events does not delay the others.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Protocol

from headrace.config.run import Offsets
from headrace.topology import Duration

__all__ = ["Heartbeats", "MarkedTopic", "Marker", "Reader", "markers_of"]


def markers_of(topic: str) -> str:
    """The topic of a topic's markers."""
    return f"{topic}.markers"


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkedTopic:
    """A topic that a query reads together with its markers."""

    topic: str
    lateness: Duration
    heartbeat: Duration | None = None
    idle: Duration | None = None
    """After how long without events it no longer delays the query's other topics; None if it always does."""
    writer: str | None = None
    """The node of the app that writes it."""


class Reader(Protocol):
    """What is needed of a query."""

    @property
    def name(self) -> str: ...

    @property
    def marked(self) -> Sequence[MarkedTopic]: ...

    @property
    def behind_watermark(self) -> Duration | None:
        """How far behind its watermark its rows can be; None if unknown."""
        ...

    @property
    def watermark(self) -> datetime | None: ...

    @property
    def newest(self) -> datetime | None:
        """The newest event time that it has seen."""
        ...

    def position(self, topic: str) -> Mapping[int, int]: ...


@dataclass(frozen=True, slots=True)
class Marker:
    """For one query: no further row of the topic is older than this time minus its lateness."""

    topic: str
    reader: str
    time: datetime


@dataclass(slots=True)
class _Waiting:
    """A time whose marker can be written once the query has read up to these offsets."""

    time: datetime
    ends: Mapping[int, int]


@dataclass(slots=True)
class _Silence:
    ends: Mapping[int, int]
    since: datetime


@dataclass
class Heartbeats:
    """Decides which markers to write. `beat` is called again and again with the state of topics and queries."""

    readers: Sequence[Reader]
    _silences: dict[str, _Silence] = field(default_factory=dict)
    _waiting: dict[tuple[str, str], _Waiting] = field(default_factory=dict)
    _last_marked: dict[tuple[str, str], datetime] = field(default_factory=dict)

    @property
    def topics(self) -> set[str]:
        """The topics that have markers."""
        return {marked.topic for reader in self.readers for marked in reader.marked}

    def watermarks(self) -> dict[str, datetime]:
        """Up to which time each node has written its rows. Take it before the ends: they include its rows then."""
        found = {}
        for reader in self.readers:
            if reader.watermark is not None and reader.behind_watermark is not None:
                found[reader.name] = reader.watermark - reader.behind_watermark.timedelta
        return found

    def forget(self, marker: Marker) -> None:
        """It could not be written."""
        self._last_marked.pop((marker.reader, marker.topic), None)

    def beat(self, now: datetime, watermarks: Mapping[str, datetime], ends: Offsets) -> Iterator[Marker]:
        """The markers that have become true. `now` and `watermarks` were taken before `ends`."""
        for topic in self.topics & ends.keys():
            silence = self._silences.get(topic)
            if silence is None or silence.ends != ends[topic]:
                self._silences[topic] = _Silence(dict(ends[topic]), now)
        for reader in self.readers:
            for marked in reader.marked:
                if marked.topic in ends:
                    yield from self._told_of(reader, marked, now, watermarks, ends[marked.topic])

    def _told_of(
        self,
        reader: Reader,
        marked: MarkedTopic,
        now: datetime,
        watermarks: Mapping[str, datetime],
        end: Mapping[int, int],
    ) -> Iterator[Marker]:
        place = (reader.name, marked.topic)
        read = reader.position(marked.topic)
        waiting = self._waiting.get(place)
        if waiting is None:
            time = self._time(reader, marked, now, watermarks)
            if time is None or time <= self._last_marked.get(place, time - timedelta(1)):
                return
            waiting = self._waiting[place] = _Waiting(time, dict(end))
        if all(read.get(partition, 0) >= offset for partition, offset in waiting.ends.items()):
            del self._waiting[place]
            self._last_marked[place] = waiting.time
            yield Marker(marked.topic, reader.name, waiting.time)

    def _time(
        self, reader: Reader, marked: MarkedTopic, now: datetime, watermarks: Mapping[str, datetime]
    ) -> datetime | None:
        """The latest time that any of the three gives."""
        times = []
        silent = now - self._silences[marked.topic].since
        if marked.heartbeat is not None and silent >= marked.heartbeat.timedelta:
            last = self._last_marked.get((reader.name, marked.topic))
            if last is None or now - last >= marked.heartbeat.timedelta:
                times.append(now)
        if marked.writer is not None and marked.writer in watermarks:
            times.append(watermarks[marked.writer] + marked.lateness.timedelta)
        if marked.idle is not None and silent >= marked.idle.timedelta and reader.newest is not None:
            # The others have reached this time at least, whichever of them it was.
            slowest = max(other.lateness for other in reader.marked)
            times.append(reader.newest - slowest.timedelta + marked.lateness.timedelta)
        return max(times, default=None)
