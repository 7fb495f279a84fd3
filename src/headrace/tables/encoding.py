"""From Arrow to the input of COPY: CSV in which every value is quoted, and null is an empty field.

Plain columns are written by Arrow, a column at a time. Arrays and jsonb are written value by value.
"""

import base64
import datetime
import json
import math
import struct
from collections.abc import Callable
from io import BytesIO
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from headrace.errors import InputError
from headrace.tables.types import is_json
from headrace.topology.datatypes import Array, Column, DataType, Decimal, Map, Primitive, Struct

__all__ = ["csv_lines", "encoded"]

NUL = "\0"
OPTIONS = csv.WriteOptions(include_header=False, quoting_style="all_valid")


def csv_lines(columns: list[Any]) -> bytes:
    """Encoded columns as lines for COPY."""
    sink = BytesIO()
    csv.write_csv(pa.table(columns, names=[str(index) for index in range(len(columns))]), sink, OPTIONS)
    return sink.getvalue()


def encoded(values: Any, column: Column) -> Any:
    """An Arrow array of a column's values as one for CSV. Raises InputError for values that no table can store."""
    match column.type:
        case Primitive.STRING:
            _refuse_nul(values, column.name)
            return values
        case Primitive.TIMESTAMP | Primitive.TIMESTAMP_NTZ:
            # Without its zone, which is UTC, Arrow needs no table of zones to write it.
            return values.cast(pa.timestamp("us"))
        case Primitive.BINARY:
            return _each(values, _bytea)
        case Primitive() | Decimal():
            return values
        case Array(element) if not is_json(column.type):
            write = _array_element(element, column.name)
            return _each(values, lambda items: "{" + ",".join(map(write, items)) + "}")
        case _:
            return _each(values, _json_writer(column.type, column.name))


def _each(values: Any, write: Callable[[Any], str]) -> Any:
    return pa.array((None if value is None else write(value) for value in values.to_pylist()), pa.string())


def _refuse_nul(values: Any, name: str) -> None:
    found = pc.match_substring(values, NUL)
    if pc.any(found).as_py():
        _no_nul(pc.filter(values, found)[0].as_py(), name)


def _no_nul(text: str, name: str) -> str:
    if NUL in text:
        shown = text if len(text) <= 60 else text[:60] + "..."
        raise InputError(
            f"column {name!r} contains the NUL character, which PostgreSQL's text cannot store: {shown!r}",
            next_step=f"remove it in the view's function: F.translate({name!r}, '\\0', '')",
        )
    return text


def _bytea(value: bytes) -> str:
    return "\\x" + value.hex()


def _array_element(type_: DataType, name: str) -> Callable[[Any], str]:
    text = _text_writer(type_, name)

    def write(value: Any) -> str:
        if value is None:
            return "NULL"
        return '"' + text(value).replace("\\", "\\\\").replace('"', '\\"') + '"'

    return write


def _text_writer(type_: DataType, name: str) -> Callable[[Any], str]:
    """A plain value as PostgreSQL reads it."""
    match type_:
        case Primitive.STRING:
            return lambda value: _no_nul(value, name)
        case Primitive.BINARY:
            return _bytea
        case Primitive.BOOLEAN:
            return lambda value: "true" if value else "false"
        case Primitive.TIMESTAMP | Primitive.TIMESTAMP_NTZ:
            return lambda value: _utc(value).isoformat(sep=" ")
        case Primitive.FLOAT | Primitive.DOUBLE:
            return repr
        case _:
            return str


def _json_writer(type_: DataType, name: str) -> Callable[[Any], str]:
    """A value as JSON, as Spark's to_json writes it, so that topics and tables agree."""
    match type_:
        case Primitive.STRING:
            return lambda value: json.dumps(_no_nul(value, name), ensure_ascii=False)
        case Primitive.BINARY:
            return lambda value: json.dumps(base64.b64encode(value).decode())
        case Primitive.BOOLEAN:
            return lambda value: "true" if value else "false"
        case Primitive.FLOAT | Primitive.DOUBLE:
            finite = repr if type_ is Primitive.DOUBLE else _shortest
            return lambda value: finite(value) if math.isfinite(value) else _json_not_finite(value)
        case Primitive.TIMESTAMP:
            return lambda value: f'"{_utc(value).isoformat(timespec="microseconds")}Z"'
        case Primitive.TIMESTAMP_NTZ:
            return lambda value: f'"{value.isoformat(timespec="microseconds")}"'
        case Primitive.DATE:
            return lambda value: f'"{value.isoformat()}"'
        case Primitive():
            return str
        case Decimal():
            return lambda value: format(value, "f")
        case Array(element):
            write = _nullable(_json_writer(element, name))
            return lambda items: "[" + ",".join(map(write, items)) + "]"
        case Map(key, value):
            return _json_map(key, value, name)
        case Struct(columns):
            return _json_struct(columns, name)


def _json_not_finite(value: float) -> str:
    return '"NaN"' if math.isnan(value) else '"Infinity"' if value > 0 else '"-Infinity"'


def _shortest(value: float) -> str:
    """A 4-byte number in the fewest digits that identify it: Python's repr() is for 8 bytes."""
    for digits in range(6, 9):
        if struct.unpack("f", struct.pack("f", float(text := f"{value:.{digits}g}")))[0] == value:
            return text
    return f"{value:.9g}"


def _json_map(key: DataType, value: DataType, name: str) -> Callable[[Any], str]:
    if not isinstance(key, Primitive | Decimal):
        raise InputError(f"column {name!r} has {Map(key, value).ddl}, and keys in JSON are text")
    key_text = _json_writer(key, name)
    write = _nullable(_json_writer(value, name))

    def entry(item: tuple[Any, Any]) -> str:
        text = key_text(item[0])
        quoted = text if text.startswith('"') else f'"{text}"'
        return f"{quoted}:{write(item[1])}"

    return lambda items: "{" + ",".join(map(entry, items)) + "}"


def _json_struct(columns: tuple[Column, ...], name: str) -> Callable[[Any], str]:
    writers = [
        (column.name, json.dumps(_no_nul(column.name, name)), _nullable(_json_writer(column.type, name)))
        for column in columns
    ]
    return lambda row: "{" + ",".join(f"{text}:{write(row[field])}" for field, text, write in writers) + "}"


def _nullable(write: Callable[[Any], str]) -> Callable[[Any], str]:
    return lambda value: "null" if value is None else write(value)


def _utc(value: datetime.datetime) -> datetime.datetime:
    return value if value.tzinfo is None else value.astimezone(datetime.UTC).replace(tzinfo=None)
