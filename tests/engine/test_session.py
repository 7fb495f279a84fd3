"""The session's settings, and what is said when there can be none."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headrace.engine.run.session import LOCAL, is_local, session_settings, start_session
from headrace.errors import EngineError
from headrace.topology import StateStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headrace.testing import Environment


def test_the_session_is_in_utc_and_retries_tasks(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.sparkContext.master == "local[2,4]"
    assert spark.sql("SELECT timestamp'2026-01-01 00:00:00' = timestamp'2026-01-01T00:00:00Z' AS utc").first() == (
        True,
    )


def test_python_workers_are_the_python_that_runs(spark: SparkSession) -> None:
    found = spark.sparkContext.parallelize([0]).map(lambda _: __import__("sys").executable).collect()
    assert [Path(path).resolve() for path in found] == [Path(sys.executable).resolve()]


def test_python_workers_import_the_pyspark_that_is_compiled(spark: SparkSession) -> None:
    import pyspark

    found = spark.sparkContext.parallelize([0]).map(lambda _: __import__("pyspark").__file__).collect()
    assert found == [pyspark.__file__], "a zip of sources is compiled again by every process"


def test_a_python_that_would_not_find_pyspark_is_started_as_spark_does(monkeypatch: pytest.MonkeyPatch) -> None:
    import site

    from headrace.engine.spark_private import worker_python

    assert Path(worker_python.quick_python()) == worker_python.SCRIPT
    monkeypatch.setattr(site, "getsitepackages", lambda: ["/elsewhere"])
    assert worker_python.quick_python() == sys.executable


def test_what_workers_print_goes_to_the_log(
    spark: SparkSession, headrace_environment: Environment, capfd: pytest.CaptureFixture[str]
) -> None:
    log = headrace_environment.folder / "spark" / "logs" / "spark.log"
    spark.sparkContext.parallelize([0]).map(lambda _: print("printed by a worker", flush=True)).collect()
    limit = time.monotonic() + 30
    while not log.exists() or "printed by a worker" not in log.read_text():
        assert time.monotonic() < limit, "nothing of it is in the log"
        time.sleep(0.05)
    captured = capfd.readouterr()
    assert "printed by a worker" not in captured.out + captured.err


def test_state_is_kept_where_the_app_says() -> None:
    stores = {
        state: session_settings(master=LOCAL, state=state, partitions=3, home=Path("/home"), jars=[])
        for state in StateStore
    }
    setting = "spark.sql.streaming.stateStore.providerClass"
    assert stores[StateStore.ROCKSDB][setting].endswith("RocksDBStateStoreProvider")
    assert stores[StateStore.MEMORY][setting].endswith("HDFSBackedStateStoreProvider")
    assert stores[StateStore.MEMORY]["spark.sql.shuffle.partitions"] == "3"


def test_addresses_of_this_machine_alone_are_for_local_sessions_alone() -> None:
    assert is_local(LOCAL)
    assert not is_local("spark://127.0.0.1:7077")
    for master, local in ((LOCAL, True), ("spark://m:7077", False)):
        settings = session_settings(master=master, state=StateStore.ROCKSDB, partitions=1, home=Path("/h"), jars=[])
        assert ("spark.driver.bindAddress" in settings) == local


def test_a_second_session_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="this process already has a Spark session; stop it first"):
        start_session("second", home=tmp_path)


def test_more_nodes_than_cores_all_get_their_turn(spark: SparkSession, tmp_path: Path) -> None:
    """Queries that always have something to do: none is left behind for the sake of its name."""
    assert spark.sparkContext.getConf().get("spark.scheduler.mode") == "FIFO"

    def slowly(frame: DataFrame, _: int) -> None:
        frame.selectExpr("java_method('java.lang.Thread', 'sleep', 30L)").write.format("noop").mode("overwrite").save()

    queries = [
        spark.readStream.format("rate-micro-batch")
        .options(rowsPerBatch=1, numPartitions=2)
        .load()
        .writeStream.queryName(name)
        .option("checkpointLocation", str(tmp_path / name))
        .foreachBatch(slowly)
        .start()
        for name in ("turn_a", "turn_b", "turn_c", "turn_d", "turn_e", "turn_f")
    ]

    def batches() -> list[int]:
        found = []
        for query in queries:
            assert query.exception() is None
            last = query.lastProgress
            found.append(0 if last is None else last.batchId)
        return found

    try:
        deadline = time.monotonic() + 90
        while min(batches()) < 10 and time.monotonic() < deadline:
            time.sleep(0.1)
        assert min(batches()) > max(batches()) / 4, batches()
    finally:
        for query in queries:
            query.stop()
