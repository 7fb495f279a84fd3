"""Makes src/headrace/broker/wire/schema.txt out of kio's classes.

    python -m tests.broker.schema_table

Run it when an API is added to APIS or kio knows a new version; a test holds the file to what this makes.
"""

from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from datetime import timedelta
from graphlib import TopologicalSorter
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin

from kio.index import load_request_schema, load_response_schema
from kio.schema.index import api_key_map, schema_name_map

from headrace.broker.wire import schema
from headrace.broker.wire.apis import APIS

TABLE = Path(schema.__file__).with_name("schema.txt")

# On the wire times and error codes are integers, and so they are for the broker.
PLAIN = {
    "error_code": "int16",
    "timedelta_i32": "int32",
    "timedelta_i64": "int64",
    "datetime_i64": "int64",
}
ABOUT = """\
# Every field of every API served: name, type, versions; the versions in which it may be null; its tag; its
# default, where that is neither zero, empty nor null. Arrays stand in brackets, the fields of a struct below
# it. Made from kio's classes by tests/broker/schema_table.py.

"""


@dataclass
class Merged:
    """One field over all the versions that have it."""

    name: str
    kind: str
    is_array: bool
    tag: int | None
    default: Any
    versions: list[int] = field(default_factory=list)
    nullable: list[int] = field(default_factory=list)
    classes: dict[int, Any] = field(default_factory=dict)


def table() -> str:
    """The whole file."""
    lines = [ABOUT]
    for key in APIS:
        for direction, load in (("request", load_request_schema), ("response", load_response_schema)):
            classes = {version: load(key, version) for version in schema_name_map[api_key_map[key]]}
            lines.append(f"{APIS[key].name} {direction}\n")
            lines += _lines(classes, max(classes), "  ")
            lines.append("\n")
    return "".join(lines).rstrip("\n") + "\n"


def _lines(classes: dict[int, Any], newest: int, indent: str) -> list[str]:
    lines = []
    for merged in _merge(classes):
        kind = f"[{merged.kind}]" if merged.is_array else merged.kind
        words = [merged.name, kind, _range(merged.versions, newest)]
        if merged.nullable:
            words.append(f"null={_range(merged.nullable, newest)}")
        if merged.tag is not None:
            words.append(f"tag={merged.tag}")
        if merged.default:
            words.append(f"default={merged.default}")
        lines.append(indent + " ".join(words) + "\n")
        if merged.classes:
            lines += _lines(merged.classes, newest, indent + "  ")
    return lines


def _range(versions: list[int], newest: int) -> str:
    low, high = min(versions), max(versions)
    assert sorted(versions) == list(range(low, high + 1)), f"a gap in {versions}"
    if high == newest:
        return f"{low}+"
    return str(low) if low == high else f"{low}-{high}"


def _merge(classes: dict[int, Any]) -> list[Merged]:
    """The fields of all versions of a struct, in an order that is right for each of them."""
    merged: dict[str, Merged] = {}
    order: TopologicalSorter[str] = TopologicalSorter()
    for version, cls in sorted(classes.items()):
        before = None
        for one in fields(cls):
            inner, is_array, nullable = unwrap(one.type)
            kind = "struct" if is_dataclass(inner) else one.metadata["kafka_type"]
            # A null uuid is the zero one and a null time is -1: neither has a null on the wire.
            nullable = nullable and (is_array or kind not in ("uuid", "datetime_i64"))
            shape = (PLAIN.get(kind, kind), is_array, one.metadata.get("tag"), _default(one, kind))
            known = merged.setdefault(one.name, Merged(one.name, *shape))
            assert shape == (known.kind, known.is_array, known.tag, known.default), f"{cls} {one.name} changed"
            known.versions.append(version)
            if nullable:
                known.nullable.append(version)
            if kind == "struct":
                known.classes[version] = inner
            order.add(one.name, *([before] if before else []))
            before = one.name
    return [merged[name] for name in order.static_order()]


def unwrap(annotation: Any) -> tuple[Any, bool, bool]:
    """The innermost type of an annotation, whether it is an array, and whether it may be null."""
    inner, nullable = _without_none(annotation)
    if get_origin(inner) is tuple:
        return _without_none(get_args(inner)[0])[0], True, nullable
    return inner, False, nullable


def _without_none(annotation: Any) -> tuple[Any, bool]:
    others = [arg for arg in get_args(annotation) if arg is not NoneType]
    return (others[0], True) if NoneType in get_args(annotation) else (annotation, False)


def _default(one: Any, kind: str) -> Any:
    default = one.default
    if default is None:
        return -1 if kind == "datetime_i64" else None
    if isinstance(default, timedelta):
        return default // timedelta(milliseconds=1)
    if kind == "struct":
        assert default in (MISSING, ()) or default == type(default)(), f"{one.name}: a default of its own"
        return None
    return None if default is MISSING or default == () else int(default) if isinstance(default, int) else default


if __name__ == "__main__":
    TABLE.write_text(table())
