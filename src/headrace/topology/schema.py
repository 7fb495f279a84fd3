"""Schemas, given as DDL, a StructType, a dataclass or a pydantic model."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from headrace.errors import InputError
from headrace.topology.datatypes import Array, Column, DataType, Decimal, Map, Primitive, Struct, check_names
from headrace.topology.ddl import parse_columns
from headrace.topology.models import columns_of_model, is_model

__all__ = ["Schema", "SchemaLike"]

# What Spark calls its types in a schema's JSON, where that differs from the DDL name in lower case.
JSON_NAMES = {
    Primitive.TINYINT: "byte",
    Primitive.SMALLINT: "short",
    Primitive.INT: "integer",
    Primitive.BIGINT: "long",
}
JSON_NAME = {primitive: JSON_NAMES.get(primitive, primitive.value.lower()) for primitive in Primitive}
BY_JSON_NAME = {name: primitive for primitive, name in JSON_NAME.items()}
JSON_DECIMAL = re.compile(r"decimal\((\d+),\s*(\d+)\)")


@dataclass(frozen=True, slots=True)
class Schema:
    """The columns of a row, in order. Names must differ by more than case, as in Spark."""

    columns: tuple[Column, ...]

    def __post_init__(self) -> None:
        check_names(self.columns, "the schema")

    @classmethod
    def of(cls, value: "SchemaLike") -> "Schema":
        """Read a DDL string, a Spark StructType, a dataclass, a pydantic model, or a Schema."""
        if isinstance(value, Schema):
            return value
        if isinstance(value, str):
            return cls(parse_columns(value))
        if is_model(value):
            return cls(columns_of_model(value))
        if not isinstance(value, type) and hasattr(type(value), "simpleString"):
            return cls.from_json(json.loads(value.json()))
        raise InputError(
            f"{value!r} is not a schema",
            next_step='give DDL ("id STRING, at TIMESTAMP"), a StructType, a dataclass or a pydantic model',
        )

    @classmethod
    def from_json(cls, value: Any) -> "Schema":
        """Read what `StructType.json()` of Spark says."""
        type_ = _type_of_json(value, "the schema")
        if not isinstance(type_, Struct):
            raise InputError(f"the schema is {type_.ddl}, not a STRUCT of columns")
        return cls(type_.columns)

    def to_json(self) -> dict[str, Any]:
        """What Spark's `StructType.fromJson` reads: a way to a StructType that starts no JVM."""
        return _json_of_columns(self.columns)

    @property
    def ddl(self) -> str:
        return ", ".join(column.ddl for column in self.columns)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def __getitem__(self, name: str) -> Column:
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(name)

    def __iter__(self) -> Iterator[Column]:
        return iter(self.columns)

    def __len__(self) -> int:
        return len(self.columns)

    def __str__(self) -> str:
        return self.ddl


# A StructType is told by what it can do, since Spark is not imported here: hence Any.
SchemaLike: TypeAlias = str | type | Schema | Any


def _type_of_json(value: Any, owner: str) -> DataType:
    match value:
        case str() if value in BY_JSON_NAME:
            return BY_JSON_NAME[value]
        case str() if decimal := JSON_DECIMAL.fullmatch(value):
            return Decimal(int(decimal[1]), int(decimal[2]))
        case {"type": "array", "elementType": element}:
            return Array(_type_of_json(element, owner))
        case {"type": "map", "keyType": key, "valueType": mapped}:
            return Map(_type_of_json(key, owner), _type_of_json(mapped, owner))
        case {"type": "struct", "fields": [*fields]}:
            return Struct(tuple(_column_of_json(field, owner) for field in fields))
        case {"type": "udt", "class": name}:
            raise InputError(f"{owner} has the user-defined type {name}, which Headrace does not support")
        case _:
            raise InputError(f"{owner} has the type {value!r}, which Headrace does not support")


def _column_of_json(field: Any, owner: str) -> Column:
    match field:
        case {"name": str(name), "type": type_}:
            comment = field.get("metadata", {}).get("comment")
            column_type = _type_of_json(type_, f"column {name!r}")
            return Column(name, column_type, bool(field.get("nullable", True)), comment)
        case _:
            raise InputError(f"{owner} has a field without name or type: {field!r}")


def _json_of_columns(columns: tuple[Column, ...]) -> dict[str, Any]:
    return {"type": "struct", "fields": [_json_of_column(column) for column in columns]}


def _json_of_column(column: Column) -> dict[str, Any]:
    metadata = {} if column.comment is None else {"comment": column.comment}
    type_ = _json_of_type(column.type)
    return {"name": column.name, "type": type_, "nullable": column.nullable, "metadata": metadata}


def _json_of_type(type_: DataType) -> Any:
    match type_:
        case Primitive():
            return JSON_NAME[type_]
        case Decimal(precision, scale):
            return f"decimal({precision},{scale})"
        case Array(element):
            return {"type": "array", "elementType": _json_of_type(element), "containsNull": True}
        case Map(key, value):
            return {
                "type": "map",
                "keyType": _json_of_type(key),
                "valueType": _json_of_type(value),
                "valueContainsNull": True,
            }
        case Struct(columns):
            return _json_of_columns(columns)
