"""What a disk may hold after the power went: all that was synced, and any part of the rest."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path, PurePath

from tests.broker.faults.history import (
    ROOT,
    Commit,
    History,
    Link,
    Rename,
    Sync,
    SyncFailed,
    SyncFolder,
    Truncate,
    Unlink,
    Write,
)

SECTOR = 512


class Loss(Enum):
    """How much of what was not synced is on the disk all the same."""

    NONE_KEPT = "none"
    PREFIX_KEPT = "prefix"
    SUBSET_KEPT = "subset"
    ALL_KEPT = "all"
    """Not a power loss: the process alone was killed."""


@dataclass
class Image:
    """The content of a folder: bytes for a file, None for a folder."""

    entries: dict[PurePath, bytes | None] = field(default_factory=dict)

    def write_to(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for path, content in self.entries.items():
            if content is None:
                (folder / path).mkdir()
            else:
                (folder / path).write_bytes(content)


def image_after(history: History, point: int, loss: Loss, seed: int = 0) -> Image:
    """What may be found when the power goes after the first `point` events; one seed, one image."""
    events = history.events[:point]
    dice = random.Random(seed)
    synced = _Synced(history, point)
    pending = [index for index, event in enumerate(events) if synced.is_pending(index, event)]
    kept = _choose(pending, loss, dice)

    files: dict[int, bytearray] = {}
    folders: dict[int, dict[str, int]] = {ROOT: {}}
    images: dict[tuple[int, str], bytes] = {}
    for index, event in enumerate(events):
        keep = kept.get(index, _Keep.WHOLE)
        match event:
            case Link(folder, name, node, is_folder):
                if is_folder:
                    folders[node] = {}
                else:
                    files[node] = bytearray()
                if keep is not _Keep.NOTHING:
                    folders[folder][name] = node
            case Unlink(folder, name) if keep is not _Keep.NOTHING:
                folders[folder].pop(name, None)
            case Rename(folder, name, target) if keep is not _Keep.NOTHING and name in folders[folder]:
                folders[folder][target] = folders[folder].pop(name)
            case Truncate(file, size) if keep is not _Keep.NOTHING:
                _resize(files[file], size)
            case Write(file, position, data):
                _apply(files[file], position, data, keep, dice)
            case Commit(folder, name, image):
                images[folder, name] = image
    for event in history.events[point:]:
        if isinstance(event, Commit):
            if event.began < point and loss is not Loss.NONE_KEPT and dice.random() < 0.5:
                images[event.folder, event.name] = event.image
            break
    return _collect(files, folders, images)


class _Keep(Enum):
    NOTHING = 0
    WHOLE = 1
    TORN = 2
    SECTORS = 3
    ZEROS = 4


class _Synced:
    """Up to which event each file and folder is on disk for certain, when the power goes at `point`."""

    def __init__(self, history: History, point: int) -> None:
        self._bytes: dict[int, int] = {}
        self._lengths: dict[int, int] = {}
        self._names: dict[int, int] = {}
        self._lost: set[int] = set()
        for index, event in enumerate(history.events[:point]):
            if isinstance(event, SyncFailed):
                self._lost |= {
                    before
                    for before in range(self._bytes.get(event.file, 0), index)
                    if isinstance(write := history.events[before], Write) and write.file == event.file
                }
            elif isinstance(event, Sync):
                self._bytes[event.file] = max(self._bytes.get(event.file, 0), event.began)
                if event.attributes:
                    self._lengths[event.file] = max(self._lengths.get(event.file, 0), event.began)
            elif isinstance(event, SyncFolder):
                self._names[event.folder] = max(self._names.get(event.folder, 0), event.began)

    def is_pending(self, index: int, event: object) -> bool:
        match event:
            case Write(file):
                return index >= self._bytes.get(file, 0) or index in self._lost
            case Truncate(file):
                return index >= self._lengths.get(file, 0)
            case Link(folder) | Unlink(folder) | Rename(folder):
                return index >= self._names.get(folder, 0)
        return False


def _choose(pending: list[int], loss: Loss, dice: random.Random) -> dict[int, _Keep]:
    match loss:
        case Loss.ALL_KEPT:
            return {}
        case Loss.NONE_KEPT:
            return dict.fromkeys(pending, _Keep.NOTHING)
        case Loss.PREFIX_KEPT:
            whole = dice.randint(0, len(pending))
            kept = dict.fromkeys(pending[whole:], _Keep.NOTHING)
            if whole < len(pending):
                kept[pending[whole]] = dice.choice([_Keep.TORN, _Keep.NOTHING])
            return kept
        case Loss.SUBSET_KEPT:
            odds = dice.random()
            partly = [_Keep.NOTHING, _Keep.NOTHING, _Keep.TORN, _Keep.SECTORS, _Keep.ZEROS]
            return {index: _Keep.WHOLE if dice.random() < odds else dice.choice(partly) for index in pending}


def _apply(content: bytearray, position: int, data: bytes, keep: _Keep, dice: random.Random) -> None:
    if keep is _Keep.NOTHING:
        return
    if keep is _Keep.WHOLE:
        _put(content, position, data)
        return
    pieces = list(_sectors(position, data))
    if keep is _Keep.TORN:
        pieces = pieces[: dice.randint(0, len(pieces))]
    else:
        if keep is _Keep.ZEROS:
            _resize(content, max(len(content), position + len(data)))
        pieces = [piece for piece in pieces if dice.random() < 0.5]
    for start, piece in pieces:
        _put(content, start, piece)


def _sectors(position: int, data: bytes) -> Iterator[tuple[int, bytes]]:
    start = position
    end = position + len(data)
    while start < end:
        stop = min(end, (start // SECTOR + 1) * SECTOR)
        yield start, data[start - position : stop - position]
        start = stop


def _put(content: bytearray, position: int, data: bytes) -> None:
    if len(content) < position:
        _resize(content, position)
    content[position : position + len(data)] = data


def _resize(content: bytearray, size: int) -> None:
    if size < len(content):
        del content[size:]
    else:
        content.extend(bytes(size - len(content)))


def _collect(
    files: dict[int, bytearray],
    folders: dict[int, dict[str, int]],
    images: dict[tuple[int, str], bytes],
) -> Image:
    image = Image()

    def walk(folder: int, path: PurePath) -> None:
        for name, node in folders[folder].items():
            if node in folders:
                image.entries[path / name] = None
                walk(node, path / name)
            else:
                image.entries[path / name] = bytes(files[node])
        for (parent, name), content in images.items():
            if parent == folder:
                image.entries[path / name] = content

    walk(ROOT, PurePath())
    return image
