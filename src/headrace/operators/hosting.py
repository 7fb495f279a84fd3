"""An operator inside Spark: `transformWithState` by bucket, one step for each bucket and batch.

Spark sees a handful of rows per batch, each a blob (see `packing`). What is late is judged by the same watermark in all
buckets, whether they have had rows or not.

An operator that waits for the watermark takes its step in all buckets whenever the watermark has moved, even if no row
comes: a bucket has one timer for that. What falls due comes out, and what is no longer needed goes. Rows are late by
the watermark of the batch before, as in Spark's own operators. Any other operator takes a step only in buckets that
have rows, late by the watermark of their own batch: a bucket need not know what the others have seen.

Beside its chunks a bucket has a note of what it acted on last and with what it was made: a state that was made with
another number of buckets or in another layout is refused.
"""

import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from headrace.errors import CheckpointError, InputError
from headrace.operators.chunks import packed, unpacked
from headrace.operators.operator import BEGINNING, FAILED, RESULTS, Operator, Step
from headrace.operators.packing import (
    BUCKET,
    BUCKET_BESIDE,
    OUTPUT,
    PACKED_DDL,
    column_of,
    packer,
    pieces,
    spread,
    tagger,
    unpacker,
)
from headrace.operators.spark_private import arrow_schema, spark_schema

__all__ = ["METRIC", "WAITING", "Hosted", "arrow_schema", "buckets_of", "hosted", "number_of_metric", "spark_schema"]

METRIC = "headrace operator"
"""What the observed metrics of operators begin with. `late`, `unmatched` and `early` count rows; `hint` is what to say
of those that are early; `state` has the rows and bytes of the buckets that a batch touched."""
WAITING = ", waiting"
"""How the name of such a metric ends if the operator may write rows because the watermark has moved."""
OUT_DDL = "bucket INT, output STRING, late BIGINT, state_rows BIGINT, state_bytes BIGINT, rows BINARY"
"""The fingerprint of a checkpoint has these names: with others, all state of before would be refused."""
UNMATCHED, EARLY = -1, -2
"""In the place of a bucket: rows whose `late` is another count."""
META_DDL = "fired BIGINT, timer BIGINT, buckets INT, version INT, made STRING, sizes STRING"
BUCKETS_PER_PARTITION = 4
STORE = "spark.sql.streaming.stateStore.providerClass"

_numbers = itertools.count()


@dataclass(frozen=True)
class Hosted:
    """An operator as it runs in Spark. Take its rows once: two frames of them are two runs of it."""

    operator: Operator
    frame: DataFrame
    """A blob a row, of all outputs."""
    metric: str

    def rows(self, output: str = RESULTS) -> DataFrame:
        """The rows of one output; those of the others are dropped."""
        schema = self.operator.outputs[output]
        return self.frame.mapInArrow(unpacker(output, schema), spark_schema(schema))

    def tagged(self) -> DataFrame:
        """The rows of all outputs: `output` names theirs, and a struct for each, null in the rows of others.

        The struct of an output has its name; that of the results is `results`.
        """
        outputs = dict(self.operator.outputs)
        structs = ", ".join(
            f"`{column_of(name)}` {spark_schema(schema).simpleString()}" for name, schema in outputs.items()
        )
        return self.frame.mapInArrow(tagger(outputs), f"{OUTPUT} STRING, {structs}")


