"""Finding bytes for readers: whole batches, undecoded, synced ones only, never waiting for the disk on the loop."""

import asyncio
import errno
import logging
import os
import struct
from collections.abc import Awaitable, Callable, Iterator
from typing import NamedTuple

from headrace.broker.errors import ApiError, ErrorCode
from headrace.broker.storage.batch import (
    HEADER_SIZE,
    LENGTH_OVERHEAD,
    Batch,
    parse_header,
    record_times,
)
from headrace.broker.storage.codecs import decompress
from headrace.broker.storage.partition import Partition
from headrace.broker.storage.segment import Damage, OpenFile, Position, Segment, walk

logger = logging.getLogger(__name__)

_CHUNK = 64 * 1024
_HEADERS_CHUNK = 8 * 1024
_PROBE_STEP = 128 * 1024
_READ_CHUNK = 1024 * 1024
_PREFIX = struct.Struct(">qii7xi")  # base offset, length, leader epoch, then the last offset's delta
_PREFIX_SIZE = _PREFIX.size
_probe = bytearray(1)


class Slice(NamedTuple):
    """Whole batches in a file."""

    file: OpenFile
    byte: int
    length: int


class NotReady(Exception):
    """The bytes must be fetched from the disk or checked first: await `prepare()` off the loop, then ask again."""

    def __init__(self, prepare: Callable[[], Awaitable[None]]) -> None:
        super().__init__()
        self.prepare = prepare


class FoundTime(NamedTuple):
    offset: int
    timestamp: int
    leader_epoch: int


def read(partition: Partition, offset: int, limit: int, max_bytes: int, at_least_one: bool) -> Slice | None:
    """The batches from the one that holds `offset` up to the offset `limit`, which is never past the high watermark."""
    if offset >= limit:
        return None
    known = partition.known_end(offset)
    if known is not None and known[1] < known[0].size:
        segment, start = known
    else:
        segment = partition.segment_of(offset)
        start = _locate(partition, segment, offset)
    end = _limit_byte(partition, segment, limit)
    length = end - start
    file = partition.open_segment(segment)
    if length > max_bytes:
        cut = segment.boundary_before(start + max_bytes)
        if cut <= start:
            cut = _cut_by_hopping(partition, segment, start, offset, start + max_bytes)
        if cut <= start:
            if not at_least_one:
                return None
            cut = start + next(_hop(partition, segment, start))[2]
        length = cut - start
    _expect_cached(file, start, length)
    return Slice(file, start, length)


def headers(found: Slice) -> Iterator[tuple[int, Batch]]:
    """Where each batch of a slice begins in its file, and its header."""
    byte, end = found.byte, found.byte + found.length
    chunk, chunk_start = b"", byte
    while byte < end:
        if byte - chunk_start + HEADER_SIZE > len(chunk):
            chunk, chunk_start = os.pread(found.file.fd, min(_HEADERS_CHUNK, end - byte), byte), byte
        batch = parse_header(chunk, byte - chunk_start)
        yield byte, batch
        byte += batch.size


async def offset_for_timestamp(partition: Partition, timestamp: int) -> FoundTime | None:
    """The first visible record whose timestamp is not before `timestamp`."""
    for segment in list(partition.segments):
        end = partition.visible_end(segment)
        if segment.max_timestamp < timestamp or not end:
            continue
        if segment.unchecked:
            await check(partition, segment)
        if segment not in partition.segments:  # deleted while another was searched
            continue
        file = partition.open_segment(segment)
        found = await asyncio.to_thread(_search_time, file, partition, segment, timestamp, end)
        if found is not None:
            return found
    return None


async def offset_of_max_timestamp(partition: Partition) -> FoundTime | None:
    """The first record with the highest timestamp of all."""
    await partition.synced()
    visible = [segment.max_timestamp for segment in partition.segments if partition.visible_end(segment)]
    if not visible or max(visible) < 0:
        return None
    return await offset_for_timestamp(partition, max(visible))


async def check(partition: Partition, segment: Segment) -> None:
    """Look at every batch that an earlier run left in a segment; damage there takes the partition offline."""
    lock = partition.check_lock
    async with lock:
        if not segment.unchecked or segment not in partition.segments:
            return
        partition.check_online()
        try:
            # Opened here and now: retention may remove the name while the bytes are walked.
            file = partition.open_segment(segment)
            walked = await asyncio.to_thread(_check, file, partition, segment)
        except (Damage, OSError) as error:
            partition.fail(f"{segment.path.name} was damaged after it had been synced ({error})")
            partition.check_online()
            return
        segment.checked(walked)


def _check(file: OpenFile, partition: Partition, segment: Segment) -> Segment:
    walked = Segment(segment.path.parent, segment.base_offset)
    end = segment.unchecked
    for _, batch, _ in walk(file.fd, Position(0, segment.base_offset), end, partition.epoch_at):
        walked.appended(batch, batch.base_offset)
        last = batch
    if last.next_offset != segment.unchecked_offset:
        raise Damage(end, f"the segment ends at offset {last.next_offset}, expected {segment.unchecked_offset}")
    return walked


