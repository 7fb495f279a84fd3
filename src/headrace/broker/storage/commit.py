"""Group commit: one sync for all that wait, with the files of many partitions synced side by side."""

import asyncio
import logging
import queue
import threading
from collections.abc import Callable

from headrace.broker.storage.checkpoint import Checkpoint
from headrace.broker.storage.files import Disk
from headrace.broker.storage.partition import Partition, SyncJob

logger = logging.getLogger(__name__)

_THREADS = 4


class _Round:
    """The jobs of one commit, dealt out to the threads; the last of them to finish reports."""

    def __init__(self, jobs: list[SyncJob]) -> None:
        self.jobs = jobs
        self.errors: list[OSError | None] = [None] * len(jobs)
        self.threads = min(len(jobs), _THREADS)
        self.lock = threading.Lock()


class Committer:
    def __init__(self, disk: Disk, save: Callable[[list[Checkpoint]], None]) -> None:
        self._disk = disk
        self._save = save
        self._loop = asyncio.get_running_loop()
        self._dirty: dict[Partition, None] = {}
        self._scheduled = False
        self._in_flight = False
        self._idle = asyncio.Event()
        self._idle.set()
        # A queue for each thread: of several that wait on one, more than the one needed would wake.
        self._rounds: list[queue.SimpleQueue[_Round | None]] = [
            queue.SimpleQueue() for _ in range(_THREADS if disk.durable else 0)
        ]
        self._threads = [
            threading.Thread(target=self._work, args=(number,), name=f"headrace-sync-{number}", daemon=True)
            for number in range(len(self._rounds))
        ]
        for thread in self._threads:
            thread.start()

    def mark(self, partition: Partition) -> None:
        """`partition` has bytes to sync. Everything marked before the loop's next turn goes into one round."""
        self._dirty[partition] = None
        if not self._scheduled and not self._in_flight:
            self._scheduled = True
            self._idle.clear()
            self._loop.call_soon(self._begin)

    async def drain(self) -> None:
        """Wait until nothing is left to sync."""
        await self._idle.wait()

    async def close(self) -> None:
        await self.drain()
        self.end_threads()

    def end_threads(self) -> None:
        for rounds in self._rounds:
            rounds.put(None)
        for thread in self._threads:
            thread.join()

    def _begin(self) -> None:
        """Start the next round, or become idle. Never called while a round is in flight."""
        self._scheduled = False
        while jobs := self._take_dirty():
            self._in_flight = True
            commit = _Round(jobs)
            if self._disk.durable:
                for rounds in self._rounds[: commit.threads]:
                    rounds.put(commit)
                return
            self._end(commit)
        self._in_flight = False
        self._idle.set()

    def _take_dirty(self) -> list[SyncJob]:
        dirty, self._dirty = self._dirty, {}
        return [partition.begin_sync() for partition in dirty if not (partition.offline or partition.deleted)]

    def _work(self, thread: int) -> None:
        while (commit := self._rounds[thread].get()) is not None:
            for number in range(thread, len(commit.jobs), _THREADS):
                commit.errors[number] = self._sync(commit.jobs[number])
            with commit.lock:
                commit.threads -= 1
                last = not commit.threads
            if last:
                self._loop.call_soon_threadsafe(self._finish, commit)

    def _sync(self, job: SyncJob) -> OSError | None:
        try:
            for file in job.files:
                self._disk.sync(file.fd)
            for folder in job.folders:
                self._disk.sync_folder(folder)
        except OSError as error:
            return error
        return None

    def _finish(self, commit: _Round) -> None:
        self._end(commit)
        self._begin()

    def _end(self, commit: _Round) -> None:
        # An acknowledgement may serve the client's next request at once, which marks a partition: the round counts as
        # in flight until the last one is given, so that the mark waits for the next round and starts none of its own.
        checkpoints = []
        for job, error in zip(commit.jobs, commit.errors, strict=True):
            try:
                job.partition.end_sync(job, error)
            except Exception:
                logger.exception("%r: a commit could not be acknowledged", job.partition)
            if job.checkpoint is not None and error is None:
                checkpoints.append(job.checkpoint)
        if checkpoints:
            self._save(checkpoints)
