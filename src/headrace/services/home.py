"""The home folder: its services and checkpoints, the locks of those who change or use it, and the running apps."""

import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from headrace.errors import ServiceError

__all__ = ["Home", "RunningApp"]

LOCK_SECONDS = 120.0
ENDING_SECONDS = 2.0
"""The driver of a run that was killed ends a moment later, and `readers` holds each lock for a moment."""
POLL = 0.05


class Home:
    """Files of locks: `lock` while services start or stop, `in-use` shared by all who use them, `app-...` of an app.

    The system releases a lock when its holder dies, however it dies.
    """

    def __init__(self, path: Path) -> None:
        # Processes are recognised by the folder's name, so it must be the same whichever link leads there.
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
        """While services start or stop: one process at a time."""
        with self._open("lock") as file:
            limit = time.monotonic() + LOCK_SECONDS
            while not _taken(file, fcntl.LOCK_EX):
                if time.monotonic() > limit:
                    raise ServiceError(
                        f"another headrace process has been starting or stopping services in {self.path} for "
                        f"{LOCK_SECONDS:.0f} s",
                        next_step="wait, or stop that process; see: headrace status",
                    )
                time.sleep(POLL)
            yield

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """While a process uses the services."""
        with self._open("in-use") as file:
            fcntl.flock(file, fcntl.LOCK_SH)
            yield

    def is_in_use(self) -> bool:
        with self._open("in-use") as file:
            return not _taken(file, fcntl.LOCK_EX)

    @contextmanager
    def running(self, app: str) -> "Iterator[RunningApp]":
        """While an app runs: two runs of it must not write to the same checkpoints."""
        with self._open(f"app-{app}") as file:
            limit = time.monotonic() + ENDING_SECONDS
            while not _taken(file, fcntl.LOCK_EX):
                if time.monotonic() > limit:
                    raise ServiceError(
                        f"app {app!r} is running already in {self.path}",
                        next_step="stop it, or choose another folder with --home",
                    )
                time.sleep(POLL)
            registered = RunningApp(file)
            registered.clear()
            yield registered

    def readers(self, cluster: str, topic: str) -> dict[str, list[str]]:
        """The running apps of this folder that read a topic of a Kafka cluster, and their nodes that do."""
        found = {}
        for path in sorted(self.path.glob("app-*")):
            with self._open(path.name) as file:
                if _taken(file, fcntl.LOCK_SH):
                    continue  # it is not running
                noted = _object(file.read())
            nodes = [node for node, topics in noted.get("topics", {}).items() if topic in topics]
            if noted.get("cluster") == cluster and nodes:
                found[path.name.removeprefix("app-")] = nodes
        return found

    def read(self) -> dict[str, Any]:
        """What is noted of the services; empty if nothing is, or if it cannot be read."""
        try:
            return _object(self._addresses.read_bytes())
        except OSError:
            return {}

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


class RunningApp:
    """The entry of a running app in its home folder, by which other commands see what it reads."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def note(self, cluster: str, topics: Mapping[str, Sequence[str]]) -> None:
        """The Kafka cluster by its id, and the topics that each node reads."""
        self.clear()
        self._file.write(json.dumps({"cluster": cluster, "topics": topics}).encode())
        self._file.flush()

    def clear(self) -> None:
        self._file.seek(0)
        self._file.truncate()


def _object(text: bytes) -> dict[str, Any]:
    """A JSON object; empty if it is none."""
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _taken(file: IO[bytes], kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
