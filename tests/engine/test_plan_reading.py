"""What planned queries read: rejects as a sink gets at them, files, the rate source, columns named as a record's."""

from __future__ import annotations

import json
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer

from headrace.config.run import RunConfig
from headrace.engine.plan.planner import PlannedQuery
from headrace.engine.spark_private.checkpoint_files import CheckpointFiles, SourceOffsets
from headrace.errors import CheckpointError
from tests.engine.test_plan import DDL, new_app, payments_of, planned

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = pytest.mark.timeout(300)


class Kept:
    """A sink that keeps what it is given, and what it is told of rejects while the batch is open."""

    def __init__(self) -> None:
        self.rows: list[Any] = []
        self.counts: list[dict[str, int]] = []
        self.query: StreamingQuery | None = None

    def __call__(self, batch: DataFrame, _: int) -> None:
        self.rows += batch.collect()
        deadline = time.monotonic() + 30
        while self.query is None and time.monotonic() < deadline:
            time.sleep(0.01)
        assert self.query is not None
        metrics = self.query._jsq.streamingQuery().lastExecution().observedMetrics()
        names = metrics.keys().mkString("\n").split("\n") if metrics.size() else []
        self.counts.append({name: metrics.apply(name).getLong(0) for name in names})


def run(query: PlannedQuery, checkpoint: Path) -> Kept:
    kept = Kept()
    writer = query.frame.writeStream.foreachBatch(kept).outputMode(query.output_mode)
    kept.query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    assert kept.query.awaitTermination(200)
    return kept


def offsets(checkpoint: Path, batch: int) -> SourceOffsets:
    """Those of the first source."""
    return CheckpointFiles(checkpoint, CheckpointError).sources(batch)[0]


def good(number: int) -> bytes:
    return json.dumps(
        {"id": str(number), "card": "c", "amount": number, "at": f"2026-01-01T00:00:{number:02}Z"}
    ).encode()


def send(config: RunConfig, topic: str, values: list[bytes | None]) -> None:
    producer = Producer({"bootstrap.servers": config.kafka_address})
    for value in values:
        producer.produce(topic, value, key=b"the key", headers={"mine": b"1"}, timestamp=1_767_225_600_123)
    assert producer.flush(30) == 0


def test_rejects_are_counted_in_the_batch_and_read_by_its_offsets(
    spark: SparkSession, config: RunConfig, tmp_path: Path
) -> None:
    app = new_app()
    payments = payments_of(app)

    @app.stream(key="id")
    def copied(payments: DataFrame) -> DataFrame:
        return payments

    @app.stream
    def complaints(rows: DataFrame = payments.rejected) -> DataFrame:  # type: ignore[assignment]
        return rows

    send(config, payments.topic_name, [good(1), b"first", good(2)])
    queries = planned(app, spark, config)
    (rejects,) = queries["copied"].rejects
    kept = run(queries["copied"], tmp_path / "checkpoint")
    assert [(row.topic, row.key, json.loads(row.value)["id"]) for row in kept.rows] == [
        (f"{app.prefix}copied", b"1", "1"),
        (f"{app.prefix}copied", b"2", "2"),
    ]
    send(config, payments.topic_name, [b"second", None, good(3)])
    kept = run(queries["copied"], tmp_path / "checkpoint")
    assert kept.counts == [{rejects.metric: 2}]
    first, second = offsets(tmp_path / "checkpoint", 0), offsets(tmp_path / "checkpoint", 1)
    assert [row.value for row in rejects.read(spark, first).collect()] == [b"first"]
    found = rejects.read(spark, second)
    told = [
        (row.value, row.key, {header.key: bytes(header.value) for header in row.headers}) for row in found.collect()
    ]
    sent_at = [datetime.fromisoformat(headers.pop("headrace-timestamp").decode()) for _, _, headers in told]
    assert {moment.microsecond for moment in sent_at} == {123000}
    place = {"headrace-topic": payments.topic_name.encode(), "headrace-partition": b"0", "mine": b"1"}
    assert told == [
        (
            b"second",
            b"the key",
            {"headrace-reason": b"the value is not one JSON object", "headrace-offset": b"3", **place},
        ),
        (None, b"the key", {"headrace-reason": b"the value is null", "headrace-offset": b"4", **place}),
    ]
    assert {row.timestamp for row in found.collect()} == {None}, "it is new, however old the record was"
    assert {row.topic for row in found.collect()} == {f"{payments.topic_name}.rejected"}

    writer = found.write.format("kafka").option("kafka.bootstrap.servers", config.kafka_address)
    writer.option("includeHeaders", "true").save()
    kept = run(queries["complaints"], tmp_path / "complaints")
    read = [json.loads(row.value) for row in kept.rows]
    assert [(one["reason"], one["offset"], one["value"]) for one in read] == [
        ("the value is not one JSON object", 3, "c2Vjb25k"),
        ("the value is null", 4, None),
    ]
    assert [datetime.fromisoformat(one["timestamp"]) for one in read] == sent_at


