"""PostgreSQL's types: the Spark type of each, and its values from PostgreSQL's text to JSON.

PostgreSQL prints the values in both the stream and the snapshot, by the settings in `SESSION`. What a Spark type has no
place for (NaN in a DECIMAL, infinity in a TIMESTAMP) becomes a JSON string as PostgreSQL prints it.
"""

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from json.encoder import encode_basestring as quoted
from typing import Any, TypeAlias

from headrace.errors import CaptureError
from headrace.topology.datatypes import MAX_PRECISION, Array, Column, DataType, Decimal, Primitive, Struct

__all__ = ["SESSION", "Encode", "Kind", "Kinds", "TypeFacts", "array_items", "quoted", "record_items"]

SESSION = {
    "TimeZone": "UTC",
    "DateStyle": "ISO",
    "IntervalStyle": "iso_8601",
    "bytea_output": "hex",
    "extra_float_digits": "1",
    "client_encoding": "UTF8",
}
"""The settings by which values are printed."""

Encode: TypeAlias = Callable[[str], str]
"""From PostgreSQL's text to JSON."""


@dataclass(frozen=True, slots=True)
class Kind:
    """What a type is to Spark, and how its values are written."""

    spark: DataType
    encode: Encode


@dataclass(frozen=True, slots=True)
class TypeFacts:
    """A type as the catalog describes it."""

    name: str
    kind: str
    """pg_type.typtype: b(ase), c(omposite), d(omain), e(num), ..."""
    element: int = 0
    """The type of an array's elements; 0 if it is no array."""
    delimiter: str = ","
    base: int = 0
    base_modifier: int = -1
    fields: tuple[tuple[str, int, int], ...] = ()
    """Of a composite type: names, types, modifiers."""


def _number_or_text(text: str) -> str:
    """NaN and Infinity end in a letter."""
    return text if text[-1] <= "9" else f'"{text}"'


def _floating(text: str) -> str:
    # Readers of JSON take -0 for an integer, which has no sign.
    return "-0.0" if text == "-0" else _number_or_text(text)


def _plain(text: str) -> str:
    return f'"{text}"'


def _boolean(text: str) -> str:
    return "true" if text == "t" else "false"


def _timestamp(text: str) -> str:
    # Years of four digits of our era: others, and infinity, are not ISO 8601.
    return f'"{text[:10]}T{text[11:]}"' if text[4] == "-" and text[-1] != "C" else f'"{text}"'


def _timestamp_with_zone(text: str) -> str:
    return f'"{text[:10]}T{text[11:-3]}Z"' if text[4] == "-" and text[-3:] == "+00" else f'"{text}"'


def _bytes(text: str) -> str:
    return f'"{base64.b64encode(bytes.fromhex(text[2:])).decode()}"'


def _same(text: str) -> str:
    return text


PLAIN_KINDS = {
    "int2": Kind(Primitive.SMALLINT, _same),
    "int4": Kind(Primitive.INT, _same),
    "int8": Kind(Primitive.BIGINT, _same),
    "oid": Kind(Primitive.BIGINT, _same),
    "float4": Kind(Primitive.FLOAT, _floating),
    "float8": Kind(Primitive.DOUBLE, _floating),
    "bool": Kind(Primitive.BOOLEAN, _boolean),
    "date": Kind(Primitive.DATE, _plain),
    "timestamp": Kind(Primitive.TIMESTAMP_NTZ, _timestamp),
    "timestamptz": Kind(Primitive.TIMESTAMP, _timestamp_with_zone),
    "bytea": Kind(Primitive.BINARY, _bytes),
    "uuid": Kind(Primitive.STRING, _plain),
}
TEXT = Kind(Primitive.STRING, quoted)
NUMERIC = Kind(Primitive.STRING, _plain)


