"""The same history, taken from outside: what a real process asked of the kernel, SQLite's files included.

The clients are traced by the same strace and say what they did by writing to a file of markers, so that one
log holds both in order: strace lets no thread go on before its call is in the log.
"""

import pickle
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from tests import peers
from tests.broker.faults.history import History, Note, Sync, SyncFailed, SyncFolder, Truncate, Write
from tests.broker.faults.powerloss import Loss, image_after

CALLS = (
    "open,openat,creat,write,writev,pwrite64,pwritev,pwritev2,lseek,fsync,fdatasync,ftruncate,truncate,"
    "unlink,unlinkat,rename,renameat,renameat2,mkdir,mkdirat,rmdir,fallocate,link,linkat,msync,sync_file_range"
)
LONGEST_WRITE = 8_000_000


def traced(log: Path, program: list[str], *, sync_delay: float = 0.0, options: tuple[str, ...] = ()) -> list[str]:
    """The command that runs `program` and logs its calls; each sync takes `sync_delay` seconds longer."""
    delay = ["-e", f"inject=fsync,fdatasync:delay_exit={int(sync_delay * 1e6)}"] if sync_delay else []
    return [
        *[*peers.strace(), "-f", "--seccomp-bpf", "-y", "-xx", "-s", str(LONGEST_WRITE), "-o", str(log)],
        *["-e", f"trace={CALLS}", "-e", "signal=none", *delay, *options, *program],
    ]


def encode_marker(fact: Any) -> bytes:
    return pickle.dumps(fact)


@dataclass(frozen=True)
class Restarted:
    """A marker: the process was killed; `snapshot` is a copy of its folder, made before the next start."""

    snapshot: Path


def parse(log: Path, root: Path, markers: Path) -> History:
    """The history of the files below `root`."""
    parser = _Parser(root, markers)
    for call in _calls(log):
        parser.apply(call)
    return parser.history


@dataclass(slots=True)
class _Call:
    name: str
    arguments: str
    result: str
    started: bool = True
    finished: bool = True
    thread: str = ""


_LINE = re.compile(r"(\d+) +(.*)", re.DOTALL)
_RESUMED = re.compile(r"<\.\.\. (\w+) resumed>(.*)", re.DOTALL)
_RESULT = re.compile(r"\) += +(\S+).*$", re.DOTALL)


def _calls(log: Path) -> Iterator[_Call]:
    """Each call when it starts (if others come between) and when it ends; a killed one never ends."""
    unfinished: dict[str, _Call] = {}
    with log.open() as lines:
        for line in lines:
            matched = _LINE.match(line.rstrip("\n"))
            if matched is None:
                raise ValueError(f"no line of strace: {line[:200]}")
            thread, text = matched.groups()
            # A thread that is killed in a call leaves the end of one that strace no longer knows.
            if text.startswith(("+++", "---", "<... ???")):
                continue
            if resumed := _RESUMED.match(text):
                call = unfinished.pop(thread)
                ended = _end(call.name, call.arguments + resumed[2])
                yield _Call(call.name, ended.arguments, ended.result, started=False, thread=thread)
                continue
            name, _, rest = text.partition("(")
            if rest.endswith("<unfinished ...>"):
                call = _Call(name, rest.removesuffix("<unfinished ...>"), "", finished=False, thread=thread)
                unfinished[thread] = call
                yield call
            else:
                ended = _end(name, rest)
                ended.thread = thread
                yield ended


def _end(name: str, rest: str) -> _Call:
    at = rest.rfind(") = ") if ") = " in rest else rest.rfind(")  ")
    matched = _RESULT.match(rest, at)
    if matched is None:
        raise ValueError(f"no result of {name}: {rest[-200:]}")
    return _Call(name, rest[:at], matched[1])


_HEX = r"(?:\\x[0-9a-f]{2})*"
_DESCRIPTOR = re.compile(rf"(\d+)<({_HEX})>(\(deleted\))?")
_PATH = re.compile(rf'"({_HEX})"')
_DATA = re.compile(rf'"({_HEX})"(\.\.\.)?')


def _bytes(text: str) -> bytes:
    return bytes.fromhex(text.replace("\\x", ""))


