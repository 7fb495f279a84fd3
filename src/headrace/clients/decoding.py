"""From a record's value to a row: Python values by the types of a schema, or instances of a model."""

import base64
import binascii
import datetime
import decimal
import json
from collections.abc import Callable
from typing import Any, TypeAlias

from headrace.clients.models import builder_of
from headrace.clients.values import EXACT, INTEGERS, SINGLE, shown
from headrace.errors import InputError
from headrace.topology import Format, Schema
from headrace.topology.datatypes import NOT_FINITE, Array, Column, DataType, Decimal, Map, Primitive, Struct
from headrace.topology.models import is_model
from headrace.topology.schema import SchemaLike
from headrace.topology.times import looks_like, unit_of

__all__ = ["RowReader"]

Decoder: TypeAlias = Callable[[Any], Any]
"""Reads a JSON value that is not null; raises ValueError where it does not fit."""


class RowReader:
    """Turns the values of records into rows: dicts, or instances of a dataclass or pydantic model.

    Without a schema a row is what the JSON says: times are text, and numbers with a point are Decimals.
    """

    def __init__(self, schema: SchemaLike | None, format: Format = Format.JSON) -> None:
        self._format = format
        self._column = "value"
        self._decode: Decoder | None = None
        self._build: Callable[[Any], Any] | None = None
        if schema is None:
            return
        columns = Schema.of(schema)
        self._column = columns.names[0]
        self._decode = _struct_decoder(columns.columns)
        self._build = builder_of(schema) if is_model(schema) else None

    def read(self, value: bytes | None) -> Any:
        """The row; an InputError with the reason if there is none."""
        if not value:
            raise InputError("the value is null" if value is None else "the value is empty")
        if self._format is Format.BYTES:
            return self._built({self._column: value})
        try:
            text = value.decode()
        except UnicodeDecodeError:
            raise InputError("the value is not UTF-8") from None
        if self._format is Format.STRING:
            return self._built({self._column: text})
        try:
            row = json.loads(text, parse_float=decimal.Decimal, parse_constant=_no_constant)
        except (ValueError, RecursionError):
            raise InputError("the value is not one JSON object") from None
        if not isinstance(row, dict):
            raise InputError("the value is not one JSON object")
        if self._decode is None:
            return row
        try:
            return self._built(self._decode(row))
        except ValueError as error:
            raise InputError(str(error)) from None

    def _built(self, row: dict[str, Any]) -> Any:
        return row if self._build is None else self._build(row)


def _struct_decoder(columns: tuple[Column, ...]) -> Decoder:
    decoders = [(column, _decoder(column.type)) for column in columns]

    def decode(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise ValueError("is not an object")
        row: dict[str, Any] = {}
        for column, decoder in decoders:
            field = value.get(column.name)
            if field is None:
                if not column.nullable:
                    raise ValueError(f"{column.name!r} is null and was declared NOT NULL")
                row[column.name] = None
                continue
            try:
                row[column.name] = decoder(field)
            except (ValueError, ArithmeticError):
                unit = unit_of(field) if column.type is Primitive.TIMESTAMP and type(field) is int else None
                wrong = f"{column.name!r} is {shown(field)}, not {column.type.ddl}"
                raise ValueError(wrong if unit is None else looks_like(column.name, unit)) from None
        return row

    return decode


def _decoder(type_: DataType) -> Decoder:
    match type_:
        case Decimal():
            return lambda value: _decimal(value, type_)
        case Array(element):
            decoder = _decoder(element)
            return lambda value: [None if one is None else decoder(one) for one in _of(list, value)]
        case Map(_, mapped):
            inner = _decoder(mapped)
            return lambda value: {name: None if one is None else inner(one) for name, one in _of(dict, value).items()}
        case Struct(columns):
            return _struct_decoder(columns)
        case Primitive.BOOLEAN:
            return lambda value: _of(bool, value)
        case Primitive.STRING:
            return _string
        case Primitive.BINARY:
            return _binary
        case Primitive.DOUBLE:
            return _double
        case Primitive.FLOAT:
            return lambda value: SINGLE.unpack(SINGLE.pack(_double(value)))[0]
        case Primitive.DATE:
            return lambda value: datetime.date.fromisoformat(_of(str, value))
        case Primitive.TIMESTAMP:
            return _timestamp
        case Primitive.TIMESTAMP_NTZ:
            return lambda value: datetime.datetime.fromisoformat(_of(str, value)).replace(tzinfo=None)
        case _:
            half = 1 << (INTEGERS[type_] - 1)
            return lambda value: _integer(value, half)


def _of(kind: type, value: Any) -> Any:
    if not isinstance(value, kind):
        raise ValueError
    return value


def _string(value: Any) -> str:
    # As Spark does: what is no text is taken as it is written.
    return value if isinstance(value, str) else json.dumps(value, default=str, separators=(",", ":"))


def _integer(value: Any, half: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not -half <= value < half:
        raise ValueError
    return value


def _double(value: Any) -> float:
    if value in NOT_FINITE:
        return float(value)
    if isinstance(value, bool) or not isinstance(value, int | decimal.Decimal):
        raise ValueError
    return float(value)


def _decimal(value: Any, type_: Decimal) -> decimal.Decimal:
    if isinstance(value, bool) or not isinstance(value, int | decimal.Decimal):
        raise ValueError
    exact = EXACT.quantize(decimal.Decimal(value), decimal.Decimal(1).scaleb(-type_.scale))
    if exact and exact.adjusted() >= type_.precision - type_.scale:
        raise ValueError
    return exact


def _binary(value: Any) -> bytes:
    try:
        return base64.b64decode(_of(str, value), validate=True)
    except binascii.Error:
        raise ValueError from None


def _timestamp(value: Any) -> datetime.datetime:
    if isinstance(value, int) and not isinstance(value, bool):
        return datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(seconds=value)
    moment = datetime.datetime.fromisoformat(_of(str, value))
    # A time without a zone is one of UTC, as it is to the engine.
    return moment.replace(tzinfo=datetime.UTC) if moment.tzinfo is None else moment.astimezone(datetime.UTC)


def _no_constant(name: str) -> Any:
    raise ValueError(name)
