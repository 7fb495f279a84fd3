"""The same job, three ways: by hand in PySpark, and as a Headrace app with each guarantee."""

import json
import random
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery

import headrace as hr
from headrace.config.run import RunConfig
from headrace.engine.read.parsing import IS_REJECTED, Shape, parse, rows
from headrace.engine.run.runner import Runner
from headrace.topology import ColumnTime, Schema

SCHEMA = "id BIGINT, card STRING, amount DOUBLE, country STRING, at TIMESTAMP"
PARTITIONS = 4
CARDS = 10_000
WINDOW = "1 minute"
LATENESS = "10 seconds"
BATCH = 500_000
LIMIT = 600.0


def events(count: int, seed: int = 7) -> Iterator[tuple[bytes, bytes]]:
    """Payments as JSON of 100 to 120 bytes, 2,000 to a second of event time."""
    chance = random.Random(seed)
    countries = ("DE", "FR", "US", "BR", "IN")
    start = 1_767_225_600.0
    for number in range(count):
        card = f"card-{chance.randrange(CARDS):05d}"
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(start + number / 2_000))
        amount = chance.randrange(1, 100_000) / 100
        value = (
            f'{{"id":{number:>9},"card":"{card}","amount":{amount:.2f},"country":"{chance.choice(countries)}",'
            f'"at":"{at}.{number % 1000:03d}000Z"}}'
        )
        yield card.encode(), value.encode()


def fill(address: str, topic: str, count: int) -> None:
    make_topic(address, topic)
    producer = Producer({"bootstrap.servers": address, "linger.ms": 20, "queue.buffering.max.messages": 500_000})
    for key, value in events(count):
        while True:
            try:
                producer.produce(topic, value, key)
                break
            except BufferError:
                producer.poll(0.1)
    if producer.flush(LIMIT):
        raise RuntimeError(f"{topic} was not filled")


def make_topic(address: str, topic: str, partitions: int = PARTITIONS) -> None:
    admin = AdminClient({"bootstrap.servers": address})
    for made in admin.create_topics([NewTopic(topic, partitions, 1)]).values():
        made.result(60)


def drop_topics(address: str, *topics: str) -> None:
    admin = AdminClient({"bootstrap.servers": address})
    for gone in admin.delete_topics(list(topics)).values():
        gone.result(60)


@dataclass(frozen=True)
class Setting:
    spark: SparkSession
    address: str
    folder: Path
    source: str
    windowed: bool

    def raw(self) -> DataFrame:
        return (
            self.spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", self.address)
            .option("kafka.isolation.level", "read_committed")
            .option("kafka.fetch.max.wait.ms", "10")
            .option("subscribe", self.source)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", BATCH)
            .load()
        )

    def by_hand(self, number: int, *, strict: bool) -> float:
        """Seconds of a query as one writes it: parse, compute, write with Spark's own Kafka sink."""
        target = f"by-hand-{number}"
        make_topic(self.address, target)
        computed = self._computed((strictly if strict else _plainly)(self.raw()))
        written = computed.select(
            F.col("card").cast("binary").alias("key"),
            F.to_json(F.struct("*"), {"ignoreNullFields": "false", "timeZone": "UTC"}).cast("binary").alias("value"),
        )
        checkpoint = self.folder / target
        query = (
            written.writeStream.format("kafka")
            .option("kafka.bootstrap.servers", self.address)
            .option("topic", target)
            .option("checkpointLocation", str(checkpoint))
            .outputMode("append")
            .start()
        )
        try:
            query.processAllAvailable()
            return busy_seconds(query)
        finally:
            query.stop()
            drop_topics(self.address, target)
            shutil.rmtree(checkpoint, ignore_errors=True)

    def by_headrace(self, number: int, guarantee: str) -> float:
        name = f"bench{number}"
        app = hr.App(name, prefix=f"{name}.")
        payments = app.topic("payments", SCHEMA, key="card", event_time="at", lateness=LATENESS, topic=self.source)
        computed = self._windows if self.windowed else _expensive

        @app.stream(key="card", guarantee=guarantee)
        def results(rows: DataFrame = payments) -> DataFrame:  # type: ignore[assignment]
            return computed(rows)

        home = self.folder / name
        settings = {"partitions": str(PARTITIONS)}
        config = RunConfig(
            home=home, kafka=self.address, topic_settings=settings, max_records_per_batch=BATCH, create_inputs=False
        )
        runner = Runner(app, config, self.spark)
        runner.start()
        try:
            (query,) = self.spark.streams.active
            runner.process_all_available()
            return busy_seconds(query)
        finally:
            runner.stop()
            shutil.rmtree(home, ignore_errors=True)

    def _computed(self, rows: DataFrame) -> DataFrame:
        if not self.windowed:
            return _expensive(rows)
        span = F.window("at", WINDOW).alias("span")
        grouped = rows.withWatermark("at", LATENESS).groupBy("card", span)
        return grouped.agg(F.count(F.lit(1)).alias("n"), F.sum("amount").alias("total")).select(
            "card", F.col("span.start").alias("window_start"), F.col("span.end").alias("window_end"), "n", "total"
        )

    @staticmethod
    def _windows(rows: DataFrame) -> DataFrame:
        return hr.windowed(rows, hr.tumbling(WINDOW)).agg(n=hr.count(), total=hr.sum("amount"))


def _expensive(rows: DataFrame) -> DataFrame:
    return rows.filter("amount > 10").withColumn("cents", F.round(F.col("amount") * 100).cast("bigint"))


def strictly(raw: DataFrame) -> DataFrame:
    """With the very expressions that Headrace parses with."""
    shape = Shape(Schema.of(SCHEMA), key=("card",), time=ColumnTime("at"))
    parsed = parse(raw, shape).observe("by hand", F.count_if(IS_REJECTED).alias("rejected"))
    return parsed.filter(~F.col(IS_REJECTED)).select(*rows(shape))


def _plainly(raw: DataFrame) -> DataFrame:
    return raw.select(F.from_json(F.col("value").cast("string"), SCHEMA).alias("row")).select("row.*")


def busy_seconds(*queries: StreamingQuery) -> float:
    """From the start of the first batch of any to the end of the last that had rows."""
    reports = [json.loads(report.json) for query in queries for report in query.recentProgress]
    with_rows = [report for report in reports if report["numInputRows"]]

    def began(report: dict[str, Any]) -> float:
        return datetime.fromisoformat(report["timestamp"]).timestamp()

    def ended(report: dict[str, Any]) -> float:
        return began(report) + report["durationMs"]["triggerExecution"] / 1000

    return max(map(ended, with_rows)) - min(map(began, with_rows))


Way = Callable[[int], float]
