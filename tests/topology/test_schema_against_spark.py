"""Spark's own parser and ours read the same DDL the same way."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from pyspark.sql import SparkSession
from pyspark.sql.types import DataType, StructType

from headrace.errors import InputError
from headrace.topology import Schema
from tests.topology.strategies import schemas

pytestmark = pytest.mark.long


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(schema=schemas)
def test_spark_reads_what_we_render(spark: SparkSession, schema: Schema) -> None:
    struct = DataType.fromDDL(schema.ddl)
    assert isinstance(struct, StructType)
    assert json.loads(struct.json()) == schema.to_json()


@pytest.mark.parametrize(
    "ddl",
    [
        "id STRING, n INT",
        "id string not null comment 'x'",
        "id: string, n: int",
        "struct<a:int,b:array<map<string,decimal(5)>>>",
        "a BYTE, b SHORT, c LONG, d REAL, e DEC, f NUMERIC(4,1), g TIMESTAMP_LTZ, h TIMESTAMP_NTZ",
        "comment STRING COMMENT 'it''s' , `not` INT",
        'id STRING COMMENT "a \\"b\\" \\t \\u00e9 \\101 \\% \\_ \\x"',
        "id STRING -- a remark\n, n INT /* another */",
        "id STRING NOT NULL NOT NULL",
        "id STRING,",
        "id",
        "my-id STRING",
        "id DECIMAL(39,2)",
        "id DECIMAL(5,6)",
        "a ARRAY<INT",
        "a MAP<INT>",
        "id STRING COMMENT 'open",
    ],
)
def test_both_read_it_alike_or_both_refuse_it(spark: SparkSession, ddl: str) -> None:
    try:
        theirs = json.loads(DataType.fromDDL(ddl).json())
    except Exception:
        theirs = None
    try:
        ours = Schema.of(ddl).to_json()
    except InputError:
        ours = None
    assert ours == theirs
