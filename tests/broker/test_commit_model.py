"""The group commit on its own: appends, rolls, failures and deletions at any moment of a sync round."""

import asyncio
import errno
import os
import shutil
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import UUID

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from headrace.broker.clock import Clock
from headrace.broker.errors import ApiError, ErrorCode
from headrace.broker.settings import BrokerSettings
from headrace.broker.storage.batch import build, parse_header
from headrace.broker.storage.commit import Committer
from headrace.broker.storage.files import Disk
from headrace.broker.storage.partition import Partition, SyncJob
from headrace.broker.storage.segment import FileCache

PARTITIONS = 3
BATCH = build(b"\x0e\x00\x00\x00\x01\x02x\x00", attributes=0, count=1, base_timestamp=1, max_timestamp=1)
SEGMENT_BYTES = 2 * len(BATCH) + 1
LIMIT = 30.0

numbers = st.integers(0, PARTITIONS - 1)
# What is appended to in answer to an acknowledgement, one after the other: as a client that waited for it does.
chains = st.lists(numbers, max_size=3)


class GatedDisk(Disk):
    """Syncs wait until the gate is open, and fail where they are told to. Remembers what each of them covered."""

    def __init__(self, *, durable: bool) -> None:
        super().__init__(durable=durable)
        self.gate = threading.Event()
        self.failing: str | None = None
        self.clock = 0
        self.made: dict[Path, int] = {}
        self.folders_synced: dict[Path, int] = {}
        self.bytes_synced: dict[Path, int] = {}

    def tick(self) -> int:
        self.clock += 1
        return self.clock

    def make_folder(self, path: Path) -> None:
        super().make_folder(path)
        self.made[path] = self.tick()

    def create(self, path: Path) -> int:
        file = super().create(path)
        self.made[path] = self.tick()
        return file

    def sync(self, file: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{file}").removesuffix(" (deleted)"))
        size = os.fstat(file).st_size
        self._pass(path)
        super().sync(file)
        self.bytes_synced[path] = max(size, self.bytes_synced.get(path, 0))

    def sync_folder(self, path: Path) -> None:
        moment = self.clock
        self._pass(path)
        super().sync_folder(path)
        self.folders_synced[path] = moment

    def _pass(self, path: Path) -> None:
        if not self.gate.wait(LIMIT):
            raise TimeoutError("the gate stays shut")
        if self.failing is not None and f"/{self.failing}/" in f"{path}/":
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def durable_to(self, path: Path, root: Path) -> int:
        """How many bytes of a file a power cut would leave."""
        at = path
        while at != root:
            if self.folders_synced.get(at.parent, -1) < self.made.get(at, 0):
                return 0
            at = at.parent
        return self.bytes_synced.get(path, 0)


class Watch:
    """Which jobs are between their beginning and their end: never those of two rounds."""

    def __init__(self, disk: GatedDisk) -> None:
        self.disk = disk
        self.open: list[SyncJob] = []
        self.beginning = False
        self.problems: list[BaseException] = []

    def demand(self, holds: bool, problem: str) -> None:
        """Kept, not raised: the commit that calls back may catch what its callers raise."""
        if not holds:
            self.problems.append(AssertionError(problem))

    def marked(self) -> None:
        # What is marked is in the next round, so the jobs that begin from here on are of another one.
        self.beginning = False

    def begun(self, job: SyncJob) -> None:
        if not self.beginning:
            self.demand(not self.open, f"a round begins with {job.partition!r} while another is in flight")
            self.beginning = True
        self.open.append(job)

    def ended(self, job: SyncJob) -> None:
        self.disk.gate.clear()
        self.open = [each for each in self.open if each is not job]
        self.beginning = False


class WatchedPartition(Partition):
    watch: Watch

    def begin_sync(self) -> SyncJob:
        job = super().begin_sync()
        self.watch.begun(job)
        return job

    def end_sync(self, job: SyncJob, error: OSError | None) -> None:
        self.watch.ended(job)
        super().end_sync(job, error)


class CommitModel(RuleBasedStateMachine):
    @initialize(durable=st.sampled_from([True, True, True, False]))
    def start(self, durable: bool) -> None:
        self.stack = ExitStack()
        shared = Path("/dev/shm")
        folder = TemporaryDirectory(dir=shared if shared.is_dir() else None)
        self.root = Path(self.stack.enter_context(folder))
        self.loop = asyncio.new_event_loop()
        self.disk = GatedDisk(durable=durable)
        self.disk.folders_synced[self.root] = 0
        self.watch = Watch(self.disk)
        self.loop.set_exception_handler(lambda _, context: self.watch.problems.append(context["exception"]))
        self.waiting: set[int] = set()
        self.answers = 0
        self.made = 0
        self.deleted: list[tuple[Partition, bool]] = []
        self.written: dict[Partition, list[tuple[int, Path, int]]] = {}
        self.run(self._make)

    async def _make(self) -> None:
        self.committer = Committer(self.disk, lambda checkpoints: None)
        self.partitions = [self._partition() for _ in range(PARTITIONS)]

    def _partition(self) -> WatchedPartition:
        self.made += 1
        name = f"t{self.made}"
        config = BrokerSettings.parse({}).topic_config({"segment.bytes": str(SEGMENT_BYTES)})
        partition = WatchedPartition(
            topic_name=name, topic_id=UUID(int=self.made), index=0, config=config, folder=self.root / name / "0",
            disk=self.disk, files=FileCache(self.disk, 64), clock=Clock(), changed=self._changed,
        )  # fmt: skip
        partition.watch = self.watch
        self.written[partition] = []
        return partition

    def _changed(self, partition: Partition) -> None:
        self.watch.marked()
        self.committer.mark(partition)

    def run(self, action: Callable[[], object]) -> None:
        """Do something on the loop, then let it run what that has scheduled."""

        async def main() -> None:
            found = action()
            if asyncio.iscoroutine(found):
                await found
            await asyncio.sleep(0)
            await asyncio.sleep(0)

        self.loop.run_until_complete(main())
        if self.watch.problems:
            raise self.watch.problems[0]

    def teardown(self) -> None:
        if not hasattr(self, "stack"):
            return
        try:
            if not self.watch.problems:
                self.run(self._to_the_end)
            if not self.watch.problems:
                for partition in self.partitions:
                    shown = partition.offline or partition.high_watermark == partition.log_end
                    assert shown, f"{partition!r} hides records"
                assert not self.waiting, "somebody was never answered"
        finally:
            self.disk.gate.set()
            self.committer.end_threads()
            self.loop.close()
            # The partitions hold this object and it holds them: their files would stay open until a collection.
            self.partitions.clear()
            self.written.clear()
            self.deleted.clear()
            del self.committer, self.watch
            self.stack.close()

    async def _to_the_end(self) -> None:
        drained = asyncio.create_task(self.committer.drain())
        limit = self.loop.time() + LIMIT
        while not drained.done():
            assert self.loop.time() < limit, "the commit never comes to an end"
            self.disk.gate.set()
            await asyncio.sleep(0)
        assert not self.watch.open, "drained while jobs are synced"

    # -- what clients do

    def _append(self, partition: Partition, chain: list[int]) -> None:
        view = memoryview(bytearray(BATCH))
        try:
            partition.append(view, parse_header(view))
        except ApiError as error:
            self.watch.demand(partition.offline and error.code is ErrorCode.KAFKA_STORAGE_ERROR, f"refused: {error}")
            return
        segment = partition.segments[-1]
        self.written[partition].append((partition.log_end, segment.path, segment.size))
        self.answers += 1
        number, offset = self.answers, partition.log_end
        self.waiting.add(number)

        def acknowledge(error: ApiError | None) -> None:
            self.waiting.remove(number)
            if error is not None:
                self.watch.demand(partition.offline or partition.deleted, f"refused: {error}")
                return
            self._check_acknowledged(partition, offset)
            if chain:
                self._append(self.partitions[chain[0]], chain[1:])

        partition.when_synced(offset, acknowledge)

    def _check_acknowledged(self, partition: Partition, offset: int) -> None:
        self.watch.demand(partition.high_watermark >= offset, "acknowledged and not visible")
        if not self.disk.durable:
            return
        for end, path, size in self.written[partition]:
            if end <= offset:
                synced = self.disk.durable_to(path, self.root) >= size
                self.watch.demand(synced, f"offset {end} of {partition!r} is acknowledged and not synced")

    @rule(number=numbers, chain=chains)
    def append(self, number: int, chain: list[int]) -> None:
        self.run(lambda: self._append(self.partitions[number], chain))

    @rule(number=numbers, other=numbers, chain=chains)
    def append_in_one_turn(self, number: int, other: int, chain: list[int]) -> None:
        self.run(lambda: [self._append(self.partitions[each], chain) for each in (number, other)])

    @rule(number=numbers)
    def roll(self, number: int) -> None:
        if not self.partitions[number].offline:
            self.run(self.partitions[number].roll)

    @rule(number=numbers)
    def delete(self, number: int) -> None:
        """Its files go while they are synced, and another topic takes its place."""

        def act() -> None:
            gone = self.partitions[number]
            offline = gone.offline
            gone.delete()
            shutil.rmtree(gone.folder.parent, ignore_errors=True)
            self.deleted.append((gone, offline))
            self.partitions[number] = self._partition()

        self.run(act)

    # -- what the disk does

    @precondition(lambda self: self.watch.open)
    @rule(failing=st.none() | numbers)
    def finish_round(self, failing: int | None) -> None:
        """The syncs of the round end. The gate is shut again before the next one begins."""

        job = self.watch.open[0]

        async def act() -> None:
            limit = self.loop.time() + LIMIT
            while any(each is job for each in self.watch.open):
                assert self.loop.time() < limit, "the round never ends"
                await asyncio.sleep(0)

        self.disk.failing = None if failing is None else self.partitions[failing].topic_name
        self.disk.gate.set()
        self.run(act)

    @invariant()
    def idle_means_done(self) -> None:
        async def act() -> None:
            drained = asyncio.create_task(self.committer.drain())
            await asyncio.sleep(0)
            idle = drained.done()
            drained.cancel()
            if idle:
                assert not self.watch.open, "idle while jobs are synced"
                for partition in self.partitions:
                    assert partition.offline or partition.high_watermark == partition.log_end
            else:
                assert self.watch.open, "nothing is synced, and something waits"

        self.run(act)

    @invariant()
    def a_deleted_partition_is_not_offline(self) -> None:
        for partition, was_offline in self.deleted:
            assert partition.offline == was_offline, f"{partition!r} was deleted and is reported offline"


QUICK = settings(
    max_examples=60,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def test_the_commit_is_its_model() -> None:
    run_state_machine_as_test(CommitModel, settings=QUICK)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_commit_is_its_model_for_long() -> None:
    run_state_machine_as_test(CommitModel, settings=settings(QUICK, max_examples=600, stateful_step_count=60))
