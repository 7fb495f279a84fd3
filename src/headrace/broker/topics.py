"""The topics there are: made, altered, deleted, and kept in the store."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from uuid import UUID

from headrace.broker.errors import ApiError, ErrorCode
from headrace.broker.settings import BrokerSettings, InvalidSetting, TopicConfig
from headrace.broker.storage.checkpoint import forget_topic
from headrace.broker.store import Store, StoreError
from headrace.broker.topic_names import INTERNAL, check_name, collision_key

if TYPE_CHECKING:
    from headrace.broker.storage.manager import LogManager
    from headrace.broker.storage.partition import Partition

T = TypeVar("T")

SCHEMA = """
CREATE TABLE IF NOT EXISTS topics (
    id BLOB NOT NULL PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    partitions INTEGER NOT NULL,
    overrides TEXT NOT NULL
) STRICT, WITHOUT ROWID;
"""

# Kafka's bound on the partitions of one request: each is a folder, and making them holds everybody up.
MAX_NEW_PARTITIONS = 10_000
# So many partitions are opened before the others of the loop get their turn.
_OPENED_AT_ONCE = 100


class Forgetting(Protocol):
    """What else goes when a topic goes."""

    def write(self, connection: sqlite3.Connection) -> None:
        """Run inside the transaction that removes the topic."""

    def apply(self) -> None:
        """Run on the loop once that is durable."""

    def abandon(self) -> None:
        """Run on the loop if it could not be made durable: the topic stays."""


@dataclass(eq=False, slots=True)
class Topic:
    name: str
    id: UUID
    partitions: list[Partition]
    config: TopicConfig
    overrides: dict[str, str]


class Topics:
    """The registry. Everything it says is durable: a change is seen once the store has it."""

    def __init__(self, store: Store, settings: BrokerSettings, logs: LogManager) -> None:
        self._store = store
        self._settings = settings
        self._logs = logs
        self._by_name: dict[str, Topic] = {}
        self._by_id: dict[UUID, Topic] = {}
        self._taken: dict[str, str] = {}
        self._busy: dict[str, asyncio.Event] = {}
        self._changes: set[asyncio.Task[Any]] = set()
        self.version = 0
        """Rises at each change: answers made of topics are cached by it."""
        self.forgetters: list[Callable[[str], Forgetting]] = []
        """Asked at each deletion, with the topic's name."""

    def load(self) -> None:
        """Bring back every topic of the store, before anything is served."""
        rows = self._store.load(
            lambda c: c.execute("SELECT id, name, partitions, overrides FROM topics ORDER BY name").fetchall()
        )
        for raw_id, name, count, overrides_json in rows:
            topic_id = UUID(bytes=raw_id)
            overrides: dict[str, str] = json.loads(overrides_json)
            try:
                config = self._settings.topic_config(overrides)
            except InvalidSetting as error:
                raise InvalidSetting(f"topic {name} cannot be served: {error}") from error
            partitions = [self._logs.open(name, topic_id, index, config) for index in range(count)]
            self._add(Topic(name, topic_id, partitions, config, overrides))

    def get(self, name: str) -> Topic | None:
        return self._by_name.get(name)

    def by_id(self, id: UUID) -> Topic | None:
        return self._by_id.get(id)

    def all(self) -> Iterable[Topic]:
        return self._by_name.values()

    def partition(self, name: str, index: int) -> Partition | None:
        topic = self._by_name.get(name)
        if topic is None or not 0 <= index < len(topic.partitions):
            return None
        return topic.partitions[index]

    def check_new(self, name: str) -> None:
        """Raise ApiError if no topic of this name can be made now."""
        check_name(name)
        if name in INTERNAL:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Creation of internal topic {name} is prohibited.")
        if name in self._by_name:
            raise ApiError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
        other = self._taken.get(collision_key(name))
        if other is not None:
            raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic '{name}' collides with existing topic: {other}")

    async def create(
        self,
        name: str,
        partitions: int = -1,
        overrides: Mapping[str, str] | None = None,
        validate_only: bool = False,
    ) -> Topic:
        """Make a topic; -1 partitions are the broker's default. Validated only, it is not there after."""
        return await self._to_the_end(self._create(name, partitions, dict(overrides or {}), validate_only))

    async def delete(self, topic: Topic) -> None:
        """Remove a topic for good, with all that belongs to it."""
        await self._to_the_end(self._delete(topic))

    async def add_partitions(self, topic: Topic, total: int, validate_only: bool = False) -> None:
        """Raise the number of a topic's partitions to `total`."""
        await self._to_the_end(self._add_partitions(topic, total, validate_only))

    async def alter_config(
        self,
        topic: Topic,
        change: Callable[[Mapping[str, str]], Mapping[str, str]],
        validate_only: bool = False,
    ) -> None:
        """Replace a topic's overrides by what `change` makes of them; in force at once."""
        await self._to_the_end(self._alter_config(topic, change, validate_only))

    async def settle(self) -> None:
        """Wait for changes under way, those included whose client has gone."""
        while self._changes:
            await asyncio.wait(self._changes)

    async def _create(self, name: str, count: int, overrides: dict[str, str], validate_only: bool) -> Topic:
        async with self._alone(name):
            self.check_new(name)
            if count == -1:
                count = self._settings.num_partitions
            if count < 1:
                raise ApiError(
                    ErrorCode.INVALID_PARTITIONS,
                    "Number of partitions was set to an invalid non-positive value.",
                )
            _check_number(count)
            config = self._config(overrides)
            topic = Topic(name, uuid.uuid4(), [], config, overrides)
            if validate_only:
                return topic
            row = (topic.id.bytes, name, count, json.dumps(overrides))
            await self._write(
                lambda c: c.execute("INSERT INTO topics (id, name, partitions, overrides) VALUES (?, ?, ?, ?)", row)
            )
            await self._open(topic, count)
            self._add(topic)
            return topic

    async def _delete(self, topic: Topic) -> None:
        async with self._alone(topic.name):
            self._check_there(topic)
            forgettings = [forget(topic.name) for forget in self.forgetters]

            def remove(connection: sqlite3.Connection) -> None:
                connection.execute("DELETE FROM topics WHERE id = ?", (topic.id.bytes,))
                forget_topic(connection, topic.id)
                for forgetting in forgettings:
                    forgetting.write(connection)

            try:
                await self._write(remove)
            except BaseException:
                for forgetting in forgettings:
                    forgetting.abandon()
                raise
            del self._by_name[topic.name], self._by_id[topic.id], self._taken[collision_key(topic.name)]
            self.version += 1
            for forgetting in forgettings:
                forgetting.apply()
            # Until its folder is gone the name stays taken: a new topic's folder lies in the same one.
            await self._logs.delete(topic.partitions)

    async def _add_partitions(self, topic: Topic, total: int, validate_only: bool) -> None:
        async with self._alone(topic.name):
            self._check_there(topic)
            current = len(topic.partitions)
            if total == current:
                raise ApiError(ErrorCode.INVALID_PARTITIONS, f"Topic already has {current} partition(s).")
            if total < current:
                raise ApiError(
                    ErrorCode.INVALID_PARTITIONS,
                    f"The topic {topic.name} currently has {current} partition(s); {total} would not be an increase.",
                )
            _check_number(total - current)
            if validate_only:
                return
            row = (total, topic.id.bytes)
            await self._write(lambda c: c.execute("UPDATE topics SET partitions = ? WHERE id = ?", row))
            await self._open(topic, total)
            self.version += 1

    async def _alter_config(
        self, topic: Topic, change: Callable[[Mapping[str, str]], Mapping[str, str]], validate_only: bool
    ) -> None:
        async with self._alone(topic.name):
            self._check_there(topic)
            overrides = dict(change(topic.overrides))
            config = self._config(overrides)
            if validate_only or overrides == topic.overrides:
                return
            row = (json.dumps(overrides), topic.id.bytes)
            await self._write(lambda c: c.execute("UPDATE topics SET overrides = ? WHERE id = ?", row))
            topic.overrides, topic.config = overrides, config
            for partition in topic.partitions:
                partition.config = config
            self.version += 1

    def _add(self, topic: Topic) -> None:
        self._by_name[topic.name] = self._by_id[topic.id] = topic
        self._taken[collision_key(topic.name)] = topic.name
        self.version += 1

    def _check_there(self, topic: Topic) -> None:
        if self._by_id.get(topic.id) is not topic:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{topic.name}' does not exist.")

    def _config(self, overrides: Mapping[str, str]) -> TopicConfig:
        try:
            return self._settings.topic_config(overrides)
        except InvalidSetting as error:
            raise ApiError(ErrorCode.INVALID_CONFIG, str(error)) from error

    async def _open(self, topic: Topic, total: int) -> None:
        """Open the partitions that `topic` still lacks: new ones, so nothing is read and no folder is made yet."""
        opened: list[Partition] = []
        for index in range(len(topic.partitions), total):
            opened.append(self._logs.open(topic.name, topic.id, index, topic.config))
            if len(opened) % _OPENED_AT_ONCE == 0:
                await asyncio.sleep(0)
        topic.partitions += opened

    async def _write(self, change: Callable[[sqlite3.Connection], object]) -> None:
        try:
            await self._store.write(change)
        except StoreError as error:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error

    @asynccontextmanager
    async def _alone(self, name: str) -> AsyncIterator[None]:
        """One change at a time for a name and all that collide with it."""
        key = collision_key(name)
        while (busy := self._busy.get(key)) is not None:
            await busy.wait()
        free = self._busy[key] = asyncio.Event()
        try:
            yield
        finally:
            del self._busy[key]
            free.set()

    async def _to_the_end(self, change: Coroutine[Any, Any, T]) -> T:
        """Finish a change even if whoever asked has gone: half of one would set memory and store at odds."""
        task = asyncio.ensure_future(change)
        self._changes.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._changes.discard(task)
        if not task.cancelled():
            task.exception()  # seen, so that a refusal nobody waits for is not reported as lost


def _check_number(partitions: int) -> None:
    if partitions > MAX_NEW_PARTITIONS:
        raise ApiError(
            ErrorCode.POLICY_VIOLATION,
            f"Excessively large number of partitions: {partitions}; at most {MAX_NEW_PARTITIONS} at once.",
        )
