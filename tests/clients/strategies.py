"""Schemas that JSON can carry, and rows of them."""

import datetime
import decimal
import math
import struct
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from headrace.topology import Schema
from headrace.topology.datatypes import Array, Column, DataType, Decimal, Map, Primitive, Struct
from headrace.topology.sources import OWN_COLUMNS
from tests.topology.strategies import schemas

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
NOT_FINITE = st.sampled_from([math.nan, math.inf, -math.inf])
FLOATS = st.floats(width=32) | NOT_FINITE
SPARKS_YEARS = {"min_value": datetime.datetime(1900, 1, 1), "max_value": datetime.datetime(2200, 1, 1)}
VALUES: dict[Primitive, st.SearchStrategy[Any]] = {
    Primitive.BOOLEAN: st.booleans(),
    Primitive.TINYINT: st.integers(-(2**7), 2**7 - 1),
    Primitive.SMALLINT: st.integers(-(2**15), 2**15 - 1),
    Primitive.INT: st.integers(-(2**31), 2**31 - 1),
    Primitive.BIGINT: st.integers(-(2**63), 2**63 - 1),
    Primitive.FLOAT: FLOATS.map(lambda value: struct.unpack("f", struct.pack("f", value))[0]),
    Primitive.DOUBLE: st.floats() | NOT_FINITE,
    Primitive.STRING: TEXT,
    Primitive.BINARY: st.binary(max_size=12),
    Primitive.DATE: st.dates(datetime.date(1900, 1, 1), datetime.date(2200, 1, 1)),
    Primitive.TIMESTAMP: st.datetimes(**SPARKS_YEARS, timezones=st.just(datetime.UTC)),
    Primitive.TIMESTAMP_NTZ: st.datetimes(**SPARKS_YEARS),
}


WIDE = decimal.Context(prec=100)


def values_of(type_: DataType) -> st.SearchStrategy[Any]:
    match type_:
        case Primitive():
            return VALUES[type_]
        case Decimal(precision, scale):
            largest = 10**precision - 1
            return st.integers(-largest, largest).map(lambda digits: decimal.Decimal(digits).scaleb(-scale, WIDE))
        case Array(element):
            return st.lists(st.none() | values_of(element), max_size=3)
        case Map(_, mapped):
            return st.dictionaries(TEXT, st.none() | values_of(mapped), max_size=3)
        case Struct(columns):
            return _row(columns)


def comparable(value: Any) -> Any:
    """The value with text for NaN, which equals nothing, not even itself."""
    match value:
        case float() if math.isnan(value):
            return "NaN"
        case list():
            return [comparable(one) for one in value]
        case dict():
            return {name: comparable(one) for name, one in value.items()}
        case _:
            return value


def with_text_keys(type_: DataType) -> DataType:
    """The type with maps that JSON has a place for."""
    match type_:
        case Map(_, value):
            return Map(Primitive.STRING, with_text_keys(value))
        case Array(element):
            return Array(with_text_keys(element))
        case Struct(columns):
            return Struct(tuple(replace(column, type=with_text_keys(column.type)) for column in columns))
        case _:
            return type_


carried_schemas = schemas.filter(
    lambda schema: not any(column.name.casefold() in OWN_COLUMNS for column in schema)
).map(lambda schema: Schema(tuple(replace(column, type=with_text_keys(column.type)) for column in schema)))


def rows_of(schema: Schema) -> st.SearchStrategy[dict[str, Any]]:
    return _row(schema.columns)


def _row(columns: tuple[Column, ...]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {
            column.name: (st.none() | values_of(column.type)) if column.nullable else values_of(column.type)
            for column in columns
        }
    )