def test_where_a_feed_is_read_in_several_places_every_batch_is_looked_at(
    spark: SparkSession, config: RunConfig, tmp_path: Path
) -> None:
    app = new_app()
    payments = payments_of(app)

    @app.stream(key="id", channels=["odd", "even"])
    def split(payments: DataFrame) -> dict[str, DataFrame]:
        return {"odd": payments.filter("amount % 2 = 1"), "even": payments.filter("amount % 2 = 0")}

    @app.stream(key="id")
    def evens(rows: DataFrame = split.even) -> DataFrame:  # type: ignore[assignment]
        return rows.select("id")

    send(config, payments.topic_name, [good(1), b"bad", good(2)])
    queries = planned(app, spark, config)
    (rejects,) = queries["split"].rejects
    assert rejects.metric is None
    kept = run(queries["split"], tmp_path / "checkpoint")
    assert sorted((row.topic, json.loads(row.value)["id"]) for row in kept.rows) == [
        (f"{app.prefix}split.even", "2"),
        (f"{app.prefix}split.odd", "1"),
    ]
    assert rejects.read(spark, offsets(tmp_path / "checkpoint", 0)).count() == 1
    assert queries["evens"].output_schema.ddl == "id STRING"


def test_files_and_their_rejects(spark: SparkSession, config: RunConfig, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    app = new_app()
    app.files("lines", DDL, path=str(folder), key="card", event_time="at", lateness="1 minute")

    @app.stream(key="id")
    def copied(lines: DataFrame) -> DataFrame:
        return lines

    (folder / "a.json").write_bytes(good(1) + b"\nbad\n")
    query = planned(app, spark, config)["copied"]
    (rejects,) = query.rejects
    kept = run(query, tmp_path / "checkpoint")
    assert (len(kept.rows), kept.counts) == (1, [{rejects.metric: 1}])
    (folder / "b.json").write_bytes(b"worse\n" + good(2) + b"\n")
    kept = run(query, tmp_path / "checkpoint")
    assert len(kept.rows) == 1
    first, second = offsets(tmp_path / "checkpoint", 0), offsets(tmp_path / "checkpoint", 1)
    assert [row.value for row in rejects.read(spark, first).collect()] == [b"bad"]
    (found,) = rejects.read(spark, second).collect()
    told = {header.key: bytes(header.value).decode() for header in found.headers}
    assert (found.topic, found.value) == (f"{app.prefix}lines.rejected", b"worse")
    assert told["headrace-topic"].endswith("b.json")


def test_the_rate_source_counts(spark: SparkSession, config: RunConfig, tmp_path: Path) -> None:
    app = new_app()
    app.rate("ticks", rows_per_second=100)

    @app.stream
    def copied(ticks: DataFrame) -> DataFrame:
        return ticks

    query = planned(app, spark, config)["copied"]
    assert query.rejects == ()
    kept = Kept()
    writer = query.frame.writeStream.foreachBatch(kept).option("checkpointLocation", str(tmp_path / "checkpoint"))
    kept.query = running = writer.start()
    deadline = time.monotonic() + 60
    while len(kept.rows) < 5 and time.monotonic() < deadline:
        running.awaitTermination(1)
    running.stop()
    assert {json.loads(row.value)["value"] for row in kept.rows} >= {0, 1, 2, 3, 4}


def test_a_column_of_a_node_with_the_name_of_a_records_own_is_read_as_the_node_wrote_it(
    spark: SparkSession, config: RunConfig, tmp_path: Path
) -> None:
    app = new_app()
    payments = app.topic("payments", "id STRING", record_columns=["_offset"])

    @app.stream(key="id")
    def numbered(payments: DataFrame) -> DataFrame:
        return payments.selectExpr("id", "_offset + 100 AS _offset")

    @app.stream(key="id")
    def again(numbered: DataFrame) -> DataFrame:
        return numbered

    queries = planned(app, spark, config)
    send(config, payments.topic_name, [b'{"id": "a"}'])
    send(config, f"{app.prefix}numbered", [b'{"id": "a", "_offset": 100}'])
    kept = run(queries["again"], tmp_path / "checkpoint")
    assert [json.loads(row.value) for row in kept.rows] == [{"id": "a", "_offset": 100}]
