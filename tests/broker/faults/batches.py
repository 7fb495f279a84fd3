"""Record batches as a client writes and reads them; of its own, so that the broker is not its own witness."""

import struct
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from crc32c import crc32c

_HEADER = struct.Struct(">qiibIhiqqqhii")
_TRANSACTIONAL, _CONTROL = 0x10, 0x20


@dataclass(frozen=True, slots=True)
class Batch:
    base_offset: int
    producer_id: int
    producer_epoch: int
    sequence: int
    transactional: bool
    control: bool
    values: tuple[bytes, ...]
    leader_epoch: int = -1

    @property
    def next_offset(self) -> int:
        return self.base_offset + len(self.values)

    @property
    def commits(self) -> bool:
        """Of a control batch: whether it commits. Its value here is its key, which says so."""
        return self.values[0][3] == 1


def encode(
    values: Sequence[bytes],
    producer_id: int = -1,
    producer_epoch: int = -1,
    sequence: int = -1,
    *,
    transactional: bool = False,
    timestamp: int | None = None,
) -> bytes:
    if timestamp is None:
        timestamp = int(time.time() * 1000)
    records = b"".join(_record(number, value) for number, value in enumerate(values))
    attributes = _TRANSACTIONAL if transactional else 0
    count = len(values)
    length = _HEADER.size + len(records) - 12
    producer = (producer_id, producer_epoch, sequence, count)
    unsummed = _HEADER.pack(0, length, -1, 2, 0, attributes, count - 1, timestamp, timestamp, *producer) + records
    checksum = struct.pack(">I", crc32c(unsummed[21:]))
    return unsummed[:17] + checksum + unsummed[21:]


def decode(data: bytes | memoryview) -> Iterator[Batch]:
    """Every whole batch; a broker may end a fetch in the middle of one."""
    data = bytes(data)
    position = 0
    while position + _HEADER.size <= len(data):
        fields = _HEADER.unpack_from(data, position)
        base_offset, length, leader_epoch, magic, checksum, attributes, last_delta = fields[:7]
        producer_id, producer_epoch, sequence, count = fields[9:]
        end = position + 12 + length
        if end > len(data):
            return
        assert magic == 2, f"magic {magic} at offset {base_offset}"
        assert crc32c(data[position + 21 : end]) == checksum, f"a bad checksum at offset {base_offset}"
        assert attributes & 7 == 0, "a compressed batch, which these tests do not write"
        assert last_delta == count - 1
        control = bool(attributes & _CONTROL)
        values = tuple(_values(data, position + _HEADER.size, count, keys=control))
        yield Batch(
            base_offset,
            producer_id,
            producer_epoch,
            sequence,
            bool(attributes & _TRANSACTIONAL),
            control,
            values,
            leader_epoch,
        )
        position = end


def _record(number: int, value: bytes) -> bytes:
    body = b"\0" + _varint(0) + _varint(number) + _varint(-1) + _varint(len(value)) + value + _varint(0)
    return _varint(len(body)) + body


def _values(data: bytes, position: int, count: int, *, keys: bool) -> Iterator[bytes]:
    for _ in range(count):
        length, start = _read_varint(data, position)
        position = start + length
        _, at = _read_varint(data, start + 1)
        _, at = _read_varint(data, at)
        key_length, at = _read_varint(data, at)
        if keys:
            yield data[at : at + key_length]
            continue
        value_length, at = _read_varint(data, at + max(key_length, 0))
        yield data[at : at + value_length]


def _varint(number: int) -> bytes:
    zigzag = (number << 1) ^ (number >> 63)
    out = bytearray()
    while zigzag > 0x7F:
        out.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    out.append(zigzag)
    return bytes(out)


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), position
        shift += 7
