"""A query over the files of a folder, batch by batch."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from benchmarks.operators.rows import events

Contender = Callable[[DataFrame], DataFrame]


@dataclass(frozen=True)
class Taken:
    """What Spark reported of the batches that had rows."""

    rows: list[int]
    seconds: list[float]
    memory: int
    disk: int

    def rate(self, skipped: int) -> float:
        return sum(self.rows[skipped:]) / sum(self.seconds[skipped:])


def run(spark: SparkSession, folder: Path, contender: Contender, home: Path) -> Taken:
    """All files through a query into nowhere."""
    return measured(contender(events(spark, folder)), home)


def measured(frame: DataFrame, home: Path) -> Taken:
    query = (
        frame.writeStream.format("noop")
        .outputMode("append")
        .option("checkpointLocation", str(home))
        .trigger(availableNow=True)
        .start()
    )
    try:
        query.awaitTermination()
        reports = [json.loads(report.json) for report in query.recentProgress]
    finally:
        query.stop()
    disk = sum(path.stat().st_size for path in (home / "state").rglob("*") if path.is_file())
    shutil.rmtree(home, ignore_errors=True)
    with_rows = [report for report in reports if report["numInputRows"]]
    return Taken(
        rows=[report["numInputRows"] for report in with_rows],
        seconds=[report["durationMs"]["triggerExecution"] / 1000 for report in with_rows],
        memory=sum(operator["memoryUsedBytes"] for operator in with_rows[-1]["stateOperators"]),
        disk=disk,
    )
