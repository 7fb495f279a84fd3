"""The same queries as one writes them in PySpark, with Spark's default settings: a program of its own.

What Spark has no word for is done as its users do it:

- Malformed payments are filtered out; nobody is told of them. So are times in the far future, which would move the
  watermark there.
- "Once within two days" is a watermark of two days and dropDuplicatesWithinWatermark.
- A table of cards is the last record of each card in its topic, read anew for every batch and joined; a payment meets
  what is known when it is processed, not what held when it was made.
- A window that slides by event is applyInPandasWithState with a list of the last payments of each card, which is also
  where late payments are told apart. A card that is not used again stays in the state for ever.
- Topics are written by Spark's Kafka sink, tables by an upsert of each batch's rows: at-least-once.
"""

import argparse
import pickle
import sys
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import psycopg
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import DataStreamWriter
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

PAYMENT = "id STRING, card STRING, amount DECIMAL(12,2), country STRING, at TIMESTAMP"
CARD = "card STRING, owner STRING, home STRING"
KNOWN = f"{PAYMENT}, owner STRING, home STRING"
BURST = f"{KNOWN}, n BIGINT, total DECIMAL(22,2), countries BIGINT"
LATENESS, SIZE, MORE_THAN = "15 seconds", timedelta(seconds=20), 5
PAYMENTS, CARDS = "payments", "cards"
TOPICS = (
    PAYMENTS,
    CARDS,
    "accepted",
    "known",
    "bursts",
    "bursts.late",
    "tardy",
    "large",
    "once",
    "recent",
    "recent.late",
)
TABLES = (
    "CREATE SCHEMA IF NOT EXISTS fraud",
    "CREATE TABLE IF NOT EXISTS fraud.alarms (id TEXT PRIMARY KEY, card TEXT, amount NUMERIC(12,2), country TEXT, "
    "at TIMESTAMPTZ, owner TEXT, home TEXT, n BIGINT, total NUMERIC(22,2), countries BIGINT)",
    "CREATE TABLE IF NOT EXISTS fraud.spend (card TEXT, window_start TIMESTAMPTZ, n BIGINT, total NUMERIC(22,2), "
    "PRIMARY KEY (card, window_start))",
)


