"""Errors of Python functions, noted in Spark's workers: what breaks if PySpark sends functions in another way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest
from pyspark.sql import functions as F
from pyspark.sql.types import DoubleType

from headrace.engine.spark_private.python_functions import noted_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(300)


def inverse(number: int) -> float:
    return 1 / number


inverse.__module__ = "__main__"
row_by_row = F.udf(inverse, DoubleType())
LINE = f"tests/engine/test_python_functions.py:{inverse.__code__.co_firstlineno + 1}"
DIVIDED = "ZeroDivisionError: division by zero"


def in_series(rows: DataFrame) -> DataFrame:
    def inverses(numbers: pd.Series) -> pd.Series:
        return numbers.map(inverse)

    return rows.select("id", F.pandas_udf(inverses, "double")("id").alias("inverse"))


def in_structs(rows: DataFrame) -> DataFrame:
    def inverses(numbers: pd.Series) -> pd.DataFrame:
        return pd.DataFrame({"one": numbers.map(inverse), "two": numbers})

    return rows.select("id", F.pandas_udf(inverses, "one double, two long")("id").one.alias("inverse"))


def in_frames(rows: DataFrame) -> DataFrame:
    def inverses(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for frame in frames:
            yield frame.assign(inverse=frame["id"].map(inverse))

    return rows.mapInPandas(inverses, "id long, inverse double")


def one_by_one(rows: DataFrame) -> DataFrame:
    return rows.select("id", row_by_row("id").alias("inverse"))


def one_by_one_in_arrow(rows: DataFrame) -> DataFrame:
    return rows.select("id", F.udf(inverse, "double", useArrow=True)("id").alias("inverse"))


KINDS: list[Callable[[DataFrame], DataFrame]] = [one_by_one, one_by_one_in_arrow, in_series, in_structs, in_frames]


@pytest.mark.parametrize("call", KINDS)
def test_an_error_is_noted_with_its_line_and_no_task_fails(spark: SparkSession, call: Any) -> None:
    with noted_errors(spark) as noted:
        call(spark.range(0, 8, 1, 2)).collect()
    assert noted == [(LINE, DIVIDED)]  # of the first task: the second one has no zero
    with noted_errors(spark) as noted:
        found = call(spark.range(1, 5, 1, 1)).collect()
    assert noted == []
    assert [row.inverse for row in found] == [1, 1 / 2, 1 / 3, 1 / 4]


def test_outside_of_the_block_an_error_is_raised_as_usual(spark: SparkSession) -> None:
    rows = spark.range(0, 3, 1, 1).select(row_by_row("id"))  # planned before, run within
    with noted_errors(spark) as noted, pytest.raises(Exception, match="ZeroDivisionError"):
        rows.collect()
    assert noted == []
    with pytest.raises(Exception, match="ZeroDivisionError"):
        one_by_one(spark.range(0, 3, 1, 1)).collect()


def test_kinds_that_cannot_go_on_raise(spark: SparkSession) -> None:
    def inverses(parts: Iterator[pd.Series]) -> Iterator[pd.Series]:
        for numbers in parts:
            yield numbers.map(inverse)

    by_iterator = F.pandas_udf(inverses, "double", F.PandasUDFType.SCALAR_ITER)
    with noted_errors(spark), pytest.raises(Exception, match="ZeroDivisionError"):
        spark.range(0, 3, 1, 1).select(by_iterator("id")).collect()
