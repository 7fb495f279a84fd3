"""Schemas from dataclasses and pydantic models, read by their annotations."""

import dataclasses
import datetime
import decimal
import enum
import types
import typing
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeGuard, Union

from headrace.errors import InputError
from headrace.topology.datatypes import Array, Column, DataType, Decimal, Map, Primitive, Struct
from headrace.topology.ddl import parse_type

__all__ = ["columns_of_model", "is_model"]

# In this order: a bool is an int, a datetime is a date.
PRIMITIVE_OF = {
    bool: Primitive.BOOLEAN,
    int: Primitive.BIGINT,
    float: Primitive.DOUBLE,
    str: Primitive.STRING,
    bytes: Primitive.BINARY,
    datetime.datetime: Primitive.TIMESTAMP,
    datetime.date: Primitive.DATE,
    uuid.UUID: Primitive.STRING,
}
# Python's Decimal has no precision of its own: what PySpark infers for it.
ANY_DECIMAL = Decimal(38, 18)
SAY_IT = 'give its type: Annotated[..., "DECIMAL(12,2)"]'


@dataclasses.dataclass(frozen=True, slots=True)
class _Field:
    name: str
    annotation: Any
    has_default: bool
    comment: str | None = None


def is_model(value: object) -> TypeGuard[type]:
    """Whether this is a dataclass or a pydantic model: the class, not a row of it."""
    return isinstance(value, type) and (dataclasses.is_dataclass(value) or _is_pydantic(value))


def columns_of_model(model: type) -> tuple[Column, ...]:
    """A column per field. It is NOT NULL where the field is neither optional nor has a default."""
    return _columns(model, ())


def _is_pydantic(value: type) -> bool:
    return hasattr(value, "model_fields") and hasattr(value, "model_validate")


def _columns(model: type, inside: tuple[type, ...]) -> tuple[Column, ...]:
    if model in inside:
        raise InputError(f"{model.__name__} contains itself: a schema cannot be recursive")
    fields = _pydantic_fields(model) if _is_pydantic(model) else _dataclass_fields(model)
    columns = []
    for field in fields:
        where = f"{model.__name__}.{field.name}"
        type_, optional = _type_of(field.annotation, where, (*inside, model))
        columns.append(Column(field.name, type_, optional or field.has_default, field.comment))
    return tuple(columns)


def _dataclass_fields(model: Any) -> list[_Field]:
    try:
        hints = typing.get_type_hints(model, include_extras=True)
    except NameError as error:
        raise InputError(
            f"the annotations of {model.__name__} cannot be resolved: {error}",
            next_step="declare the names at module level",
        ) from error
    missing = dataclasses.MISSING
    return [
        _Field(field.name, hints[field.name], not (field.default is missing and field.default_factory is missing))
        for field in dataclasses.fields(model)
    ]


def _pydantic_fields(model: Any) -> list[_Field]:
    fields = []
    for name, info in model.model_fields.items():
        if info.alias not in (None, name):
            raise InputError(
                f"{model.__name__}.{name} has the alias {info.alias!r}: aliases are not supported",
                next_step="give the field the name of the column",
            )
        annotation = Annotated[info.annotation, *info.metadata] if info.metadata else info.annotation
        fields.append(_Field(name, annotation, not info.is_required(), info.description))
    return fields


def _type_of(annotation: Any, where: str, inside: tuple[type, ...]) -> tuple[DataType, bool]:
    """The column's type, and whether None is one of its values."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        return _annotated_type(arguments[0], arguments[1:], where, inside)
    if origin in (Union, types.UnionType):
        others = [argument for argument in arguments if argument is not types.NoneType]
        if len(others) == 1:
            return _type_of(others[0], where, inside)[0], True
        raise InputError(f"{where} has several types: {annotation}", next_step=SAY_IT)
    if origin is Literal:
        return _type_of_values(arguments, where), None in arguments
    if isinstance(annotation, typing.NewType):
        return _type_of(annotation.__supertype__, where, inside)
    return _plain_type(annotation, origin, arguments, where, inside), False


def _annotated_type(
    annotation: Any, extras: Iterable[Any], where: str, inside: tuple[type, ...]
) -> tuple[DataType, bool]:
    optional = types.NoneType in typing.get_args(annotation)
    # pydantic's Field(...) inside a list's annotation keeps what it was told one level deeper.
    flat = [item for extra in extras for item in (extra, *getattr(extra, "metadata", ()))]
    for item in flat:
        if isinstance(item, str):
            try:
                return parse_type(item), optional
            except InputError as error:
                raise InputError(
                    f"{where}: {error.problem}",
                    next_step=error.next_step or "text in Annotated is read as the DDL type",
                ) from error
    for item in flat:
        precision, scale = getattr(item, "max_digits", None), getattr(item, "decimal_places", None)
        if precision is not None and scale is not None:
            return Decimal(precision, scale), optional
    return _type_of(annotation, where, inside)


def _plain_type(
    annotation: Any, origin: Any, arguments: tuple[Any, ...], where: str, inside: tuple[type, ...]
) -> DataType:
    if isinstance(origin, type) and issubclass(origin, Mapping) and len(arguments) == 2:
        key, value = (_type_of(argument, where, inside)[0] for argument in arguments)
        return Map(key, value)
    if isinstance(origin, type) and issubclass(origin, Sequence):
        elements = [argument for argument in arguments if argument is not ...]
        if len(elements) == 1:
            return Array(_type_of(elements[0], where, inside)[0])
    if isinstance(annotation, type) and origin is None:
        if is_model(annotation):
            return Struct(_columns(annotation, inside))
        if issubclass(annotation, enum.Enum):
            return _type_of_values([member.value for member in annotation], where)
        if issubclass(annotation, decimal.Decimal):
            return ANY_DECIMAL
        for python_type, primitive in PRIMITIVE_OF.items():
            if issubclass(annotation, python_type):
                return primitive
    name = getattr(annotation, "__name__", annotation) if origin is None else annotation
    raise InputError(f"{where} is of {name}, which has no column type", next_step=SAY_IT)


def _type_of_values(values: Iterable[Any], where: str) -> DataType:
    kinds = {type(value) for value in values if value is not None}
    if len(kinds) == 1 and (kind := kinds.pop()) in PRIMITIVE_OF:
        return PRIMITIVE_OF[kind]
    raise InputError(f"{where} has values of several types, or no values", next_step=SAY_IT)
