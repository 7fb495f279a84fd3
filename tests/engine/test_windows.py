"""Windows on Spark's own operators: what comes out, when, and what is refused."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from headrace import topology as hr
from headrace.engine.calls.windows import WindowedRows, uses_of_windows, windowed
from headrace.engine.column_metadata import event_times_of, key_of, marked_key, output_time
from headrace.errors import InputError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(300)

DDL = "card STRING, amount DECIMAL(6,2), tag STRING, at TIMESTAMP"


class Payments:
    """A stream of files of rows: a file is a batch."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        raw = spark.readStream.schema(DDL).option("maxFilesPerTrigger", 1).json(str(folder))
        marked = raw.select(*(marked_key(name, ("card",)) for name in raw.columns))
        self.rows = marked.withWatermark("at", "10 seconds")
        self.plain = raw
        self._files = 0

    def add(self, *rows: tuple[str | None, float | None, str | None, str]) -> None:
        self._files += 1
        path = self.folder / f"{self._files:03}.json"
        hidden = path.with_name(f".{path.name}")
        names = ("card", "amount", "tag", "at")
        hidden.write_text("".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows))
        os.utime(hidden, (self._files, self._files))  # Spark takes files by age
        hidden.rename(path)


@pytest.fixture
def payments(spark: SparkSession, tmp_path: Path) -> Payments:
    return Payments(spark, tmp_path / "payments")


