"""A disk whose operations fail, or whose process dies, when the test says so."""

import errno
import os
import signal
from collections.abc import Callable
from pathlib import Path

from headrace.broker.storage.files import Disk

Fault = Callable[[str, Path], None]
"""Told each operation before it is done, by name and path; raises OSError to make it fail."""

SYNCS = frozenset({"sync", "sync_all", "sync_folder"})
SPACE = frozenset({"write", "create", "make_folder"})
"""What a full disk refuses. Removing and cutting goes on, and so does syncing what was written."""


def full() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def broken() -> OSError:
    return OSError(errno.EIO, os.strerror(errno.EIO))


class FaultyDisk(Disk):
    """A refused write leaves its first half behind, as a disk does that fills up in the middle of one."""

    def __init__(self, fault: Fault) -> None:
        super().__init__()
        self.fault = fault
        self._paths: dict[int, Path] = {}

    def make_folder(self, path: Path) -> None:
        self.fault("make_folder", path)
        super().make_folder(path)

    def create(self, path: Path) -> int:
        self.fault("create", path)
        file = super().create(path)
        self._paths[file] = path
        return file

    def open(self, path: Path) -> int:
        file = super().open(path)
        self._paths[file] = path
        return file

    def write(self, file: int, data: memoryview | bytes, position: int) -> None:
        try:
            self.fault("write", self._paths[file])
        except OSError:
            super().write(file, data[: len(data) // 2], position)
            raise
        super().write(file, data, position)

    def truncate(self, file: int, size: int) -> None:
        self.fault("truncate", self._paths[file])
        super().truncate(file, size)

    def sync(self, file: int) -> None:
        self.fault("sync", self._paths[file])
        super().sync(file)

    def sync_all(self, file: int) -> None:
        self.fault("sync_all", self._paths[file])
        super().sync_all(file)

    def sync_folder(self, path: Path) -> None:
        self.fault("sync_folder", path)
        super().sync_folder(path)

    def remove(self, path: Path) -> None:
        self.fault("remove", path)
        super().remove(path)

    def remove_folder(self, path: Path) -> None:
        self.fault("remove_folder", path)
        super().remove_folder(path)


class Countdown:
    """Calls `strike` at the operation of that number, counted from one."""

    def __init__(self, number: int, strike: Callable[[], None]) -> None:
        self.count = 0
        self.struck: tuple[str, Path] | None = None
        self._number = number
        self._strike = strike

    def __call__(self, operation: str, path: Path) -> None:
        self.count += 1
        if self.count == self._number:
            self.struck = (operation, path)
            self._strike()


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fail_with(error: Callable[[], OSError]) -> Callable[[], None]:
    def strike() -> None:
        raise error()

    return strike
