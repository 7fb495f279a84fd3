"""The session's settings, and what is said when there can be none."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headrace.engine.session import LOCAL, is_local, session_settings, start_session
from headrace.errors import EngineError
from headrace.topology import StateStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_the_session_is_in_utc_retries_tasks_and_shares_its_cores(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.sparkContext.master == "local[2,4]"
    assert spark.sparkContext.getConf().get("spark.scheduler.mode") == "FAIR"
    assert spark.sql("SELECT timestamp'2026-01-01 00:00:00' = timestamp'2026-01-01T00:00:00Z' AS utc").first() == (
        True,
    )


def test_python_workers_are_the_python_that_runs(spark: SparkSession) -> None:
    found = spark.sparkContext.parallelize([0]).map(lambda _: __import__("sys").executable).collect()
    assert [Path(path).resolve() for path in found] == [Path(sys.executable).resolve()]


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
    with pytest.raises(EngineError, match="this process has a Spark session already; stop it first"):
        start_session("second", home=tmp_path)
