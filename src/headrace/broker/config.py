"""How one setting is defined: its type, its valid values, its words. The counterpart of Kafka's ConfigDef."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from typing import Any

_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]+", re.ASCII)
_SETTING = "setting"


class InvalidSetting(ValueError):
    """A name that is not served or a value that is not valid; the message is fit for the user."""


class ConfigType(IntEnum):
    """The types of settings, with the numbers DescribeConfigs gives them."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    LIST = 7


_BITS = {ConfigType.INT: 31, ConfigType.LONG: 63}


class ConfigSource(IntEnum):
    """Where the value of a setting comes from, with the numbers DescribeConfigs gives them."""

    DYNAMIC_TOPIC_CONFIG = 1
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_GROUP_CONFIG = 8


@dataclasses.dataclass(frozen=True)
class Check:
    """What a value must fulfil beyond its type; `failure` gives the complaint or None."""

    valid_values: str
    failure: Callable[[Any], str | None]


ANYTHING = Check("", lambda value: None)


def at_least(minimum: int) -> Check:
    return Check(f"[{minimum},...]", lambda v: f"Value must be at least {minimum}" if v < minimum else None)


def between(minimum: int, maximum: int) -> Check:
    def failure(value: int) -> str | None:
        if value < minimum:
            return f"Value must be at least {minimum}"
        return f"Value must be no more than {maximum}" if value > maximum else None

    return Check(f"[{minimum},...,{maximum}]", failure)


def one_of(*choices: str) -> Check:
    words = ", ".join(choices)
    return Check(f"[{words}]", lambda v: None if v in choices else f"String must be one of: {words}")


@dataclasses.dataclass(frozen=True)
class Setting:
    """The definition of one setting."""

    name: str
    type: ConfigType
    default: Any
    check: Check
    doc: str
    synonyms: tuple[str, ...] = ()
    """For a topic's setting: the broker's settings that give its default, the first that is set wins."""

    @property
    def attribute(self) -> str:
        return self.name.replace(".", "_")

    def parse(self, text: str) -> Any:
        """The typed and checked value of `text`, or InvalidSetting."""
        value = self._typed(text)
        complaint = self.check.failure(value)
        if complaint is not None:
            raise self.invalid(text, complaint)
        return value

    def invalid(self, text: str, complaint: str) -> InvalidSetting:
        return InvalidSetting(f"Invalid value {text} for configuration {self.name}: {complaint}")

    def _typed(self, text: str) -> Any:
        trimmed = text.strip()
        if self.type is ConfigType.BOOLEAN:
            if trimmed.lower() not in ("true", "false"):
                raise self.invalid(text, "Expected value to be either true or false")
            return trimmed.lower() == "true"
        if self.type is ConfigType.LIST:
            return tuple(re.split(r"\s*,\s*", trimmed)) if trimmed else ()
        if self.type is ConfigType.STRING:
            return trimmed
        bits = _BITS[self.type]
        # The length is looked at first: int() of a very long string takes quadratic time, or raises.
        if len(trimmed) > 64 or not _WHOLE_NUMBER.fullmatch(trimmed) or not -(1 << bits) <= int(trimmed) < 1 << bits:
            raise self.invalid(text, f"Not a number of type {self.type.name}")
        return int(trimmed)

    def text(self, value: Any) -> str | None:
        """A typed value as DescribeConfigs shows it."""
        if value is None:
            return None
        if isinstance(value, bool):
            return "true" if value else "false"
        return ",".join(value) if isinstance(value, tuple) else str(value)


def setting(
    name: str,
    kind: ConfigType,
    default: Any,
    doc: str,
    check: Check = ANYTHING,
    synonyms: tuple[str, ...] = (),
) -> Any:
    """A dataclass field that carries its definition; its attribute is the name with dots as underscores."""
    definition = Setting(name, kind, default, check, doc, synonyms)
    return dataclasses.field(default=default, metadata={_SETTING: definition})


def settings_of(dataclass: type[Any]) -> dict[str, Setting]:
    """The definitions in a dataclass whose fields were made by `setting`, by name."""
    definitions = [f.metadata[_SETTING] for f in dataclasses.fields(dataclass) if _SETTING in f.metadata]
    return {definition.name: definition for definition in definitions}


def nearest(name: str, served: Iterable[str]) -> str:
    beginning = name[:100]  # comparing takes time with the square of the length, and a client chose it

    def likeness(candidate: str) -> tuple[float, int]:
        in_place = sum(one == other for one, other in zip(beginning, candidate, strict=False))
        return difflib.SequenceMatcher(None, beginning, candidate).ratio(), in_place

    return max(served, key=likeness)


def parse_all(definitions: Mapping[str, Setting], given: Mapping[str, str], kind: str) -> dict[str, Any]:
    """Attribute -> typed value of everything given; `kind` says in messages what sort of setting it is."""
    values: dict[str, Any] = {}
    for name, text in given.items():
        definition = definitions.get(name)
        if definition is None:
            hint = nearest(name, definitions)
            raise InvalidSetting(f"Unknown {kind} config name: {name}. It is not supported; did you mean {hint}?")
        values[definition.attribute] = definition.parse(text)
    return values
