"""A partition: its segments, what was appended, what is synced, and what readers may see of it."""

import asyncio
import logging
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol
from uuid import UUID

from headrace.broker.clock import Clock
from headrace.broker.settings import TopicConfig
from headrace.broker.storage.aborted import Aborted
from headrace.broker.storage.batch import Batch, control_batch, parse_header, place
from headrace.broker.storage.checkpoint import Checkpoint, SegmentRow
from headrace.broker.storage.epochs import Epochs
from headrace.broker.storage.files import Disk
from headrace.broker.storage.producers import ProducerStates, Written
from headrace.broker.storage.recovery import Recovered
from headrace.broker.storage.segment import FileCache, OpenFile, Segment
from headrace.broker.wire.errors import ApiError, ErrorCode

logger = logging.getLogger(__name__)

_HIGHEST_RELATIVE_OFFSET = 2**31 - 1  # Kafka's own indexes count offsets within a segment in 32 bits
_REMEMBERED_ENDS = 64

Acknowledge = Callable[[ApiError | None], None]


class SyncJob(NamedTuple):
    """What one round of syncing does for one partition, and what it makes visible."""

    partition: "Partition"
    offset: int
    segment: Segment
    byte: int
    files: list[OpenFile]
    folders: list[Path]
    checkpoint: Checkpoint | None


class Waiter(Protocol):
    def wake(self) -> None: ...


