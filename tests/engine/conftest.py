"""One Spark session for all tests of the engine, and the settings to run against the shared broker."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headrace.engine.config import RunConfig

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.testing import Environment


@pytest.fixture(scope="session")
def spark(headrace_environment: Environment) -> SparkSession:
    """The one Spark session that all tests of this process share, those with a harness too."""
    # PySpark gives timestamps to Python in the machine's zone.
    os.environ["TZ"] = "UTC"
    time.tzset()
    return headrace_environment.spark


@pytest.fixture
def config(broker_address: str, tmp_path: Path) -> RunConfig:
    """A run against the shared broker, with a home of its own."""
    return RunConfig(kafka=broker_address, home=tmp_path / "home")
