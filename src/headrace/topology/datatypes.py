"""The types a column can have, as plain values that render to Spark's DDL."""

import re
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from headrace.errors import InputError

__all__ = [
    "NOT_FINITE",
    "Array",
    "Column",
    "DataType",
    "Decimal",
    "Map",
    "Primitive",
    "Struct",
    "map_without_text_keys",
]

MAX_PRECISION = 38
NOT_FINITE = ("NaN", "Infinity", "-Infinity")
"""Numbers that JSON has no digits for: they are written as text, in values and in keys of several columns."""
PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Primitive(Enum):
    """A type without parameters; the value is its DDL name."""

    BOOLEAN = "BOOLEAN"
    TINYINT = "TINYINT"
    SMALLINT = "SMALLINT"
    INT = "INT"
    BIGINT = "BIGINT"
    FLOAT = "FLOAT"
    DOUBLE = "DOUBLE"
    STRING = "STRING"
    BINARY = "BINARY"
    DATE = "DATE"
    TIMESTAMP = "TIMESTAMP"
    TIMESTAMP_NTZ = "TIMESTAMP_NTZ"

    @property
    def ddl(self) -> str:
        return self.value


@dataclass(frozen=True, slots=True)
class Decimal:
    """A number of `precision` digits, `scale` of them after the point."""

    precision: int
    scale: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.precision <= MAX_PRECISION:
            raise InputError(f"the precision of DECIMAL is 1 to {MAX_PRECISION}, not {self.precision}")
        if not 0 <= self.scale <= self.precision:
            raise InputError(f"{self.ddl} has a scale larger than its precision")

    @property
    def ddl(self) -> str:
        return f"DECIMAL({self.precision},{self.scale})"


@dataclass(frozen=True, slots=True)
class Array:
    """A list; its elements may be null."""

    element: "DataType"

    @property
    def ddl(self) -> str:
        return f"ARRAY<{self.element.ddl}>"


@dataclass(frozen=True, slots=True)
class Map:
    """Values by key; the values may be null."""

    key: "DataType"
    value: "DataType"

    def __post_init__(self) -> None:
        if contains_map(self.key):
            raise InputError(f"the key of {self.ddl} contains a map, and Spark cannot compare maps")

    @property
    def ddl(self) -> str:
        return f"MAP<{self.key.ddl}, {self.value.ddl}>"


@dataclass(frozen=True, slots=True)
class Column:
    """A name with a type: of a row, or of a struct inside it."""

    name: str
    type: "DataType"
    nullable: bool = True
    comment: str | None = None

    def __post_init__(self) -> None:
        if not self.name:
            raise InputError("a column has an empty name")

    @property
    def ddl(self) -> str:
        words = [quoted_name(self.name), self.type.ddl]
        if not self.nullable:
            words.append("NOT NULL")
        if self.comment is not None:
            words.append(f"COMMENT {quoted_text(self.comment)}")
        return " ".join(words)


@dataclass(frozen=True, slots=True)
class Struct:
    """Columns inside a column."""

    columns: tuple[Column, ...]

    def __post_init__(self) -> None:
        check_names(self.columns, "a STRUCT")

    @property
    def ddl(self) -> str:
        return f"STRUCT<{', '.join(column.ddl for column in self.columns)}>"


DataType: TypeAlias = Primitive | Decimal | Array | Map | Struct


def check_names(columns: tuple[Column, ...], owner: str) -> None:
    """Reject an empty list, and names that differ only in case, which Spark ignores."""
    if not columns:
        raise InputError(f"{owner} has no columns")
    first_by_folded: dict[str, str] = {}
    for column in columns:
        first = first_by_folded.get(column.name.casefold())
        if first is None:
            first_by_folded[column.name.casefold()] = column.name
        else:
            how = "twice" if first == column.name else f"and {first!r}, which differ only in case"
            raise InputError(f"{owner} has the column {column.name!r} {how}")


def contains_map(type_: DataType) -> bool:
    """Whether a map is found in the type at any depth."""
    match type_:
        case Map():
            return True
        case Array(element):
            return contains_map(element)
        case Struct(columns):
            return any(contains_map(column.type) for column in columns)
        case _:
            return False


def quoted_name(name: str) -> str:
    if PLAIN_NAME.fullmatch(name):
        return name
    return "`" + name.replace("`", "``") + "`"


def quoted_text(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def map_without_text_keys(type_: DataType) -> Map | None:
    """A map in the type that cannot be an object of JSON, whose keys are strings; None if there is none."""
    match type_:
        case Map(key, value):
            return type_ if key is not Primitive.STRING else map_without_text_keys(value)
        case Array(element):
            return map_without_text_keys(element)
        case Struct(columns):
            return next((bad for column in columns if (bad := map_without_text_keys(column.type))), None)
        case _:
            return None
