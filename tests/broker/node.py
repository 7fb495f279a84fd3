"""The parts of a broker below its sockets, real ones on a real folder, for tests that need no client."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import wraps
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from headrace.broker import groups
from headrace.broker.clock import Clock
from headrace.broker.groups import Groups
from headrace.broker.groups.offsets import Offsets
from headrace.broker.settings import BrokerSettings
from headrace.broker.storage import checkpoint
from headrace.broker.storage.batch import build, parse_header
from headrace.broker.storage.files import Disk
from headrace.broker.storage.manager import LogManager
from headrace.broker.storage.partition import Partition
from headrace.broker.store import Store
from headrace.broker.topics import SCHEMA, Topics
from headrace.broker.wire import codec
from headrace.broker.wire.apis import APIS
from headrace.broker.wire.handlers import RequestContext, dispatch

NO_ID = UUID(int=0)
# Its length, attributes, two deltas, no key, the value "x", no headers.
RECORD = b"\x0e\x00\x00\x00\x01\x02x\x00"
KEYS = {api.name: api.key for api in APIS.values()}


class Node:
    """Answers requests as the broker does, through the codec and the handlers. Made inside a running loop."""

    def __init__(self, folder: Path, settings: Mapping[str, str], *, unclean: bool = False) -> None:
        self.data = folder
        self.settings = BrokerSettings.parse(settings)
        self.clock = Clock()
        self.store = Store(folder / "metadata.db")
        statements = ";".join((SCHEMA, checkpoint.SCHEMA, groups.SCHEMA)).split(";")
        self.store.load(lambda connection: [connection.execute(statement) for statement in statements])
        self.logs = LogManager(folder, self.store, self.settings, self.clock, Disk(), unclean=unclean)
        self.logs.load()
        self.topics = Topics(self.store, self.settings, self.logs)
        self.topics.load()
        self.logs.finish_loading()
        self.offsets = Offsets(self.store, self.settings, self.clock)
        self.offsets.load()
        self.topics.forgetters.append(self.offsets.forget_topic)
        self.groups = Groups(self.store, self.settings, self.clock, self.offsets, self.topics)
        self.groups.load()
        self.node_id, self.cluster_id, self.advertised = 1, "a-cluster", ("127.0.0.1", 9092)
        self.store.start()
        self.logs.start()

    async def close(self) -> None:
        self.groups.close()
        await self.topics.settle()
        await self.logs.close()
        self.store.close()

    async def call(self, name: str, version: int, body: Mapping[str, Any]) -> SimpleNamespace:
        key = KEYS[name]
        request = codec.read_request(key, version, memoryview(codec.write_request(key, version, body)))
        answer: Any = await dispatch(self, key, request, RequestContext(version, "test", "127.0.0.1"))  # type: ignore[arg-type]
        written = answer if isinstance(answer, bytes) else codec.write_response(key, version, answer)
        return codec.read_response(key, version, memoryview(written))

    def partition(self, name: str, index: int = 0) -> Partition:
        found = self.topics.partition(name, index)
        assert found is not None
        return found

    async def write(self, name: str, *timestamps: int, index: int = 0) -> None:
        """Append a batch with one record for each timestamp, and wait until readers see it."""
        partition = self.partition(name, index)
        for timestamp in timestamps:
            batch = build(RECORD, attributes=0, count=1, base_timestamp=timestamp, max_timestamp=timestamp)
            partition.append(memoryview(batch), parse_header(batch))
        await partition.synced()


def on_node(**settings: str) -> Callable[[Callable[[Node], Awaitable[None]]], Callable[[Path], None]]:
    """Run a coroutine test on a node of its own; `num_partitions="3"` sets num.partitions."""
    given = {name.replace("_", "."): value for name, value in settings.items()}

    def decorate(test: Callable[[Node], Awaitable[None]]) -> Callable[[Path], None]:
        @wraps(test)
        def run(tmp_path: Path) -> None:
            async def main() -> None:
                node = Node(tmp_path, given)
                try:
                    await test(node)
                finally:
                    await node.close()

            asyncio.run(main())

        del run.__wrapped__  # pytest would ask for the parameters of the wrapped one
        return run

    return decorate
