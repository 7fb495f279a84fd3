"""The compression types of record batches. Used off the event loop, where the records themselves are needed."""

import mmap
import struct
from collections.abc import Callable

import cramjam

CODECS = {"uncompressed": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}

MAX_DECOMPRESSED = 128 * 1024 * 1024
"""The most bytes a batch is decompressed to. Librdkafka reads no more than 100 MB of one, and a whole produce request
has 100 MiB at most by default; 1 MiB of zstd could expand to 32 GiB."""

MAX_EXPANSION = (1, 1032, 22, 256, 32768)
"""For each codec, the most bytes that one compressed byte can stand for, by the codec's format."""

# Java frames snappy blocks in a format of its own (xerial), which is written; librdkafka's bare snappy is read too.
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_SNAPPY_BLOCK = 32 * 1024

# Java's reader demands independent blocks: 64 KB each, without checksums; 0x82 is the descriptor's own checksum.
_LZ4_HEADER = b"\x04\x22\x4d\x18\x60\x40\x82"
_LZ4_BLOCK = 64 * 1024
_LZ4_STORED = 0x80000000
_LZ4_END = b"\x00\x00\x00\x00"


class UndecodableError(ValueError):
    """The bytes are not valid for their codec, or there are too many of them once decompressed."""


def decompress(codec: int, data: memoryview) -> memoryview:
    """The records of a batch, or UndecodableError. Never more than MAX_DECOMPRESSED bytes are written to memory."""
    try:
        match codec:
            case 0:
                return data
            case 1:
                return _decompress(cramjam.gzip.decompress_into, data)
            case 2:
                return _decompress_snappy(data)
            case 3:
                return _decompress(cramjam.lz4.decompress_into, data)
            case 4:
                return _decompress(cramjam.zstd.decompress_into, data)
            case _:
                raise UndecodableError(f"compression {codec} is unknown")
    except cramjam.DecompressionError as error:
        raise UndecodableError(f"not decompressed within {MAX_DECOMPRESSED} bytes: {error}") from error


def _decompress(decompress_into: Callable[[memoryview, memoryview], int], data: memoryview) -> memoryview:
    # Anonymous memory costs nothing before it is written, so the buffer can have the size of the limit.
    buffer = memoryview(mmap.mmap(-1, MAX_DECOMPRESSED))
    return buffer[: decompress_into(data, buffer)]


def compress(codec: int, data: bytes | memoryview) -> bytes | memoryview:
    match codec:
        case 0:
            return data
        case 1:
            return bytes(cramjam.gzip.compress(data))
        case 2:
            return _XERIAL_HEADER + b"".join(
                struct.pack(">i", len(block)) + block
                for block in (
                    bytes(cramjam.snappy.compress_raw(data[start : start + _SNAPPY_BLOCK]))
                    for start in range(0, len(data), _SNAPPY_BLOCK)
                )
            )
        case 3:
            return _compress_lz4(data)
        case 4:
            return bytes(cramjam.zstd.compress(data))
        case _:
            raise ValueError(f"compression {codec} is unknown")


def _decompress_snappy(data: memoryview) -> memoryview:
    if data[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
        return memoryview(_decompress_snappy_block(data, MAX_DECOMPRESSED))
    position = len(_XERIAL_HEADER)
    plain = bytearray()
    while position < len(data):
        length = int.from_bytes(data[position : position + 4], "big", signed=True)
        position += 4
        if not 0 < length <= len(data) - position:
            raise UndecodableError("a snappy block does not fit the batch")
        plain += _decompress_snappy_block(data[position : position + length], MAX_DECOMPRESSED - len(plain))
        position += length
    return memoryview(plain)


def _decompress_snappy_block(block: memoryview, most: int) -> bytes:
    size = cramjam.snappy.decompress_raw_len(block)
    if size > most:
        raise UndecodableError(f"a snappy block has {size} bytes, more than a batch may have")
    return bytes(cramjam.snappy.decompress_raw(block))


def _compress_lz4(data: bytes | memoryview) -> bytes:
    parts: list[bytes | memoryview] = [_LZ4_HEADER]
    for start in range(0, len(data), _LZ4_BLOCK):
        plain = data[start : start + _LZ4_BLOCK]
        packed = bytes(cramjam.lz4.compress_block(plain, store_size=False))
        if len(packed) < len(plain):
            parts += (struct.pack("<I", len(packed)), packed)
        else:
            parts += (struct.pack("<I", len(plain) | _LZ4_STORED), plain)
    parts.append(_LZ4_END)
    return b"".join(parts)
