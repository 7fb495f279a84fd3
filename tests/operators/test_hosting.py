"""An operator inside Spark: batches, late rows, timers, restarts, and state that does not fit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException

from headrace.engine.analysis import stateful_operators
from headrace.errors import InputError
from headrace.operators.operator import LATE, RESULTS
from headrace.operators.packing import ROWS_AT_ONCE, spread
from tests.operators.counting import ROWS, Counting
from tests.operators.streaming import Hosting

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


LONG = pytest.mark.long


class Wider(Counting):
    @property
    def outputs(self) -> Mapping[str, pa.Schema]:
        return {**super().outputs, "more": ROWS}


@pytest.fixture
def hosting(spark: SparkSession, tmp_path: Path) -> Iterator[Hosting]:
    running = Hosting(spark, tmp_path, Counting(), {RESULTS: ["k"]})
    yield running
    running.stop()


def rows(*seconds: float, key: str = "a") -> pa.Table:
    return pa.Table.from_pylist(
        [{"k": key, "at": int(second * 1e6), "n": number} for number, second in enumerate(seconds)], ROWS
    )


def told(table: pa.Table) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in table.to_pylist())


def test_rows_are_counted_once_and_late_ones_come_out_once(hosting: Hosting) -> None:
    assert told(hosting.process(rows=rows(1, 2, 61))[RESULTS]) == [("a", 0, 2)]  # by the batch without rows
    out = hosting.process(rows=pa.concat_tables([rows(3, 62), rows(5, 130, key="b")]))
    assert told(out[RESULTS]) == [("a", 1, 2)]
    assert sorted(out[LATE].column("k").to_pylist()) == ["a", "b"]
    assert hosting.late == 2
    hosting.process(rows=rows(500))
    assert sum(size for size, _ in hosting.state.values()) == 1


KEYS = "abcdefghijklmnop"
"""More than enough for rows in each of the four buckets."""


def test_a_bucket_that_never_had_rows_judges_by_the_same_watermark(hosting: Hosting) -> None:
    hosting.process(rows=rows(1000))
    hosting.restart()
    out = hosting.process(rows=pa.concat_tables([rows(5, 1001, key=key) for key in KEYS]))
    assert sorted(out[LATE].column("k").to_pylist()) == list(KEYS)
    assert hosting.late == len(KEYS)


def test_a_batch_is_judged_by_the_watermark_of_the_batch_before(spark: SparkSession, tmp_path: Path) -> None:
    """Without a pause between them: before the second batch there is none yet, the third goes by that of the second."""
    hosting = Hosting(spark, tmp_path, Counting(), {RESULTS: ["k"]}, files_per_batch=1)
    hosting.feed(rows=rows(1000))
    hosting.feed(rows=pa.concat_tables([rows(number, key=key) for number, key in enumerate(KEYS)]))
    hosting.feed(rows=pa.concat_tables([rows(5, 2000, key=key) for key in KEYS.upper()]))
    out = hosting.process()
    hosting.stop()
    counted = {key for key, minute, _ in told(out[RESULTS]) if minute == 0}
    assert counted == set(KEYS)
    assert sorted(out[LATE].column("k").to_pylist()) == list(KEYS.upper())


def test_rows_that_a_node_leaves_out_move_the_watermark_of_all_buckets(spark: SparkSession, tmp_path: Path) -> None:
    hosting = Hosting(spark, tmp_path, Counting(), {RESULTS: ["k"]}, condition="at <> timestamp_seconds(1000)")
    assert not len(hosting.process(rows=rows(1000))[RESULTS])
    out = hosting.process(rows=pa.concat_tables([rows(5, key=key) for key in KEYS]))
    hosting.stop()
    assert sorted(out[LATE].column("k").to_pylist()) == list(KEYS)


def test_a_restart_goes_on_where_it_was(hosting: Hosting) -> None:
    hosting.process(rows=rows(1, 2, 3))
    hosting.restart()
    assert told(hosting.process(rows=rows(4, 70))[RESULTS]) == [("a", 0, 4)]
    hosting.restart()
    assert told(hosting.process(rows=rows(5))[LATE]) == [("a", rows(5)["at"][0].as_py(), 0)]


def test_a_bucket_without_rows_is_woken_by_the_time_of_others(hosting: Hosting) -> None:
    hosting.process(rows=rows(1, 2, key="quiet"))
    out = hosting.process(rows=rows(*range(100, 600, 100), key="loud"))
    assert ("quiet", 0, 2) in told(out[RESULTS])


def test_two_inputs_meet_by_key(spark: SparkSession, tmp_path: Path) -> None:
    hosting = Hosting(spark, tmp_path, Counting(("left", "right")), {"left": ["k"], "right": ["k"]})
    hosting.process(left=rows(1, 2), right=rows(3))
    out = hosting.process(left=rows(100, key="b"), right=rows(100))
    assert told(out[RESULTS]) == [("a", 0, 2, 1)]
    hosting.stop()


def test_rows_keep_the_order_of_their_arrival(spark: SparkSession, tmp_path: Path) -> None:
    """However many blobs a bucket's rows come in."""
    hosting = Hosting(spark, tmp_path, Counting(), {RESULTS: []})
    hosting.process(rows=rows(1, 1000))
    count = 2 * ROWS_AT_ONCE + 10
    many = pa.table({"k": ["a"] * count, "at": [0] * count, "n": range(count)}).cast(ROWS)
    late = hosting.process(rows=many)[LATE]
    assert late["n"].to_pylist() == list(range(count))
    hosting.stop()


