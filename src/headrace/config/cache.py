"""The cache folder: downloaded files that every app of a user shares."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["cache_folder", "locked"]


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headrace"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Only one process at a time changes this folder, which is created if it is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
