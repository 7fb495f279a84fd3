"""A transaction coordinator on a real store, over partitions held in memory that can fail, vanish and forget."""

import asyncio
import sqlite3
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast
from uuid import UUID, uuid4

from headrace.broker import groups
from headrace.broker.clock import Clock
from headrace.broker.errors import ApiError, ErrorCode
from headrace.broker.groups import Groups
from headrace.broker.groups.offsets import Offsets
from headrace.broker.settings import BrokerSettings
from headrace.broker.storage.partition import Partition
from headrace.broker.store import Store, StoreError
from headrace.broker.topics import Topics
from headrace.broker.transactions import SCHEMA, Producer, TransactionCoordinator
from headrace.broker.transactions.state import State

T = TypeVar("T")

MINUTE = 60_000
TP0, TP1 = ("t", 0), ("t", 1)


class ManualClock(Clock):
    """Goes only when told to."""

    def __init__(self) -> None:
        super().__init__()
        self.ahead = 0.0

    def advance(self, seconds: float) -> None:
        self.ahead += seconds

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead

    def steady_ms(self) -> int:
        return super().steady_ms() + int(self.ahead * 1000)


class Fate:
    """When the process dies: at its n-th step, before or after that step took effect. Then nothing answers any more."""

    def __init__(self) -> None:
        self.steps_left: int | None = None
        self.after = False
        self.dead = asyncio.Event()

    def dies_in(self, steps: int | None, *, after: bool) -> None:
        self.steps_left, self.after = steps, after

    def step(self) -> bool | None:
        """True: it happens and is answered. None: it happens, and nobody hears of it. False: it does not happen."""
        if self.dead.is_set():
            return False
        if self.steps_left is None:
            return True
        if self.steps_left > 0:
            self.steps_left -= 1
            return True
        self.dead.set()
        return None if self.after else False


class MortalStore(Store):
    """The real store, of a process that can die, on a disk that can be full."""

    fate: Fate
    full = False
    writes_left: int | None = None
    """How many more changes fit on the disk."""

    def write(self, change: Callable[[Any], T]) -> "asyncio.Future[T]":
        outcome = self.fate.step()
        silence: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        if outcome is False:
            return silence
        if self.writes_left is not None:
            self.full = self.writes_left <= 0
            self.writes_left -= 1
        if self.full:
            silence.set_exception(StoreError("database or disk is full"))
            return silence
        written = super().write(change)
        return written if outcome else silence


class Record(NamedTuple):
    producer: Producer
    value: str | None
    commit: bool | None = None
    """Of a marker: which one."""


class MemoryPartition:
    """What the coordinator needs of a partition."""

    def __init__(self, topic_name: str, topic_id: UUID, index: int) -> None:
        self.topic_name = topic_name
        self.topic_id = topic_id
        self.index = index
        self.log: list[Record] = []
        self.durable = 0
        self.failing: ErrorCode | None = None
        self.when_asked: Callable[[], None] = lambda: None
        self.fate = Fate()

    def produce(self, producer: Producer, value: str) -> None:
        self.log.append(Record(producer, value))

    def append_marker(self, producer_id: int, producer_epoch: int, commit: bool) -> "asyncio.Future[None]":
        return self._done(Record(Producer(producer_id, producer_epoch), None, commit))

    def synced(self) -> "asyncio.Future[None]":
        return self._done(None)

    def _done(self, record: Record | None) -> "asyncio.Future[None]":
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        outcome = self.fate.step()
        if outcome is False:
            return done
        self.when_asked()
        if self.failing is not None:
            done.set_exception(ApiError(self.failing))
            return done
        if record is not None:
            self.log.append(record)
        self.durable = len(self.log)
        if outcome:
            done.set_result(None)
        return done

    def lose_unsynced(self) -> None:
        del self.log[self.durable :]

    def transaction_start(self, producer_id: int) -> int | None:
        start = None
        for offset, record in enumerate(self.log):
            if record.producer.id == producer_id:
                start = None if record.commit is not None else (offset if start is None else start)
        return start

    def read(self) -> dict[str, str]:
        """Each value with what became of it: open, committed or aborted."""
        fates: dict[str, str] = {}
        open_values: dict[int, list[str]] = {}
        for record in self.log:
            if record.value is not None:
                fates[record.value] = "open"
                open_values.setdefault(record.producer.id, []).append(record.value)
            else:
                for value in open_values.pop(record.producer.id, []):
                    fates[value] = "committed" if record.commit else "aborted"
        return fates

    @property
    def markers(self) -> list[Record]:
        return [record for record in self.log if record.value is None]


