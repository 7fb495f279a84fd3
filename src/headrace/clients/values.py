"""From a Python value to JSON and to a key's text, by a column's type; the same that the engine writes.

Values are never rounded or converted with loss: they are rejected. Text is what Spark's `to_json` and
`CAST ... AS STRING` give, so that a key sent from here meets the same key written by a node in one partition.
"""

import base64
import dataclasses
import datetime
import decimal
import enum
import json
import math
import struct
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from headrace.errors import InputError
from headrace.topology.datatypes import NOT_FINITE, Array, Column, DataType, Decimal, Map, Primitive, Struct
from headrace.topology.nearest import did_you_mean
from headrace.topology.times import UNITS, unit_of

__all__ = ["EXACT", "INTEGERS", "SINGLE", "Unfit", "columns_of", "json_encoder", "key_text", "object_encoder", "shown"]

Encoder: TypeAlias = Callable[[Any], str]
"""Writes a value that is not None; raises Unfit where it cannot."""

INTEGERS = {Primitive.TINYINT: 8, Primitive.SMALLINT: 16, Primitive.INT: 32, Primitive.BIGINT: 64}
QUOTED_IN_KEYS = (Primitive.STRING, Primitive.TIMESTAMP, Primitive.TIMESTAMP_NTZ, Primitive.DATE)
LONGEST_SHOWN = 60
SINGLE = struct.Struct("<f")
FLOAT_DIGITS = 9
PLAIN_EXPONENTS = range(-3, 7)
TIME_UNITS = list(UNITS.values())
EXACT = decimal.Context(prec=1000, traps=[decimal.Inexact, decimal.InvalidOperation])


