"""What a producer writes is, byte for byte, what the engine writes of the same rows, and the engine takes all of it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

import headrace as hr
from headrace.clients.decoding import RowReader
from headrace.clients.rows import RowWriter
from headrace.engine.read.parsing import IS_REJECTED, Shape, parse, reason, rows
from headrace.engine.write.encoding import key_of, value_of
from headrace.testing import Environment
from headrace.topology import Schema, Topic
from tests.clients.strategies import comparable, rows_of

pytestmark = pytest.mark.timeout(300)

EXACT = Schema.of(
    "id STRING, b BOOLEAN, t TINYINT, s SMALLINT, i INT, l BIGINT, d DATE, at TIMESTAMP, local TIMESTAMP_NTZ, "
    "raw BINARY, "
    "money DECIMAL(12,2), tiny DECIMAL(38,18), whole DECIMAL(20,0), tags ARRAY<STRING>, by MAP<STRING, DECIMAL(9,7)>, "
    'inside STRUCT<at: TIMESTAMP, deep: ARRAY<STRUCT<x: INT, raw: BINARY>>>, `a "b" ü` STRING'
)
FLOATING = Schema.of("x DOUBLE, f FLOAT, several ARRAY<DOUBLE>")
KEYS = [["id"], ["l"], ["d"], ["at"], ["local"], ["money"], ["tiny"], ["b"], ["id", "at"], ["money", "b", "d", "id"]]
NO_DIGITS = [("nan", "inf"), ("inf", "-inf"), ("-inf", "nan"), ("-nan", "-nan"), ("0.5", "nan"), ("-0.0", "-0.0")]
# Each example is a job of Spark's: to shrink one that fails would take minutes.
FEW = settings(max_examples=3, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))


def topic_of(schema: Schema, **options: Any) -> Topic:
    app = hr.App("shop")
    node = app.topic("orders", schema, **options)
    assert app.problems() == ()
    return node


def many(schema: Schema) -> st.SearchStrategy[list[dict[str, Any]]]:
    return st.lists(rows_of(schema).map(ordered), min_size=40, max_size=40)


def ordered(row: dict[str, Any]) -> dict[str, Any]:
    """With no more than one entry in a map: PySpark hands a dict over in any order."""
    return {name: dict(list(value.items())[:1]) if name == "by" and value else value for name, value in row.items()}


def written_by_spark(environment: Environment, schema: Schema, given_rows: list[dict[str, Any]]) -> list[Any]:
    frame = environment.spark.createDataFrame(given_rows, StructType.fromJson(schema.to_json())).coalesce(1)
    keys = [
        key_of(schema, key).cast("binary").alias(f"key{index}") for index, key in enumerate(KEYS) if key[0] in schema
    ]
    return frame.select(value_of(schema).alias("value"), *keys).collect()


@FEW
@given(given_rows=many(EXACT))
def test_values_and_keys_are_the_same_bytes(
    headrace_environment: Environment, given_rows: list[dict[str, Any]]
) -> None:
    by_spark = written_by_spark(headrace_environment, EXACT, given_rows)
    writer = RowWriter(topic_of(EXACT))
    for row, theirs in zip(given_rows, by_spark, strict=True):
        assert writer.write(row)[1].decode() == theirs.value
    for index, key in enumerate(KEYS):
        keyed = RowWriter(topic_of(EXACT, key=key))
        for row, theirs in zip(given_rows, by_spark, strict=True):
            if all(row[name] is not None for name in key):
                assert keyed.write(row)[0] == bytes(theirs[f"key{index}"])


@FEW
@given(given_rows=many(FLOATING))
def test_floating_numbers_are_the_same_numbers(
    headrace_environment: Environment, given_rows: list[dict[str, Any]]
) -> None:
    by_spark = written_by_spark(headrace_environment, FLOATING, given_rows)
    writer = RowWriter(topic_of(FLOATING))
    reader = RowReader(FLOATING)
    ours = [reader.read(writer.write(row)[1]) for row in given_rows]
    theirs = [reader.read(row.value.encode()) for row in by_spark]
    assert comparable(ours) == comparable(theirs) == comparable(given_rows)


def test_what_has_no_digits_is_the_same_bytes_and_the_engine_reads_it(headrace_environment: Environment) -> None:
    given_rows = [{"x": float(x), "f": float(f), "several": [float(x), None, 1.5]} for x, f in NO_DIGITS]
    frame = headrace_environment.spark.createDataFrame(given_rows, StructType.fromJson(FLOATING.to_json())).coalesce(1)
    for key in (["x"], ["f"], ["f", "x"]):
        keyed = RowWriter(topic_of(FLOATING, key=key))
        ours = [keyed.write(row) for row in given_rows]
        theirs = frame.select(key_of(FLOATING, key).alias("key"), value_of(FLOATING).alias("value")).collect()
        assert [(key.decode() if key else None, value.decode()) for key, value in ours] == [
            tuple(row) for row in theirs
        ]
    raw = headrace_environment.spark.createDataFrame([(value,) for _, value in ours], "value BINARY").coalesce(1)
    shape = Shape(FLOATING)
    told = parse(raw.withColumn("key", F.lit(None).cast("binary")), shape).select(IS_REJECTED, *rows(shape)).collect()
    assert [repr(tuple(row)) for row in told] == [repr((False, *row.values())) for row in given_rows]


@FEW
@given(given_rows=many(Schema((*EXACT.columns, *FLOATING.columns))))
def test_the_engine_reads_every_row_as_it_was_sent(
    headrace_environment: Environment, given_rows: list[dict[str, Any]]
) -> None:
    schema = Schema((*EXACT.columns, *FLOATING.columns))
    writer = RowWriter(topic_of(schema))
    values = [(writer.write(row)[1],) for row in given_rows]
    raw = headrace_environment.spark.createDataFrame(values, "value BINARY").coalesce(1)
    shape = Shape(schema)
    parsed = parse(raw.withColumns({"key": F.lit(None).cast("binary"), "timestamp": F.current_timestamp()}), shape)
    assert [row.why for row in parsed.filter(IS_REJECTED).select(reason(shape).alias("why")).collect()] == []
    again = parsed.select(*rows(shape)).select(value_of(EXACT).alias("value")).collect()
    exact = RowWriter(topic_of(EXACT))
    names = EXACT.names
    assert [row.value for row in again] == [
        exact.write({name: row[name] for name in names})[1].decode() for row in given_rows
    ]