def hosted(
    operator: Operator,
    inputs: Mapping[str, DataFrame],
    keys: Mapping[str, Sequence[Column]],
    buckets: int,
    hint: str | None = None,
) -> Hosted:
    """Run an operator over streams, its state by the `keys` of each: rows of equal keys meet in one bucket.

    An input has the columns of its schema, and may have more. It must have a watermark. Rows older than the watermark
    are not dropped before the operator, as in Spark's own operators: they reach it. `hint` completes "6 ...", the
    sentence about events that are early.
    """
    session = next(iter(inputs.values())).sparkSession
    if "RocksDB" not in str(session.conf.get(STORE, "")):
        raise InputError(
            'this needs the state store rocksdb, and the app has state="memory"',
            next_step='remove state="memory" from the app',
        )
    numbers = spread(buckets, _partitions_of(session))
    number_of = F.array(*map(F.lit, numbers))
    packs = []
    for name, schema in operator.inputs.items():
        place = F.pmod(F.xxhash64(*keys[name]), F.lit(buckets)) if keys[name] else F.lit(0)
        columns = [F.col(f"`{column.replace('`', '``')}`") for column in schema.names]
        rows = inputs[name].select(F.get(number_of, place.cast("int")).alias(BUCKET_BESIDE), *columns)
        packs.append(rows.mapInArrow(packer(name, schema, numbers if operator.waits else ()), PACKED_DDL))
    united = packs[0]
    for pack in packs[1:]:
        united = united.unionByName(pack)
    stepped = united.groupBy(BUCKET).transformWithState(
        statefulProcessor=_Host(operator, buckets), outputStructType=OUT_DDL, outputMode="append", timeMode="EventTime"
    )
    metric = f"{METRIC} {next(_numbers)}{WAITING if operator.waits else ''}"
    state = F.struct(BUCKET, "state_rows", "state_bytes")
    observed = stepped.observe(
        metric,
        F.sum(F.when(F.col(BUCKET) >= 0, F.col("late"))).alias("late"),
        F.sum(F.when(F.col(BUCKET) == UNMATCHED, F.col("late"))).alias("unmatched"),
        F.sum(F.when(F.col(BUCKET) == EARLY, F.col("late"))).alias("early"),
        F.max(F.lit(hint).cast("string")).alias("hint"),
        F.collect_list(F.when(F.col("state_rows").isNotNull(), state)).alias("state"),
    )
    return Hosted(operator, observed, metric)


def number_of_metric(name: str) -> int:
    """The place of an operator among those of its query, of which the later ones have higher numbers."""
    return int(name.removeprefix(METRIC).removesuffix(WAITING))


def buckets_of(session: SparkSession) -> int:
    """The number of buckets: a few for each partition of the state, so that they are spread evenly."""
    return BUCKETS_PER_PARTITION * _partitions_of(session)


def _partitions_of(session: SparkSession) -> int:
    return int(str(session.conf.get("spark.sql.shuffle.partitions", "2")))


