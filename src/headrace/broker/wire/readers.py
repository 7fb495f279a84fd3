"""Readers of messages: closures made from a schema, with runs of fixed-size fields fused into one struct."""

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from headrace.broker.wire.schema import FIXED, Field, Struct, fuse, letters

Buffer = memoryview
Values = dict[str, Any]
# A reader takes the buffer and a position, and returns the value and the position after it.
Reader = Callable[[Buffer, int], tuple[Any, int]]
# A step puts what it reads into the values, and returns the position after it.
Step = Callable[[Buffer, int, Values], int]
ItemsReader = Callable[[Buffer, int, int], tuple[list[Any], int]]

LONGEST_STRING = 0x7FFF
# A frame full of the smallest items would take minutes to read and a hundred times its size in memory. No client
# asks for so many at once; numbers do not count.
MOST_ITEMS = 250_000

_INT16 = struct.Struct(">h").unpack_from
_INT32 = struct.Struct(">i").unpack_from


class MalformedRequest(Exception):
    """The bytes do not match the message's schema."""


class MessageReader:
    """A reader of one message. It has every field of every version; those not read have their default."""

    def __init__(self, description: Struct) -> None:
        self._items_left = MOST_ITEMS
        self._read_body = self._struct(description)

    def read(self, buffer: Buffer, position: int) -> tuple[SimpleNamespace, int]:
        """The message, and the position after it."""
        self._items_left = MOST_ITEMS
        return self._read_body(buffer, position)

    def _struct(self, description: Struct) -> Reader:
        steps = [
            _run_step(run) if isinstance(run, list) else self._field_step(run, description.flexible)
            for run in fuse(description.in_order)
        ]
        if description.flexible:
            steps.append(self._tagged_step(description.tagged))
        not_always_read = (*description.tagged, *description.absent)
        defaults = {field.name: field.default for field in not_always_read}
        makers = _makers(not_always_read)

        def read(buffer: Buffer, position: int) -> tuple[SimpleNamespace, int]:
            body = SimpleNamespace(**defaults)
            values = body.__dict__
            for name, make in makers:
                values[name] = make()
            for step in steps:
                position = step(buffer, position, values)
            return body, position

        return read

    def _field_step(self, field: Field, flexible: bool) -> Step:
        name, read = field.name, self._field(field, flexible)

        def step(buffer: Buffer, position: int, values: Values) -> int:
            values[name], position = read(buffer, position)
            return position

        return step

    def _tagged_step(self, tagged: Sequence[Field]) -> Step:
        known = {field.tag or 0: (field.name, self._field(field, flexible=True)) for field in tagged}

        def step(buffer: Buffer, position: int, values: Values) -> int:
            if not buffer[position]:
                return position + 1
            return _read_tagged(known, buffer, position, values)

        return step

    def _field(self, field: Field, flexible: bool) -> Reader:
        if field.is_array:
            return self._array(field, flexible)
        if field.struct is not None:
            read = self._struct(field.struct)
            return _nullable_struct_reader(read) if field.nullable else read
        return _plain_reader(field.kind, flexible, field.nullable)

    def _array(self, field: Field, flexible: bool) -> Reader:
        read_length = _read_compact_length if flexible else _read_int32_length
        read_items = _numbers_reader(field.kind) if field.kind in FIXED else self._items(field, flexible)
        nullable, least = field.nullable, _least_item_size(field, flexible)

        def read(buffer: Buffer, position: int) -> tuple[list[Any] | None, int]:
            count, position = read_length(buffer, position)
            if count < 0:
                return _null(nullable, position)
            if count * least > len(buffer) - position:
                raise MalformedRequest(f"an array of {count} items does not fit into the rest of the message")
            return read_items(buffer, position, count)

        return read

    def _items(self, field: Field, flexible: bool) -> ItemsReader:
        if field.struct is not None:
            read = self._struct(field.struct)
        else:
            read = _plain_reader(field.kind, flexible, nullable=False)

        def read_items(buffer: Buffer, position: int, count: int) -> tuple[list[Any], int]:
            self._items_left -= count
            if self._items_left < 0:
                raise MalformedRequest(f"the message has more than {MOST_ITEMS} items")
            items = []
            for _ in range(count):
                item, position = read(buffer, position)
                items.append(item)
            return items, position

        return read_items


def skip_tagged_fields(buffer: Buffer, position: int) -> int:
    """The position after tagged fields that are not read."""
    return _read_tagged({}, buffer, position, {}) if buffer[position] else position + 1


def _makers(fields: Sequence[Field]) -> list[tuple[str, Callable[[], Any]]]:
    """Default lists and structs are made anew each time: a handler may change what it was given."""
    return [
        (field.name, list if field.is_array else _default_struct(field))
        for field in fields
        if field.default is not None and (field.is_array or field.kind == "struct")
    ]


def _default_struct(field: Field) -> Callable[[], SimpleNamespace]:
    assert field.struct is not None
    inner = (*field.struct.in_order, *field.struct.tagged, *field.struct.absent)
    defaults = {each.name: each.default for each in inner}
    makers = _makers(inner)
    return lambda: SimpleNamespace(**(defaults | {name: make() for name, make in makers}))