class Queries:
    """Every query by its name; each is started with a checkpoint of its own."""

    def __init__(self, spark: SparkSession, kafka: str, postgres: str, folder: Path) -> None:
        self.spark = spark
        self.kafka = kafka
        self.postgres = postgres
        self.folder = folder

    def start(self, name: str) -> None:
        writer: DataStreamWriter = getattr(self, name)()
        writer.queryName(name).option("checkpointLocation", str(self.folder / name)).start()

    def accepted(self) -> DataStreamWriter:
        rows = self._payments().withWatermark("at", "2 days").dropDuplicatesWithinWatermark(["id"])
        return self._to_topic(rows, "accepted")

    def known(self) -> DataStreamWriter:
        records = self.spark.read.format("kafka").options(**self._read(CARDS)).load()
        latest = records.groupBy("key").agg(F.max_by("value", "offset").alias("value"))
        cards = latest.select(F.from_json(F.col("value").cast("string"), CARD).alias("row")).select("row.*")
        return self._to_topic(self._rows("accepted", PAYMENT).join(cards, "card", "left"), "known")

    def bursts(self) -> DataStreamWriter:
        return self._sliding(self._rows("known", KNOWN), KNOWN, "bursts")

    def alarms(self) -> DataStreamWriter:
        rows = self._rows("bursts", BURST).where("country <> home")
        return rows.writeStream.foreachBatch(self._upsert("fraud.alarms", ["id"]))

    def spend(self) -> DataStreamWriter:
        rows = self._rows("accepted", PAYMENT).withWatermark("at", LATENESS)
        windows = rows.groupBy("card", F.window("at", "1 hour").alias("span"))
        totals = windows.agg(F.count(F.lit(1)).alias("n"), F.sum("amount").alias("total"))
        told = totals.select("card", F.col("span.start").alias("window_start"), "n", "total")
        return told.writeStream.outputMode("update").foreachBatch(self._upsert("fraud.spend", ["card", "window_start"]))

    def tardy(self) -> DataStreamWriter:
        return self._to_topic(self._rows("bursts.late", KNOWN).select("id", "card", "at", "amount"), "tardy")

    def large(self) -> DataStreamWriter:
        return self._to_topic(self._payments().where("amount >= 1"), "large")

    def once(self) -> DataStreamWriter:
        rows = self._payments().withWatermark("at", "2 days").dropDuplicatesWithinWatermark(["id"])
        return self._to_topic(rows, "once")

    def recent(self) -> DataStreamWriter:
        return self._sliding(self._payments(), PAYMENT, "recent")

    def _sliding(self, rows: DataFrame, schema: str, topic: str) -> DataStreamWriter:
        told = (
            rows.withWatermark("at", LATENESS)
            .groupBy("card")
            .applyInPandasWithState(
                slide,
                f"{schema}, n BIGINT, total DECIMAL(22,2), countries BIGINT, late BOOLEAN",
                "kept BINARY",
                "append",
                GroupStateTimeout.NoTimeout,
            )
        )
        where = F.when(F.col("late"), F.lit(f"{topic}.late")).otherwise(F.lit(topic)).alias("topic")
        key, value = _record(told.drop("late"))
        return self._kafka_sink(told.select(where, key, value))

    def _payments(self) -> DataFrame:
        usable = (
            "id IS NOT NULL AND card IS NOT NULL AND amount IS NOT NULL AND at < current_timestamp() + INTERVAL 1 DAY"
        )
        return self._rows(PAYMENTS, PAYMENT).where(usable)

    def _rows(self, topic: str, schema: str) -> DataFrame:
        records = self.spark.readStream.format("kafka").options(**self._read(topic)).load()
        return records.select(F.from_json(F.col("value").cast("string"), schema).alias("row")).select("row.*")

    def _read(self, topic: str) -> dict[str, str]:
        return {"kafka.bootstrap.servers": self.kafka, "subscribe": topic, "startingOffsets": "earliest"}

    def _to_topic(self, rows: DataFrame, topic: str) -> DataStreamWriter:
        return self._kafka_sink(rows.select(*_record(rows))).option("topic", topic)

    def _kafka_sink(self, records: DataFrame) -> DataStreamWriter:
        return records.writeStream.format("kafka").option("kafka.bootstrap.servers", self.kafka)

    def _upsert(self, table: str, key: list[str]) -> Callable[[DataFrame, int], None]:
        def write(batch: DataFrame, _: int) -> None:
            rows = batch.collect()
            if not rows:
                return
            names = batch.columns
            values = ", ".join(["%s"] * len(names))
            changed = ", ".join(f"{name} = excluded.{name}" for name in names if name not in key)
            statement = (
                f"INSERT INTO {table} ({', '.join(names)}) VALUES ({values}) "
                f"ON CONFLICT ({', '.join(key)}) DO UPDATE SET {changed}"
            )
            with psycopg.connect(self.postgres) as connection, connection.cursor() as cursor:
                cursor.executemany(statement, [tuple(row) for row in rows])

        return write


def _record(rows: DataFrame) -> tuple[Any, Any]:
    value = F.to_json(F.struct(*rows.columns), {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"})
    return F.col("card").alias("key"), value.alias("value")


def slide(key: Any, batches: Iterable[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    """Each payment beside how often, how much and where its card was used in the 20 seconds that end with it.

    Told when it comes, and again when a straggler changes it; only of those that are one of more than five.
    """
    kept: list[dict[str, Any]] = pickle.loads(state.get[0]) if state.exists else []
    watermark = datetime.fromtimestamp(state.getCurrentWatermarkMs() / 1000)  # times in here are the session's
    late, new = [], []
    for batch in batches:
        for row in batch.to_dict("records"):
            (late if row["at"] < watermark else new).append(row)
    if late:
        yield pd.DataFrame([{**row, "n": None, "total": None, "countries": None, "late": True} for row in late])
    told = []
    if new:
        kept = [row for row in kept if row["at"] >= watermark - SIZE] + new
        for row in kept:
            if any(row["at"] - SIZE < other["at"] <= row["at"] for other in new):
                seen = [other for other in kept if row["at"] - SIZE < other["at"] <= row["at"]]
                if len(seen) > MORE_THAN:
                    total = sum(other["amount"] for other in seen)
                    countries = len({other["country"] for other in seen})
                    told.append({**row, "n": len(seen), "total": total, "countries": countries, "late": False})
    state.update((pickle.dumps(kept),))
    if told:
        yield pd.DataFrame(told)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("--kafka", "--postgres", "--checkpoints", "--jars"):
        parser.add_argument(name, required=True)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("names", nargs="+")
    given = parser.parse_args()
    builder = SparkSession.builder.appName("by hand").config("spark.jars", given.jars)
    for setting in given.set:
        builder = builder.config(*setting.split("=", 1))
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    queries = Queries(spark, given.kafka, given.postgres, Path(given.checkpoints))
    for name in given.names:
        queries.start(name)
    spark.streams.awaitAnyTermination()  # which raises what one failed of
    return 1


if __name__ == "__main__":
    sys.exit(main())
