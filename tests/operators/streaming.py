"""An operator run by Spark over rows that a test hands it, batch by batch, with restarts from its checkpoint."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from headrace.engine.run.failures import STARVED
from headrace.operators.hosting import METRIC, Hosted, hosted, spark_schema
from headrace.operators.operator import Operator
from headrace.operators.packing import OUTPUT, column_of

WATERMARK = "at"


class Hosting:
    """Each input is a folder of files; `feed` and `process` make a batch, `restart` starts the query again."""

    def __init__(
        self,
        spark: SparkSession,
        folder: Path,
        operator: Operator,
        by: Mapping[str, Sequence[str]],
        *,
        event_time: str = WATERMARK,
        lateness: str = "0 seconds",
        buckets: int = 4,
        files_per_batch: int | None = None,
        condition: str = "true",
    ) -> None:
        self.spark = spark
        self.folder = folder
        self.operator = operator
        self.by = by
        self.event_time = event_time
        self.lateness = lateness
        self.buckets = buckets
        self.options = {} if files_per_batch is None else {"maxFilesPerTrigger": files_per_batch}
        self.condition = condition
        self.query: StreamingQuery | None = None
        self.late = 0
        self.state: dict[int, tuple[int, int]] = {}
        self._fed = 0
        self._started = time.time()
        self._batches: list[pa.Table] = []
        self._seen: set[int] = set()
        self._last: int | None = None
        for name in operator.inputs:
            self._input(name).mkdir(parents=True, exist_ok=True)

    def frame(self) -> Hosted:
        inputs = {name: self._stream(name, schema) for name, schema in self.operator.inputs.items()}
        keys = {name: [F.col(column) for column in self.by[name]] for name in inputs}
        return hosted(self.operator, inputs, keys, self.buckets)

    def start(self, write: Callable[[DataFrame, int], Any] | None = None) -> None:
        self.query = (
            self.frame()
            .tagged()
            .writeStream.foreachBatch(write or self._take)
            .option("checkpointLocation", str(self.folder / "checkpoint"))
            .outputMode("append")
            .start()
        )

    def stop(self) -> None:
        if self.query is not None:
            self._look(self.query)
            self.query.stop()
            self.query = None

    def restart(self) -> None:
        self.stop()
        self.start()

    def feed(self, **tables: pa.Table) -> None:
        """Rows for the next batch; the only input may be named `rows`."""
        for name, table in tables.items():
            folder = self._input("" if name == "rows" else name)
            part = folder / f".{self._fed:06}"
            pq.write_table(table, part)
            os.utime(part, (self._started + self._fed,) * 2)  # Spark takes files in the order of their times
            part.rename(folder / f"{self._fed:06}.parquet")
            self._fed += 1

    def process(self, **tables: pa.Table) -> dict[str, pa.Table]:
        """Feed a batch, run until Spark has nothing more to do, and return what came out of it, by output."""
        if self.query is None:
            self.start()
        assert self.query is not None
        self.feed(**tables)
        for tries_left in (2, 1, 0):
            try:
                self.query.processAllAvailable()
                break
            except StreamingQueryException as error:
                if STARVED not in str(error) or not tries_left:
                    raise
                self.restart()  # as the app itself would do
        self._look(self.query)
        deadline = time.monotonic() + 30
        while self._last is not None and self._last not in self._seen:  # Spark tells of a batch a little later
            assert time.monotonic() < deadline, f"Spark tells nothing of batch {self._last}"
            time.sleep(0.02)
            self._look(self.query)
        taken, self._batches = self._batches, []
        found = {}
        for name, schema in self.operator.outputs.items():
            rows = [
                batch.filter(pa.compute.equal(batch[OUTPUT], name))[column_of(name)].combine_chunks()
                for batch in taken
                if batch.num_rows
            ]
            parts = [pa.Table.from_struct_array(one) for one in rows]
            found[name] = pa.concat_tables(parts).cast(schema) if parts else schema.empty_table()
        return found

    def _take(self, frame: DataFrame, number: int) -> None:
        self._batches.append(frame.toArrow())
        self._last = number

    def _look(self, query: StreamingQuery) -> None:
        for told in query.recentProgress:
            progress = json.loads(told.json)
            batch = progress["batchId"]
            if batch in self._seen or "addBatch" not in progress["durationMs"]:
                continue
            self._seen.add(batch)
            for name, metrics in progress["observedMetrics"].items():
                if name.startswith(METRIC):
                    self.late += metrics["late"] or 0
                    for bucket in metrics["state"]:
                        self.state[bucket["bucket"]] = (bucket["state_rows"], bucket["state_bytes"])

    def _stream(self, name: str, schema: pa.Schema) -> DataFrame:
        reader = self.spark.readStream.schema(spark_schema(schema)).options(**self.options)
        rows = reader.parquet(str(self._input(name)))
        if self.event_time in schema.names:
            rows = rows.withWatermark(self.event_time, self.lateness)
        return rows.filter(self.condition)

    def _input(self, name: str) -> Path:
        return self.folder / f"input-{name or 'rows'}"
