"""A broker inside this process, on a thread of its own, with a disk and a store of the test's choice."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from headrace.broker.server import Broker
from headrace.broker.storage.files import Disk
from headrace.broker.store import Store
from tests.broker.faults.history import History
from tests.broker.faults.recording import RecordingDisk, RecordingStore

T = TypeVar("T")

DATA = "data"
QUICK = {"group.initial.rebalance.delay.ms": "0"}
AGING = {**QUICK, "log.retention.check.interval.ms": "50"}
"""Of a broker at work: old segments go while it is watched. Where it is checked, they stay."""


class Running:
    """A started broker. What is done to it from outside is run on its loop."""

    def __init__(self, broker: Broker, loop: asyncio.AbstractEventLoop) -> None:
        self.broker = broker
        self.loop = loop
        self.address = (broker.host, broker.port)

    def call(self, function: Callable[[], T]) -> T:
        async def on_loop() -> T:
            return function()

        return self.wait(on_loop())

    def wait(self, work: Coroutine[Any, Any, T], seconds: float = 30.0) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(seconds)

    def open_connections(self) -> int:
        return self.call(lambda: len(self.broker._listener._connections))


@contextmanager
def serving(
    folder: Path,
    *,
    disk: Disk | None = None,
    store: Callable[..., Store] = Store,
    settings: Mapping[str, str] | None = None,
) -> Iterator[Running]:
    """A broker on `folder`/data until the block ends, then stopped cleanly."""
    with abandoned(folder, disk=disk, store=store, settings=settings) as running:
        yield running
        running.wait(running.broker.stop())


@contextmanager
def abandoned(
    folder: Path,
    *,
    disk: Disk | None = None,
    store: Callable[..., Store] = Store,
    settings: Mapping[str, str] | None = None,
) -> Iterator[Running]:
    """The same, but at the end left as it is: nothing is finished, nothing is marked clean."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="broker", daemon=True)
    thread.start()
    try:
        # A function in place of the type lets a test choose the store object by object.
        broker = Broker(
            folder / DATA,
            settings={**QUICK, **(settings or {})},
            disk=disk,
            store_type=store,  # type: ignore[arg-type]
        )
        asyncio.run_coroutine_threadsafe(broker.start(), loop).result(60)
        try:
            yield Running(broker, loop)
        finally:
            asyncio.run_coroutine_threadsafe(_let_go(broker), loop).result(30)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)
        loop.close()


async def _let_go(broker: Broker) -> None:
    """Close what a dead process would no longer hold: sockets, tasks, threads, the lock."""
    listener = broker._listener
    if listener._socket.fileno() >= 0:
        asyncio.get_running_loop().remove_reader(listener._socket.fileno())
        listener._socket.close()
    for connection in list(listener._connections):
        connection.close()
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await asyncio.to_thread(broker.logs._committer.end_threads)
    await asyncio.to_thread(broker.store.close)
    broker._let_go()


def recording(folder: Path, history: History, sync_seconds: float = 0.0) -> dict[str, Any]:
    """The disk and store that keep `history`, as arguments of `serving`."""
    disk = RecordingDisk(folder, history, sync_seconds)
    return {"disk": disk, "store": partial(RecordingStore, disk=disk, sync_seconds=sync_seconds)}