@pytest.mark.timeout(300)  # Spark tries a failing task four times
@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"buckets": 8}, "was written with 4 buckets, and there are 8 now"),
        pytest.param(
            {"operator": Counting(version=2)}, "has layout 1, and this version of Headrace reads layout 2", marks=LONG
        ),
        pytest.param({"operator": Wider()}, "was written for other columns", marks=LONG),
    ],
)
def test_state_that_does_not_fit_is_refused(
    hosting: Hosting, spark: SparkSession, tmp_path: Path, changed: dict[str, Any], complaint: str
) -> None:
    hosting.process(rows=pa.concat_tables([rows(1, key=key) for key in "abcdefgh"]))
    hosting.stop()
    other = Hosting(spark, tmp_path, **{"operator": Counting(), "by": {RESULTS: ["k"]}, **changed})
    other._fed = hosting._fed
    with pytest.raises(StreamingQueryException, match=complaint):
        other.process(rows=pa.concat_tables([rows(2, key=key) for key in "abcdefgh"]))
    other.stop()


def test_buckets_are_spread_evenly_as_spark_hashes_them(spark: SparkSession) -> None:
    for buckets, partitions in ((8, 2), (4, 1), (12, 3), (64, 16)):
        numbers = spread(buckets, partitions)
        placed = spark.createDataFrame([(number,) for number in numbers], "n INT").selectExpr(
            f"pmod(hash(n), {partitions}) AS place"
        )
        assert sorted(row["count"] for row in placed.groupBy("place").count().collect()) == [4] * partitions


def test_the_fingerprint_of_checkpoints_does_not_change(hosting: Hosting) -> None:
    """What it says of an operator must stay: another text would refuse every checkpoint that was written before."""
    (described,) = stateful_operators(hosting.frame().frame)
    assert described == (
        "TransformWithStateInPySpark: transformWithStateUDF(bucket, input, place, rows), "
        "bucket, output, late, state_rows, state_bytes, rows"
    )


def test_an_app_that_keeps_its_state_in_memory_is_told_at_once(spark: SparkSession, hosting: Hosting) -> None:
    setting = "spark.sql.streaming.stateStore.providerClass"
    before = spark.conf.get(setting)
    spark.conf.set(setting, "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider")
    try:
        with pytest.raises(InputError, match="needs the state store rocksdb"):
            hosting.frame()
    finally:
        assert before is not None
        spark.conf.set(setting, before)