class _Host(StatefulProcessor):
    """One of it serves the buckets of a partition in turn."""

    def __init__(self, operator: Operator, buckets: int) -> None:
        self._operator = operator
        self._buckets = buckets
        self._made = _made_with(operator)

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._meta = handle.getValueState("meta", META_DDL)
        self._chunks = handle.getMapState("chunks", "name STRING", "table BINARY")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        arrived: dict[str, list[tuple[int, pa.Table]]] = {}
        for row in rows:
            if row.input is None:
                continue
            arrived.setdefault(row.input, []).append((row.place, unpacked(row.rows)))
        tables = {
            name: pa.concat_tables([table for _, table in sorted(found, key=lambda one: one[0])])
            for name, found in arrived.items()
        }
        return self._step(int(key[0]), tables, timerValues.getCurrentWatermarkInMs())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        if not self._operator.waits:
            return iter(())  # a timer of an earlier version, which set one in every bucket
        return self._step(int(key[0]), {}, timerValues.getCurrentWatermarkInMs())

    def close(self) -> None:
        pass

    def _step(self, bucket: int, tables: Mapping[str, pa.Table], watermark_ms: int) -> Iterator[Row]:
        # Spark says 0 before it knows of any time; rows before 1970 are not late by that.
        watermark = watermark_ms * 1000 if watermark_ms > 0 else BEGINNING
        known = self._meta.get()
        if known is not None:
            fired, timer, *made_with, sizes = known
            self._check(*made_with)
            watermark = max(fired, watermark)
            if not tables and watermark == fired:
                return iter(())
        else:
            # All buckets are woken in the first batch. One that was not (its checkpoint is older than that rule) has
            # to judge by a watermark as well: what is late must not depend on the bucket.
            fired, timer, sizes = watermark, None, "{}"
        if not self._operator.waits:
            fired = watermark
        chunks = _StateChunks(self._chunks, json.loads(sizes))
        output = self._operator.step(chunks, Step(tables, watermark, fired))
        if self._operator.waits:
            timer = self._moved(timer, watermark_ms)
        noted = json.dumps(chunks.sizes, separators=(",", ":"))
        self._meta.update((watermark, timer, self._buckets, self._operator.version, self._made, noted))
        blobs = [
            Row(bucket=bucket, output=name, late=0, state_rows=None, state_bytes=None, rows=packed(piece))
            for name, table in output.tables.items()
            for piece in pieces(table)
        ]
        state_rows, state_bytes = (sum(each) for each in zip((0, 0), *chunks.sizes.values(), strict=True))
        counts = [
            Row(bucket=bucket, output=None, late=output.late, state_rows=state_rows, state_bytes=state_bytes, rows=None)
        ]
        for kind, count in ((UNMATCHED, output.unmatched), (EARLY, output.early)):
            if count:
                counts.append(Row(bucket=kind, output=None, late=count, state_rows=None, state_bytes=None, rows=None))
        return iter([*blobs, *counts])

    def _moved(self, timer: int | None, watermark_ms: int) -> int:
        """The one timer of a bucket, put behind the watermark. Spark counts in milliseconds, from 1 on."""
        wanted = max(watermark_ms, 0) + 1
        if wanted != timer:
            if timer is not None:
                self._handle.deleteTimer(timer)
            self._handle.registerTimer(wanted)
        return wanted

    def _check(self, buckets: int, version: int, made: str) -> None:
        name = type(self._operator).__name__
        if buckets != self._buckets:
            raise CheckpointError(
                f"the state of {name} was written with {buckets} buckets, and there are {self._buckets} now",
                next_step="set state_partitions back to its old value, or start the node again with --reset",
            )
        if version != self._operator.version:
            raise CheckpointError(
                f"the state of {name} has layout {version}, and this version of Headrace reads layout "
                f"{self._operator.version}",
                next_step="use the version of Headrace that wrote it, or start the node again with --reset",
            )
        if made != self._made:
            raise CheckpointError(
                f"the state of {name} was written for other columns",
                next_step="undo the change of columns, or start the node again with --reset",
            )


class _StateChunks:
    """Chunks in Spark's state of a bucket. Each call to it costs; which chunks there are is known without."""

    def __init__(self, state: Any, sizes: dict[str, tuple[int, int]]) -> None:
        self._state = state
        self.sizes = sizes
        """Rows and bytes of each chunk."""

    def names(self) -> Iterator[str]:
        yield from list(self.sizes)

    def read(self, name: str) -> pa.Table | None:
        return unpacked(self._state.getValue((name,))[0]) if name in self.sizes else None

    def write(self, name: str, table: pa.Table) -> None:
        blob = packed(table)
        self._state.updateValue((name,), (blob,))
        self.sizes[name] = (table.num_rows, len(blob))

    def delete(self, name: str) -> None:
        if self.sizes.pop(name, None) is not None:
            self._state.removeKey((name,))


def _made_with(operator: Operator) -> str:
    """What tells whether state was kept for the same columns."""
    said = [type(operator).__name__]
    for schemas in (operator.inputs, operator.outputs):
        # No row that failed is kept, so whether such rows are diverted may change.
        kept = {name: schema for name, schema in schemas.items() if name != FAILED}
        said += [f"{name}: {', '.join(f'{f.name} {f.type}' for f in schema)}" for name, schema in kept.items()]
    return hashlib.sha256("\n".join(said).encode()).hexdigest()[:32]
