"""One file of a partition's log, with its sparse index by offset and time, and the walk over its batches."""

import os
from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from headrace.broker.storage.batch import (
    HEADER_SIZE,
    LENGTH_OVERHEAD,
    Batch,
    checksum_holds,
    parse_header,
)
from headrace.broker.storage.files import Disk

INDEX_INTERVAL = 64 * 1024
_READ_SIZE = 1024 * 1024


class Damage(Exception):
    """Bytes that are no batch in its place."""

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(f"byte {position}: {reason}")
        self.position = position
        self.reason = reason


class OpenFile:
    """A descriptor that closes itself when the last user lets go of it."""

    __slots__ = ("_disk", "fd")

    def __init__(self, disk: Disk, fd: int) -> None:
        self._disk = disk
        self.fd = fd

    def __del__(self) -> None:
        self._disk.close(self.fd)


class FileCache:
    """Keeps the files used last open. An evicted one stays open for those who still hold it."""

    def __init__(self, disk: Disk, capacity: int) -> None:
        self._disk = disk
        self._capacity = capacity
        self._files: OrderedDict[Path, OpenFile] = OrderedDict()

    def open(self, path: Path) -> OpenFile:
        file = self._files.get(path)
        if file is not None:
            self._files.move_to_end(path)
            return file
        return self._keep(path, OpenFile(self._disk, self._disk.open(path)))

    def create(self, path: Path) -> OpenFile:
        return self._keep(path, OpenFile(self._disk, self._disk.create(path)))

    def forget(self, path: Path) -> None:
        self._files.pop(path, None)

    def _keep(self, path: Path, file: OpenFile) -> OpenFile:
        self._files[path] = file
        if len(self._files) > self._capacity:
            self._files.popitem(last=False)
        return file


class Position(NamedTuple):
    """Where a batch begins: in the segment, and which offset it starts with."""

    byte: int
    offset: int


class Segment:
    __slots__ = (
        "_indexed_to",
        "base_offset",
        "first_timestamp",
        "max_timestamp",
        "offsets",
        "path",
        "positions",
        "size",
        "times",
        "unchecked",
        "unchecked_offset",
    )

    def __init__(self, folder: Path, base_offset: int) -> None:
        self.base_offset = base_offset
        self.path = folder / f"{base_offset:020}.log"
        self.size = 0
        self.max_timestamp = -1
        self.first_timestamp = -1
        # Bytes written before this start, not looked at since; the index covers what comes after them.
        self.unchecked = 0
        self.unchecked_offset = base_offset
        self._clear_index()

    def _clear_index(self) -> None:
        self.offsets = array("q")
        self.positions = array("q")
        self.times = array("q")  # the highest timestamp before each entry
        self._indexed_to = -INDEX_INTERVAL

    def appended(self, batch: Batch, base_offset: int) -> None:
        position = self.size
        if position - self._indexed_to >= INDEX_INTERVAL:
            self.offsets.append(base_offset)
            self.positions.append(position)
            self.times.append(self.max_timestamp)
            self._indexed_to = position
        if self.first_timestamp < 0:
            self.first_timestamp = batch.base_timestamp
        if batch.max_timestamp > self.max_timestamp:
            self.max_timestamp = batch.max_timestamp
        self.size = position + batch.length + LENGTH_OVERHEAD

    def left_unchecked(self, size: int, next_offset: int) -> None:
        """The first `size` bytes are from an earlier run."""
        self.size = self.unchecked = size
        self.unchecked_offset = next_offset

    def checked(self, walked: "Segment") -> None:
        """Take over the index that a check of the older bytes built, before the entries made since."""
        tail_offsets, tail_positions, tail_times = self.offsets, self.positions, self.times
        self.offsets = walked.offsets + tail_offsets
        self.positions = walked.positions + tail_positions
        before = walked.max_timestamp
        self.times = walked.times + array("q", (max(before, time) for time in tail_times))
        self.unchecked = 0

    def entry_before(self, offset: int) -> Position:
        """The nearest indexed batch at or before `offset`."""
        found = bisect_right(self.offsets, offset) - 1
        return Position(self.positions[found], self.offsets[found])

    def entry_before_time(self, timestamp: int) -> Position:
        """An indexed batch before which every timestamp is lower than `timestamp`."""
        found = max(bisect_left(self.times, timestamp) - 1, 0)
        return Position(self.positions[found], self.offsets[found])

    def boundary_before(self, byte: int) -> int:
        """The last indexed start of a batch at or before `byte`."""
        found = bisect_right(self.positions, byte) - 1
        return self.positions[found] if found >= 0 else 0


def walk(
    fd: int,
    start: Position,
    end: int,
    epoch_at: Callable[[int], int],
    *,
    verify: bool = True,
) -> Iterator[tuple[int, Batch, memoryview]]:
    """Each batch from `start` to the byte `end`, with where it begins; raises Damage at the first that is not sound.

    Base offset, length, epoch and magic lie outside the checksum, so each batch must also continue the one before it.
    """
    position, offset = start
    buffer = memoryview(b"")
    buffer_start = position
    while position < end:
        at = position - buffer_start
        if len(buffer) - at < HEADER_SIZE:
            buffer, buffer_start, at = memoryview(os.pread(fd, min(_READ_SIZE, end - position), position)), position, 0
            if len(buffer) < HEADER_SIZE:
                raise Damage(position, "the file ends in the middle of a batch")
        batch = parse_header(buffer, at)
        size = batch.length + LENGTH_OVERHEAD
        if batch.magic != 2 or size < HEADER_SIZE or batch.last_offset_delta < 0:
            raise Damage(position, "there is no batch here")
        if size > end - position:
            raise Damage(position, "the file ends in the middle of a batch")
        if batch.base_offset != offset:
            raise Damage(position, f"found offset {batch.base_offset}, expected {offset}")
        if batch.leader_epoch != epoch_at(offset):
            raise Damage(position, f"leader epoch {batch.leader_epoch} is wrong for offset {offset}")
        if len(buffer) - at < size:
            wanted = min(max(_READ_SIZE, size), end - position)
            buffer, buffer_start, at = memoryview(os.pread(fd, wanted, position)), position, 0
            if len(buffer) < size:
                raise Damage(position, "the file ends in the middle of a batch")
        view = buffer[at : at + size]
        if verify and not checksum_holds(view, batch):
            raise Damage(position, "the checksum does not match")
        yield position, batch, view
        position += size
        offset = batch.next_offset