def _run_step(run: Sequence[Field]) -> Step:
    layout = struct.Struct(letters(run))
    unpack, size = layout.unpack_from, layout.size
    names = [field.name for field in run]

    def step(buffer: Buffer, position: int, values: Values) -> int:
        values.update(zip(names, unpack(buffer, position), strict=False))
        return position + size

    return step


def _read_tagged(known: dict[int, tuple[str, Reader]], buffer: Buffer, position: int, values: Values) -> int:
    """Put the tagged fields that are known into the values, and skip the others, as the protocol demands."""
    count, position = read_varint(buffer, position)
    for _ in range(count):
        tag, position = read_varint(buffer, position)
        size, position = read_varint(buffer, position)
        end = position + size
        if end > len(buffer):
            raise MalformedRequest(f"the tagged field {tag} ends past the message")
        if tag in known:
            name, read = known[tag]
            values[name], position = read(buffer, position)
            if position != end:
                raise MalformedRequest(f"the tagged field {tag}, {name}, is not as long as it says")
        position = end
    return position


# Lengths, where -1 stands for null


def read_varint(buffer: Buffer, position: int) -> tuple[int, int]:
    value = 0
    for shift in (0, 7, 14, 21, 28):
        byte = buffer[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise MalformedRequest("a variable-length integer is longer than five bytes")


def _read_compact_length(buffer: Buffer, position: int) -> tuple[int, int]:
    value = buffer[position]
    if value < 0x80:
        return value - 1, position + 1
    value, position = read_varint(buffer, position)
    return value - 1, position


def _read_int16_length(buffer: Buffer, position: int) -> tuple[int, int]:
    return _INT16(buffer, position)[0], position + 2


def _read_int32_length(buffer: Buffer, position: int) -> tuple[int, int]:
    return _INT32(buffer, position)[0], position + 4


def _null(nullable: bool, position: int) -> tuple[None, int]:
    if not nullable:
        raise MalformedRequest(f"null before byte {position}, where the schema allows none")
    return None, position


# Values


def _plain_reader(kind: str, flexible: bool, nullable: bool) -> Reader:
    if kind in FIXED:
        return _fixed_reader(kind)
    if kind == "uuid":
        return _read_uuid
    if kind == "string":
        return _string_reader(_read_compact_length if flexible else _read_int16_length, nullable)
    read_length = _read_compact_length if flexible else _read_int32_length
    return _bytes_reader(read_length, nullable, keep_view=kind == "records")


def _fixed_reader(kind: str) -> Reader:
    layout = struct.Struct(">" + FIXED[kind])
    unpack, size = layout.unpack_from, layout.size

    def read(buffer: Buffer, position: int) -> tuple[Any, int]:
        return unpack(buffer, position)[0], position + size

    return read


@lru_cache(maxsize=4096)
def _uuid(raw: bytes) -> UUID:
    """Making one takes a microsecond, and the same few topic ids come with every request."""
    return UUID(bytes=raw)


def _read_uuid(buffer: Buffer, position: int) -> tuple[UUID, int]:
    end = position + 16
    if end > len(buffer):
        raise MalformedRequest("a uuid ends past the message")
    return _uuid(bytes(buffer[position:end])), end


def _string_reader(read_length: Reader, nullable: bool) -> Reader:
    def read(buffer: Buffer, position: int) -> tuple[str | None, int]:
        length, position = read_length(buffer, position)
        if length < 0:
            return _null(nullable, position)
        end = position + length
        if length > LONGEST_STRING or end > len(buffer):
            raise MalformedRequest(f"a string of {length} bytes is too long or ends past the message")
        return str(buffer[position:end], "utf-8"), end

    return read


def _bytes_reader(read_length: Reader, nullable: bool, keep_view: bool) -> Reader:
    def read(buffer: Buffer, position: int) -> tuple[bytes | memoryview | None, int]:
        length, position = read_length(buffer, position)
        if length < 0:
            return _null(nullable, position)
        end = position + length
        if end > len(buffer):
            raise MalformedRequest(f"{length} bytes end past the message")
        found = buffer[position:end]
        return found if keep_view else bytes(found), end

    return read


def _nullable_struct_reader(read_struct: Reader) -> Reader:
    def read(buffer: Buffer, position: int) -> tuple[SimpleNamespace | None, int]:
        if buffer[position] >= 0x80:  # a negative byte says null
            return None, position + 1
        return read_struct(buffer, position + 1)

    return read


def _numbers_reader(kind: str) -> ItemsReader:
    letter = FIXED[kind]
    size = struct.calcsize(">" + letter)

    def read_items(buffer: Buffer, position: int, count: int) -> tuple[list[Any], int]:
        return list(struct.unpack_from(f">{count}{letter}", buffer, position)), position + count * size

    return read_items


def _least_item_size(field: Field, flexible: bool) -> int:
    """The fewest bytes an item of this array can take."""
    if field.struct is None:
        return _least_size(field.kind, flexible)
    sizes = [_least_size("array" if inner.is_array else inner.kind, flexible) for inner in field.struct.in_order]
    return sum(sizes) + (1 if flexible else 0)


def _least_size(kind: str, flexible: bool) -> int:
    if kind in FIXED:
        return struct.calcsize(">" + FIXED[kind])
    if kind == "uuid":
        return 16
    if flexible or kind == "struct":
        return 1
    return 2 if kind == "string" else 4


read_nullable_string = _string_reader(_read_int16_length, nullable=True)