@pytest.fixture(params=["rocksdb", "memory"])
def each_store(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[None]:
    from headrace.engine.run.session import STATE_STORES

    setting = "spark.sql.streaming.stateStore.providerClass"
    before = spark.conf.get(setting)
    spark.conf.set(setting, STATE_STORES[hr.StateStore.of(request.param)])
    yield
    spark.conf.set(setting, str(before))


def run(frame: DataFrame, mode: str, tmp_path: Path) -> list[list[tuple[Any, ...]]]:
    """The rows of each batch that has any, sorted."""
    batches: list[list[tuple[Any, ...]]] = []

    def keep(batch: DataFrame, _: int) -> None:
        rows = sorted(tuple(row) for row in batch.collect())
        if rows:
            batches.append(rows)

    writer = frame.writeStream.outputMode(mode).option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.foreachBatch(keep).trigger(availableNow=True).start()
    assert query.awaitTermination(200)
    return batches


def minute(number: int) -> datetime:
    return datetime(2026, 1, 1, 0, number)


def at(clock: str) -> str:
    return f"2026-01-01T00:{clock}Z"


@pytest.mark.usefixtures("each_store")
def test_tumbling_windows_of_every_aggregate_come_out_once_closed(payments: Payments, tmp_path: Path) -> None:
    payments.add(
        ("a", 1.5, "y", at("00:10")),
        ("a", None, "x", at("00:00")),
        ("a", 2.5, "x", at("00:59.999999")),
        ("b", 4, None, at("00:30")),
        ("a", 8, "z", at("01:00")),
    )
    payments.add(("b", 1, None, at("09:00")))
    payments.add(("b", 1, None, at("09:00")))  # Spark counts a row late once the watermark of a batch before has passed
    payments.add(("a", 16, "late", at("00:20")), ("b", 1, None, at("19:00")))
    result = windowed(payments.rows, hr.tumbling("1 minute")).agg(
        n=hr.count(),
        known=hr.count("amount"),
        total=hr.sum("amount"),
        least=hr.min("amount"),
        most=hr.max("amount"),
        mean=hr.mean("amount"),
        first=hr.first("tag"),
        last=hr.last("tag"),
        tags=hr.count_distinct("tag"),
        all=hr.collect("tag"),
    )
    assert result.columns[:3] == ["card", "window_start", "window_end"]
    one, two, four, eight = (Decimal(number) for number in (1, 2, 4, 8))
    least, most = Decimal("1.5"), Decimal("2.5")
    assert run(result, "append", tmp_path) == [
        [
            ("a", minute(0), minute(1), 3, 2, four, least, most, two, "x", "x", 2, ["x", "y", "x"]),
            ("a", minute(1), minute(2), 1, 1, eight, eight, eight, eight, "z", "z", 1, ["z"]),
            ("b", minute(0), minute(1), 1, 1, four, four, four, four, None, None, 0, []),
        ],
        [("b", minute(9), minute(10), 2, 2, two, one, one, one, None, None, 0, [])],
    ]


def test_changes_come_out_as_they_happen(payments: Payments, tmp_path: Path) -> None:
    payments.add(("a", 1, None, at("00:10")))
    payments.add(("a", 1, None, at("00:20")), ("b", 1, None, at("00:30")))
    result = windowed(payments.rows, hr.tumbling("1 minute"), emit="changes").agg(n=hr.count())
    assert run(result, "update", tmp_path) == [
        [("a", minute(0), minute(1), 1)],
        [("a", minute(0), minute(1), 2), ("b", minute(0), minute(1), 1)],
    ]


def test_hopping_windows_overlap(payments: Payments, tmp_path: Path) -> None:
    payments.add(("a", 1, None, at("10:30")), ("a", 2, None, at("11:30")))
    result = windowed(payments.rows, hr.hopping("2 minutes", "1 minute"), by=[], emit="changes")
    assert run(result.agg(total=hr.sum("amount")), "update", tmp_path) == [
        [
            (minute(9), minute(11), Decimal(1)),
            (minute(10), minute(12), Decimal(3)),
            (minute(11), minute(13), Decimal(2)),
        ]
    ]


def test_the_words_of_a_result(payments: Payments, tmp_path: Path) -> None:
    payments.add(("a", 1, None, at("00:10")), ("a", 1, None, at("00:20")), ("b", 1, None, at("00:30")))
    result = windowed(payments.rows, hr.tumbling("1 minute"), by="card").agg(n=hr.count())
    kept = result.having("n > 1").with_columns(twice="n * 2")
    assert isinstance(kept, WindowedRows)
    assert run(kept.select("card", "twice"), "update", tmp_path) == [[("a", 4)]]


# ---- what a column says of itself


def test_marks_survive_what_is_done_to_rows(payments: Payments) -> None:
    rows = payments.rows.filter("amount > 1").withColumnRenamed("card", "payer").withColumn("x", payments.rows["tag"])
    assert (key_of(rows), event_times_of(rows), output_time(rows)) == (("payer",), ["at"], "at")
    assert key_of(rows.drop("payer")) is None
    counted = windowed(rows, hr.tumbling("1 minute")).agg(n=hr.count()).withColumnRenamed("window_end", "until")
    assert (key_of(counted), event_times_of(counted), output_time(counted)) == (("payer",), [], "until")


def test_a_key_of_several_columns_is_known_only_whole_and_once(payments: Payments) -> None:
    rows = payments.plain.select(*(marked_key(name, ("tag", "card")) for name in payments.plain.columns))
    assert key_of(rows) == ("tag", "card")
    assert key_of(rows.drop("tag")) is None
    assert key_of(rows.withColumn("other", rows["tag"])) is None
    assert key_of(payments.plain) is None


def test_uses_are_told_to_whoever_plans(payments: Payments) -> None:
    with uses_of_windows() as uses:
        windowed(payments.rows, hr.tumbling("1 minute"), emit="final").agg(n=hr.count())
    assert [use.describe() for use in uses] == [
        {"window": "tumbling 1 minute", "by": ["card"], "time": "at", "aggregates": {"n": "count(*)"}, "late": "drop"}
    ]
    assert uses[0].emit is hr.Emit.FINAL


# ---- what is refused


def refused(call: Any, *arguments: Any, **named: Any) -> str:
    with pytest.raises(InputError) as told:
        call(*arguments, **named)
    return str(told.value)


def test_what_makes_no_sense_is_refused_with_the_next_step(payments: Payments) -> None:
    window = hr.tumbling("1 minute")
    assert "the rows have no event time" in refused(windowed, payments.plain, window, by="card")
    assert "needs by=: the rows do not have" in refused(windowed, payments.rows.drop("card"), window)
    assert "did you mean 'card'?" in refused(windowed, payments.rows, window, by="crad")
    assert "late: 'dorp' is unknown; did you mean 'drop'?" in refused(windowed, payments.rows, window, late="dorp")
    assert "emit: 'finally'" in refused(windowed, payments.rows, window, emit="finally")
    assert 'until needs late="correct"' in refused(windowed, payments.rows, window, until="1 day", late="divert")
    assert 'add until="1 day"' in refused(windowed, payments.rows, window, late="correct")
    assert "set until to at least 10 seconds" in refused(
        windowed, payments.rows, window, late="correct", until="9 seconds"
    )
    assert "takes a DataFrame, not str" in refused(windowed, "payments", window)
    assert "is not a window" in refused(windowed, payments.rows, "1 minute")
    two = payments.rows.join(payments.rows.select("card", payments.rows["at"].alias("other")), "card")
    assert "the rows have several event times: at, other" in refused(windowed, two, window)
    cut = windowed(payments.rows, window)
    assert "agg() has no aggregates" in refused(cut.agg)
    assert "there is no column 'amuont'; did you mean 'amount'?" in refused(cut.agg, total=hr.sum("amuont"))
    assert "'card' is the name of another column" in refused(cut.agg, card=hr.count())
    assert "'CARD' is the name of another column" in refused(cut.agg, CARD=hr.count())
    assert "'N' is the name of another column" in refused(cut.agg, n=hr.count(), N=hr.count())
    assert "sum of string: the column is not a number" in refused(cut.agg, total=hr.sum("tag"))
    assert "n=int is not an aggregate" in refused(cut.agg, n=1)


def test_habits_from_elsewhere_are_answered_with_what_to_write(payments: Payments) -> None:
    cut = windowed(payments.rows, hr.tumbling("1 minute"))
    assert "agg(): count(*) has no name; write agg(count=hr.count())" in refused(cut.agg, hr.count())
    told = refused(cut.agg, hr.sum("amount"), n=hr.count())
    assert 'agg(): sum(amount) has no name; write agg(amount_sum=hr.sum("amount"), n=...)' in told
    assert "agg(): Column is not an aggregate" in refused(cut.agg, F.count("*"))
    assert "write .agg(n=hr.count())" in refused(lambda: cut.count())
    assert 'write .agg(mean=hr.mean("amount"))' in refused(lambda: cut.avg("amount"))
    assert "call .agg(...) or .apply(...) first" in refused(lambda: cut.select("card"))
    assert not hasattr(cut, "_jdf")


def test_by_takes_no_name_of_the_result(payments: Payments) -> None:
    rows = payments.rows.withColumnRenamed("tag", "window_end")
    assert "rename the column" in refused(windowed, rows, hr.tumbling("1 minute"), by=["window_end"])
    assert "the rows have 'window_end'" in refused(windowed(rows, hr.sliding("1 minute")).agg, n=hr.count())
    told = payments.rows.withColumnRenamed("tag", "Revision")
    cut = windowed(told, hr.sliding("1 minute"), emit="changes")
    assert "the rows have 'Revision', which is a column that the window adds" in refused(cut.agg, n=hr.count())
    by = windowed(told, hr.tumbling("1 minute"), by="Revision", late="correct", until="1 day")
    assert "the rows have 'Revision'" in refused(by.agg, n=hr.count())
