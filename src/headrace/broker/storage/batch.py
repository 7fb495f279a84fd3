"""Record batches of format 2: the header, its checks, and the few places where a batch is changed or looked into."""

import struct
from collections.abc import Iterator
from typing import NamedTuple

from crc32c import crc32c

from headrace.broker.storage.codecs import MAX_DECOMPRESSED, MAX_EXPANSION
from headrace.broker.wire.errors import ApiError, ErrorCode

HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_SIZE = HEADER.size
LENGTH_OVERHEAD = 12  # the base offset and the length itself do not count in the length
CRC_START = 21  # the checksum covers everything from the attributes on
NO_PRODUCER = -1
NO_TIMESTAMP = -1

_LENGTH = struct.Struct(">i")
_OFFSET = struct.Struct(">q")
_EPOCH = struct.Struct(">i")
_CRC = struct.Struct(">I")
_ATTRIBUTES = struct.Struct(">h")

_CODEC_MASK = 0x07
_APPEND_TIME = 0x08
_TRANSACTIONAL = 0x10
_CONTROL = 0x20
HIGHEST_CODEC = 4
ZSTD = 4
SMALLEST_RECORD = 7  # length, attributes, two deltas, then the lengths of key, value and headers: a byte each


class Batch(NamedTuple):
    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records: int

    @property
    def size(self) -> int:
        return self.length + LENGTH_OVERHEAD

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        return following(self.base_sequence, self.records - 1)

    @property
    def codec(self) -> int:
        return self.attributes & _CODEC_MASK

    @property
    def append_time(self) -> bool:
        return bool(self.attributes & _APPEND_TIME)

    @property
    def transactional(self) -> bool:
        return bool(self.attributes & _TRANSACTIONAL)

    @property
    def control(self) -> bool:
        return bool(self.attributes & _CONTROL)


def following(sequence: int, steps: int) -> int:
    """The sequence number `steps` later: after the highest 32-bit number comes 0."""
    return (sequence + steps) & 0x7FFFFFFF


def parse_header(view: memoryview | bytes | bytearray, position: int = 0) -> Batch:
    return Batch._make(HEADER.unpack_from(view, position))


def batch_size(view: memoryview | bytes | bytearray, position: int) -> int:
    length: int = _LENGTH.unpack_from(view, position + 8)[0]
    return length + LENGTH_OVERHEAD


def checksum_holds(view: memoryview, batch: Batch) -> bool:
    return crc32c(view[CRC_START : batch.size]) == batch.crc


def check_produced(view: memoryview, version: int) -> Batch:
    """What a producer sent for one partition: exactly one sound batch, or the error Kafka answers with."""
    if len(view) < HEADER_SIZE:
        if not len(view):
            raise ApiError(ErrorCode.INVALID_RECORD, "the request holds no record batch for this partition")
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, f"{len(view)} bytes are too few for a record batch")
    batch = parse_header(view)
    if batch.magic != 2:
        raise ApiError(ErrorCode.INVALID_RECORD, f"message format {batch.magic} is not supported, only format 2")
    size = batch.length + LENGTH_OVERHEAD
    if size < HEADER_SIZE or size > len(view):
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, "the batch's length does not fit the request")
    if size < len(view):
        raise ApiError(ErrorCode.INVALID_RECORD, "a produce request carries exactly one batch per partition")
    if crc32c(view[CRC_START:]) != batch.crc:
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, "the batch's checksum does not match its bytes")
    attributes = batch.attributes
    if attributes & _CONTROL:
        raise ApiError(ErrorCode.INVALID_RECORD, "clients may not write control batches")
    if attributes & _CODEC_MASK > HIGHEST_CODEC:
        raise ApiError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"compression {batch.codec} is unknown")
    if version < 7 and attributes & _CODEC_MASK == ZSTD:
        raise ApiError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "zstd needs produce requests of version 7 or newer")
    if batch.records < 1 or batch.last_offset_delta != batch.records - 1:
        raise ApiError(ErrorCode.INVALID_RECORD, "the batch's record count does not match its offsets")
    room = size - HEADER_SIZE
    if codec := attributes & _CODEC_MASK:
        room = min(room * MAX_EXPANSION[codec], MAX_DECOMPRESSED)
    if batch.records * SMALLEST_RECORD > room:
        raise ApiError(ErrorCode.INVALID_RECORD, f"{batch.records} records do not fit in a batch of {size} bytes")
    if attributes & _APPEND_TIME:
        raise ApiError(ErrorCode.INVALID_TIMESTAMP, "clients may not claim the broker's append time")
    if batch.producer_id >= 0:
        if batch.base_sequence < 0 or batch.producer_epoch < 0:
            raise ApiError(ErrorCode.INVALID_RECORD, "a batch with a producer id needs an epoch and a sequence")
    elif attributes & _TRANSACTIONAL:
        raise ApiError(ErrorCode.INVALID_RECORD, "a transactional batch needs a producer id")
    return batch


