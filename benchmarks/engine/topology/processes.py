"""CPU seconds by part, from outside: what /proc says of an app's processes and of the threads of its Java."""

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests import peers

__all__ = ["PARTS", "Cpu", "Memory", "Stat", "memory_of", "parse_stat", "part_of_thread"]

TICKS = os.sysconf("SC_CLK_TCK")
JIT, PLANNING, CALLS, TASKS, COLLECTOR, ADMIN = "JIT", "planning", "Py4J calls", "tasks", "GC", "Kafka admin clients"
OTHER, FORKS, WORKERS, DRIVER = "Java, other", "forked by Java", "Python workers", "driver's Python"
BROKER, POSTGRES = "broker", "PostgreSQL"
PARTS = (
    *(JIT, PLANNING, CALLS, TASKS, WORKERS, DRIVER, BROKER),
    *(POSTGRES, COLLECTOR, ADMIN, FORKS, OTHER),
)
THREADS = {  # how the names of Java's threads begin
    "C1 CompilerThread": JIT,
    "C2 CompilerThread": JIT,
    "Sweeper thread": JIT,
    "stream execution thread": PLANNING,
    "Thread-": CALLS,
    "Executor task ": TASKS,
    "GC Thread": COLLECTOR,
    "G1 ": COLLECTOR,
    "VM Thread": COLLECTOR,
    "kafka-admin-client": ADMIN,
}
LONGEST, KEPT = 15, 7
"""Of a name too long for Linux, older Javas keep the first 15 characters; newer ones 7, two dots and the last 6."""


def part_of_thread(name: str) -> str:
    """The part that a thread of Java's works for, by its name as Linux has it."""
    began = name[:KEPT] if name[KEPT : KEPT + 2] == ".." else name
    is_cut = len(name) == LONGEST
    for start, part in THREADS.items():
        if began.startswith(start) or (is_cut and start.startswith(began)):
            return part
    return OTHER


@dataclass(frozen=True)
class Stat:
    """A process or thread: `own` and `children` (those that have ended and were waited for) in CPU seconds."""

    name: str
    state: str
    parent: int
    own: float
    children: float
    started: int


def parse_stat(text: str) -> Stat:
    """A line of /proc/PID/stat. The name is in brackets, and may itself have spaces and brackets in it."""
    name = text[text.index("(") + 1 : text.rindex(")")]
    fields = text[text.rindex(")") + 2 :].split()
    user, system, children_user, children_system = (int(field) for field in fields[11:15])
    return Stat(
        name=name,
        state=fields[0],
        parent=int(fields[1]),
        own=(user + system) / TICKS,
        children=(children_user + children_system) / TICKS,
        started=int(fields[19]),
    )