class _Parser:
    def __init__(self, root: Path, markers: Path) -> None:
        self.history = History()
        self._root = root.resolve()
        self._markers = markers.resolve()
        self._began: dict[str, int] = {}
        self._positions: dict[tuple[str, str], int] = {}

    def apply(self, call: _Call) -> None:
        if call.started:
            self._began[call.thread] = self.history.now()
        if not call.finished:
            return
        began = self._began.pop(call.thread, self.history.now())
        if call.result.startswith("-1") or call.result == "?":
            if call.name in ("fsync", "fdatasync") and (target := self._descriptor(call)) is not None:
                self.history.add(SyncFailed(self.history.node(target[1])))
            return
        match call.name:
            case "open" | "openat" | "creat":
                self._open(call)
            case "write" | "writev":
                self._write_on(call)
            case "pwrite64" | "pwritev" | "pwritev2":
                self._write_at(call)
            case "lseek":
                if (target := self._descriptor(call)) is not None:
                    self._positions[target[0], str(target[1])] = int(call.result)
            case "fsync" | "fdatasync":
                self._sync(call, began)
            case "ftruncate":
                if (target := self._descriptor(call)) is not None:
                    size = int(call.arguments.rpartition(",")[2])
                    self.history.add(Truncate(self.history.node(target[1]), size))
            case "unlink" | "unlinkat" | "rmdir":
                for path in self._paths(call):
                    self.history.unlink(path)
            case "mkdir" | "mkdirat":
                for path in self._paths(call):
                    self.history.link(path, is_folder=True)
            case "sync_file_range":
                pass
            case _:  # the replayer has no model of it: never passed over
                if self._descriptor(call) is not None or self._paths(call):
                    raise NotImplementedError(f"{call.name} in the data folder")

    def _inside(self, raw: bytes) -> PurePath | None:
        path = Path(raw.decode(errors="surrogateescape"))
        # SQLite rebuilds its shared index from the log; it is mapped memory, and promises nothing.
        if not path.is_absolute() or path.name.endswith("-shm"):
            return None
        try:
            return path.relative_to(self._root)
        except ValueError:
            return None

    def _descriptor(self, call: _Call) -> tuple[str, PurePath] | None:
        matched = _DESCRIPTOR.match(call.arguments)
        # A file without a name is gone with the process: nothing done to it matters.
        if matched is None or matched[3]:
            return None
        path = self._inside(_bytes(matched[2]))
        if path is None or self.history.find(path) is None:
            return None
        return matched[1], path

    def _paths(self, call: _Call) -> list[PurePath]:
        found = (self._inside(_bytes(text)) for text in _PATH.findall(call.arguments))
        return [path for path in found if path is not None]

    def _open(self, call: _Call) -> None:
        for path in self._paths(call):
            descriptor = call.result.partition("<")[0]
            if "O_CREAT" in call.arguments and self.history.find(path) is None:
                self.history.link(path, is_folder=False)
            elif "O_TRUNC" in call.arguments:
                self.history.add(Truncate(self.history.node(path), 0))
            if "O_APPEND" in call.arguments:
                raise NotImplementedError(f"appending to {path}")
            self._positions[descriptor, str(path)] = 0

    def _data(self, call: _Call) -> bytes:
        # The first quoted text is the data: the descriptor's path stands in angle brackets.
        parts = _DATA.findall(call.arguments)
        if any(cut for _, cut in parts):
            raise ValueError(f"a {call.name} is longer than strace was told to log")
        return b"".join(_bytes(text) for text, _ in parts)[: int(call.result)]

    def _write_on(self, call: _Call) -> None:
        matched = _DESCRIPTOR.match(call.arguments)
        if matched is None:
            return
        if Path(_bytes(matched[2]).decode(errors="surrogateescape")) == self._markers:
            self._mark(pickle.loads(self._data(call)))
        elif (target := self._descriptor(call)) is not None:
            descriptor, path = target
            position = self._positions[descriptor, str(path)]
            data = self._data(call)
            self.history.add(Write(self.history.node(path), position, data))
            self._positions[descriptor, str(path)] = position + len(data)

    def _write_at(self, call: _Call) -> None:
        if (target := self._descriptor(call)) is not None:
            in_vector = call.name != "pwrite64"
            numbers = call.arguments.rpartition("]" if in_vector else '"')[2].split(",")
            position = int(numbers[2])
            self.history.add(Write(self.history.node(target[1]), position, self._data(call)))

    def _sync(self, call: _Call, began: int) -> None:
        if (target := self._descriptor(call)) is None:
            return
        node = self.history.node(target[1])
        if self.history.is_folder(node):
            self.history.add(SyncFolder(node, began))
        else:
            self.history.add(Sync(node, began, call.name == "fsync"))

    def _mark(self, fact: Any) -> None:
        if isinstance(fact, Restarted):
            self._adopt(fact.snapshot)
        self.history.add(Note(fact))

    def _adopt(self, snapshot: Path) -> None:
        """A call cut off by a kill may have been done or not: take what was found, as not yet synced."""
        for path, kept in image_after(self.history, self.history.now(), Loss.ALL_KEPT).entries.items():
            found = snapshot / path
            if kept is None:
                continue
            if not found.exists():
                self.history.unlink(path)
            elif (content := found.read_bytes()) != kept:
                node = self.history.node(path)
                same = _common_prefix(kept, content)
                self.history.add(Truncate(node, same))
                self.history.add(Write(node, same, content[same:]))
        for found in sorted(snapshot.rglob("*")):
            path = found.relative_to(snapshot)
            if self.history.find(path) is None and not found.name.endswith("-shm"):
                node = self.history.link(path, is_folder=found.is_dir())
                if found.is_file():
                    self.history.add(Write(node, 0, found.read_bytes()))


def _common_prefix(left: bytes, right: bytes) -> int:
    length = min(len(left), len(right))
    for start in range(0, length, 4096):
        if left[start : start + 4096] != right[start : start + 4096]:
            return next((at for at in range(start, length) if left[at] != right[at]), length)
    return length
