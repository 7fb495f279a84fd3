"""The home folder: where services and checkpoints live, who changes it, and who is using it."""

import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from headrace.errors import ServiceError

__all__ = ["Home"]

LOCK_SECONDS = 120.0
POLL = 0.05


class Home:
    """`lock` is held while services start or stop, `in-use` is shared by all who rely on them, `app-...` is an app's.

    They are let go by the system when their holder dies, however it dies.
    """

    def __init__(self, path: Path) -> None:
        # One folder has one name, by which its processes are known, on whatever way it was reached.
        self.path = path.resolve()
        self.logs = self.path / "logs"
        self._addresses = self.path / "services.json"

    def make(self) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            ignore = self.path / ".gitignore"
            if not ignore.exists():
                ignore.write_text("*\n")
        except OSError as error:
            raise self._unusable(error) from error

    @contextmanager
    def changing(self) -> Iterator[None]:
        """While services start or stop: one at a time."""
        with self._open("lock") as file:
            limit = time.monotonic() + LOCK_SECONDS
            while not _taken(file, fcntl.LOCK_EX):
                if time.monotonic() > limit:
                    raise ServiceError(
                        f"another headrace has been starting or stopping services in {self.path} for a while",
                        next_step="see which: headrace status; wait, or end it",
                    )
                time.sleep(POLL)
            yield

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """While somebody relies on the services."""
        with self._open("in-use") as file:
            fcntl.flock(file, fcntl.LOCK_SH)
            yield

    def is_in_use(self) -> bool:
        with self._open("in-use") as file:
            return not _taken(file, fcntl.LOCK_EX)

    @contextmanager
    def running(self, app: str) -> Iterator[None]:
        """While an app runs: two of them would fight over its checkpoints."""
        with self._open(f"app-{app}") as file:
            if not _taken(file, fcntl.LOCK_EX):
                raise ServiceError(
                    f"app {app!r} is running already in {self.path}",
                    next_step="stop it, or give this one a folder of its own with --home",
                )
            yield

    def read(self) -> dict[str, Any]:
        """What is noted of the services; nothing if nothing is, or if it cannot be read."""
        try:
            noted = json.loads(self._addresses.read_text())
        except (OSError, ValueError):
            return {}
        return noted if isinstance(noted, dict) else {}

    def write(self, noted: Mapping[str, Any]) -> None:
        part = self._addresses.with_name(".services.part")
        try:
            part.write_text(json.dumps(noted, indent=2) + "\n")
            part.replace(self._addresses)
        except OSError as error:
            raise self._unusable(error) from error

    @contextmanager
    def _open(self, name: str) -> Iterator[IO[bytes]]:
        self.make()
        try:
            descriptor = os.open(self.path / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise self._unusable(error) from error
        with os.fdopen(descriptor, "rb+") as file:
            yield file

    def _unusable(self, error: OSError) -> ServiceError:
        reason = (error.strerror or str(error)).lower()
        return ServiceError(f"the home folder {self.path} cannot be used: {reason}", next_step="choose one with --home")


def _taken(file: IO[bytes], kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