class MemoryTopics:
    def __init__(self) -> None:
        self.partitions: dict[tuple[str, int], MemoryPartition] = {}

    def make(self, name: str, count: int) -> list[MemoryPartition]:
        topic_id = uuid4()
        made = [MemoryPartition(name, topic_id, index) for index in range(count)]
        self.partitions |= {(name, each.index): each for each in made}
        return made

    def delete(self, name: str) -> None:
        self.partitions = {key: each for key, each in self.partitions.items() if key[0] != name}

    def partition(self, name: str, index: int) -> Partition | None:
        return cast("Partition | None", self.partitions.get((name, index)))


class House:
    """A coordinator with all it lives on, which can be stopped, killed and started again."""

    def __init__(self, folder: Path | None = None, **settings: str) -> None:
        self._temporary = tempfile.TemporaryDirectory() if folder is None else None
        self.folder = folder or Path(self._temporary.name if self._temporary else "")
        self.settings = BrokerSettings.parse({name.replace("_", "."): value for name, value in settings.items()})
        self.topics = MemoryTopics()
        self.clock = ManualClock()

    async def start(self) -> "House":
        """Start or, after `kill` or `stop`, start again."""
        self.fate = Fate()
        for partition in self.topics.partitions.values():
            partition.fate = self.fate
        self.store = MortalStore(self.folder / "meta.db", durable=False)
        self.store.fate = self.fate
        self.store.load(_make_tables)
        self.offsets = Offsets(self.store, self.settings, self.clock)
        self.offsets.load()
        self.groups = Groups(self.store, self.settings, self.clock, self.offsets, cast(Topics, self.topics))
        self.groups.load()
        self.coordinator = TransactionCoordinator(
            self.store, self.settings, self.clock, cast(Topics, self.topics), self.offsets, self.groups.classic
        )
        self.coordinator.load()
        self.store.start()
        await self.coordinator.recover()
        return self

    def make_topic(self, name: str, count: int = 1) -> list[MemoryPartition]:
        made = self.topics.make(name, count)
        for partition in made:
            partition.fate = self.fate
        return made

    def stop(self) -> None:
        self.coordinator.close()
        self.groups.close()
        self.store.close()

    async def kill(self) -> None:
        """Stop without a word; what was not synced is lost."""
        self.fate.dead.set()
        self.stop()
        for task in list(self.coordinator._working):
            task.cancel()
        await self.coordinator.settle()
        assert not self.coordinator._working
        for partition in self.topics.partitions.values():
            partition.lose_unsynced()

    async def restart(self) -> None:
        self.stop()
        await self.start()

    async def survives(self, request: "asyncio.Task[Any]") -> bool:
        """Wait for the end of the request or of the process; whether it was the request's."""
        dead = asyncio.create_task(self.fate.dead.wait())
        await asyncio.wait([request, dead], return_when=asyncio.FIRST_COMPLETED)
        dead.cancel()
        return request.done()


def _make_tables(connection: sqlite3.Connection) -> None:
    for schema in (SCHEMA, groups.SCHEMA):
        for statement in schema.split(";"):
            connection.execute(statement)


def code_of(error: BaseException) -> ErrorCode:
    assert isinstance(error, ApiError), error
    return error.code


def housed(**settings: str) -> Callable[[Callable[[House], Coroutine[Any, Any, None]]], Callable[[], None]]:
    """Run a test in a house of its own."""

    def decorate(test: Callable[[House], Coroutine[Any, Any, None]]) -> Callable[[], None]:
        def run() -> None:
            asyncio.run(inside())

        async def inside() -> None:
            house = await House(**settings).start()
            try:
                await test(house)
            finally:
                house.stop()

        run.__name__ = test.__name__
        run.__doc__ = test.__doc__
        return run

    return decorate


class Refused:
    """`with refused(code):` - the coordinator must answer with that error."""

    def __init__(self, code: ErrorCode) -> None:
        self._code = code

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        assert isinstance(error, ApiError), f"expected {self._code.name}, got {error!r}"
        assert error.code is self._code
        return True


refused = Refused


async def opened(house: House, name: str = "x", value: str = "v") -> Producer:
    """A producer with a transaction open on t-0, with one value in it."""
    if house.topics.partition("t", 0) is None:
        house.make_topic("t", 2)
    producer = await house.coordinator.init_producer_id(name, MINUTE)
    await house.coordinator.add_partitions(name, producer, [TP0])
    house.topics.partitions[TP0].produce(producer, value)
    return producer


def state_of(house: House, name: str = "x") -> State:
    transaction = house.coordinator.get(name)
    assert transaction is not None
    return transaction.state


async def until(condition: Callable[[], bool], limit: float = 5.0) -> None:
    async with asyncio.timeout(limit):
        while not condition():
            await asyncio.sleep(0.01)
