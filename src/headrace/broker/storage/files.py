"""Every durable file operation of the log, in one place, so that tests can record, fail and replay each of them."""

import errno
import os
from pathlib import Path


class Disk:
    """The file system, with only those operations whose order decides what survives a crash.

    A new file or folder survives a power loss only after `sync_folder` of its parent, bytes after `sync` of their file.
    """

    def __init__(self, *, durable: bool = True) -> None:
        self.durable = durable

    def make_folder(self, path: Path) -> None:
        os.mkdir(path)

    def create(self, path: Path) -> int:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)

    def open(self, path: Path) -> int:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)

    def close(self, file: int) -> None:
        os.close(file)

    def write(self, file: int, data: memoryview | bytes, position: int) -> None:
        """Write all of `data`, or raise: a short write is an error of the disk (it is full, mostly)."""
        written = os.pwrite(file, data, position)
        view = memoryview(data)
        while written < len(view):
            more = os.pwrite(file, view[written:], position + written)
            if more == 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            written += more

    def truncate(self, file: int, size: int) -> None:
        os.ftruncate(file, size)

    def sync(self, file: int) -> None:
        if self.durable:
            os.fdatasync(file)

    def sync_all(self, file: int) -> None:
        """Sync bytes and every attribute: after a truncation."""
        if self.durable:
            os.fsync(file)

    def sync_folder(self, path: Path) -> None:
        if not self.durable:
            return
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def remove(self, path: Path) -> None:
        os.unlink(path)

    def remove_folder(self, path: Path) -> None:
        os.rmdir(path)

    def make_folders(self, path: Path) -> list[Path]:
        """Make `path` and its missing parents; returns the folders to sync for them to be durable."""
        missing = []
        while not path.exists():
            missing.append(path)
            path = path.parent
        for folder in reversed(missing):
            self.make_folder(folder)
        return [folder.parent for folder in missing]

    def remove_tree(self, path: Path) -> None:
        """Remove a folder and all in it; one that is gone already is no error: a crash may have come in between."""
        try:
            entries = list(os.scandir(path))
        except FileNotFoundError:
            return
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                self.remove_tree(Path(entry.path))
            else:
                self.remove(Path(entry.path))
        self.remove_folder(path)
