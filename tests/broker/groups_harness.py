"""A group coordinator on a real store, with a clock that stands still until the test moves it."""

import asyncio
import itertools
import struct
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any, TypeVar

from headrace.broker import topics
from headrace.broker.clock import Clock
from headrace.broker.errors import ApiError, ErrorCode
from headrace.broker.groups import SCHEMA, Groups, Offsets
from headrace.broker.groups.classic.messages import (
    JoinAnswer,
    JoinRequest,
    LeavingMember,
    Protocol,
    SyncAnswer,
    SyncRequest,
)
from headrace.broker.settings import BrokerSettings
from headrace.broker.storage.files import Disk
from headrace.broker.storage.manager import LogManager
from headrace.broker.store import Store, StoreError

T = TypeVar("T")
GROUP = "g"
SESSION_MS = 10_000
REBALANCE_MS = 60_000
DELAY_MS = 3_000


class SteppedLoop(asyncio.SelectorEventLoop):
    """An event loop whose timers see only the time that the test lets pass."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000.0

    def time(self) -> float:
        return self.now


class SteppedClock(Clock):
    def __init__(self, loop: SteppedLoop) -> None:
        super().__init__()
        self._loop = loop
        self._wall_ms = 1_700_000_000_000

    def monotonic(self) -> float:
        return self._loop.now

    def steady_ms(self) -> int:
        return self._wall_ms + int(self._loop.now * 1000)


class FragileStore(Store):
    """The real store, on a disk that can be full."""

    full = False

    def write(self, change: Callable[[Any], T]) -> "asyncio.Future[T]":
        if not self.full:
            return super().write(change)
        failed: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        failed.set_exception(StoreError("database or disk is full"))
        return failed


def run(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[[Path], None]:
    """Make a pytest test of a coroutine that takes a House."""

    def wrapped(tmp_path: Path) -> None:
        loop = SteppedLoop()
        try:
            loop.run_until_complete(_with_house(test, tmp_path))
        finally:
            loop.close()

    wrapped.__name__, wrapped.__doc__ = test.__name__, test.__doc__
    return wrapped


async def _with_house(test: Callable[..., Coroutine[Any, Any, None]], folder: Path) -> None:
    house = House(folder)
    try:
        await test(house)
    finally:
        house.stop()


class House:
    """A broker's groups and offsets. `restart` is a crash: nothing but the store is left."""

    def __init__(self, folder: Path, settings: dict[str, str] | None = None) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SteppedLoop)
        self.loop = loop
        self.folder = folder
        self.clock = SteppedClock(loop)
        self.tasks: set[asyncio.Task[Any]] = set()
        self._start(settings or {})

    def _start(self, settings: dict[str, str]) -> None:
        self.settings = BrokerSettings.parse(settings)
        self.store = FragileStore(self.folder / "metadata.db", durable=False)
        self.store.load(
            lambda connection: [connection.execute(statement) for statement in (topics.SCHEMA + SCHEMA).split(";")]
        )
        self.offsets = Offsets(self.store, self.settings, self.clock)
        self.offsets.load()
        disk = Disk(durable=False)
        logs = LogManager(self.folder, self.store, self.settings, self.clock, disk, unclean=False)
        self.topics = topics.Topics(self.store, self.settings, logs)
        self.topics.load()
        self.groups = Groups(self.store, self.settings, self.clock, self.offsets, self.topics)
        self.groups.load()
        self.store.start()

    def stop(self) -> None:
        self.groups.close()
        self.store.close()
        for task in self.tasks:
            task.cancel()

    async def restart(self, **settings: str) -> None:
        await self.settle()
        self.stop()
        self._start({name.replace("_", "."): value for name, value in settings.items()})

    async def settle(self) -> None:
        """Let everything happen that is due: timers, the store's answers, and what these set off."""
        for _ in range(3):
            for _ in range(4):
                await asyncio.sleep(0)
            try:
                await self.store.write(lambda connection: None)
            except StoreError:
                pass
        for _ in range(4):
            await asyncio.sleep(0)

    async def advance(self, ms: int) -> None:
        """Let time pass, in steps short enough that timers set off by timers keep their order."""
        while ms > 0:
            step = min(ms, 1_000)
            self.loop.now += step / 1000
            ms -= step
            await self.settle()

    def member(self, name: str = "c", **settings: Any) -> "TestMember":
        return TestMember(self, name, **settings)

    async def member_in(self, *names: str, **settings: Any) -> "list[TestMember]":
        """Members that are in the group together, assigned and stable."""
        members = [self.member(name, **settings) for name in names]
        await self.form(members)
        return members

    async def form(self, members: "Iterable[TestMember]") -> None:
        """Bring these members through a rebalance into a stable generation."""
        members = list(members)
        for member in members:
            await member.begin_join()
        await self.advance(2 * DELAY_MS)
        for member in members:
            await member.joined()
        await self.share(members)

    async def share(self, members: "Iterable[TestMember]") -> None:
        """Let the leader assign to each member its own name, and everybody sync."""
        members = list(members)
        for member in members:
            await member.begin_sync(member.shares())
        for member in members:
            answer = await member.synced()
            assert answer.error is ErrorCode.NONE, answer
            assert answer.assignment == member.name.encode(), (answer, member.name)

    def state(self, group_id: str = GROUP) -> str:
        return self.groups.classic.describe(group_id).state


