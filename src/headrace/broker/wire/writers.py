"""Writers of messages: closures made from a schema, with runs of fixed-size fields fused into one struct."""

import struct
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any

from headrace.broker.wire import schema
from headrace.broker.wire.schema import Field, Struct

# A writer appends the value's bytes to a list that is joined at the end.
Writer = Callable[[list[bytes], Any], None]
LengthWriter = Callable[[int], bytes]

NO_TAGGED_FIELDS = b"\0"


class UnwritableBody(Exception):
    """A body holds a key that no version knows, or a value its field cannot carry."""


def _varint(value: int) -> bytes:
    if value < 0x80:
        return _ONE_BYTE[value]
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _compact_length(length: int) -> bytes:
    return _ONE_BYTE[length + 1] if length < 0x7F else _varint(length + 1)


_ONE_BYTE = [bytes((value,)) for value in range(0x80)]
_int16_length: LengthWriter = struct.Struct(">h").pack
_int32_length: LengthWriter = struct.Struct(">i").pack


def struct_writer(description: Struct) -> Writer:
    steps: list[Writer] = []
    runs = schema.fuse(field for field in description.fields if field.tag is None)
    for run in runs:
        if isinstance(run, Field):
            steps.append(_value_write_step(run, description.flexible))
        else:
            steps.append(_fixed_write_step(run))
    if description.flexible:
        steps.append(_tags_write_step([field for field in description.fields if field.tag is not None]))
    known = frozenset(field.name for field in (*description.fields, *description.absent))

    def write(out: list[bytes], body: Mapping[str, Any]) -> None:
        if not known.issuperset(body):
            raise UnwritableBody(f"no version has {sorted(set(body) - known)}; there are {sorted(known)}")
        for step in steps:
            step(out, body)

    return write


def _fixed_write_step(run: Sequence[Field]) -> Writer:
    pack = struct.Struct(">" + schema.letters(run)).pack
    names = [field.name for field in run]
    defaults = [(field.name, field.default) for field in run]
    pick: Callable[[Mapping[str, Any]], Sequence[Any]]
    pick = itemgetter(*names) if len(names) > 1 else lambda body: (body[names[0]],)

    def step(out: list[bytes], body: Mapping[str, Any]) -> None:
        try:
            values = pick(body)
        except KeyError:
            values = [body.get(name, default) for name, default in defaults]
        try:
            out.append(pack(*values))
        except struct.error as error:
            raise UnwritableBody(f"{dict(zip(names, values, strict=True))}: {error}") from error

    return step


def _value_write_step(field: Field, flexible: bool) -> Writer:
    name, default, write = field.name, field.default, _field_writer(field, flexible)

    def step(out: list[bytes], body: Mapping[str, Any]) -> None:
        try:
            write(out, body.get(name, default))
        except (AttributeError, TypeError, ValueError, struct.error) as error:
            raise UnwritableBody(f"{name} = {body.get(name, default)!r}: {error}") from error

    return step


def _tags_write_step(tagged: Sequence[Field]) -> Writer:
    known = []
    for field in sorted(tagged, key=lambda field: field.tag or 0):
        write = _field_writer(field, flexible=True)
        known.append((field.name, field.tag or 0, write, _encoded(write, field.default)))

    def step(out: list[bytes], body: Mapping[str, Any]) -> None:
        found = []
        for name, tag, write, default in known:
            if name in body:
                encoded = _encoded(write, body[name])
                if encoded != default:
                    found += [_varint(tag), _varint(len(encoded)), encoded]
        out.append(_varint(len(found) // 3))
        out += found

    return step if known else lambda out, body: out.append(NO_TAGGED_FIELDS)


def _encoded(write: Writer, value: Any) -> bytes:
    out: list[bytes] = []
    write(out, value)
    return b"".join(out)


def _field_writer(field: Field, flexible: bool) -> Writer:
    if field.is_array:
        return _array_writer(field, flexible)
    if field.kind == "struct":
        assert field.struct is not None
        write = struct_writer(field.struct)
        return _nullable_struct_writer(write) if field.nullable else write
    return _plain_writer(field.kind, flexible, field.nullable)


def _plain_writer(kind: str, flexible: bool, nullable: bool) -> Writer:
    if kind in schema.FIXED:
        pack = struct.Struct(">" + schema.FIXED[kind]).pack
        return lambda out, value: out.append(pack(value))
    if kind == "uuid":
        return lambda out, value: out.append((value or schema.NIL_UUID).bytes)
    if kind == "string":
        return _string_writer(_compact_length if flexible else _int16_length, nullable)
    return _bytes_writer(_compact_length if flexible else _int32_length, nullable)


def _string_writer(length: LengthWriter, nullable: bool) -> Writer:
    null = length(-1)

    def write(out: list[bytes], value: str | None) -> None:
        if value is None and nullable:
            out.append(null)
        else:
            encoded = value.encode()  # type: ignore[union-attr]
            out.append(length(len(encoded)))
            out.append(encoded)

    return write


def _bytes_writer(length: LengthWriter, nullable: bool) -> Writer:
    null = length(-1)

    def write(out: list[bytes], value: Any) -> None:
        if value is None and nullable:
            out.append(null)
        else:
            out.append(length(len(value)))
            out.append(value)

    return write


def _nullable_struct_writer(write_struct: Writer) -> Writer:
    def write(out: list[bytes], value: Mapping[str, Any] | None) -> None:
        if value is None:
            out.append(b"\xff")
        else:
            out.append(b"\x01")
            write_struct(out, value)

    return write


def _array_writer(field: Field, flexible: bool) -> Writer:
    length = _compact_length if flexible else _int32_length
    null, nullable = length(-1), field.nullable
    write_items = (
        _fixed_items_writer(field.kind) if field.kind in schema.FIXED else _items_writer(field, flexible)
    )

    def write(out: list[bytes], items: Sequence[Any] | None) -> None:
        if items is None and nullable:
            out.append(null)
        else:
            out.append(length(len(items)))  # type: ignore[arg-type]
            write_items(out, items)

    return write


def _items_writer(field: Field, flexible: bool) -> Writer:
    if field.struct is not None:
        write = struct_writer(field.struct)
    else:
        write = _plain_writer(field.kind, flexible, nullable=False)

    def write_items(out: list[bytes], items: Sequence[Any]) -> None:
        for item in items:
            write(out, item)

    return write_items


def _fixed_items_writer(kind: str) -> Writer:
    letter = schema.FIXED[kind]

    def write_items(out: list[bytes], items: Sequence[Any]) -> None:
        out.append(struct.pack(f">{len(items)}{letter}", *items))

    return write_items
