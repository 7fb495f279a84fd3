"""The compressions a batch's records may have: used off the loop, where a record's own fields are asked for."""

import struct

import cramjam

CODECS = {"uncompressed": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}

# Java frames snappy blocks in a format of its own (xerial), which is written; librdkafka's bare snappy is read too.
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_SNAPPY_BLOCK = 32 * 1024

# Java's reader demands independent blocks: 64 KB each, without checksums; 0x82 is the descriptor's own checksum.
_LZ4_HEADER = b"\x04\x22\x4d\x18\x60\x40\x82"
_LZ4_BLOCK = 64 * 1024
_LZ4_STORED = 0x80000000
_LZ4_END = b"\x00\x00\x00\x00"


def decompress(codec: int, data: memoryview) -> bytes:
    match codec:
        case 0:
            return bytes(data)
        case 1:
            return bytes(cramjam.gzip.decompress(data))
        case 2:
            return _decompress_snappy(data)
        case 3:
            return bytes(cramjam.lz4.decompress(data))
        case 4:
            return bytes(cramjam.zstd.decompress(data))
        case _:
            raise ValueError(f"compression {codec} is unknown")


def compress(codec: int, data: bytes) -> bytes:
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


def _decompress_snappy(data: memoryview) -> bytes:
    if data[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
        return bytes(cramjam.snappy.decompress_raw(data))
    position = len(_XERIAL_HEADER)
    blocks = []
    while position < len(data):
        (length,) = struct.unpack_from(">i", data, position)
        position += 4
        blocks.append(bytes(cramjam.snappy.decompress_raw(data[position : position + length])))
        position += length
    return b"".join(blocks)


def _compress_lz4(data: bytes) -> bytes:
    parts = [_LZ4_HEADER]
    for start in range(0, len(data), _LZ4_BLOCK):
        plain = data[start : start + _LZ4_BLOCK]
        packed = bytes(cramjam.lz4.compress_block(plain, store_size=False))
        if len(packed) < len(plain):
            parts += (struct.pack("<I", len(packed)), packed)
        else:
            parts += (struct.pack("<I", len(plain) | _LZ4_STORED), plain)
    parts.append(_LZ4_END)
    return b"".join(parts)
