"""Rows as Spark hands them over: Arrow record batches of a schema's types."""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from headrace.topology import Schema
from headrace.topology.datatypes import Array, Column, DataType, Decimal, Map, Primitive, Struct

PRIMITIVES = {
    Primitive.BOOLEAN: pa.bool_(),
    Primitive.TINYINT: pa.int8(),
    Primitive.SMALLINT: pa.int16(),
    Primitive.INT: pa.int32(),
    Primitive.BIGINT: pa.int64(),
    Primitive.FLOAT: pa.float32(),
    Primitive.DOUBLE: pa.float64(),
    Primitive.STRING: pa.string(),
    Primitive.BINARY: pa.binary(),
    Primitive.DATE: pa.date32(),
    Primitive.TIMESTAMP: pa.timestamp("us", "UTC"),
    Primitive.TIMESTAMP_NTZ: pa.timestamp("us"),
}


def arrow_type(type_: DataType) -> Any:
    match type_:
        case Primitive():
            return PRIMITIVES[type_]
        case Decimal(precision, scale):
            return pa.decimal128(precision, scale)
        case Array(element):
            return pa.list_(arrow_type(element))
        case Map(key, value):
            return pa.map_(arrow_type(key), arrow_type(value))
        case Struct(columns):
            return pa.struct([(column.name, arrow_type(column.type)) for column in columns])


def batch(rows: Sequence[Mapping[str, Any]], columns: str = "k STRING, v BIGINT") -> Any:
    """A record batch. A column that no row has is left out, so `_order` and `_deleted` can be in the columns always."""
    wanted: list[Column] = [column for column in Schema.of(columns) if any(column.name in row for row in rows)]
    arrays = [pa.array([row.get(column.name) for row in rows], arrow_type(column.type)) for column in wanted]
    return pa.record_batch(arrays, names=[column.name for column in wanted])


def pairs(**values: int | None) -> Any:
    """Rows of a view of keys and numbers; None deletes the key."""
    rows = [{"k": key, "v": value, "_deleted": value is None} for key, value in values.items()]
    return batch(rows, "k STRING, v BIGINT, _deleted BOOLEAN")
