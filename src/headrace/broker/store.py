"""The metadata that must change atomically, in one SQLite file, on a thread of its own."""

import asyncio
import os
import queue
import sqlite3
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

FULL_DISK = 13  # SQLITE_FULL


class StoreError(Exception):
    """The change was not committed, and nothing of it is there."""


@dataclass(slots=True)
class _Change:
    run: Callable[[sqlite3.Connection], Any]
    done: asyncio.Future[Any]
    result: Any = None
    error: BaseException | None = None


class Store:
    """Changes are run in the order they came; all that wait are committed together, and return once that is durable."""

    def __init__(self, path: Path, *, durable: bool = True) -> None:
        created = not path.exists()
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._connection.execute("PRAGMA journal_mode=WAL")
        self._connection.execute(f"PRAGMA synchronous={'FULL' if durable else 'OFF'}")
        # A commit whose sync failed may sit in the page cache only. Rewriting the log into the file makes it real.
        self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        if created and durable:
            folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
            os.fsync(folder)
            os.close(folder)
        self._queue: queue.SimpleQueue[_Change | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._failed: str | None = None

    def load(self, query: Callable[[sqlite3.Connection], T]) -> T:
        """Run `query` at once, in a transaction of its own: for the start, before anything is served."""
        assert self._thread is None, "load is for the start; use write"
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            result = query(self._connection)
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")
        return result

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._work, name="headrace-store", daemon=True)
        self._thread.start()

    def write(self, change: Callable[[sqlite3.Connection], T]) -> asyncio.Future[T]:
        done: asyncio.Future[T] = self._loop.create_future()
        if self._failed:
            done.set_exception(StoreError(self._failed))
        else:
            self._queue.put(_Change(change, done))
        return done

    def close(self) -> None:
        """Commit what waits, then close the file."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None
        self._connection.close()

    def _work(self) -> None:
        open_for_more = True
        while open_for_more:
            batch = [self._queue.get()]
            while not self._queue.empty():
                batch.append(self._queue.get())
            changes = [change for change in batch if change is not None]
            open_for_more = len(changes) == len(batch)
            if changes:
                self._commit(changes)
                self._loop.call_soon_threadsafe(self._answer, changes)

    def _commit(self, changes: list[_Change]) -> None:
        connection = self._connection
        try:
            if self._failed:
                raise StoreError(self._failed)
            connection.execute("BEGIN IMMEDIATE")
            for change in changes:
                connection.execute("SAVEPOINT change")
                try:
                    result = change.run(connection)
                    # A cursor that ends its life on another thread resets a statement that is in use on this one.
                    change.result = None if isinstance(result, sqlite3.Cursor) else result
                    del result
                except sqlite3.OperationalError:
                    raise
                except Exception as error:  # a defect or a refusal of this change alone
                    change.error = error
                    connection.execute("ROLLBACK TO change")
                connection.execute("RELEASE change")
            connection.execute("COMMIT")
        except (sqlite3.Error, StoreError) as error:
            if getattr(error, "sqlite_errorcode", FULL_DISK) & 0xFF != FULL_DISK and not self._failed:
                # After a failed write or sync the file cannot be trusted by this process any more.
                self._failed = f"the metadata store failed ({error}): restart the broker to recover it"
            self._roll_back()
            for change in changes:
                change.error = StoreError(str(error))

    def _roll_back(self) -> None:
        try:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except sqlite3.Error as error:
            # The thread must live on, or all that wait would wait for ever.
            self._failed = f"the metadata store failed ({error}): restart the broker to recover it"

    @staticmethod
    def _answer(changes: list[_Change]) -> None:
        for change in changes:
            if change.done.cancelled():
                continue
            if change.error is not None:
                change.done.set_exception(change.error)
            else:
                change.done.set_result(change.result)
