"""Rows survive the way to a record and back: every type, nulls, microseconds."""

from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime
from decimal import Decimal as Number
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from headrace.engine.read.parsing import IS_REJECTED, Shape, parse, rows
from headrace.engine.write.encoding import changelog, check_can_be_carried, records
from headrace.errors import InputError
from headrace.topology import Schema
from headrace.topology.datatypes import Array, Column, DataType, Decimal, Map, Primitive, Struct
from headrace.topology.names import DELETED, ORDER
from tests.topology.strategies import decimals, names, primitives

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(300)

# ---- random types, all that JSON can carry, and values of them


def nested(types: st.SearchStrategy[DataType]) -> st.SearchStrategy[DataType]:
    fields = st.lists(
        st.builds(Column, names, types), min_size=1, max_size=3, unique_by=lambda one: one.name.casefold()
    )
    return st.one_of(
        st.builds(Array, types),
        st.builds(Map, st.just(Primitive.STRING), types),
        st.builds(Struct, fields.map(tuple)),
    )


types: st.SearchStrategy[DataType] = st.recursive(st.one_of(primitives, decimals), nested, max_leaves=4)
schemas = st.lists(
    st.builds(Column, names, types), min_size=6, max_size=16, unique_by=lambda column: column.name.casefold()
).map(lambda columns: Schema(tuple(columns)))

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
moments = st.datetimes(datetime(1, 1, 3), datetime(9999, 12, 30))
SIMPLE: dict[Primitive, st.SearchStrategy[Any]] = {
    Primitive.BOOLEAN: st.booleans(),
    Primitive.TINYINT: st.integers(-128, 127),
    Primitive.SMALLINT: st.integers(-(2**15), 2**15 - 1),
    Primitive.INT: st.integers(-(2**31), 2**31 - 1),
    Primitive.BIGINT: st.integers(-(2**63), 2**63 - 1),
    Primitive.FLOAT: st.floats(width=32),
    Primitive.DOUBLE: st.floats(),
    Primitive.STRING: texts,
    Primitive.BINARY: st.binary(max_size=6).map(bytearray),
    Primitive.DATE: st.dates(),
    Primitive.TIMESTAMP: moments.map(lambda moment: moment.replace(tzinfo=UTC)),
    Primitive.TIMESTAMP_NTZ: moments,
}


def values(type_: DataType) -> st.SearchStrategy[Any]:
    return st.none() | filled(type_)


def filled(type_: DataType) -> st.SearchStrategy[Any]:
    match type_:
        case Decimal(precision, scale):
            digits = st.integers(-(10**precision) + 1, 10**precision - 1)
            return digits.map(lambda number: Number(f"{number}e-{scale}"))
        case Array(element):
            return st.lists(values(element), max_size=3)
        case Map(_, value):
            return st.dictionaries(texts, values(value), max_size=3)
        case Struct(columns):
            return st.tuples(*(values(column.type) for column in columns))
        case _:
            assert isinstance(type_, Primitive)
            return SIMPLE[type_]


def comparable(value: Any) -> Any:
    """NaN equals NaN, and 0.0 does not equal -0.0."""
    match value:
        case float():
            return ("float", str(value)) if math.isnan(value) or value == 0 else value
        case list() | tuple():
            return [comparable(one) for one in value]
        case dict():
            return {name: comparable(one) for name, one in value.items()}
        case bytearray() | bytes():
            return bytes(value)
        case datetime():
            return value.replace(tzinfo=None)
        case _:
            return value


with_rows = schemas.flatmap(
    lambda schema: st.tuples(
        st.just(schema), st.lists(st.tuples(*(values(column.type) for column in schema)), min_size=20, max_size=60)
    )
)


# A failing example is told as it was found: making it smaller takes Spark minutes.
quick = settings(
    max_examples=4, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.reuse, Phase.generate]
)


@quick
@given(with_rows)
def test_what_is_written_is_read_again(spark: SparkSession, made: tuple[Schema, list[tuple[Any, ...]]]) -> None:
    check_round_trip(spark, *made)


@pytest.mark.long
@pytest.mark.timeout(1800)
@settings(quick, max_examples=60)
@given(with_rows)
def test_what_is_written_is_read_again_many_times(
    spark: SparkSession, made: tuple[Schema, list[tuple[Any, ...]]]
) -> None:
    check_round_trip(spark, *made)


def check_round_trip(spark: SparkSession, schema: Schema, given_rows: list[tuple[Any, ...]]) -> None:
    frame = spark.createDataFrame(given_rows, StructType.fromJson(schema.to_json())).coalesce(1)
    written = records(frame, schema, "topic", (), None)
    shape = Shape(schema)
    told = parse(written, shape).select(IS_REJECTED, "value", *rows(shape)).collect()
    for before, row in zip(given_rows, told, strict=True):
        assert not row[IS_REJECTED], row.value
        assert comparable(tuple(row)[2:]) == comparable(before), row.value


# ---- a delete, of which there is but the key

