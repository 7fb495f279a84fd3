"""Bodies as the codec has them, to and from kio's entities: kio is the second opinion the codec is held to."""

import dataclasses
import io
from datetime import UTC, datetime, timedelta
from functools import cache
from types import SimpleNamespace
from typing import Any, Literal
from uuid import UUID

from hypothesis import strategies as st
from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer

from tests.broker.schema_table import unwrap

Direction = Literal["request", "response"]
NIL = UUID(int=0)


def entity_class(api_key: int, version: int, direction: Direction) -> Any:
    load = load_request_schema if direction == "request" else load_response_schema
    return load(api_key, version)


def kio_bytes(entity: Any) -> bytes:
    buffer = io.BytesIO()
    entity_writer(type(entity))(buffer, entity)
    return buffer.getvalue()


def kio_entity(cls: Any, data: bytes) -> Any:
    return entity_reader(cls)(data, 0)[0]


def to_entity(cls: Any, body: dict[str, Any]) -> Any:
    return cls(**{field.name: _to_kio(field, body[field.name]) for field in dataclasses.fields(cls)})


def to_body(cls: Any, message: SimpleNamespace) -> dict[str, Any]:
    """What a reader made, as a mapping of the fields that `cls`, one version, has."""
    return {field.name: _to_plain(field, getattr(message, field.name)) for field in dataclasses.fields(cls)}


def _to_kio(field: Any, value: Any) -> Any:
    inner, is_array, _ = unwrap(field.type)
    if is_array:
        return None if value is None else tuple(_item_to_kio(field, inner, item) for item in value)
    return _item_to_kio(field, inner, value)


def _item_to_kio(field: Any, inner: Any, value: Any) -> Any:
    if dataclasses.is_dataclass(inner):
        return None if value is None else to_entity(inner, value)
    match field.metadata["kafka_type"]:
        case "uuid":
            return None if value == NIL else value
        case "error_code":
            return ErrorCode(value)
        case "timedelta_i32" | "timedelta_i64":
            return timedelta(milliseconds=value)
        case "datetime_i64" if value == -1:
            return None
        case "datetime_i64":
            return datetime.fromtimestamp(value / 1000, UTC)
    return value


def _to_plain(field: Any, value: Any) -> Any:
    inner, _, _ = unwrap(field.type)
    if isinstance(value, list):
        return [_item_to_plain(inner, item) for item in value]
    return _item_to_plain(inner, value)


def _item_to_plain(inner: Any, value: Any) -> Any:
    if isinstance(value, SimpleNamespace):
        return to_body(inner, value)
    return bytes(value) if isinstance(value, memoryview) else value


# Strategies, kept within what kio's types can hold

_INTEGERS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64, "timedelta_i32": 32}
_ERROR_CODES = sorted(int(code) for code in ErrorCode)
_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=9) | st.just("x" * 200)
_bytes = st.binary(max_size=9) | st.just(b"y" * 200)


@cache
def bodies(cls: Any) -> st.SearchStrategy[dict[str, Any]]:
    """Bodies of one message in one version."""
    return st.fixed_dictionaries({field.name: _values(field) for field in dataclasses.fields(cls)})


def _values(field: Any) -> st.SearchStrategy[Any]:
    inner, is_array, nullable = unwrap(field.type)
    if dataclasses.is_dataclass(inner):
        values, kind = bodies(inner), "struct"
    else:
        kind = field.metadata["kafka_type"]
        # kio writes a null time only where it has a default.
        values = _plain_values(kind, nullable_time=nullable)
    if is_array:
        values = st.lists(values, max_size=3)
    elif kind in ("uuid", "datetime_i64"):
        return values
    return st.none() | values if nullable else values


def _plain_values(kind: str, nullable_time: bool) -> st.SearchStrategy[Any]:
    if kind in _INTEGERS:
        half = 1 << (_INTEGERS[kind] - 1)
        return st.integers(-half, half - 1)
    match kind:
        case "bool":
            return st.booleans()
        case "uint16":
            return st.integers(0, 0xFFFF)
        case "float64":
            return st.floats(allow_nan=False, allow_infinity=False)
        case "error_code":
            return st.sampled_from(_ERROR_CODES)
        case "timedelta_i64":
            return st.integers(-(10**13), 10**13)
        case "datetime_i64":
            times = st.integers(0, 10**10).map(lambda seconds: seconds * 1000)
            return st.just(-1) | times if nullable_time else times
        case "uuid":
            return st.just(NIL) | st.uuids()
        case "string":
            return _text
        case "bytes" | "records":
            return _bytes
    raise AssertionError(f"no strategy for {kind}")
