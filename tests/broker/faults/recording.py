"""A disk and a store that keep the history of what they did."""

import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path, PurePath
from typing import Any, TypeVar

from headrace.broker.storage.files import Disk
from headrace.broker.store import Store
from tests.broker.faults.faulty import FaultyDisk
from tests.broker.faults.history import Commit, History, Sync, SyncFailed, SyncFolder, Truncate, Write

T = TypeVar("T")


class RecordingDisk(Disk):
    """Logs each change once it is done. Syncs last `sync_seconds` or more, so that an early answer shows."""

    def __init__(self, root: Path, history: History, sync_seconds: float = 0.0, **rest: Any) -> None:
        super().__init__(**rest)
        self.history = history
        self._root = root
        self._sync_seconds = sync_seconds
        self._files: dict[int, int] = {}

    def relative(self, path: Path) -> PurePath:
        return path.relative_to(self._root)

    def make_folder(self, path: Path) -> None:
        with self.history.lock:
            super().make_folder(path)
            self.history.link(self.relative(path), is_folder=True)

    def create(self, path: Path) -> int:
        with self.history.lock:
            file = super().create(path)
            self._files[file] = self.history.link(self.relative(path), is_folder=False)
            return file

    def open(self, path: Path) -> int:
        with self.history.lock:
            file = super().open(path)
            self._files[file] = self.history.node(self.relative(path))
            return file

    def close(self, file: int) -> None:
        with self.history.lock:
            super().close(file)
            del self._files[file]

    def write(self, file: int, data: memoryview | bytes, position: int) -> None:
        try:
            super().write(file, data, position)
        except OSError:
            left = os.pread(file, len(data), position)
            self.history.add(Write(self._files[file], position, left))
            raise
        self.history.add(Write(self._files[file], position, bytes(data)))

    def truncate(self, file: int, size: int) -> None:
        super().truncate(file, size)
        self.history.add(Truncate(self._files[file], size))

    def sync(self, file: int) -> None:
        self._record_sync(file, super().sync, attributes=False)

    def sync_all(self, file: int) -> None:
        self._record_sync(file, super().sync_all, attributes=True)

    def _record_sync(self, file: int, sync: Callable[[int], None], *, attributes: bool) -> None:
        node, began = self._files[file], self.history.now()
        try:
            sync(file)
        except OSError:
            self.history.add(SyncFailed(node))
            raise
        time.sleep(self._sync_seconds)
        self.history.add(Sync(node, began, attributes))

    def sync_folder(self, path: Path) -> None:
        if not path.is_relative_to(self._root):
            return
        node, began = self.history.node(self.relative(path)), self.history.now()
        super().sync_folder(path)
        time.sleep(self._sync_seconds)
        self.history.add(SyncFolder(node, began))

    def remove(self, path: Path) -> None:
        with self.history.lock:
            super().remove(path)
            self.history.unlink(self.relative(path))

    def remove_folder(self, path: Path) -> None:
        with self.history.lock:
            super().remove_folder(path)
            self.history.unlink(self.relative(path))


class FaultyRecordingDisk(RecordingDisk, FaultyDisk):
    """Fails as told by its `fault`, and keeps the history of that as well."""


class RecordingStore(Store):
    """Logs the whole database after each commit. That SQLite keeps it is proven elsewhere, with strace."""

    def __init__(self, path: Path, *, disk: RecordingDisk, sync_seconds: float = 0.0, durable: bool = True) -> None:
        self._disk = disk
        self._path = disk.relative(path)
        self._sync_seconds = sync_seconds
        self._last: bytes | None = None
        began = disk.history.now()
        super().__init__(path, durable=durable)
        self._record(began)

    def load(self, query: Callable[[sqlite3.Connection], T]) -> T:
        began = self._disk.history.now()
        result = super().load(query)
        self._record(began)
        return result

    def _commit(self, changes: list[Any]) -> None:
        began = self._disk.history.now()
        super()._commit(changes)
        time.sleep(self._sync_seconds)
        self._record(began)

    def _record(self, began: int) -> None:
        image = self._connection.serialize()
        if image != self._last:
            self._last = image
            history = self._disk.history
            history.add(Commit(history.node(self._path.parent), self._path.name, image, began))
