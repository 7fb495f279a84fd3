"""One Spark session for all tests of the engine, and the settings to run against the shared broker."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headrace.engine.config import RunConfig
from headrace.engine.session import start_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Local Spark on two cores. Its compiler stops early: tests run much code once, not some code often."""
    # PySpark gives timestamps to Python in the machine's zone.
    os.environ["TZ"] = "UTC"
    time.tzset()
    home = tmp_path_factory.mktemp("spark")
    settings = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}
    session = start_session("tests", home=home, master="local[2,4]", settings=settings)
    yield session
    session.stop()


@pytest.fixture
def config(broker_address: str, tmp_path: Path) -> RunConfig:
    """A run against the shared broker, with a home of its own."""
    return RunConfig(kafka=broker_address, home=tmp_path / "home")