class Kinds:
    """The kinds of types, by their ids in the catalog. `look_up` reads a type's facts there."""

    def __init__(self, look_up: Callable[[int], TypeFacts]) -> None:
        self._look_up = look_up
        self._facts: dict[int, TypeFacts] = {}
        self._kinds: dict[tuple[int, int], Kind] = {}

    def forget(self) -> None:
        """Read the types from the catalog again."""
        self._facts.clear()
        self._kinds.clear()

    def of(self, type_: int, modifier: int = -1) -> Kind:
        found = self._kinds.get((type_, modifier))
        if found is None:
            found = self._kinds[type_, modifier] = self._new(self._facts_of(type_), modifier)
        return found

    def _facts_of(self, type_: int) -> TypeFacts:
        if type_ not in self._facts:
            self._facts[type_] = self._look_up(type_)
        return self._facts[type_]

    def _new(self, facts: TypeFacts, modifier: int) -> Kind:
        if facts.element:
            element = self.of(facts.element, modifier)
            return Kind(Array(element.spark), partial(_array, element.encode, facts.delimiter))
        match facts.kind:
            case "d":
                return self.of(facts.base, facts.base_modifier)
            case "c":
                kinds = [(name, self.of(type_, its)) for name, type_, its in facts.fields]
                columns = tuple(Column(name, kind.spark) for name, kind in kinds)
                return Kind(Struct(columns), partial(_record, [(f"{quoted(n)}:", k.encode) for n, k in kinds]))
            case "b" if facts.name == "numeric":
                return _numeric(modifier)
            case "b":
                return PLAIN_KINDS.get(facts.name, TEXT)
            case _:
                return TEXT


def _numeric(modifier: int) -> Kind:
    if modifier < 0:
        return NUMERIC
    precision, scale = (modifier - 4) >> 16 & 0xFFFF, (modifier - 4) & 0x7FF
    # A negative scale is in two's complement of 11 bits.
    if precision > MAX_PRECISION or scale > precision:
        return NUMERIC
    return Kind(Decimal(precision, scale), _number_or_text)


def _array(encode: Encode, delimiter: str, text: str) -> str:
    return _array_json(encode, array_items(text, delimiter))


def _array_json(encode: Encode, items: Sequence[Any]) -> str:
    written = [
        "null" if item is None else _array_json(encode, item) if isinstance(item, list) else encode(item)
        for item in items
    ]
    return f"[{','.join(written)}]"


def array_items(text: str, delimiter: str = ",") -> list[Any]:
    """The elements of an array as PostgreSQL prints it: texts, None, and lists where it has several dimensions."""
    at = text.index("{") if text[0] != "[" else text.index("={") + 1  # after the bounds
    if '"' not in text and "{" not in text[at + 1 :]:
        inner = text[at + 1 : -1]
        return [None if item == "NULL" else item for item in inner.split(delimiter)] if inner else []
    items: list[Any] = []
    open_: list[list[Any]] = []
    current, word, is_quoted, at = items, [], False, at + 1
    is_started = False
    while at < len(text):
        character = text[at]
        if character == '"':
            is_quoted = is_started = True
            at += 1
            while text[at] != '"':
                at += text[at] == "\\"
                word.append(text[at])
                at += 1
        elif character == "{":
            nested: list[Any] = []
            current.append(nested)
            open_.append(current)
            current = nested
        elif character in (delimiter, "}"):
            if is_started:
                item = "".join(word)
                current.append(None if item == "NULL" and not is_quoted else item)
            word, is_quoted, is_started = [], False, False
            if character == "}" and open_:
                current = open_.pop()
        else:
            is_started = True
            at += character == "\\"
            word.append(text[at])
        at += 1
    return items


def _record(fields: Sequence[tuple[str, Encode]], text: str) -> str:
    items = record_items(text)
    if len(items) != len(fields):
        raise CaptureError(
            f"a composite value has {len(items)} attributes, and its type has {len(fields)} now",
            next_step="restart the app; if it comes again, the log has values from before ALTER TYPE: begin again with "
            "headrace capture drop, then start the app",
        )
    written = [
        head + ("null" if item is None else encode(item)) for (head, encode), item in zip(fields, items, strict=True)
    ]
    return "{" + ",".join(written) + "}"


def record_items(text: str) -> list[str | None]:
    """The fields of a composite value as PostgreSQL prints it, such as `(1,two,)`; an empty one is null."""
    items: list[str | None] = []
    word: list[str] = []
    is_started, at = False, 1
    while at < len(text):
        character = text[at]
        if character == '"':
            is_started = True
            at += 1
            while text[at] != '"' or text[at + 1 : at + 2] == '"':
                at += text[at] in '\\"'
                word.append(text[at])
                at += 1
        elif character in ",)":
            items.append("".join(word) if is_started else None)
            word, is_started = [], False
        else:
            is_started = True
            at += character == "\\"
            word.append(text[at])
        at += 1
    return items
