"""Readers of messages: closures made from a schema, with runs of fixed-size fields fused into one struct."""

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from headrace.broker.wire import schema
from headrace.broker.wire.schema import Field, Struct

Buffer = memoryview
Values = dict[str, Any]
# A reader takes the buffer and a position, and returns the value and the position after it.
Reader = Callable[[Buffer, int], tuple[Any, int]]
ReadStep = Callable[[Buffer, int, Values], int]
LengthReader = Callable[[Buffer, int], tuple[int, int]]
ItemsReader = Callable[[Buffer, int, int], tuple[list[Any], int]]

MAX_STRING = 0x7FFF


class MalformedRequest(Exception):
    """The bytes are not what the message's schema says they are."""


def _read_varint(buffer: Buffer, position: int) -> tuple[int, int]:
    value = buffer[position]
    if value < 0x80:
        return value, position + 1
    value &= 0x7F
    for shift in (7, 14, 21, 28):
        position += 1
        byte = buffer[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position + 1
    raise MalformedRequest("a variable-length integer is longer than five bytes")


def _read_compact_length(buffer: Buffer, position: int) -> tuple[int, int]:
    value = buffer[position]
    if value < 0x80:
        return value - 1, position + 1
    value, position = _read_varint(buffer, position)
    return value - 1, position


def _read_int16_length(buffer: Buffer, position: int) -> tuple[int, int]:
    return _INT16(buffer, position)[0], position + 2


def _read_int32_length(buffer: Buffer, position: int) -> tuple[int, int]:
    return _INT32(buffer, position)[0], position + 4


_INT16 = struct.Struct(">h").unpack_from
_INT32 = struct.Struct(">i").unpack_from


def struct_reader(description: Struct) -> Reader:
    steps: list[ReadStep] = []
    tagged = sorted(
        (field for field in description.fields if field.tag is not None), key=lambda f: f.tag or 0
    )
    in_order = [field for field in description.fields if field.tag is None]
    runs = schema.fuse(in_order)
    for place, run in enumerate(runs):
        last = place == len(runs) - 1
        if isinstance(run, Field):
            steps.append(_value_step(run, description.flexible))
        elif last and description.flexible:
            steps.append(_fixed_step_with_tags(run, _tags_step(tagged)))
        else:
            steps.append(_fixed_step(run))
    if description.flexible and (not runs or isinstance(runs[-1], Field)):
        steps.append(_tags_step(tagged))
    defaults = {field.name: field.default for field in (*tagged, *description.absent)}
    fresh = [
        (field.name, _fresh_default(field)) for field in (*tagged, *description.absent) if _is_mutable(field)
    ]

    def read(buffer: Buffer, position: int) -> tuple[SimpleNamespace, int]:
        body = SimpleNamespace(**defaults)
        values = body.__dict__
        for name, make in fresh:
            values[name] = make()
        for step in steps:
            position = step(buffer, position, values)
        return body, position

    return read


def _fixed_step(run: Sequence[Field]) -> ReadStep:
    layout = struct.Struct(">" + schema.letters(run))
    unpack, size = layout.unpack_from, layout.size
    names = [field.name for field in run]

    def step(buffer: Buffer, position: int, values: Values) -> int:
        values.update(zip(names, unpack(buffer, position), strict=True))
        return position + size

    return step


def _fixed_step_with_tags(run: Sequence[Field], read_tags: ReadStep) -> ReadStep:
    layout = struct.Struct(">" + schema.letters(run) + "B")
    unpack, size = layout.unpack_from, layout.size
    names = [field.name for field in run]

    def step(buffer: Buffer, position: int, values: Values) -> int:
        found = unpack(buffer, position)
        values.update(zip(names, found, strict=False))
        position += size
        return read_tags(buffer, position - 1, values) if found[-1] else position

    return step


def _value_step(field: Field, flexible: bool) -> ReadStep:
    name, read = field.name, _field_reader(field, flexible)

    def step(buffer: Buffer, position: int, values: Values) -> int:
        values[name], position = read(buffer, position)
        return position

    return step


def _tags_step(tagged: Sequence[Field]) -> ReadStep:
    known = {field.tag: (field.name, _field_reader(field, flexible=True)) for field in tagged}

    def step(buffer: Buffer, position: int, values: Values) -> int:
        count = buffer[position]
        if not count:
            return position + 1
        count, position = _read_varint(buffer, position)
        for _ in range(count):
            tag, position = _read_varint(buffer, position)
            size, position = _read_varint(buffer, position)
            end = position + size
            if end > len(buffer):
                raise MalformedRequest(f"the tagged field {tag} ends past the message")
            if tag in known:
                name, read = known[tag]
                values[name], position = read(buffer, position)
                if position != end:
                    raise MalformedRequest(f"the tagged field {tag} ({name}) is not as long as it says")
            position = end
        return position

    return step


_skip_tags = _tags_step(())


def skip_tagged_fields(buffer: Buffer, position: int) -> int:
    return _skip_tags(buffer, position, {})


def _is_mutable(field: Field) -> bool:
    return field.default is not None and (field.is_array or field.kind == "struct")


def _fresh_default(field: Field) -> Callable[[], Any]:
    """Lists and structs are made anew each time: a handler may change what it was given."""
    if field.is_array:
        return list
    assert field.struct is not None
    parts = [(inner.name, inner.default) for inner in (*field.struct.fields, *field.struct.absent)]
    nested = [
        (inner.name, _fresh_default(inner))
        for inner in (*field.struct.fields, *field.struct.absent)
        if _is_mutable(inner)
    ]

    def make() -> SimpleNamespace:
        body = SimpleNamespace(**dict(parts))
        for name, make_inner in nested:
            setattr(body, name, make_inner())
        return body

    return make


def _field_reader(field: Field, flexible: bool) -> Reader:
    if field.is_array:
        return _array_reader(field, flexible)
    if field.kind == "struct":
        assert field.struct is not None
        read = struct_reader(field.struct)
        return _nullable_struct_reader(read) if field.nullable else read
    return _plain_reader(field.kind, flexible, field.nullable)


def _plain_reader(kind: str, flexible: bool, nullable: bool) -> Reader:
    if kind in schema.FIXED:
        return _fixed_reader(kind)
    if kind == "uuid":
        return _read_uuid
    if kind == "string":
        return _string_reader(_read_compact_length if flexible else _read_int16_length, nullable)
    return _bytes_reader(
        _read_compact_length if flexible else _read_int32_length, nullable, kind == "records"
    )


def _fixed_reader(kind: str) -> Reader:
    layout = struct.Struct(">" + schema.FIXED[kind])
    unpack, size = layout.unpack_from, layout.size

    def read(buffer: Buffer, position: int) -> tuple[Any, int]:
        return unpack(buffer, position)[0], position + size

    return read


@lru_cache(maxsize=4096)
def _uuid(raw: bytes) -> UUID:
    """Building one takes a microsecond, and the same few topic ids come with every request."""
    return UUID(bytes=raw)


def _read_uuid(buffer: Buffer, position: int) -> tuple[UUID, int]:
    end = position + 16
    if end > len(buffer):
        raise MalformedRequest("a uuid ends past the message")
    return _uuid(bytes(buffer[position:end])), end


def _string_reader(read_length: LengthReader, nullable: bool) -> Reader:
    def read(buffer: Buffer, position: int) -> tuple[str | None, int]:
        length, position = read_length(buffer, position)
        if length < 0:
            _check_null(nullable)
            return None, position
        end = position + length
        if length > MAX_STRING or end > len(buffer):
            raise MalformedRequest(f"a string of {length} bytes ends past the message or is too long")
        return str(buffer[position:end], "utf-8"), end

    return read


def _bytes_reader(read_length: LengthReader, nullable: bool, keep_view: bool) -> Reader:
    def read(buffer: Buffer, position: int) -> tuple[bytes | memoryview | None, int]:
        length, position = read_length(buffer, position)
        if length < 0:
            _check_null(nullable)
            return None, position
        end = position + length
        if end > len(buffer):
            raise MalformedRequest(f"{length} bytes end past the message")
        found = buffer[position:end]
        return found if keep_view else bytes(found), end

    return read


def _check_null(nullable: bool) -> None:
    if not nullable:
        raise MalformedRequest("null where the schema has none")


def _nullable_struct_reader(read_struct: Reader) -> Reader:
    def read(buffer: Buffer, position: int) -> tuple[SimpleNamespace | None, int]:
        if buffer[position] >= 0x80:  # a negative byte says null
            return None, position + 1
        return read_struct(buffer, position + 1)

    return read


def _array_reader(field: Field, flexible: bool) -> Reader:
    read_length = _read_compact_length if flexible else _read_int32_length
    nullable = field.nullable
    least = _least_size(field, flexible)
    read_items = (
        _fixed_items_reader(field.kind) if field.kind in schema.FIXED else _items_reader(field, flexible)
    )

    def read(buffer: Buffer, position: int) -> tuple[list[Any] | None, int]:
        count, position = read_length(buffer, position)
        if count < 0:
            _check_null(nullable)
            return None, position
        if count * least > len(buffer) - position:
            raise MalformedRequest(f"an array of {count} items cannot fit into what is left of the message")
        return read_items(buffer, position, count)

    return read


def _items_reader(field: Field, flexible: bool) -> Callable[[Buffer, int, int], tuple[list[Any], int]]:
    if field.struct is not None:
        read = struct_reader(field.struct)
    else:
        read = _plain_reader(field.kind, flexible, nullable=False)

    def read_items(buffer: Buffer, position: int, count: int) -> tuple[list[Any], int]:
        items = []
        for _ in range(count):
            item, position = read(buffer, position)
            items.append(item)
        return items, position

    return read_items


def _fixed_items_reader(kind: str) -> Callable[[Buffer, int, int], tuple[list[Any], int]]:
    letter = schema.FIXED[kind]
    size = struct.calcsize(">" + letter)

    def read_items(buffer: Buffer, position: int, count: int) -> tuple[list[Any], int]:
        return list(struct.unpack_from(f">{count}{letter}", buffer, position)), position + count * size

    return read_items


def _least_size(field: Field, flexible: bool) -> int:
    """The fewest bytes an item of this array can take."""
    if field.struct is None:
        return _least_plain_size(field.kind, flexible)
    least = 1 if flexible else 0
    for inner in field.struct.fields:
        if inner.tag is not None:
            continue
        if inner.is_array:
            least += 1 if flexible else 4
        elif inner.struct is not None:
            least += 1
        else:
            least += _least_plain_size(inner.kind, flexible)
    return least


def _least_plain_size(kind: str, flexible: bool) -> int:
    if kind in schema.FIXED:
        return struct.calcsize(">" + schema.FIXED[kind])
    if kind == "uuid":
        return 16
    if flexible:
        return 1
    return 2 if kind == "string" else 4


read_nullable_string = _string_reader(_read_int16_length, nullable=True)