def _locate(partition: Partition, segment: Segment, offset: int) -> int:
    """The byte at which the batch that holds `offset` begins."""
    if segment.unchecked and offset < segment.unchecked_offset:
        raise NotReady(lambda: check(partition, segment))
    if not segment.offsets or segment.offsets[0] > offset:
        # Only bytes of an earlier run come before the first entry, and the offset is not among them.
        start = Position(segment.unchecked, segment.unchecked_offset)
    else:
        start = segment.entry_before(offset)
    if start.offset == offset:
        return start.byte
    for byte, next_offset, _ in _hop(partition, segment, start.byte):
        if next_offset > offset:
            return byte
    raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"{partition!r}: offset {offset} was not found in its segment")


def _limit_byte(partition: Partition, segment: Segment, limit: int) -> int:
    if limit >= partition.high_watermark:
        return partition.visible_end(segment)
    if partition.segment_of(limit) is not segment:
        return segment.size
    return _locate(partition, segment, limit)


def _cut_by_hopping(partition: Partition, segment: Segment, start: int, offset: int, stop: int) -> int:
    cut = start
    for byte, _, size in _hop(partition, segment, start):
        if byte + size > stop:
            break
        cut = byte + size
    return cut


def _hop(partition: Partition, segment: Segment, byte: int) -> Iterator[tuple[int, int, int]]:
    """(byte, next offset, size) of each batch from `byte` on, reading headers only."""
    file = partition.open_segment(segment)
    chunk = memoryview(b"")
    chunk_start = byte
    end = segment.size
    while byte < end:
        at = byte - chunk_start
        if len(chunk) - at < _PREFIX_SIZE:
            chunk, chunk_start, at = _read_cached(file, byte, min(_CHUNK, end - byte)), byte, 0
            if len(chunk) < _PREFIX_SIZE:
                raise NotReady(_warm(file, byte, min(_CHUNK, end - byte)))
        base_offset, length, _, last_delta = _PREFIX.unpack_from(chunk, at)
        size = length + LENGTH_OVERHEAD
        if size < HEADER_SIZE:
            partition.fail(f"{segment.path.name} has no batch at byte {byte}")
            partition.check_online()
        yield byte, base_offset + last_delta + 1, size
        byte += size


def _read_cached(file: OpenFile, byte: int, length: int) -> memoryview:
    """What of the range is in the page cache; nothing where the first byte is not."""
    buffer = bytearray(length)
    try:
        count = os.preadv(file.fd, [buffer], byte, os.RWF_NOWAIT)
    except BlockingIOError:
        return memoryview(b"")
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise
        count = os.preadv(file.fd, [buffer], byte)
    return memoryview(buffer)[:count]


def _expect_cached(file: OpenFile, byte: int, length: int) -> None:
    end = byte + length
    try:
        for probed in (*range(byte, end, _PROBE_STEP), end - 1):
            os.preadv(file.fd, [_probe], probed, os.RWF_NOWAIT)
    except BlockingIOError:
        raise NotReady(_warm(file, byte, length)) from None
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise


def _warm(file: OpenFile, byte: int, length: int) -> Callable[[], Awaitable[None]]:
    def from_disk() -> None:
        # Read, and thrown away: then the kernel sees a reader and keeps ahead of it, in large pages. Where it is told
        # what will be wanted (posix_fadvise), it takes pages of 4 KB, for several times the CPU, and no more of them.
        buffer = memoryview(bytearray(min(length, _READ_CHUNK)))
        position, end = byte, byte + length
        while position < end:
            count = os.preadv(file.fd, [buffer[: end - position]], position)
            if not count:
                return  # past the end of the file: whoever asks again is told
            position += count

    return lambda: asyncio.to_thread(from_disk)


def _search_time(file: OpenFile, partition: Partition, segment: Segment, timestamp: int, end: int) -> FoundTime | None:
    start = segment.entry_before_time(timestamp)
    for byte, batch in _headers(file, start.byte, end):
        if (
            batch.max_timestamp < timestamp
            or batch.control
            or batch.base_offset + batch.last_offset_delta < partition.log_start
        ):
            continue
        view = memoryview(os.pread(file.fd, batch.size, byte))
        try:
            for offset, stamp in record_times(batch, decompress(batch.codec, view[HEADER_SIZE:])):
                if stamp >= timestamp and offset >= partition.log_start:
                    return FoundTime(offset, stamp, batch.leader_epoch)
        except ValueError as error:
            # Batches are accepted by their headers alone: a producer may have written this.
            reason = f"{partition!r}: the records of the batch at offset {batch.base_offset} cannot be read: {error}"
            logger.warning("%s", reason)
            raise ApiError(ErrorCode.CORRUPT_MESSAGE, reason) from error
    return None


def _headers(file: OpenFile, byte: int, end: int) -> Iterator[tuple[int, Batch]]:
    while byte < end:
        batch = parse_header(os.pread(file.fd, HEADER_SIZE, byte))
        yield byte, batch
        byte += batch.size
