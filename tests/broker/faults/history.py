"""What happened to a data folder, in order: each change, each finished sync, and what the clients were told.

Files and folders are nodes with numbers, so that a name that is removed and made again means another file.
"""

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

ROOT = 0


@dataclass(frozen=True, slots=True)
class Write:
    file: int
    position: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Truncate:
    file: int
    size: int


@dataclass(frozen=True, slots=True)
class Sync:
    """A sync that returned. It covers what had finished before event number `began`.

    Without `attributes` (fdatasync) a file that was cut short may get its old length back.
    """

    file: int
    began: int
    attributes: bool


@dataclass(frozen=True, slots=True)
class SyncFailed:
    """A sync that raised. The kernel calls the lost pages clean: no later sync of this file covers them."""

    file: int


@dataclass(frozen=True, slots=True)
class Link:
    """A new name: a file or folder was made."""

    folder: int
    name: str
    node: int
    is_folder: bool


@dataclass(frozen=True, slots=True)
class Unlink:
    folder: int
    name: str


@dataclass(frozen=True, slots=True)
class Rename:
    folder: int
    name: str
    target: str


@dataclass(frozen=True, slots=True)
class SyncFolder:
    folder: int
    began: int


@dataclass(frozen=True, slots=True)
class Commit:
    """SQLite committed; `image` is the whole database. It may be on disk from event number `began` on."""

    folder: int
    name: str
    image: bytes
    began: int


@dataclass(frozen=True, slots=True)
class Note:
    """What a client did or was told."""

    fact: Any


Event = Write | Truncate | Sync | SyncFailed | Link | Unlink | Rename | SyncFolder | Commit | Note


class Killed(ConnectionError):
    """The process whose history this is no longer lives."""


class History:
    """The events so far, and the names as a running process sees them. Safe to use from many threads."""

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self.events: list[Event] = []
        self.lock = threading.RLock()
        self._folders: dict[int, dict[str, int]] = {ROOT: {}}
        self._next_node = ROOT + 1
        self._killed = False
        for event in events:
            self.add(event)

    def kill(self) -> "History":
        """The next life goes on with the copy. Here nothing counts any more: to its clients, this process is dead."""
        with self.lock:
            self._killed = True
            return self.until(len(self.events))

    def until(self, point: int) -> "History":
        """The history of a process killed at `point`: all of it is visible, not all of it is on disk."""
        return History(self.events[:point])

    def now(self) -> int:
        with self.lock:
            return len(self.events)

    def add(self, event: Event) -> None:
        with self.lock:
            self.events.append(event)
            match event:
                case Link(folder, name, node, is_folder):
                    self._folders[folder][name] = node
                    self._next_node = max(self._next_node, node + 1)
                    if is_folder:
                        self._folders[node] = {}
                case Unlink(folder, name):
                    self._folders[folder].pop(name)
                case Rename(folder, name, target):
                    self._folders[folder][target] = self._folders[folder].pop(name)

    def note(self, fact: Any) -> None:
        with self.lock:
            if self._killed:
                raise Killed
            self.add(Note(fact))

    def link(self, path: PurePath, *, is_folder: bool) -> int:
        with self.lock:
            node = self._next_node
            self.add(Link(self.node(path.parent), path.name, node, is_folder))
            return node

    def unlink(self, path: PurePath) -> None:
        with self.lock:
            self.add(Unlink(self.node(path.parent), path.name))

    def node(self, path: PurePath) -> int:
        found = self.find(path)
        if found is None:
            raise FileNotFoundError(path)
        return found

    def find(self, path: PurePath) -> int | None:
        with self.lock:
            node = ROOT
            for part in path.parts:
                entry = self._folders.get(node, {}).get(part)
                if entry is None:
                    return None
                node = entry
            return node

    def is_folder(self, node: int) -> bool:
        return node in self._folders
