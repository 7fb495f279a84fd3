"""From a dict of Python values to an instance of a dataclass or a pydantic model, with those inside it."""

import dataclasses
import enum
import types
import typing
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeAlias, Union

from headrace.errors import InputError

__all__ = ["builder_of"]

Build: TypeAlias = Callable[[Any], Any]


def builder_of(model: type) -> Build:
    """Makes instances of the model. What the model itself refuses is an InputError."""
    build = _model_builder(model)

    def checked(row: dict[str, Any]) -> Any:
        try:
            return build(row)
        except (ValueError, TypeError) as error:
            said = str(error).splitlines()[0]
            raise InputError(f"{model.__name__} rejected the row: {said}") from error

    return checked


def _model_builder(model: Any) -> Build:
    validate = getattr(model, "model_validate", None)
    if validate is not None:
        return lambda row: None if row is None else validate(row)
    hints = typing.get_type_hints(model, include_extras=False)
    builders = {field.name: _builder(hints[field.name]) for field in dataclasses.fields(model) if field.init}
    missing = dataclasses.MISSING
    filled = {
        field.name
        for field in dataclasses.fields(model)
        if not (field.default is missing and field.default_factory is missing)
        and types.NoneType not in typing.get_args(hints[field.name])
    }

    def build(row: Any) -> Any:
        if row is None:
            return None
        # A null where the field cannot be None is what the field's default stands for.
        given = {name: value for name, value in row.items() if value is not None or name not in filled}
        return model(**{name: builders[name](value) for name, value in given.items() if name in builders})

    return build


def _builder(annotation: Any) -> Build:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        return _builder(arguments[0])
    if origin in (Union, types.UnionType):
        others = [argument for argument in arguments if argument is not types.NoneType]
        return _builder(others[0]) if len(others) == 1 else _same
    if origin is Literal:
        return _same
    if isinstance(origin, type) and issubclass(origin, Mapping) and len(arguments) == 2:
        value = _builder(arguments[1])
        return lambda items: None if items is None else {name: value(item) for name, item in items.items()}
    if isinstance(origin, type) and issubclass(origin, Sequence):
        element = _builder(arguments[0])
        kind = tuple if origin is tuple else list
        return lambda items: None if items is None else kind(element(item) for item in items)
    if isinstance(annotation, type):
        if dataclasses.is_dataclass(annotation) or hasattr(annotation, "model_validate"):
            return _model_builder(annotation)
        if issubclass(annotation, enum.Enum | uuid.UUID):
            return lambda value: None if value is None else annotation(value)
    return _same


def _same(value: Any) -> Any:
    return value