def subscription(*topics: str, extra: bytes = b"") -> bytes:
    """The metadata of a consumer, version 0, as every later version begins too."""
    encoded = b"".join(struct.pack(">h", len(topic.encode())) + topic.encode() for topic in topics)
    return struct.pack(">hi", 0, len(topics)) + encoded + struct.pack(">i", len(extra)) + extra


class TestMember:
    """A client in a group: it remembers what the coordinator told it, as real ones do."""

    __test__ = False

    def __init__(
        self,
        house: House,
        name: str,
        *,
        group_id: str = GROUP,
        instance: str | None = None,
        protocols: tuple[Protocol, ...] | None = None,
        protocol_type: str = "consumer",
        session_ms: int = SESSION_MS,
        rebalance_ms: int = REBALANCE_MS,
        known_id: bool = True,
        skip: bool = True,
    ) -> None:
        self.house = house
        self.name = name
        self.group_id = group_id
        self.instance = instance
        self.protocols = protocols or (Protocol("range", subscription("t")),)
        self.protocol_type = protocol_type
        self.session_ms = session_ms
        self.rebalance_ms = rebalance_ms
        self.known_id = known_id
        self.skip = skip
        self.member_id = ""
        self.generation = -1
        self.answer: JoinAnswer | None = None
        self._joining: asyncio.Task[JoinAnswer] | None = None
        self._syncing: asyncio.Task[SyncAnswer] | None = None

    async def ask_join(self) -> JoinAnswer:
        return await self.house.groups.classic.join(
            JoinRequest(
                group_id=self.group_id,
                member_id=self.member_id,
                group_instance_id=self.instance,
                session_timeout_ms=self.session_ms,
                rebalance_timeout_ms=self.rebalance_ms,
                protocol_type=self.protocol_type,
                protocols=self.protocols,
                client_id=self.name,
                client_host="/127.0.0.1",
                needs_known_id=self.known_id,
                may_skip_assignment=self.skip,
            )
        )

    async def begin_join(self) -> None:
        """Ask to join, coming back with the id if one has to be fetched first. The answer may be long in coming."""
        if self.member_id == "" and self.instance is None and self.known_id:
            answer = await self.ask_join()
            assert answer.error is ErrorCode.MEMBER_ID_REQUIRED, answer
            self.member_id = answer.member_id
        self._joining = self._task(self.ask_join())
        await self.house.settle()

    @property
    def waits(self) -> bool:
        """Whether its join or sync is not answered yet."""
        pending = [task for task in (self._joining, self._syncing) if task is not None]
        return any(not task.done() for task in pending)

    async def join_answer(self) -> JoinAnswer:
        assert self._joining is not None
        await self.house.settle()
        assert self._joining.done(), "no answer to the join"
        answer, self._joining = self._joining.result(), None
        return answer

    async def joined(self) -> JoinAnswer:
        """The answer, which must be there and good."""
        answer = await self.join_answer()
        assert answer.error is ErrorCode.NONE, answer
        self.answer, self.member_id, self.generation = answer, answer.member_id, answer.generation
        return answer

    @property
    def leads(self) -> bool:
        return self.answer is not None and self.answer.leader == self.member_id

    def shares(self) -> dict[str, bytes]:
        """What the leader assigns: each member's name, which its id begins with."""
        if self.answer is None or not self.leads or self.answer.skip_assignment:
            return {}
        return {m.member_id: m.member_id.rsplit("-", 5)[0].encode() for m in self.answer.members}

    async def begin_sync(self, assignments: dict[str, bytes] | None = None) -> None:
        self._syncing = self._task(
            self.house.groups.classic.sync(
                SyncRequest(
                    group_id=self.group_id,
                    member_id=self.member_id,
                    generation=self.generation,
                    group_instance_id=self.instance,
                    assignments=tuple((assignments or {}).items()),
                )
            )
        )
        await self.house.settle()

    async def synced(self) -> SyncAnswer:
        assert self._syncing is not None
        await self.house.settle()
        assert self._syncing.done(), "no answer to the sync"
        answer, self._syncing = self._syncing.result(), None
        return answer

    def hang_up(self) -> None:
        """The connection of the waiting request breaks."""
        for task in (self._joining, self._syncing):
            if task is not None:
                task.cancel()
        self._joining = self._syncing = None

    def heartbeat(self) -> ErrorCode:
        try:
            self.house.groups.classic.heartbeat(self.group_id, self.member_id, self.generation, self.instance)
        except ApiError as error:
            return error.code
        return ErrorCode.NONE

    def commit_code(self, *, transactional: bool = False) -> ErrorCode:
        try:
            self.house.groups.classic.check_commit(
                self.group_id, self.member_id, self.generation, self.instance, transactional
            )
        except ApiError as error:
            return error.code
        return ErrorCode.NONE

    async def leave(self) -> ErrorCode:
        (code,) = await self.house.groups.classic.leave(self.group_id, [LeavingMember(self.member_id, self.instance)])
        return code

    def _task(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        task = asyncio.get_running_loop().create_task(work)
        self.house.tasks.add(task)
        return task


async def keep_alive(house: House, ms: int, *members: TestMember) -> None:
    """Let time pass while these members send heartbeats."""
    for _ in itertools.repeat(None, max(ms // 1_000, 1)):
        await house.advance(1_000)
        for member in members:
            member.heartbeat()