WIDE = Schema.of("s STRING, wide DECIMAL(38,10), money DECIMAL(20,2), part DECIMAL(38,38), x DOUBLE, f FLOAT")
KEY_TYPES = [type_ for type_ in Primitive if type_ is not Primitive.BINARY]
keyed_rows = st.lists(st.one_of(st.sampled_from(KEY_TYPES), decimals), min_size=5, max_size=9).flatmap(
    lambda types: st.tuples(
        st.just(Schema(tuple(Column(f"k{index}", type_) for index, type_ in enumerate(types)))),
        st.lists(
            st.tuples(*(filled(type_) for type_ in types)),
            min_size=20,
            max_size=60,
        ),
    )
)


def test_a_delete_finds_wide_decimals_and_what_has_no_digits(spark: SparkSession) -> None:
    many, one = Number("12345678901234567890.1234567890"), Number("1E-38")
    given_rows = [
        ("a", many, Number("123456789012345678.12"), Number("0." + "7" * 38), 1e-7, 0.5),
        ("a", -many, Number("1.50"), -one, math.nan, math.inf),
        ("NaN", Number("9" * 28 + "." + "9" * 10), Number("0.00"), one, -math.inf, math.nan),
        ("", Number("1E-10"), Number("-999999999999999999.99"), Number(0), -0.0, -0.0),
    ]
    check_deletes(spark, WIDE, given_rows)


@quick
@given(keyed_rows)
def test_a_delete_is_of_the_key_that_was_written(
    spark: SparkSession, made: tuple[Schema, list[tuple[Any, ...]]]
) -> None:
    check_deletes(spark, *made)


def check_deletes(spark: SparkSession, schema: Schema, given_rows: list[tuple[Any, ...]]) -> None:
    frame = spark.createDataFrame(given_rows, StructType.fromJson(schema.to_json())).coalesce(1)
    gone = changelog(frame.withColumn(DELETED, F.lit(True)), schema, "topic", schema.names, None, None)
    shape = Shape(schema, key=schema.names, is_table=True)
    told = parse(gone.withColumn("offset", F.lit(0)), shape).select(IS_REJECTED, "key", *rows(shape)).collect()
    for before, row in zip(given_rows, told, strict=True):
        assert not row[IS_REJECTED], row.key
        assert comparable(tuple(row)[2 : 2 + len(before)]) == comparable(before), row.key


# ---- what it looks like


def only(spark: SparkSession, ddl: str, row: tuple[Any, ...], key: tuple[str, ...]) -> Any:
    schema = Schema.of(ddl)
    frame = spark.createDataFrame([row], StructType.fromJson(schema.to_json()))
    return records(frame, schema, "topic", key, None).collect()[0]


def test_a_value_has_every_column_and_times_to_the_microsecond(spark: SparkSession) -> None:
    ddl = "`a b` STRING, n INT, d DECIMAL(5,2), at TIMESTAMP, day DATE, local TIMESTAMP_NTZ, raw BINARY, f DOUBLE"
    moment = datetime(2026, 1, 2, 3, 4, 5, 60, tzinfo=UTC)
    row = (
        '"é"',
        None,
        Number("1.50"),
        moment,
        date(2026, 1, 2),
        datetime(2026, 1, 2),
        bytearray(b"\x00\xff"),
        math.nan,
    )
    found = only(spark, ddl, row, ())
    assert found.value.decode() == (
        '{"a b":"\\"é\\"","n":null,"d":1.50,"at":"2026-01-02T03:04:05.000060Z","day":"2026-01-02",'
        '"local":"2026-01-02T00:00:00.000000","raw":"AP8=","f":"NaN"}'
    )
    assert (found.topic, found.key, found.headers, found.timestamp, found[ORDER]) == ("topic", None, None, None, None)


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (("s",), b'c"1'),
        (("n",), b"7"),
        (("d",), b"1.50"),
        (("at",), b"2026-01-02T03:04:05.000060Z"),
        (("day",), b"2026-01-02"),
        (("ok",), b"true"),
        (("nothing",), None),
        (("s", "n"), b'["c\\"1",7]'),
        (("n", "nothing", "at"), b'[7,null,"2026-01-02T03:04:05.000060Z"]'),
        (("d", "ok", "day"), b'[1.50,true,"2026-01-02"]'),
        (("nan",), b"NaN"),
        (("s", "nan", "inf"), b'["c\\"1","NaN","-Infinity"]'),
    ],
)
def test_a_key_of_one_column_is_its_text_of_several_a_json_array(
    spark: SparkSession, key: tuple[str, ...], expected: bytes | None
) -> None:
    ddl = (
        "s STRING, n BIGINT, d DECIMAL(5,2), at TIMESTAMP, day DATE, ok BOOLEAN, nothing STRING, nan DOUBLE, inf FLOAT"
    )
    moment = datetime(2026, 1, 2, 3, 4, 5, 60, tzinfo=UTC)
    row = ('c"1', 7, Number("1.50"), moment, date(2026, 1, 2), True, None, math.nan, -math.inf)
    found = only(spark, ddl, row, key)
    assert (None if found.key is None else bytes(found.key)) == expected
    if expected is not None and len(key) > 1:
        assert json.loads(expected, parse_float=Number) == list(json.loads(found.key, parse_float=Number))


def test_maps_whose_keys_are_no_text_are_refused() -> None:
    with pytest.raises(InputError, match=r"'m' has MAP<INT, STRING>, but the keys.*; make it MAP<STRING"):
        check_can_be_carried(Schema.of("s STRUCT<x: INT>, m ARRAY<MAP<INT, STRING>>"))
