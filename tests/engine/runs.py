"""Apps that run, for the tests of runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import headrace as hr
from headrace.config.run import Offsets, RunConfig
from headrace.engine.run.runner import Runner
from headrace.topology import App
from tests.engine.topics import rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EVENTS = "n BIGINT, k STRING, at TIMESTAMP"


def app_with_events(prefix: str, name: str = "app") -> App:
    app = hr.App(name + prefix.strip("."), prefix=prefix)
    app.topic("events", EVENTS, key="k", event_time="at", lateness="1 minute")
    return app


def event(n: int, second: int | None = None) -> dict[str, Any]:
    at = n if second is None else second
    return {"n": n, "k": f"k{n % 5}", "at": f"2026-01-01T00:{at // 60:02d}:{at % 60:02d}Z"}


@contextmanager
def run(
    app: App, config: RunConfig, spark: SparkSession, over: dict[str, Offsets | None] | None = None
) -> Iterator[Runner]:
    runner = Runner(app, config, spark)
    runner.start(restarted=over)
    try:
        yield runner
    finally:
        runner.stop()


def until(condition: Callable[[], bool], limit: float = 60.0) -> None:
    deadline = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.05)


def numbers(config: RunConfig, topic: str) -> list[int]:
    return sorted(row["n"] for row in rows(config.kafka_address, topic))