def place(view: memoryview, offset: int, leader_epoch: int) -> None:
    """Patch in where the batch stands in the log: both fields lie outside the checksum."""
    _OFFSET.pack_into(view, 0, offset)
    _EPOCH.pack_into(view, 12, leader_epoch)


def stamp_append_time(view: memoryview, now_ms: int) -> None:
    """Replace the producer's time by the broker's."""
    (attributes,) = _ATTRIBUTES.unpack_from(view, 21)
    _ATTRIBUTES.pack_into(view, 21, attributes | _APPEND_TIME)
    _OFFSET.pack_into(view, 35, now_ms)
    _CRC.pack_into(view, 17, crc32c(view[CRC_START:]))


def build(
    records: bytes | memoryview,
    *,
    attributes: int,
    count: int,
    base_timestamp: int,
    max_timestamp: int,
    producer_id: int = NO_PRODUCER,
    producer_epoch: int = -1,
    base_sequence: int = -1,
) -> bytearray:
    """A batch around `records`, which are already compressed as the attributes say."""
    buffer = bytearray(HEADER_SIZE + len(records))
    HEADER.pack_into(
        buffer, 0, 0, len(buffer) - LENGTH_OVERHEAD, -1, 2, 0, attributes, count - 1,
        base_timestamp, max_timestamp, producer_id, producer_epoch, base_sequence, count,
    )  # fmt: skip
    buffer[HEADER_SIZE:] = records
    _CRC.pack_into(buffer, 17, crc32c(memoryview(buffer)[CRC_START:]))
    return buffer


def with_records(header: Batch, records: bytes | memoryview, codec: int) -> bytearray:
    """The same batch with its records compressed anew."""
    return build(
        records,
        attributes=(header.attributes & ~_CODEC_MASK) | codec,
        count=header.records,
        base_timestamp=header.base_timestamp,
        max_timestamp=header.max_timestamp,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
    )


def control_batch(
    producer_id: int, producer_epoch: int, commit: bool, now_ms: int, coordinator_epoch: int = 0
) -> bytearray:
    """The marker that ends a producer's transaction on one partition."""
    key = struct.pack(">hh", 0, 1 if commit else 0)
    value = struct.pack(">hi", 0, coordinator_epoch)
    # attributes, timestamp delta, offset delta, then key and value with their lengths as zigzag numbers, no headers
    body = b"\x00\x00\x00" + bytes([len(key) * 2]) + key + bytes([len(value) * 2]) + value + b"\x00"
    return build(
        bytes([len(body) * 2]) + body,
        attributes=_TRANSACTIONAL | _CONTROL,
        count=1,
        base_timestamp=now_ms,
        max_timestamp=now_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
    )


def marker_commits(view: memoryview, batch: Batch) -> bool | None:
    """Whether a control batch commits or aborts; None where it is of another kind."""
    position = HEADER_SIZE
    _, position = _varint(view, position)
    position += 1
    _, position = _varint(view, position)
    _, position = _varint(view, position)
    key_length, position = _varint(view, position)
    if key_length < 4:
        return None
    kind: int = _ATTRIBUTES.unpack_from(view, position + 2)[0]
    return {0: False, 1: True}.get(kind)


def record_times(batch: Batch, records: bytes | memoryview) -> Iterator[tuple[int, int]]:
    """(offset, timestamp) of each of the batch's decompressed records; ValueError where they are malformed."""
    position = 0
    for _ in range(batch.records):
        length, start = _varint(records, position)
        delta, after = _varint(records, start + 1)
        offset_delta, after = _varint(records, after)
        position = start + length
        if not after <= position <= len(records):
            raise ValueError("a record's length does not fit the batch")
        stamp = batch.max_timestamp if batch.append_time else batch.base_timestamp + delta
        yield batch.base_offset + offset_delta, stamp


def _varint(view: bytes | memoryview, position: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 70 and position < len(view):
        byte = view[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), position
        shift += 7
    raise ValueError("a number in a record has no end")
