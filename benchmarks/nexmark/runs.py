"""A query over the whole story, as a Headrace app or by hand: how long it takes, and what its topic holds then."""

import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headrace as hr
from benchmarks.engine.job import busy_seconds
from benchmarks.nexmark import by_hand
from benchmarks.nexmark.events import KEYS, PARTITIONS, SCHEMAS, SIDE
from benchmarks.nexmark.queries import House, Query
from headrace.config.run import RunConfig
from headrace.engine.read.parsing import IS_REJECTED, Shape, parse, rows
from headrace.engine.run.runner import Runner
from headrace.topology import ColumnTime, Schema, TableNode

MICROSECONDS = {"ignoreNullFields": "false", "timeZone": "UTC", "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'"}


@dataclass(frozen=True)
class Ran:
    seconds: float
    """From the start of the first batch to the end of the last that had rows."""
    found: DataFrame
    """The rows of the query's topic; of a table those it ends with."""


@dataclass(frozen=True)
class Setting:
    """Where queries run: topics that are filled, files of the same events, and a session of Spark's."""

    spark: SparkSession
    address: str
    folder: Path
    batch: int
    prefix: str = ""

    @contextmanager
    def by_headrace(self, query: Query, name: str, arriving: Iterable[object] = (None,)) -> Iterator[Ran]:
        """Run it to the end of its topics. What it wrote is there until the block is left.

        Of events that are `arriving` in parts, each is processed by a run that goes on where the last one stopped.
        """
        app = hr.App(name, prefix=f"{name}.")
        last = query.declare(House(app, self.prefix))
        config = RunConfig(
            home=self.folder / name,
            kafka=self.address,
            topic_settings={"partitions": str(PARTITIONS)},
            max_records_per_batch=self.batch,
            attempts=1,
        )
        try:
            seconds = sum(self._settled(Runner(app, config, self.spark)) for _ in arriving)
            yield Ran(seconds, self._found(query, last.topic_name, is_table=isinstance(last, TableNode)))
        finally:
            self._clean(name)

    def _settled(self, runner: Runner) -> float:
        runner.start()
        try:
            queries = self.spark.streams.active
            runner.process_all_available()
            return busy_seconds(*queries)
        finally:
            runner.stop()

    @contextmanager
    def by_hand(self, query: Query, name: str) -> Iterator[Ran]:
        """The same in PySpark, written with Spark's own sink; rows are parsed with Headrace's expressions."""
        target = f"{name}.result"
        self._make(target)
        key = by_hand.KEYS.get(query.name, ["auction"])
        updates = query.name in by_hand.UPDATES
        computed = by_hand.BY_HAND[query.name](by_hand.Sources(self._parsed, self._side_input))
        written = computed.select(
            F.concat_ws(",", *(F.col(name).cast("string") for name in key)).cast("binary").alias("key"),
            F.to_json(F.struct("*"), MICROSECONDS).cast("binary").alias("value"),
        )
        running = (
            written.writeStream.format("kafka")
            .option("kafka.bootstrap.servers", self.address)
            .option("topic", target)
            .option("checkpointLocation", str(self.folder / name))
            .outputMode("update" if updates else "append")
            .start()
        )
        try:
            running.processAllAvailable()
            yield Ran(busy_seconds(running), self._found(query, target, is_table=updates))
        finally:
            running.stop()
            self._clean(name)

    def _parsed(self, topic: str) -> DataFrame:
        raw = (
            self.spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", self.address)
            .option("kafka.isolation.level", "read_committed")
            .option("kafka.fetch.max.wait.ms", "10")
            .option("subscribe", self.prefix + topic)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", self.batch)
            .load()
        )
        shape = Shape(Schema.of(SCHEMAS[topic]), key=(KEYS[topic],), time=ColumnTime("at"))
        return parse(raw, shape).filter(~F.col(IS_REJECTED)).select(*rows(shape))

    def _side_input(self) -> DataFrame:
        return self.spark.read.parquet(str(self.folder / f"{SIDE}.parquet"))

    def _found(self, query: Query, topic: str, *, is_table: bool) -> DataFrame:
        records = (
            self.spark.read.format("kafka")
            .option("kafka.bootstrap.servers", self.address)
            .option("kafka.isolation.level", "read_committed")
            .option("subscribe", topic)
            .load()
        )
        if is_table:  # the records of a key are in one partition
            records = records.groupBy("key").agg(F.max_by("value", "offset").alias("value")).where("value IS NOT NULL")
        row = F.from_json(F.col("value").cast("string"), query.result, {"mode": "FAILFAST"}).alias("row")
        return records.select(row).select("row.*")

    def _make(self, topic: str) -> None:
        admin = AdminClient({"bootstrap.servers": self.address})
        for made in admin.create_topics([NewTopic(topic, PARTITIONS, 1)]).values():
            made.result(60)

    def _clean(self, name: str) -> None:
        """Leave nothing of a run: neither topics nor a checkpoint."""
        admin = AdminClient({"bootstrap.servers": self.address})
        own = [topic for topic in admin.list_topics(timeout=60).topics if topic.startswith(f"{name}.")]
        if own:
            for gone in admin.delete_topics(own).values():
                gone.result(60)
        shutil.rmtree(self.folder / name, ignore_errors=True)
