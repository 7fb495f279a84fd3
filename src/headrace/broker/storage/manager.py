"""All partitions of a data folder: opening, checkpoints, retention and deletion."""

import asyncio
import contextlib
import logging
import resource
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from uuid import UUID

from headrace.broker.clock import Clock
from headrace.broker.settings import BrokerSettings, TopicConfig
from headrace.broker.storage import checkpoint as checkpoints
from headrace.broker.storage.checkpoint import Checkpoint, Saved
from headrace.broker.storage.commit import Committer
from headrace.broker.storage.epochs import Epochs
from headrace.broker.storage.files import Disk
from headrace.broker.storage.partition import Partition
from headrace.broker.storage.recovery import recover
from headrace.broker.storage.segment import Damage, FileCache, Segment
from headrace.broker.store import Store, StoreError
from headrace.broker.wire.errors import ApiError, ErrorCode

logger = logging.getLogger(__name__)

_CHECKPOINT_SECONDS = 1.0
_EXPIRY_SECONDS = 60.0


class LogManager:
    def __init__(
        self, data: Path, store: Store, settings: BrokerSettings, clock: Clock, disk: Disk, *, unclean: bool
    ) -> None:
        self._topics_folder = data / "topics"
        self._store = store
        self._settings = settings
        self._clock = clock
        self._disk = disk
        self._unclean = unclean
        self._files = FileCache(disk, _descriptors_to_keep())
        self._committer = Committer(disk, self._save)
        self._partitions: dict[tuple[UUID, int], Partition] = {}
        self._uncheckpointed: dict[Partition, None] = {}
        self._saving: set[asyncio.Future[None]] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._saved: dict[tuple[bytes, int], Saved] = {}
        self._epochs: dict[tuple[bytes, int], Epochs] = {}
        self._new_epochs: list[Partition] = []
        self._unsynced_folders: dict[Path, None] = {}
        made = disk.make_folders(self._topics_folder)
        for folder in [data] if unclean else made:
            disk.sync_folder(folder)

    # -- start and stop ----------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Read what the store knows, before the first `open`."""
        self._saved, self._epochs = self._store.load(checkpoints.load)

    def open(self, topic_name: str, topic_id: UUID, index: int, config: TopicConfig) -> Partition:
        """A partition with all it holds. Damage takes it offline; it is opened all the same."""
        folder = self._topics_folder / topic_name / topic_id.hex / str(index)
        partition = Partition(
            topic_name=topic_name,
            topic_id=topic_id,
            index=index,
            config=config,
            folder=folder,
            disk=self._disk,
            files=self._files,
            clock=self._clock,
            changed=self._mark,
        )
        key = (topic_id.bytes, index)
        saved = self._saved.pop(key, None)
        epochs = self._epochs.pop(key, None) or Epochs()
        partition.epochs = epochs
        self._partitions[topic_id, index] = partition
        if saved is None and not folder.exists():
            return partition
        try:
            found = recover(repr(partition), folder, saved, epochs, self._disk, self._clock.steady_ms)
        except (Damage, OSError, ValueError) as error:
            partition.fail(str(error))
            return partition
        partition.adopt(found)
        if self._unclean:
            # Who was killed may have made these folders and not synced the names of them.
            self._unsynced_folders |= dict.fromkeys([folder.parent, folder.parent.parent, self._topics_folder])
            partition.epochs = epochs.begin(epochs.current + 1, partition.log_end)
            self._new_epochs.append(partition)
        if saved is None or partition.log_end != saved.offset:
            self._uncheckpointed[partition] = None
        return partition

    def finish_loading(self) -> None:
        """Make the new leader epochs durable and remove what no topic owns any more; then the log can be served."""
        for folder in self._unsynced_folders:
            self._disk.sync_folder(folder)
        self._unsynced_folders = {}
        renewed = self._new_epochs
        strays = self._stray_folders()

        def write(connection: sqlite3.Connection) -> None:
            for partition in renewed:
                checkpoints.save_epochs(connection, partition.topic_id, partition.index, partition.epochs)
            for topic_id in {topic_id for topic_id, _ in self._saved}:
                checkpoints.forget_topic(connection, UUID(bytes=topic_id))

        self._store.load(write)
        self._saved, self._epochs, self._new_epochs = {}, {}, []
        for folder in strays:
            logger.info("removing %s: its topic was deleted", folder)
            self._disk.remove_tree(folder)
            if not any(folder.parent.iterdir()):
                self._disk.remove_folder(folder.parent)

    def _stray_folders(self) -> list[Path]:
        known = {topic_id.hex for topic_id, _ in self._partitions}
        return [
            incarnation
            for topic in self._topics_folder.iterdir()
            for incarnation in topic.iterdir()
            if incarnation.name not in known
        ]

    def start(self) -> None:
        self._tasks = [
            asyncio.create_task(_every(_CHECKPOINT_SECONDS, self._checkpoint)),
            asyncio.create_task(_every(_EXPIRY_SECONDS, self._expire_producers)),
            asyncio.create_task(_every(self._settings.log_retention_check_interval_ms / 1000, self.enforce_retention)),
        ]

    async def close(self) -> None:
        """Finish the commit in flight and leave a checkpoint at the very end of each partition."""
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await self._committer.close()
        await self._checkpoint()
        if self._saving:
            await asyncio.wait(self._saving)

    # -- checkpoints -------------------------------------------------------------------------------------------------

    def _mark(self, partition: Partition) -> None:
        self._uncheckpointed[partition] = None
        self._committer.mark(partition)

    async def _checkpoint(self) -> None:
        """Record how far each partition is synced: at once where it is idle, with its next commit where it is not."""
        captured = []
        for partition in list(self._uncheckpointed):
            if partition.offline or partition.deleted:
                del self._uncheckpointed[partition]
            elif partition.high_watermark == partition.log_end:
                del self._uncheckpointed[partition]
                captured.append(partition.capture())
            else:
                partition.wants_checkpoint = True
        if captured:
            self._save(captured)

    def _save(self, captured: list[Checkpoint]) -> None:
        current = [point for point in captured if not point.partition.deleted]

        def saved(done: "asyncio.Future[None]") -> None:
            self._saving.discard(done)
            error = done.exception()
            for point in current:
                if error is None:
                    point.partition.saved(point)
                else:
                    point.partition.wants_checkpoint = True
                    self._uncheckpointed[point.partition] = None
            if error is not None:
                logger.warning("checkpoints could not be saved and will be tried again: %s", error)

        writing = self._store.write(lambda connection: checkpoints.save(connection, current))
        self._saving.add(writing)
        writing.add_done_callback(saved)

    async def _checkpointed(self, partition: Partition, offset: int) -> None:
        """Make sure that the producers' state up to `offset` no longer depends on the segments before it."""
        if partition.checkpointed >= offset:
            return
        await partition.synced()
        point = partition.capture()
        await partition.synced()
        await self._store.write(lambda connection: checkpoints.save(connection, [point]))
        partition.saved(point)

    async def _expire_producers(self) -> None:
        before = self._clock.steady_ms() - self._settings.producer_id_expiration_ms
        for partition in list(self._partitions.values()):
            if partition.producers.expire(before):
                self._uncheckpointed[partition] = None

    # -- deletion ----------------------------------------------------------------------------------------------------

    async def enforce_retention(self) -> None:
        for partition in list(self._partitions.values()):
            if partition.offline or partition.deleted or not partition.segments:
                continue
            try:
                before = _expired_before(partition, self._clock.steady_ms())
                if before > partition.log_start:
                    await self._move_log_start(partition, before)
            except (ApiError, StoreError) as error:
                logger.warning("%r: old segments could not be removed: %s", partition, error)

    async def delete_records(self, partition: Partition, before: int) -> int:
        """Let the log begin at `before` (-1: at the high watermark); returns where it begins now."""
        partition.check_online()
        if before == -1:
            before = partition.high_watermark
        if not 0 <= before <= partition.high_watermark:
            raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE)
        if before > partition.log_start:
            await self._move_log_start(partition, before)
        return partition.log_start

    async def _move_log_start(self, partition: Partition, before: int) -> None:
        await self._checkpointed(partition, before)
        gone_before = next(
            (segment.base_offset for segment in reversed(partition.segments) if segment.base_offset <= before), 0
        )

        def write(connection: sqlite3.Connection) -> None:
            checkpoints.move_log_start(connection, partition.topic_id, partition.index, before)
            checkpoints.forget_segments(connection, partition.topic_id, partition.index, gone_before)

        await self._store.write(write)
        if before <= partition.log_start or partition.deleted:
            return
        partition.log_start = before
        partition.producers.forget_before(before)
        gone = partition.drop_segments(before)
        if gone:
            await asyncio.to_thread(self._remove_files, gone, partition.folder)

    def _remove_files(self, segments: Sequence[Segment], folder: Path) -> None:
        try:
            for segment in segments:
                self._disk.remove(segment.path)
            self._disk.sync_folder(folder)
        except OSError as error:
            logger.warning("segments could not be removed from %s; the next start removes them: %s", folder, error)

    async def delete(self, partitions: Sequence[Partition]) -> None:
        """Remove the files of a topic that the store no longer has."""
        folders = set()
        for partition in partitions:
            partition.delete()
            self._partitions.pop((partition.topic_id, partition.index), None)
            self._uncheckpointed.pop(partition, None)
            for segment in partition.segments:
                self._files.forget(segment.path)
            folders.add(partition.folder.parent)
        await asyncio.to_thread(self._remove_folders, folders)

    def _remove_folders(self, folders: set[Path]) -> None:
        for folder in folders:
            try:
                self._disk.remove_tree(folder)
                with contextlib.suppress(OSError):  # another incarnation of the topic may live beside it
                    self._disk.remove_folder(folder.parent)
            except OSError as error:
                logger.warning("%s could not be removed; the next start removes it: %s", folder, error)


def _expired_before(partition: Partition, now_ms: int) -> int:
    """The offset before which whole segments are past the topic's retention; a full active one is rolled for it."""
    config = partition.config
    before = partition.log_start
    excess = partition.size_bytes - config.retention_bytes if config.retention_bytes >= 0 else 0
    segments = list(partition.segments)
    for number, segment in enumerate(segments):
        too_old = config.retention_ms >= 0 and 0 <= segment.max_timestamp < now_ms - config.retention_ms
        if not segment.size or not (too_old or excess >= segment.size):
            break
        last = number + 1 == len(segments)
        end = partition.log_end if last else segments[number + 1].base_offset
        if end > partition.high_watermark or (last and not too_old):
            break
        if last:
            partition.roll()
        excess -= segment.size
        before = end
    return before


async def _every(seconds: float, action: Callable[[], Awaitable[None]]) -> None:
    while True:
        await asyncio.sleep(seconds)
        try:
            await action()
        except asyncio.CancelledError:
            raise
        except Exception:
            logger.exception("a background task failed and will be retried")


def _descriptors_to_keep() -> int:
    """Half of what the system allows; the rest is for connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = hard if hard != resource.RLIM_INFINITY else 1_048_576
    if soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    return max(64, min(soft // 2, 10_000))