class Partition:
    def __init__(
        self,
        *,
        topic_name: str,
        topic_id: UUID,
        index: int,
        config: TopicConfig,
        folder: Path,
        disk: Disk,
        files: FileCache,
        clock: Clock,
        changed: Callable[["Partition"], None],
    ) -> None:
        self.topic_name = topic_name
        self.topic_id = topic_id
        self.index = index
        self.config = config
        self.folder = folder
        self.segments: list[Segment] = []
        self.producers = ProducerStates()
        self.epochs = Epochs()
        self.log_start = 0
        self.log_end = 0
        self.high_watermark = 0
        self.failure: str | None = None
        self.deleted = False
        self.wants_checkpoint = False
        self.checkpointed = -1  # the offset of the last checkpoint
        self.waiters: dict[Waiter, None] = {}
        self.check_lock = asyncio.Lock()
        self._disk = disk
        self._files = files
        self._clock = clock
        self._changed = changed
        self._bases: list[int] = []
        self._visible_segment: Segment | None = None
        self._visible_byte = 0
        self._recent_ends: dict[int, tuple[Segment, int]] = {}
        self._unsynced: dict[OpenFile, None] = {}
        self._new_folders: list[Path] = []
        self._acknowledgements: deque[tuple[int, Acknowledge]] = deque()
        self._unsaved_segments: dict[int, Segment] = {}
        self._aborted_saved_to = 0  # the store has every aborted transaction that ended before this offset

    def __repr__(self) -> str:
        return f"{self.topic_name}-{self.index}"

    # -- what others ask ---------------------------------------------------------------------------------------------

    @property
    def offline(self) -> bool:
        return self.failure is not None

    @property
    def leader_epoch(self) -> int:
        return self.epochs.current

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self.segments)

    @property
    def last_stable_offset(self) -> int:
        first = self.producers.first_undecided()
        return self.high_watermark if first is None else min(first, self.high_watermark)

    def transaction_start(self, producer_id: int) -> int | None:
        return self.producers.transaction_start(producer_id)

    def check_online(self) -> None:
        if self.deleted:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{self!r} was deleted")
        if self.failure is not None:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self!r} is offline: {self.failure}")

    def check_epoch(self, epoch: int) -> None:
        """A client that names the leader epoch it knows is told if either side is behind."""
        if epoch == -1 or epoch == self.leader_epoch:
            return
        if epoch < self.leader_epoch:
            raise ApiError(ErrorCode.FENCED_LEADER_EPOCH)
        raise ApiError(ErrorCode.UNKNOWN_LEADER_EPOCH)

    def epoch_at(self, offset: int) -> int:
        return self.epochs.at(offset)

    def epoch_end(self, epoch: int) -> tuple[int, int]:
        """The highest epoch not above `epoch`, and where it ends."""
        return self.epochs.end_of(epoch, self.high_watermark)

    def aborted_between(self, start: int, end: int) -> list[Aborted]:
        return self.producers.aborted.between(start, end)

    # -- appending ---------------------------------------------------------------------------------------------------

    def append(self, view: memoryview, batch: Batch) -> Written | None:
        """Append a checked batch; a retry of a written one is not appended, and what was written is returned."""
        self.check_online()
        if batch.producer_id >= 0:
            written = self.producers.check(batch)
            if written is not None:
                return written
        base_offset = self._write(view, batch)
        if batch.producer_id >= 0:
            self.producers.appended(batch, base_offset, self._clock.steady_ms())
        return None

    def append_marker(self, producer_id: int, producer_epoch: int, commit: bool) -> asyncio.Future[None]:
        """End a producer's transaction here; done once the marker is synced."""
        try:
            self.check_online()
            now = self._clock.wall_ms()
            view = memoryview(control_batch(producer_id, producer_epoch, commit, now))
            offset = self._write(view, parse_header(view))
        except ApiError as error:
            failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            failed.set_exception(error)
            return failed
        self.producers.ended(producer_id, producer_epoch, commit, offset, now, self._clock.steady_ms())
        return self.synced()

    def _write(self, view: memoryview, batch: Batch) -> int:
        size = len(view)
        segment = self._segment_for(size, batch)
        offset = self.log_end
        place(view, offset, self.epochs.current)
        try:
            file = self._files.open(segment.path)
            self._disk.write(file.fd, view, segment.size)
        except OSError as error:
            self._take_back(segment)
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self!r} could not be written: {error}") from error
        segment.appended(batch, offset)
        self.log_end = offset + batch.last_offset_delta + 1
        self._unsynced[file] = None
        self._changed(self)
        return offset

    def _take_back(self, segment: Segment) -> None:
        """Cut what a failed write may have left; failing that, the next write overwrites it or recovery cuts it."""
        try:
            self._disk.truncate(self._files.open(segment.path).fd, segment.size)
        except OSError as error:
            logger.warning("%r: a failed write could not be undone: %s", self, error)

    def _segment_for(self, size: int, batch: Batch) -> Segment:
        if size > self.config.segment_bytes:
            raise ApiError(
                ErrorCode.RECORD_LIST_TOO_LARGE,
                f"the batch of {size} bytes is larger than segment.bytes ({self.config.segment_bytes})",
            )
        if not self.segments:
            return self._new_segment()
        active = self.segments[-1]
        if active.size == 0:
            return active
        if (
            active.size + size > self.config.segment_bytes
            or self.log_end + batch.last_offset_delta - active.base_offset > _HIGHEST_RELATIVE_OFFSET
            or (active.first_timestamp >= 0 and batch.max_timestamp - active.first_timestamp > self.config.segment_ms)
        ):
            return self._new_segment()
        return active

    def _new_segment(self) -> Segment:
        segment = Segment(self.folder, self.log_end)
        try:
            if not self.segments:
                self._new_folders += self._disk.make_folders(self.folder)
            self._files.create(segment.path)
        except OSError as error:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self!r}: no new segment: {error}") from error
        self._new_folders.append(self.folder)
        self.add_segment(segment)
        self.wants_checkpoint = True
        return segment

    def roll(self) -> None:
        """Close the active segment, so that it can be deleted as a whole."""
        if self.segments and self.segments[-1].size:
            self._new_segment()
            self._changed(self)

    def add_segment(self, segment: Segment) -> None:
        if self.segments:
            self._unsaved_segments[self.segments[-1].base_offset] = self.segments[-1]
        self.segments.append(segment)
        self._bases.append(segment.base_offset)
        self._unsaved_segments[segment.base_offset] = segment

    # -- syncing -----------------------------------------------------------------------------------------------------

    def when_synced(self, offset: int, acknowledge: Acknowledge) -> None:
        """Call back once all before `offset` is synced, or cannot be."""
        if self.failure is not None:
            acknowledge(ApiError(ErrorCode.KAFKA_STORAGE_ERROR, self.failure))
        elif offset <= self.high_watermark:
            acknowledge(None)
        else:
            self._acknowledgements.append((offset, acknowledge))

    def synced(self) -> asyncio.Future[None]:
        """Done once all appended so far is synced."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def acknowledge(error: ApiError | None) -> None:
            if done.done():
                return
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)

        self.when_synced(self.log_end, acknowledge)
        return done

    def begin_sync(self) -> SyncJob:
        job = SyncJob(
            self,
            self.log_end,
            self.segments[-1],
            self.segments[-1].size,
            list(self._unsynced),
            list(dict.fromkeys(self._new_folders)),
            self.capture() if self.wants_checkpoint else None,
        )
        self._unsynced.clear()
        self._new_folders.clear()
        return job

    def end_sync(self, job: SyncJob, error: OSError | None) -> None:
        if self.deleted:
            return  # its files may have been removed while they were synced, and nobody waits for them
        if error is not None:
            self.fail(f"syncing failed ({error}); restart the broker to recover it")
            return
        if self.failure is None:
            self.show(job.offset, job.segment, job.byte)

    def show(self, offset: int, segment: Segment, byte: int) -> None:
        """Everything before `offset` is durable: acknowledge it and let readers see it."""
        self.high_watermark = offset
        self._visible_segment, self._visible_byte = segment, byte
        ends = self._recent_ends
        ends[offset] = (segment, byte)
        if len(ends) > _REMEMBERED_ENDS:
            del ends[next(iter(ends))]
        self.producers.synced_to(offset)
        waiting = self._acknowledgements
        while waiting and waiting[0][0] <= offset:
            waiting.popleft()[1](None)
        self.wake()

    def fail(self, reason: str) -> None:
        """Take the partition, and only it, offline."""
        if self.failure is None:
            self.failure = reason
            logger.error("%r is offline: %s", self, reason)
        self._refuse_waiting(ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self!r} is offline: {reason}"))

    def delete(self) -> None:
        self.deleted = True
        self._refuse_waiting(ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{self!r} was deleted"))

    def _refuse_waiting(self, error: ApiError) -> None:
        waiting, self._acknowledgements = self._acknowledgements, deque()
        for _, acknowledge in waiting:
            acknowledge(error)
        self.wake()

    def wake(self) -> None:
        for waiter in list(self.waiters):
            waiter.wake()

    def adopt(self, found: Recovered) -> None:
        """Take over what recovery found; all of it is synced."""
        self.log_start, self.log_end = found.log_start, found.log_end
        self.producers = found.producers
        self._aborted_saved_to = found.checkpoint
        for segment in found.segments:
            self.add_segment(segment)
        if not found.segments:
            self.high_watermark = self.log_end
            return
        last = found.segments[-1]
        self.show(self.log_end, last, last.size)

    # -- checkpoints -------------------------------------------------------------------------------------------------

    def capture(self) -> Checkpoint:
        """The state at the log's end, to be saved once all before it is synced."""
        self.wants_checkpoint = False
        segments = [
            SegmentRow(segment.base_offset, segment.size, segment.max_timestamp, segment.first_timestamp)
            for segment in self._unsaved_segments.values()
        ]
        active = self.segments[-1] if self.segments else None
        if active is not None and active.base_offset not in self._unsaved_segments:
            segments.append(SegmentRow(active.base_offset, active.size, active.max_timestamp, active.first_timestamp))
        return Checkpoint(
            self,
            self.log_start,
            active.base_offset if active else self.log_end,
            active.size if active else 0,
            self.log_end,
            self.producers.encode(),
            segments,
            self.producers.aborted.ended_from(self._aborted_saved_to),
        )

    def saved(self, checkpoint: Checkpoint) -> None:
        """The store has it: later ones need not carry it again. Until then they do, for it may yet be lost."""
        self.checkpointed = max(self.checkpointed, checkpoint.offset)
        self._aborted_saved_to = max(self._aborted_saved_to, checkpoint.offset)
        for row in checkpoint.segments:
            segment = self._unsaved_segments.get(row.base_offset)
            if segment is not None and segment.size == row.size:
                del self._unsaved_segments[row.base_offset]

    # -- segments and where readers find things ----------------------------------------------------------------------

    def segment_of(self, offset: int) -> Segment:
        return self.segments[bisect_right(self._bases, offset) - 1]

    def visible_end(self, segment: Segment) -> int:
        """How many bytes of a segment lie before the high watermark."""
        visible = self._visible_segment
        if visible is None or segment.base_offset > visible.base_offset:
            return 0
        return self._visible_byte if segment is visible else segment.size

    def known_end(self, offset: int) -> tuple[Segment, int] | None:
        """Where `offset` begins, if it was a recent high watermark: most readers continue at one."""
        return self._recent_ends.get(offset)

    def open_segment(self, segment: Segment) -> OpenFile:
        return self._files.open(segment.path)

    def drop_segments(self, before: int) -> list[Segment]:
        """Take the segments that lie wholly before `before` out of the log; their files are still there."""
        gone = []
        while len(self.segments) > 1 and self.segments[1].base_offset <= before:
            gone.append(self.segments.pop(0))
            self._bases.pop(0)
        for segment in gone:
            self._files.forget(segment.path)
            self._unsaved_segments.pop(segment.base_offset, None)
        bases = {segment.base_offset for segment in gone}
        self._recent_ends = {
            offset: (segment, byte)
            for offset, (segment, byte) in self._recent_ends.items()
            if segment.base_offset not in bases
        }
        return gone
