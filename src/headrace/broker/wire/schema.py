"""What each message looks like on the wire in each version, read from the table in schema.txt.

The table is made from kio's classes. They are not used while the broker runs: a handler needs the fields of
all versions of an API at once, and importing those takes a tenth of a second for Fetch alone, and megabytes.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal
from uuid import UUID

from headrace.broker.wire.apis import ABOVE_EVERY_VERSION, APIS

Direction = Literal["request", "response"]

NIL_UUID = UUID(int=0)

# struct's letter for each type of fixed size, except uuid, whose values must be converted.
FIXED = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "int64": "q",
    "float64": "d",
}

# A struct that is not null has the defaults of its own fields, which an empty mapping stands for.
_ZERO: dict[str, Any] = {
    "bool": False,
    "float64": 0.0,
    "string": "",
    "bytes": b"",
    "records": b"",
    "uuid": NIL_UUID,
    "struct": {},
}


@dataclass(frozen=True, slots=True)
class Field:
    """One field in one version. `struct` is set where its value, or each of its items, is a struct."""

    name: str
    kind: str
    is_array: bool
    nullable: bool
    nullable_elsewhere: bool
    tag: int | None
    default: Any
    struct: "Struct | None"

    @property
    def is_fixed(self) -> bool:
        return self.kind in FIXED and not self.is_array


@dataclass(frozen=True, slots=True)
class Struct:
    """One struct in one version: its fields in wire order, the tagged ones by tag, and those it lacks."""

    flexible: bool
    in_order: tuple[Field, ...]
    tagged: tuple[Field, ...]
    absent: tuple[Field, ...]


@dataclass(frozen=True, slots=True)
class _Line:
    """One line of the table, with those indented below it."""

    name: str
    kind: str
    is_array: bool
    versions: range
    nullable: range
    tag: int | None
    default: str | None
    below: "list[_Line]"


@cache
def load(api_key: int, version: int, direction: Direction) -> Struct:
    """The body of a message."""
    api = APIS[api_key]
    return _struct(_message(f"{api.name} {direction}"), version, version >= api.flexible_from)


def fuse(fields: Iterable[Field]) -> list[Field | list[Field]]:
    """Runs of neighbours that have a fixed size, and the other fields singly."""
    runs: list[Field | list[Field]] = []
    for field in fields:
        if not field.is_fixed:
            runs.append(field)
        elif runs and isinstance(runs[-1], list):
            runs[-1].append(field)
        else:
            runs.append([field])
    return runs


def letters(run: Sequence[Field]) -> str:
    """The struct format of a run of fixed-size fields."""
    return ">" + "".join(FIXED[field.kind] for field in run)


def _struct(lines: list[_Line], version: int, flexible: bool) -> Struct:
    present = [_field(line, version, flexible) for line in lines if version in line.versions]
    return Struct(
        flexible,
        tuple(field for field in present if field.tag is None),
        tuple(sorted((field for field in present if field.tag is not None), key=lambda field: field.tag or 0)),
        tuple(_field(line, version, flexible) for line in lines if version not in line.versions),
    )


def _field(line: _Line, version: int, flexible: bool) -> Field:
    nullable = version in line.nullable
    present = version in line.versions
    default: Any
    if nullable or (line.nullable and not present):
        default = None
    elif line.is_array:
        default = ()
    elif line.default is not None:
        default = bool(int(line.default)) if line.kind == "bool" else int(line.default)
    else:
        default = _ZERO.get(line.kind, 0)
    return Field(
        line.name,
        line.kind,
        line.is_array,
        nullable,
        bool(line.nullable) and not nullable,
        line.tag,
        default,
        _struct(line.below, version if present else line.versions.start, flexible) if line.below else None,
    )


@cache
def _sections() -> dict[str, list[str]]:
    """The lines of each message, by its title."""
    text = Path(__file__).with_name("schema.txt").read_text("utf-8")
    sections = (section.splitlines() for section in text.split("\n\n")[1:])
    return {title: lines for title, *lines in sections}


@cache
def _message(title: str) -> list[_Line]:
    levels: list[list[_Line]] = [[]]
    for text in _sections()[title]:
        depth = (len(text) - len(text.lstrip())) // 2
        line = _line(text)
        del levels[depth:]
        levels[-1].append(line)
        levels.append(line.below)
    return levels[0]


def _line(text: str) -> _Line:
    name, kind, versions, *rest = text.split()
    extra = dict(word.split("=") for word in rest)
    return _Line(
        name,
        kind.strip("[]"),
        kind.startswith("["),
        _versions(versions),
        _versions(extra["null"]) if "null" in extra else range(0),
        int(extra["tag"]) if "tag" in extra else None,
        extra.get("default"),
        [],
    )


def _versions(text: str) -> range:
    """`3+`, `3-5` or `3`."""
    if text.endswith("+"):
        return range(int(text[:-1]), ABOVE_EVERY_VERSION)
    low, _, high = text.partition("-")
    return range(int(low), int(high or low) + 1)
