"""Opening a partition: from its checkpoint on, the log is walked, cut where it is torn, and synced."""

import logging
import os
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

from headrace.broker.storage.batch import Batch, marker_commits
from headrace.broker.storage.checkpoint import Saved
from headrace.broker.storage.epochs import Epochs
from headrace.broker.storage.files import Disk
from headrace.broker.storage.producers import ProducerStates
from headrace.broker.storage.segment import Damage, Position, Segment, walk

logger = logging.getLogger(__name__)

_COPY_SIZE = 1024 * 1024


class Recovered:
    """What stands in a partition's folder."""

    def __init__(self, log_start: int, producers: ProducerStates) -> None:
        self.log_start = log_start
        self.log_end = log_start
        self.producers = producers
        self.segments: list[Segment] = []
        self.checkpoint = 0  # the offset of the checkpoint that recovery began at


def recover(
    name: str,
    folder: Path,
    saved: Saved | None,
    epochs: Epochs,
    disk: Disk,
    now_ms: Callable[[], int],
) -> Recovered:
    """Raises Damage where bytes before the synced point are not as they were left."""
    bases = sorted(int(path.stem) for path in folder.glob("*.log"))
    if saved is None:
        saved = Saved(0, 0, 0, 0, b"", {}, [])
    aborted = [entry for entry in saved.aborted if entry.last_offset < saved.offset]
    producers = ProducerStates.decode(saved.producers, aborted) if saved.producers else ProducerStates()
    found = Recovered(saved.log_start, producers)

    # A crash may have come between moving the log's start and removing the files before it.
    leftover = [base for base, after in pairwise(bases) if after <= saved.log_start]
    for base in leftover:
        disk.remove(Segment(folder, base).path)
    if leftover:
        disk.sync_folder(folder)
    bases = bases[len(leftover) :]

    closed = [base for base in bases if base < saved.segment]
    known = sorted(base for base in saved.segments if base < saved.segment)
    expected = [base for base, end in pairwise([*known, saved.segment]) if end > saved.log_start]
    if closed != expected:
        raise Damage(0, f"segments {sorted(set(expected) ^ set(closed))} are missing or do not belong to this log")
    for number, base in enumerate(closed):
        segment = Segment(folder, base)
        row = saved.segments[base]
        size = segment.path.stat().st_size
        if size < row.size:
            raise Damage(size, f"{segment.path.name} has {size} bytes, but {row.size} were synced")
        if size > row.size:
            _cut(name, segment.path, row.size, size, disk, "a write that failed left them")
        segment.max_timestamp, segment.first_timestamp = row.max_timestamp, row.first_timestamp
        next_base = closed[number + 1] if number + 1 < len(closed) else saved.segment
        segment.left_unchecked(row.size, next_base)
        found.segments.append(segment)

    _walk_tail(name, folder, [base for base in bases if base >= saved.segment], saved, epochs, disk, found, now_ms)
    return found


def _walk_tail(
    name: str,
    folder: Path,
    bases: list[int],
    saved: Saved,
    epochs: Epochs,
    disk: Disk,
    found: Recovered,
    now_ms: Callable[[], int],
) -> None:
    offset = saved.offset
    # A log that was emptied up to the synced point no longer needs the segment which that point ends.
    if saved.byte and bases[:1] != [saved.segment] and saved.log_start < saved.offset:
        raise Damage(0, f"segment {saved.segment} is missing, of which {saved.byte} bytes were synced")
    for base in bases:
        segment = Segment(folder, base)
        start = saved.byte if base == saved.segment else 0
        size = segment.path.stat().st_size
        if size < start:
            raise Damage(size, f"{segment.path.name} has {size} bytes, but {start} were synced")
        if base not in (offset, saved.segment):
            _set_aside(name, segment.path, 0, size, disk, "the log was cut before it")
            disk.remove(segment.path)
            disk.sync_folder(folder)
            continue
        if base in saved.segments and base == saved.segment:
            row = saved.segments[base]
            segment.max_timestamp, segment.first_timestamp = row.max_timestamp, row.first_timestamp
        segment.left_unchecked(start, offset)
        file = disk.open(segment.path)
        try:
            try:
                for _, batch, view in walk(file, Position(start, offset), size, epochs.at):
                    _take_in(found.producers, batch, view, now_ms())
                    segment.appended(batch, batch.base_offset)
                    offset = batch.next_offset
            except Damage as damage:
                # A segment that begins where this one now ends goes on: only a failed write's rest stood between.
                _set_aside(name, segment.path, damage.position, size, disk, damage.reason)
                disk.truncate(file, damage.position)
            _rewrite(file, start, segment.size, disk)
            disk.sync_all(file)
        finally:
            disk.close(file)
        found.segments.append(segment)
    if bases:
        disk.sync_folder(folder)
    found.checkpoint = saved.offset
    found.producers.synced_to(offset)
    found.log_end = max(offset, found.log_start)
    if found.log_end > offset:
        raise Damage(0, f"the log ends at {offset}, but starts at {found.log_start}")


def _take_in(producers: ProducerStates, batch: Batch, view: memoryview, now_ms: int) -> None:
    if batch.producer_id < 0:
        return
    if not batch.control:
        producers.appended(batch, batch.base_offset, now_ms)
        return
    commit = marker_commits(view, batch)
    if commit is not None:
        producers.ended(batch.producer_id, batch.producer_epoch, commit, batch.base_offset, batch.max_timestamp, now_ms)


def _cut(name: str, path: Path, start: int, end: int, disk: Disk, reason: str) -> None:
    _set_aside(name, path, start, end, disk, reason)
    file = disk.open(path)
    try:
        disk.truncate(file, start)
        disk.sync_all(file)
    finally:
        disk.close(file)


def _set_aside(name: str, path: Path, start: int, end: int, disk: Disk, reason: str) -> None:
    """Keep the bytes that are about to be cut, in a file beside the segment."""
    if start == end:
        return
    number = 0
    while (aside := path.with_name(f"{path.stem}.cut-{start}.{number}")).exists():
        number += 1
    source = disk.open(path)
    target = disk.create(aside)
    try:
        for position in range(start, end, _COPY_SIZE):
            disk.write(target, os.pread(source, min(_COPY_SIZE, end - position), position), position - start)
        disk.sync(target)
    finally:
        disk.close(source)
        disk.close(target)
    disk.sync_folder(path.parent)
    logger.warning(
        "%s: %d bytes from byte %d of %s were not whole (%s); they are kept in %s",
        name, end - start, start, path.name, reason, aside.name,
    )  # fmt: skip


def _rewrite(file: int, start: int, end: int, disk: Disk) -> None:
    """Write the walked bytes again: after a failed sync the page cache calls lost pages clean."""
    for position in range(start, end, _COPY_SIZE):
        disk.write(file, os.pread(file, min(_COPY_SIZE, end - position), position), position)
