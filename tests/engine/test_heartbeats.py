"""Markers: written when they are true and not before, and time goes on by them through a whole app."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

import headrace as hr
from headrace.config.run import RunConfig
from headrace.engine.run.heartbeats import Heartbeats, MarkedTopic, Marker
from headrace.engine.run.runner import Runner
from headrace.topology import Duration
from tests.engine.topics import rows, send

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(300)

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
TEN = Duration.of("10 seconds")


def after(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


@dataclass
class Query:
    """What is known of a query, as a test says."""

    name: str
    marked: Sequence[MarkedTopic] = ()
    behind_watermark: Duration | None = None
    watermark: datetime | None = None
    newest: datetime | None = None
    read: dict[str, dict[int, int]] = field(default_factory=dict)

    def position(self, topic: str) -> Mapping[int, int]:
        return self.read.get(topic, {})


def beat(beats: Heartbeats, seconds: float, **ends: dict[int, int]) -> list[Marker]:
    return list(beats.beat(after(seconds), beats.watermarks(), ends))


def test_a_heartbeat_tells_the_time_once_all_that_was_there_has_been_read() -> None:
    topic = MarkedTopic(topic="t", lateness=Duration.of("1 minute"), heartbeat=TEN)
    query = Query("q", [topic], read={"t": {0: 5}})
    beats = Heartbeats([query])
    assert beat(beats, 0, t={0: 7, 1: 0}) == []
    assert beat(beats, 9, t={0: 7, 1: 0}) == [], "not silent for long enough"
    assert beat(beats, 11, t={0: 7, 1: 0}) == [], "two rows are unread"
    query.read["t"] = {0: 6}
    assert beat(beats, 12, t={0: 9, 1: 1}) == [], "one of them still is"
    query.read["t"] = {0: 7}
    assert beat(beats, 13, t={0: 9, 1: 1}) == [Marker("t", "q", after(11))], "what came since is not meant"
    assert beat(beats, 20, t={0: 9, 1: 1}) == [], "it spoke at 12"
    query.read["t"] = {0: 9, 1: 1}
    assert beat(beats, 22.5, t={0: 9, 1: 1}) == [Marker("t", "q", after(22.5))]
    assert beat(beats, 30, t={0: 9, 1: 1}) == [], "once in ten seconds"
    assert beat(beats, 33, t={0: 9, 1: 1}) == [Marker("t", "q", after(33))]
    assert beat(beats, 60, other={0: 1}) == [], "nobody could be asked"


def test_each_reader_has_its_own_markers() -> None:
    topic = MarkedTopic(topic="t", lateness=TEN, heartbeat=TEN)
    fast, slow = Query("fast", [topic], read={"t": {0: 5}}), Query("slow", [topic], read={"t": {0: 1}})
    beats = Heartbeats([fast, slow])
    beat(beats, 0, t={0: 5})
    assert beat(beats, 10, t={0: 5}) == [Marker("t", "fast", after(10))]
    slow.read["t"] = {0: 5}
    assert beat(beats, 11, t={0: 5}) == [Marker("t", "slow", after(10))]


def test_a_node_hands_its_watermark_to_its_readers() -> None:
    writer = Query("w", behind_watermark=Duration.of("3 seconds"))
    reader = Query("r", [MarkedTopic(topic="w", lateness=TEN, writer="w")])
    beats = Heartbeats([writer, reader])
    assert beat(beats, 0, w={0: 0}) == []
    writer.watermark = after(-60)
    assert beat(beats, 1, w={0: 4}) == [], "its rows are not read yet"
    writer.watermark = after(-30)
    assert beat(beats, 2, w={0: 6}) == []
    reader.read["w"] = {0: 4}
    assert beat(beats, 3, w={0: 6}) == [Marker("w", "r", after(-60 - 3 + 10))]
    reader.read["w"] = {0: 6}
    assert beat(beats, 4, w={0: 6}) == [Marker("w", "r", after(-30 - 3 + 10))]
    assert beat(beats, 5, w={0: 6}) == [], "nothing new"
    beats.forget(Marker("w", "r", after(-23)))
    assert beat(beats, 6, w={0: 6}) == [Marker("w", "r", after(-23))], "it was not written after all"
    writer.behind_watermark = None
    writer.watermark = after(0)
    assert beat(beats, 7, w={0: 6}) == [], "nobody knows which rows may still come"


def test_a_silent_source_of_a_merge_holds_nobody_back() -> None:
    busy = MarkedTopic(topic="busy", lateness=Duration.of("5 seconds"), idle=TEN)
    silent = MarkedTopic(topic="silent", lateness=Duration.of("1 minute"), idle=TEN)
    query = Query("q", [busy, silent], newest=after(100), read={"busy": {0: 1}, "silent": {0: 0}})
    beats = Heartbeats([query])
    assert beat(beats, 0, busy={0: 1}, silent={0: 0}) == []
    assert beat(beats, 9, busy={0: 2}, silent={0: 0}) == []
    # Its lateness is the larger one, so its time may be that of the newest event.
    assert beat(beats, 10, busy={0: 3}, silent={0: 0}) == [Marker("silent", "q", after(100))]
    assert beat(beats, 11, busy={0: 4}, silent={0: 0}) == []
    query.newest = after(200)
    assert beat(beats, 12, busy={0: 5}, silent={0: 9}) == [], "it is not silent any more"
    query.marked = [replace(busy, idle=None), replace(silent, idle=None)]
    assert beat(beats, 100, busy={0: 5}, silent={0: 9}) == []


SCHEMA = "k STRING, at TIMESTAMP"


def rows_of(config: RunConfig, topic: str, count: int, limit: float = 90) -> list[dict[str, Any]]:
    """The rows of a topic once there are that many."""
    deadline = time.monotonic() + limit
    while len(found := rows(config.kafka_address, topic)) < count and time.monotonic() < deadline:
        time.sleep(0.5)
    return found


def test_windows_close_on_a_silent_topic_down_the_graph(spark: SparkSession, config: RunConfig, topic: str) -> None:
    app = hr.App("silence", prefix=f"{topic}.")
    app.topic("clicks", SCHEMA, key="k", event_time="at", lateness="1 second", heartbeat="1 second")
    app.topic("calls", SCHEMA, key="k", event_time="at", lateness="1 second")

    @app.stream(key="k")
    def plain(clicks: DataFrame) -> DataFrame:
        return clicks

    @app.stream(key="k")
    def seconds(plain: DataFrame) -> DataFrame:
        return hr.windowed(plain, hr.tumbling("1 second")).agg(n=hr.count())

    @app.stream(key="k")
    def pairs(seconds: DataFrame) -> DataFrame:
        return hr.windowed(seconds, hr.tumbling("2 seconds")).agg(n=hr.sum("n"))

    @app.stream(key="k")
    def merged(clicks: DataFrame, calls: DataFrame) -> DataFrame:
        both = hr.merge(clicks, calls, idle="2 seconds")
        return hr.windowed(both, hr.tumbling("1 second"), by="k").agg(n=hr.count())

    config = replace(config, create_inputs=True, topic_settings={"partitions": "1"})
    runner = Runner(app, config, spark)
    runner.start()
    try:
        now = datetime.now(UTC)
        old = now - timedelta(minutes=30)
        send(config.kafka_address, f"{topic}.calls", [{"k": "b", "at": old.isoformat()}], "k")
        send(config.kafka_address, f"{topic}.clicks", [{"k": "a", "at": now.isoformat()}], "k")
        assert [row["n"] for row in rows_of(config, f"{topic}.pairs", 1)] == [1]
        assert sorted(row["k"] for row in rows_of(config, f"{topic}.merged", 2)) == ["a", "b"]
        # What comes in time after a silence is not late.
        send(config.kafka_address, f"{topic}.clicks", [{"k": "c", "at": datetime.now(UTC).isoformat()}], "k")
        assert [row["k"] for row in rows_of(config, f"{topic}.pairs", 2)] == ["a", "c"]
        assert {node.late for node in runner.progress()} == {0}
    finally:
        runner.stop()
