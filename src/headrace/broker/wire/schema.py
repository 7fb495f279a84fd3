"""What each message looks like on the wire in each version, read from kio's classes."""

from collections.abc import Iterable, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from datetime import datetime, timedelta
from functools import cache
from types import NoneType
from typing import Any, Literal, get_args
from uuid import UUID

Direction = Literal["request", "response"]

NIL_UUID = UUID(int=0)
_MILLISECOND = timedelta(milliseconds=1)

# struct's letter for each type of fixed size; Kafka's times and error codes are plain integers here.
FIXED = {
    "int8": "b",
    "int16": "h",
    "int32": "i",
    "int64": "q",
    "uint16": "H",
    "float64": "d",
    "bool": "?",
    "error_code": "h",
    "timedelta_i32": "i",
    "timedelta_i64": "q",
    "datetime_i64": "q",
}


@dataclass(frozen=True, slots=True)
class Field:
    """One field in one version. `struct` is set where its value, or each of its items, is a struct."""

    name: str
    kind: str
    is_array: bool
    nullable: bool
    tag: int | None
    default: Any
    struct: "Struct | None"


@dataclass(frozen=True, slots=True)
class Struct:
    """One struct in one version: the fields in wire order, and those that only other versions have."""

    flexible: bool
    fields: tuple[Field, ...]
    absent: tuple[Field, ...]


@cache
def load(api_key: int, version: int, direction: Direction) -> Struct:
    """The body of a message; importing kio's classes for it takes milliseconds the first time."""
    from kio.index import load_request_schema, load_response_schema
    from kio.schema.index import api_key_map, schema_name_map

    load_class = load_request_schema if direction == "request" else load_response_schema
    classes = {known: load_class(api_key, known) for known in schema_name_map[api_key_map[api_key]]}
    return _struct(version, classes)


def _struct(version: int, classes: dict[int, Any]) -> Struct:
    """Describe a class of `version`, given its likes in every version that has it."""
    by_name: dict[str, dict[int, Any]] = {}
    for known in sorted(classes):
        for field in fields(classes[known]):
            by_name.setdefault(field.name, {})[known] = field
    present, absent = [], []
    for versions in by_name.values():
        if version in versions:
            present.append(_field(version, versions))
        else:
            absent.append(_field(max(versions), versions))
    order = {field.name: place for place, field in enumerate(fields(classes[version]))}
    present.sort(key=lambda field: order[field.name])
    return Struct(classes[version].__flexible__, tuple(present), tuple(absent))


def _field(version: int, versions: dict[int, Any]) -> Field:
    field = versions[version]
    value_type, is_array, nullable = _unwrap(field.type)
    kind = "struct" if is_dataclass(value_type) else field.metadata["kafka_type"]
    # A null uuid is the zero one and a null time is -1: neither has a null on the wire.
    nullable = nullable and (is_array or kind not in ("uuid", "datetime_i64"))
    struct = None
    if kind == "struct":
        nested = {known: _unwrap(other.type)[0] for known, other in versions.items()}
        struct = _struct(version, {known: cls for known, cls in nested.items() if is_dataclass(cls)})
    default = _default(field, kind, is_array, nullable)
    return Field(field.name, kind, is_array, nullable, field.metadata.get("tag"), default, struct)


def _unwrap(annotation: Any) -> tuple[Any, bool, bool]:
    """The innermost type of an annotation, whether it is an array, and whether it may be null."""
    nullable = NoneType in get_args(annotation)
    if nullable:
        annotation = next(arg for arg in get_args(annotation) if arg is not NoneType)
    if getattr(annotation, "__origin__", None) is not tuple:
        return annotation, False, nullable
    item = get_args(annotation)[0]
    return next((arg for arg in get_args(item) if arg is not NoneType), item), True, nullable


def _default(field: Any, kind: str, is_array: bool, nullable: bool) -> Any:
    default = field.default
    if is_array:
        return None if default is None or (default is MISSING and nullable) else ()
    if kind == "uuid":
        return NIL_UUID
    if default is None:
        return -1 if kind == "datetime_i64" else None
    if kind == "struct" or default is MISSING:
        return None if nullable else _ZERO.get(kind, 0)
    if isinstance(default, timedelta):
        return default // _MILLISECOND
    if isinstance(default, datetime):
        return round(default.timestamp() * 1000)
    return int(default) if isinstance(default, int) and kind != "bool" else default


# A struct that is not null defaults to the defaults of its own fields, which an empty mapping stands for.
_ZERO: dict[str, Any] = {
    "string": "",
    "bytes": b"",
    "records": b"",
    "bool": False,
    "float64": 0.0,
    "struct": {},
}


def fuse(fields: Iterable[Field]) -> list[Field | list[Field]]:
    """Runs of neighbours that have a fixed size, and the other fields singly."""
    runs: list[Field | list[Field]] = []
    for field in fields:
        if field.is_array or field.kind not in FIXED:
            runs.append(field)
        elif runs and isinstance(runs[-1], list):
            runs[-1].append(field)
        else:
            runs.append([field])
    return runs


def letters(run: Sequence[Field]) -> str:
    return "".join(FIXED[field.kind] for field in run)
