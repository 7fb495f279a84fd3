"""The one Spark session that all tests of this process share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.testing import Environment


@pytest.fixture(scope="session")
def spark(headrace_environment: Environment) -> SparkSession:
    return headrace_environment.spark
