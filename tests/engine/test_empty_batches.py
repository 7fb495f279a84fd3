"""Empty batches: Spark runs one after each batch that moved the watermark, and only some nodes need it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

import headrace as hr
from headrace.config.run import RunConfig
from headrace.engine.plan.planner import plan_topology
from headrace.engine.run.runner import Runner
from tests.engine.topics import rows, send

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(300)

SCHEMA = "id STRING, k STRING, at TIMESTAMP"
MINUTE = hr.tumbling("1 minute")


def by_hand(events: DataFrame, mode: str) -> DataFrame:
    def count(key: tuple[Any], found: Any, state: Any) -> Any:
        yield from ()

    return events.groupBy("k").applyInPandasWithState(count, "k STRING", "n INT", mode, "EventTimeTimeout")


NODES: dict[str, tuple[bool, Callable[[DataFrame], Any]]] = {
    "stateless": (False, lambda events: events.where("k <> 'a'")),
    "dedup": (False, lambda events: hr.dedup(events, on="id", within="1 hour")),
    "Spark's own dedup": (False, lambda events: events.dropDuplicatesWithinWatermark(["id"])),
    "sliding, changes": (False, lambda events: _counted(events, hr.sliding("1 minute"), emit="changes")),
    "sliding, final": (True, lambda events: _counted(events, hr.sliding("1 minute"))),
    "Spark's own window, final": (True, lambda events: _counted(events, MINUTE)),
    "window with late rows diverted": (True, lambda events: _counted(events, MINUTE, late="divert")),
    "session opened by an event": (
        True,
        lambda events: _counted(events, hr.session(opens="k = 'a'", timeout="1 minute")),
    ),
    "state by hand": (True, lambda events: by_hand(events, "append")),
    "a join of streams": (
        True,
        lambda events: events.join(events.selectExpr("id AS other", "at AS then"), F.expr("id = other AND at = then")),
    ),
}


def _counted(events: DataFrame, window: Any, **options: Any) -> Any:
    return hr.windowed(events, window, by="k", **options).agg(n=hr.count())


@pytest.mark.parametrize("name", NODES)
def test_what_can_fall_due(spark: SparkSession, config: RunConfig, name: str) -> None:
    falls_due, function = NODES[name]
    app = hr.App("due")
    app.topic("events", SCHEMA, key="k", event_time="at", lateness="1 minute")

    @app.table(key="id") if name == "sliding, changes" else app.stream
    def node(events: DataFrame) -> Any:
        return function(events)

    (planned,) = plan_topology(app.topology(), spark, config)
    assert planned.can_fall_due == falls_due


def test_a_view_of_windows_is_written_as_rows_come(spark: SparkSession, config: RunConfig) -> None:
    app = hr.App("due")
    app.topic("events", SCHEMA, key="k", event_time="at", lateness="1 minute")

    @app.view(key=["k", "window_start"])
    def counts(events: DataFrame) -> Any:
        return _counted(events, MINUTE)

    (planned,) = plan_topology(app.topology(), spark, replace(config, postgres="postgresql://nowhere"))
    assert not planned.can_fall_due


def test_without_empty_batches_windows_downstream_close_as_far_as_the_last_event_allows(
    spark: SparkSession, config: RunConfig, topic: str
) -> None:
    app = hr.App("idle", prefix=f"{topic}.")
    app.topic("events", SCHEMA, key="k", event_time="at", lateness="1 second")

    @app.stream(key="k")
    def once(events: DataFrame) -> DataFrame:
        return hr.dedup(events, on="id", within="1 hour")

    @app.stream(key="k")
    def seconds(once: DataFrame) -> Any:
        return _counted(once, hr.tumbling("1 second"))

    config = replace(config, create_inputs=True, topic_settings={"partitions": "1"})
    runner = Runner(app, config, spark)
    runner.start()
    try:
        start = datetime.now(UTC).replace(microsecond=0) - timedelta(minutes=5)
        for second in (0, 60):
            sent = [{"id": f"{second}", "k": "a", "at": (start + timedelta(seconds=second)).isoformat()}]
            send(config.kafka_address, f"{topic}.events", sent, "k")
            runner.process_all_available()
        deadline = time.monotonic() + 60
        while len(found := rows(config.kafka_address, f"{topic}.seconds")) < 1:
            assert time.monotonic() < deadline, "the window of the first event did not close"
            time.sleep(0.1)
        assert [row["n"] for row in found] == [1]
        (first, second) = (runner.checkpoints.of(name) for name in ("once", "seconds"))
        offsets = [first.sources(batch) for batch in range((first.committed_batch() or 0) + 1)]
        ends = [source.end for sources in offsets for source in sources]
        assert len({str(end) for end in ends}) == len(ends), "a batch of the first node read nothing"
        expected = start + timedelta(seconds=59)
        assert first.watermark_after(first.committed_batch()) == expected
        assert {node.node: node.watermark for node in runner.progress()}["once"] == expected
        assert second.committed_batch() is not None
    finally:
        runner.stop()