class Unfit(Exception):
    """A value that its type has no place for; the path inside the column grows on the way up."""

    def __init__(self, reason: str, next_step: str | None = None, path: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.next_step = next_step
        self.path = path

    def inside(self, place: str) -> "Unfit":
        return Unfit(self.reason, self.next_step, place + self.path)


def shown(value: object) -> str:
    """A value in an error: told apart from others, but not all of it."""
    text = repr(value)
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."


def object_encoder(columns: Sequence[Column]) -> Encoder:
    """Writes a row, or a struct inside it, as a JSON object of all its columns, nulls too."""
    parts = [(column, f"{_quoted(column.name)}:", json_encoder(column.type)) for column in columns]
    names = frozenset(column.name for column in columns)

    def encode(row: Any) -> str:
        values = columns_of(row)
        written = []
        for column, start, encoder in parts:
            value = values.get(column.name)
            if value is not None:
                try:
                    written.append(start + encoder(value))
                except Unfit as unfit:
                    raise unfit.inside(f".{column.name}") from None
            elif column.nullable:
                written.append(start + "null")
            else:
                given = "null" if column.name in values else "missing"
                raise Unfit(f"is {given} and was declared NOT NULL", path=f".{column.name}")
        if not values.keys() <= names:
            unknown = next(str(name) for name in values if name not in names)
            raise Unfit("is not a column", did_you_mean(unknown, sorted(names)), f".{unknown}")
        return "{" + ",".join(written) + "}"

    return encode


def columns_of(row: Any) -> Mapping[str, Any]:
    """The values of a dict, a dataclass or a pydantic model by their names."""
    if isinstance(row, Mapping):
        return row
    if dataclasses.is_dataclass(row) and not isinstance(row, type):
        return {field.name: getattr(row, field.name) for field in dataclasses.fields(row)}
    fields = getattr(type(row), "model_fields", None)
    if isinstance(fields, Mapping):
        return {name: getattr(row, name) for name in fields}
    raise Unfit(f"is {shown(row)}, which is not a row", "give a dict, a dataclass or a pydantic model")


def key_text(columns: Sequence[Column]) -> Callable[[Mapping[str, Any]], str]:
    """Writes a key: of one column its text, of several a JSON array. A null is refused, as the engine would."""
    encoders = [(column, _text_encoder(column.type)) for column in columns]

    def text(values: Mapping[str, Any]) -> str:
        parts = []
        for column, encoder in encoders:
            value = values.get(column.name)
            if value is None:
                raise Unfit("is null, and is part of the key", path=f".{column.name}")
            try:
                written = encoder(value)
            except Unfit as unfit:
                raise unfit.inside(f".{column.name}") from None
            is_text = column.type in QUOTED_IN_KEYS or written in NOT_FINITE
            parts.append(_quoted(written) if len(encoders) > 1 and is_text else written)
        return parts[0] if len(parts) == 1 else f"[{','.join(parts)}]"

    return text


def json_encoder(type_: DataType) -> Encoder:
    match type_:
        case Primitive.STRING:
            return lambda value: _quoted(_text(value))
        case Primitive.TIMESTAMP | Primitive.TIMESTAMP_NTZ | Primitive.DATE:
            text = _text_encoder(type_)
            return lambda value: f'"{text(value)}"'
        case Primitive.DOUBLE | Primitive.FLOAT:
            return _floating_encoder(type_)
        case Primitive.BINARY:
            return _binary
        case Decimal():
            return lambda value: str(_exact(value, type_))
        case Primitive():
            return _text_encoder(type_)
        case Array(element):
            return _array_encoder(element)
        case Map(key, mapped):
            return _map_encoder(type_, key, mapped)
        case Struct(columns):
            return object_encoder(columns)


def _text_encoder(type_: DataType) -> Encoder:
    """The text of a plain value: what a key of one column is."""
    match type_:
        case Primitive.STRING:
            return _text
        case Primitive.BOOLEAN:
            return _boolean
        case Primitive.DOUBLE:
            return _double
        case Primitive.FLOAT:
            return _float
        case Primitive.DATE:
            return _date
        case Primitive.TIMESTAMP:
            return _timestamp
        case Primitive.TIMESTAMP_NTZ:
            return _timestamp_without_zone
        case Decimal():
            return lambda value: format(_exact(value, type_), "f")
        case Primitive() if type_ in INTEGERS:
            return _integer_encoder(type_)
        case _:
            raise InputError(f"{type_.ddl} cannot be a key")


def _array_encoder(element: DataType) -> Encoder:
    encoder = json_encoder(element)

    def encode(values: Any) -> str:
        if not isinstance(values, Sequence) or isinstance(values, str | bytes):
            raise Unfit(f"is {shown(values)}, not a list")
        written = []
        for index, value in enumerate(values):
            try:
                written.append("null" if value is None else encoder(value))
            except Unfit as unfit:
                raise unfit.inside(f"[{index}]") from None
        return f"[{','.join(written)}]"

    return encode


def _map_encoder(type_: Map, key: DataType, mapped: DataType) -> Encoder:
    if key is not Primitive.STRING:
        raise InputError(
            f"{type_.ddl} cannot be sent: keys in JSON are strings", next_step=f"make it MAP<STRING, {mapped.ddl}>"
        )
    encoder = json_encoder(mapped)

    def encode(values: Any) -> str:
        if not isinstance(values, Mapping):
            raise Unfit(f"is {shown(values)}, not a mapping")
        written = []
        for name, value in values.items():
            try:
                written.append(f"{_quoted(_text(name))}:{'null' if value is None else encoder(value)}")
            except Unfit as unfit:
                raise unfit.inside(f"[{name!r}]") from None
        return "{" + ",".join(written) + "}"

    return encode


def _floating_encoder(type_: Primitive) -> Encoder:
    text = _text_encoder(type_)

    def encode(value: Any) -> str:
        written = text(value)
        return f'"{written}"' if written in NOT_FINITE else written

    return encode


def _integer_encoder(type_: Primitive) -> Encoder:
    half = 1 << (INTEGERS[type_] - 1)

    def encode(value: Any) -> str:
        value = _plain(value)
        if not isinstance(value, int) or isinstance(value, bool):
            raise Unfit(f"is {shown(value)}, not {type_.ddl}")
        if not -half <= value < half:
            raise Unfit(f"is {value}, which {type_.ddl} cannot hold")
        return str(value)

    return encode


def _boolean(value: Any) -> str:
    if not isinstance(value, bool):
        raise Unfit(f"is {shown(value)}, not BOOLEAN")
    return "true" if value else "false"


def _text(value: Any) -> str:
    value = _plain(value)
    if isinstance(value, uuid.UUID):
        return str(value)
    if not isinstance(value, str):
        raise Unfit(f"is {shown(value)}, not STRING")
    return value


def _quoted(text: str) -> str:
    written = json.dumps(text, ensure_ascii=False)
    # Spark writes the letters of an escape large.
    return written if "\\u00" not in written else _large_escapes(text)


def _large_escapes(text: str) -> str:
    parts = [json.dumps(character, ensure_ascii=False)[1:-1] for character in text]
    return '"' + "".join(f"\\u{part[2:].upper()}" if part.startswith("\\u") else part for part in parts) + '"'


def _binary(value: Any) -> str:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise Unfit(f"is {shown(value)}, not BINARY", "give bytes")
    return f'"{base64.b64encode(value).decode()}"'


def _exact(value: Any, type_: Decimal) -> decimal.Decimal:
    value = _plain(value)
    if isinstance(value, float):
        raise Unfit(f"is the float {value!r}, which may not be exact", f'give Decimal("{value!r}")')
    if isinstance(value, bool) or not isinstance(value, decimal.Decimal | int | str):
        raise Unfit(f"is {shown(value)}, not {type_.ddl}")
    try:
        number = EXACT.create_decimal(value)
    except decimal.DecimalException:
        raise Unfit(f"is {shown(value)}, not {type_.ddl}") from None
    if not number.is_finite():
        raise Unfit(f"is {number}, not {type_.ddl}")
    try:
        exact = EXACT.quantize(number, decimal.Decimal(1).scaleb(-type_.scale))
    except decimal.DecimalException:
        raise Unfit(f"is {number}, which has more digits than {type_.ddl}") from None
    if exact.adjusted() >= type_.precision - type_.scale and exact:
        raise Unfit(f"is {number}, which has more digits than {type_.ddl}")
    return exact.copy_abs() if exact.is_zero() else exact


def _number(value: Any, type_: Primitive) -> float:
    value = _plain(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Unfit(f"is {shown(value)}, not {type_.ddl}")
    try:
        return float(value)
    except OverflowError:
        raise Unfit(f"is {shown(value)}, which {type_.ddl} cannot hold") from None


def _double(value: Any) -> str:
    return _as_java(repr(_number(value, Primitive.DOUBLE)))


def _float(value: Any) -> str:
    number = _number(value, Primitive.FLOAT)
    if not math.isfinite(number):
        return _as_java(repr(number))
    try:
        packed = SINGLE.pack(number)
    except OverflowError:
        raise Unfit(f"is {number}, which FLOAT cannot hold") from None
    (stored,) = SINGLE.unpack(packed)
    shortest = (f"{stored:.{digits}g}" for digits in range(1, FLOAT_DIGITS + 1))
    return _as_java(next(text for text in shortest if _is_packed_as(text, packed)))


def _is_packed_as(text: str, packed: bytes) -> bool:
    try:
        return SINGLE.pack(float(text)) == packed
    except OverflowError:  # the largest of all, rounded up
        return False


def _as_java(text: str) -> str:
    """The digits of a number that is as short as can be, the way Java writes them."""
    number = decimal.Decimal(text)
    if not number.is_finite():
        return str(number)
    sign, digits, _ = number.normalize().as_tuple()
    exponent = number.adjusted() if any(digits) else 0
    minus, figures = "-" * sign, "".join(map(str, digits))
    if exponent not in PLAIN_EXPONENTS:
        return f"{minus}{figures[0]}.{figures[1:] or '0'}E{exponent}"
    if exponent < 0:
        return f"{minus}0.{'0' * (-exponent - 1)}{figures}"
    whole = figures[: exponent + 1].ljust(exponent + 1, "0")
    return f"{minus}{whole}.{figures[exponent + 1 :] or '0'}"


def _date(value: Any) -> str:
    if isinstance(value, str):
        value = _read(datetime.date.fromisoformat, value, "DATE", "2026-01-31")
    if not isinstance(value, datetime.date) or isinstance(value, datetime.datetime):
        raise Unfit(f"is {shown(value)}, not DATE")
    return value.isoformat()


def _timestamp(value: Any) -> str:
    if isinstance(value, str):
        value = _read(datetime.datetime.fromisoformat, value, "TIMESTAMP", "2026-01-31T12:00:00Z")
    if not isinstance(value, datetime.datetime):
        raise Unfit(f"is {shown(value)}, not TIMESTAMP", _datetime_of(value))
    if value.tzinfo is None:
        raise Unfit(f"is {value.isoformat()}, which has no time zone", "add tzinfo=UTC, or a Z at the end")
    try:
        moment = value.astimezone(datetime.UTC)
    except OverflowError:
        raise Unfit(f"is {value.isoformat()}, which is outside the years 1 to 9999 in UTC") from None
    return moment.replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def _datetime_of(value: object) -> str:
    """How to write a number as a time."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        unit = unit_of(int(value)) if math.isfinite(value) else None
        seconds = shown(value) if unit is None else f"{shown(value)} / {1000 ** (TIME_UNITS.index(unit) + 1):_}"
        return f"give datetime.fromtimestamp({seconds}, UTC)"
    return "give a datetime with a time zone, or text such as 2026-01-31T12:00:00Z"


def _timestamp_without_zone(value: Any) -> str:
    if isinstance(value, str):
        value = _read(datetime.datetime.fromisoformat, value, "TIMESTAMP_NTZ", "2026-01-31T12:00:00")
    if not isinstance(value, datetime.datetime):
        raise Unfit(f"is {shown(value)}, not TIMESTAMP_NTZ")
    if value.tzinfo is not None:
        raise Unfit(f"is {value.isoformat()}, and TIMESTAMP_NTZ has no time zone", "drop it, or make it TIMESTAMP")
    return value.isoformat(timespec="microseconds")


def _read(parse: Callable[[str], Any], text: str, type_name: str, example: str) -> Any:
    try:
        return parse(text)
    except ValueError:
        raise Unfit(f"is {shown(text)}, not {type_name}", f"write it as {example}") from None


def _plain(value: Any) -> Any:
    """What an enum's member stands for."""
    return value.value if isinstance(value, enum.Enum) else value
