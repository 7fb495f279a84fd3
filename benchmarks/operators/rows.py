"""Events as files, a batch each: so that what is measured is the operator, and neither a broker nor parsing."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

KEYS = 100_000
BATCH = 200_000
SPAN_US = 60_000_000
"""The event time of a batch of 200,000 rows: a key has two events a minute."""
START_US = 1_767_225_600_000_000
LATENESS = "10 seconds"
TABLE_SCHEMA = "card STRING, home STRING, _time TIMESTAMP, _order BIGINT, _deleted BOOLEAN"
SCHEMA = "card STRING, amount DOUBLE, at TIMESTAMP"


def write_batches(folder: Path, sizes: list[int]) -> None:
    """Files that follow each other in event time, rows up to five seconds out of order."""
    folder.mkdir(parents=True)
    names = np.array([f"card-{number:06d}" for number in range(KEYS)])
    chance = np.random.default_rng(7)
    begins = START_US
    for number, size in enumerate(sizes):
        span = SPAN_US * size // BATCH
        times = begins + np.sort(chance.integers(0, span, size)) - chance.integers(0, 5_000_000, size)
        table = pa.table(
            {
                "card": pa.array(names[chance.integers(0, KEYS, size)]),
                "amount": pa.array(chance.integers(1, 100_000, size) / 100),
                "at": pa.array(times, pa.int64()).cast(pa.timestamp("us", tz="UTC")),
            }
        )
        pq.write_table(table, folder / f"{number:05d}.parquet")
        begins += span


def write_table(folder: Path) -> None:
    """One row for each key, valid since before the first event."""
    folder.mkdir(parents=True)
    table = pa.table(
        {
            "card": [f"card-{number:06d}" for number in range(KEYS)],
            "home": [("DE", "FR", "US", "BR")[number % 4] for number in range(KEYS)],
            "_time": pa.array(np.full(KEYS, START_US - 10_000_000)).cast(pa.timestamp("us", tz="UTC")),
            "_order": pa.array(np.arange(KEYS)),
            "_deleted": pa.array(np.zeros(KEYS, bool)),
        }
    )
    pq.write_table(table, folder / "table.parquet")


def stream(spark: SparkSession, folder: Path, schema: str = SCHEMA) -> DataFrame:
    return spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(folder))


def events(spark: SparkSession, folder: Path) -> DataFrame:
    return stream(spark, folder).withWatermark("at", LATENESS)
