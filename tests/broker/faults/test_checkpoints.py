"""Promise 2 and 3: what a checkpoint leaves out must be found in the log, and what it refers to must be there."""

import sqlite3
import threading
from functools import partial
from pathlib import Path
from typing import Any

from headrace.broker.store import Store, _Change
from tests.broker.faults.batches import encode
from tests.broker.faults.client import EARLIEST, LATEST, Client
from tests.broker.faults.harness import Running, abandoned
from tests.broker.faults.history import History
from tests.broker.faults.lives import scratch
from tests.broker.faults.powerloss import Loss, image_after
from tests.broker.faults.recording import FaultyRecordingDisk, RecordingStore


def checkpoint(running: Running) -> None:
    """Have a checkpoint made, and wait until the store has it."""
    running.wait(running.broker.logs._checkpoint())
    running.wait(_settled(running.broker.store))


def test_a_log_emptied_to_its_checkpoint_while_the_next_segment_is_begun() -> None:
    """The checkpoint still names the segment that was deleted, and the next one is not yet synced."""
    history = History()
    go = threading.Event()
    go.set()

    def hold(operation: str, path: Path) -> None:
        if operation == "sync" and path.suffix == ".log":
            assert go.wait(30)

    with scratch() as folder:
        disk = FaultyRecordingDisk(folder, history, fault=hold)
        with (
            abandoned(folder, disk=disk, store=partial(RecordingStore, disk=disk)) as running,
            Client(running.address) as client,
            Client(running.address) as other,
        ):
            client.create_topic("t", 1, {"segment.bytes": "1000"})
            producer = client.init_producer()
            assert client.produce("t", 0, encode([b"a" * 600], *producer, 0)) == 0
            checkpoint(running)
            go.clear()
            waiting = client.send_produce("t", 0, encode([b"b" * 600], *producer, 1))
            while running.call(lambda: running.broker.topics.partition("t", 0).log_end) < 2:  # type: ignore[union-attr]
                pass
            assert other.delete_records("t", 0, 1) == 1
            unsynced = history.kill()
            go.set()
            assert client.receive_produce(waiting) == 1
    for loss, end in ((Loss.NONE_KEPT, 1), (Loss.ALL_KEPT, 2)):
        with scratch() as folder:
            image_after(unsynced, unsynced.now(), loss).write_to(folder)
            with abandoned(folder) as running, Client(running.address) as client:
                assert client.offset("t", 0, EARLIEST) == 1
                assert client.offset("t", 0, LATEST) == end
                assert client.produce("t", 0, encode([b"a" * 600], *producer, 0)) == 0, "a retry keeps its offset"
                assert client.produce("t", 0, encode([b"b" * 600], *producer, 1)) == 1
                assert client.read("t", 0).records == {1: b"b" * 600}


def test_a_checkpoint_that_was_not_saved_is_made_up_for(tmp_path: Path) -> None:
    """The store was full for the checkpoint of one roll and took that of the next; then the process was killed."""
    with abandoned(tmp_path) as running, Client(running.address) as client:
        client.create_topic("t", 1, {"segment.bytes": "1000"})
        assert client.produce("t", 0, encode([b"a" * 100])) == 0
        checkpoint(running)
        store = running.broker.store
        commit, go, commits = store._commit, threading.Event(), []

        def refuse_the_first(changes: list[Any]) -> None:
            assert go.wait(30)
            commits.append(len(changes))
            if len(commits) == 1:
                (pages,) = store._connection.execute("PRAGMA page_count").fetchone()
                store._connection.execute(f"PRAGMA max_page_count={pages}")
                changes.insert(0, _Change(_fill_up, store._loop.create_future()))
                commit(changes)
                store._connection.execute("PRAGMA max_page_count=1073741823")
            else:
                commit(changes)

        store._commit = refuse_the_first  # type: ignore[method-assign]
        for number in range(1, 5):
            assert client.produce("t", 0, encode([b"b" * 600])) == number
        go.set()
        running.wait(_settled(store))
        assert len(commits) >= 2
    with abandoned(tmp_path) as running, Client(running.address) as client:
        assert len(client.read("t", 0).records) == 5


async def _settled(store: Store) -> None:
    await store.write(lambda connection: None)


def _fill_up(connection: sqlite3.Connection) -> None:
    connection.execute("CREATE TABLE filler AS SELECT randomblob(1000000)")