class Cpu:
    """What the app in a home folder has used since it was first looked at, by part.

    Its processes are the one that was started here, all whose command line names the home folder, and what descends
    of them. To be sampled every second or so: of a thread that came and went in between nothing is known but that it is
    in its process's sum, and it counts as "Java, other".
    """

    def __init__(self, root: int, home: Path, proc: Path = Path("/proc")) -> None:
        self._root = root
        self._home = os.fsencode(home)
        self._proc = proc
        self._commands: dict[tuple[int, int], bytes] = {}
        self._threads: dict[tuple[int, int, int], float] = {}
        self._named: dict[str, float] = {}
        self.members: dict[str, list[int]] = {}
        """The processes of each part when it was last sampled; Java's are under "Java, other"."""

    def sample(self) -> dict[str, float]:
        """CPU seconds by part until now. Only differences between two samples mean something."""
        stats = self._stats()
        found = dict.fromkeys(PARTS, 0.0)
        self.members = {}
        for pid in self._family(stats):
            stat = stats[pid]
            part = self._part(pid, stats)
            self.members.setdefault(part, []).append(pid)
            if part == OTHER:
                found[OTHER] += stat.own
                found[FORKS] += stat.children
                self._follow_threads(pid)
            else:
                found[part] += stat.own + stat.children  # of a child that ended: it is no longer among the others
        for part, seconds in self._named.items():
            found[part] += seconds
            found[OTHER] -= seconds
        return found

    def _follow_threads(self, pid: int) -> None:
        for path in (self._proc / str(pid) / "task").iterdir():
            try:
                stat = parse_stat((path / "stat").read_text())
            except OSError:
                continue
            part = part_of_thread(stat.name)
            if part == OTHER:
                continue
            thread = (pid, int(path.name), stat.started)
            self._named[part] = self._named.get(part, 0.0) + stat.own - self._threads.get(thread, 0.0)
            self._threads[thread] = stat.own

    def _stats(self) -> dict[int, Stat]:
        stats = {}
        for path in self._proc.iterdir():
            if path.name.isdigit():
                try:
                    stats[int(path.name)] = parse_stat((path / "stat").read_text())
                except OSError:  # it has ended
                    pass
        return stats

    def _family(self, stats: Mapping[int, Stat]) -> list[int]:
        known = {pid for pid in stats if pid == self._root or self._home in self._command(pid, stats[pid])}
        known.discard(os.getpid())

        def belongs(pid: int) -> bool:
            while pid in stats and pid != os.getpid():
                if pid in known:
                    return True
                pid = stats[pid].parent
            return False

        return [pid for pid in sorted(stats) if belongs(pid)]

    def _part(self, pid: int, stats: Mapping[int, Stat]) -> str:
        name = stats[pid].name
        if name == "java":
            return OTHER
        if name.startswith("postgres"):
            return POSTGRES
        parent = stats[pid].parent
        while parent in stats:
            if stats[parent].name == "java":
                return WORKERS
            parent = stats[parent].parent
        return BROKER if b"\0broker\0" in self._command(pid, stats[pid]) else DRIVER

    def _command(self, pid: int, stat: Stat) -> bytes:
        # A process has its parent's command line until it has become what it was forked for.
        key = (pid, stat.started)
        if not self._commands.get(key):
            try:
                self._commands[key] = (self._proc / str(pid) / "cmdline").read_bytes()
            except OSError:
                return b""
        return self._commands[key]


@dataclass(frozen=True)
class Memory:
    """Megabytes at the end of a run. The heap is what a full collection leaves."""

    heap: float
    metaspace: float
    code_cache: float
    workers: float


def memory_of(cpu: Cpu) -> Memory:
    (java,) = cpu.members[OTHER]
    _jcmd(java, "GC.run")
    heap, metaspace = parse_heap_info(_jcmd(java, "GC.heap_info"))
    workers = sum(_pss(pid) for pid in cpu.members.get(WORKERS, []))
    return Memory(heap, metaspace, parse_code_cache(_jcmd(java, "Compiler.codecache")), workers)


def parse_heap_info(text: str) -> tuple[float, float]:
    """Megabytes used of the heap, whose generations may be told one by one, and of the metaspace."""
    heap, _, rest = text.partition("Metaspace")
    used = [int(found) for found in re.findall(r"total \d+K, used (\d+)K", heap)]
    metaspace = re.search(r"used (\d+)K", rest)
    if not used or metaspace is None:
        raise ValueError(f"jcmd GC.heap_info said nothing that is known: {text}")
    return sum(used) / 1024, int(metaspace[1]) / 1024


def parse_code_cache(text: str) -> float:
    """Megabytes used of the code cache, or of its segments."""
    used = re.findall(r"(?:CodeHeap|CodeCache).*?size=\d+Kb used=(\d+)Kb", text)
    if not used:
        raise ValueError(f"jcmd Compiler.codecache said nothing that is known: {text}")
    return sum(map(int, used)) / 1024


def _jcmd(pid: int, *words: str) -> str:
    command = [peers.java("jcmd"), str(pid), *words]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def _pss(pid: int) -> float:
    """Megabytes of a process, those that it shares divided by how many share them."""
    try:
        told = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0.0
    found = re.search(r"^Pss:\s+(\d+) kB", told, re.MULTILINE)
    return int(found[1]) / 1024 if found else 0.0
