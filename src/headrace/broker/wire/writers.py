"""Writers of messages: closures made from a schema, with runs of fixed-size fields fused into one struct."""

import struct
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Any

from headrace.broker.wire.schema import FIXED, NIL_UUID, Field, Struct, fuse, letters

# A writer appends the value's bytes to a list that is joined at the end.
Writer = Callable[[list[bytes], Any], None]
LengthWriter = Callable[[int], bytes]

NO_TAGGED_FIELDS = b"\0"

_ONE_BYTE = [bytes((value,)) for value in range(0x80)]
_int16_length: LengthWriter = struct.Struct(">h").pack
_int32_length: LengthWriter = struct.Struct(">i").pack


class UnwritableBody(Exception):
    """A body holds a key that no version knows, or a value its field cannot carry."""


def struct_writer(description: Struct) -> Writer:
    """A writer of one struct. Missing keys get their default, those of other versions are ignored."""
    steps = [
        _run_step(run) if isinstance(run, list) else _field_step(run, description.flexible)
        for run in fuse(description.in_order)
    ]
    if description.flexible:
        steps.append(_tagged_step(description.tagged))
    everything = (*description.in_order, *description.tagged, *description.absent)
    known = frozenset(field.name for field in everything)

    def write(out: list[bytes], body: Mapping[str, Any]) -> None:
        if not known.issuperset(body):
            raise UnwritableBody(f"no version has {sorted(set(body) - known)}; there are {sorted(known)}")
        for step in steps:
            step(out, body)

    return write


# Steps: each takes what it writes out of the body


def _run_step(run: Sequence[Field]) -> Writer:
    pack = struct.Struct(letters(run)).pack
    first, *others = names = [field.name for field in run]
    defaults = [(field.name, field.default) for field in run]
    pick: Callable[[Mapping[str, Any]], Sequence[Any]]
    pick = itemgetter(*names) if others else lambda body: (body[first],)

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


def _field_step(field: Field, flexible: bool) -> Writer:
    name, default, write = field.name, field.default, _field_writer(field, flexible)

    def step(out: list[bytes], body: Mapping[str, Any]) -> None:
        value = body.get(name, default)
        try:
            write(out, value)
        except (AttributeError, TypeError, ValueError, struct.error) as error:
            raise UnwritableBody(f"{name} = {value!r}: {error}") from error

    return step


def _tagged_step(tagged: Sequence[Field]) -> Writer:
    if not tagged:
        return lambda out, body: out.append(NO_TAGGED_FIELDS)
    known = []
    for field in tagged:
        write = _field_writer(field, flexible=True)
        known.append((field.name, _varint(field.tag or 0), write, _encode(write, field.default)))

    def step(out: list[bytes], body: Mapping[str, Any]) -> None:
        count = 0
        found: list[bytes] = []
        for name, tag, write, default in known:
            if name in body:
                encoded = _encode(write, body[name])
                if encoded != default:
                    count += 1
                    found += (tag, _varint(len(encoded)), encoded)
        out.append(_varint(count))
        out += found

    return step


def _encode(write: Writer, value: Any) -> bytes:
    out: list[bytes] = []
    write(out, value)
    return b"".join(out)


# Lengths, where -1 stands for null


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def compact_length(length: int) -> bytes:
    return _ONE_BYTE[length + 1] if length < 0x7F else _varint(length + 1)


def _null(field: Field, length: LengthWriter) -> bytes | None:
    """What stands for null: where only other versions can say it, an empty value does."""
    if field.nullable:
        return length(-1)
    return length(0) if field.nullable_elsewhere else None


# Values


def _field_writer(field: Field, flexible: bool) -> Writer:
    if field.is_array:
        return _array_writer(field, flexible)
    if field.struct is not None:
        write = struct_writer(field.struct)
        return _nullable_struct_writer(write) if field.nullable else write
    if field.kind == "string":
        length = compact_length if flexible else _int16_length
        return _string_writer(length, _null(field, length))
    if field.kind in ("bytes", "records"):
        length = compact_length if flexible else _int32_length
        return _bytes_writer(length, _null(field, length))
    return _fixed_writer(field.kind)


def _fixed_writer(kind: str) -> Writer:
    if kind == "uuid":
        return lambda out, value: out.append((value or NIL_UUID).bytes)
    pack = struct.Struct(">" + FIXED[kind]).pack
    return lambda out, value: out.append(pack(value))


def _string_writer(length: LengthWriter, null: bytes | None) -> Writer:
    def write(out: list[bytes], value: Any) -> None:
        if value is None and null is not None:
            out.append(null)
        else:
            encoded = value.encode()
            out.append(length(len(encoded)))
            out.append(encoded)

    return write


def _bytes_writer(length: LengthWriter, null: bytes | None) -> Writer:
    def write(out: list[bytes], value: Any) -> None:
        if value is None and null is not None:
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


# Arrays


def _array_writer(field: Field, flexible: bool) -> Writer:
    length = compact_length if flexible else _int32_length
    null = _null(field, length)
    if field.kind in FIXED:
        return _fixed_array_writer(FIXED[field.kind], length, null)
    write_item = struct_writer(field.struct) if field.struct is not None else _item_writer(field.kind, flexible)

    def write(out: list[bytes], items: Any) -> None:
        if items is None and null is not None:
            out.append(null)
        else:
            out.append(length(len(items)))
            for item in items:
                write_item(out, item)

    return write


def _item_writer(kind: str, flexible: bool) -> Writer:
    if kind == "string":
        return _string_writer(compact_length if flexible else _int16_length, null=None)
    if kind in ("bytes", "records"):
        return _bytes_writer(compact_length if flexible else _int32_length, null=None)
    return _fixed_writer(kind)


def _fixed_array_writer(letter: str, length: LengthWriter, null: bytes | None) -> Writer:
    def write(out: list[bytes], items: Any) -> None:
        if items is None and null is not None:
            out.append(null)
        else:
            count = len(items)
            out.append(length(count))
            out.append(_array_packer(count, letter)(*items))

    return write


@lru_cache(maxsize=256)
def _array_packer(count: int, letter: str) -> Callable[..., bytes]:
    return struct.Struct(f">{count}{letter}").pack
