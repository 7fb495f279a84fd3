"""The batches of an app's queries, from outside: Spark notes each in its checkpoint, whoever wrote the query."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Batch", "Batches", "read_offsets"]

MARKERS = ".markers"
"""How the topics end whose records move the time on and are no rows."""
Offsets = Mapping[str, Mapping[str, int]]


@dataclass(frozen=True)
class Batch:
    node: str
    number: int
    ended: float
    """Seconds since 1970."""
    rows: int
    """By how far the offsets of its topics moved: rows, and what transactions leave beside them."""


class Batches:
    """Follows the checkpoints under a folder. Look often: Spark keeps the last hundred batches of a query."""

    def __init__(self, home: Path, nodes: Iterable[str]) -> None:
        self.seen: list[Batch] = []
        self._home = home
        self._missing = set(nodes)
        self._folders: dict[str, Path] = {}
        self._last: dict[str, int] = {}
        self._offsets: dict[str, Offsets] = {}

    def look(self) -> None:
        if self._missing:
            self._find()
        for node, folder in self._folders.items():
            numbers = (int(path.name) for path in (folder / "commits").iterdir() if path.name.isdigit())
            for number in sorted(number for number in numbers if number > self._last.get(node, -1)):
                self._take(node, folder, number)

    def is_ready(self) -> bool:
        """Whether every node has finished a batch."""
        self.look()
        return not self._missing and len(self._last) == len(self._folders)

    def reached(self, node: str, topic: str) -> int:
        """How far a node has read a topic, over its partitions, by the batches that it finished."""
        return sum(self._offsets.get(node, {}).get(topic, {}).values())

    def between(self, begin: float, end: float) -> list[Batch]:
        self.look()
        return [batch for batch in self.seen if begin <= batch.ended < end]

    def _find(self) -> None:
        for depth in ("*", "*/*", "*/*/*"):  # a query's own folder has its state below it: too much to look through
            for folder in self._home.glob(f"checkpoints/{depth}/commits"):
                for node in self._missing.intersection(folder.relative_to(self._home).parts):
                    self._folders[node] = folder.parent
        self._missing -= self._folders.keys()

    def _take(self, node: str, folder: Path, number: int) -> None:
        offsets = read_offsets((folder / "offsets" / str(number)).read_text())
        before = self._offsets.get(node, {})
        rows = sum(
            max(0, end - before.get(topic, {}).get(partition, 0))
            for topic, partitions in offsets.items()
            for partition, end in partitions.items()
        )
        ended = (folder / "commits" / str(number)).stat().st_mtime
        self.seen.append(Batch(node, number, ended, rows))
        self._last[node], self._offsets[node] = number, offsets


def read_offsets(text: str) -> Offsets:
    """Where each topic was read to, of a file of Spark's offset log: a version, a line of settings, a line a source."""
    found: dict[str, dict[str, int]] = {}
    for line in text.splitlines()[2:]:
        offsets = json.loads(line) if line.startswith("{") else {}
        for topic, partitions in offsets.items():
            if isinstance(partitions, dict) and not topic.endswith(MARKERS):
                known = found.setdefault(topic, {})
                for partition, end in partitions.items():
                    known[partition] = max(end, known.get(partition, 0))
    return found
