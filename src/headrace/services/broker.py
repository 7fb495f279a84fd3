"""The embedded broker as a process of its own: started, found again, stopped."""

import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from signal import SIGKILL, SIGTERM

import psutil

from headrace import processes
from headrace.errors import ServiceError

__all__ = ["BrokerProcess"]

HOST = "127.0.0.1"
USUAL_PORT = 9092
"""Where people expect a Kafka."""
START_SECONDS = 120.0
POLL = 0.02
WAYS_TO_STOP = ((SIGTERM, 30.0), (SIGKILL, 5.0))
READY = re.compile(rf"^headrace broker ready at ({re.escape(HOST)}:\d+)\b", re.MULTILINE)
CANNOT_LISTEN = "cannot listen on"
ALREADY_RUNNING = "another broker is running on"


class BrokerProcess:
    """A broker on a folder. It tells its port in its log, and keeps it from start to start if it can."""

    def __init__(self, data: Path, log: Path, notice: Callable[[str], None] = lambda _: None) -> None:
        self.data = data
        self.log = log
        self._notice = notice

    def find(self, pid: int) -> psutil.Process | None:
        return processes.find(pid, self.data)

    def start(self, last_address: str | None) -> tuple[int, str]:
        """Start it; returns its process's number and its address."""
        complaint = ""
        taken: list[str] = []
        for port in _ports(last_address):
            begin = self.log.stat().st_size if self.log.exists() else 0
            listen = f"{HOST}:{port}"
            words = [sys.executable, "-m", "headrace", "broker", "--data", str(self.data), "--listen", listen]
            started = processes.spawn(words, self.log)
            address, complaint = self._wait(started, begin)
            if address is not None:
                if taken:
                    ports = f"port {taken[0]} is" if len(taken) == 1 else f"ports {' and '.join(taken)} are"
                    self._notice(f"{ports} in use by other programs; the broker uses {address}")
                return started.pid, address
            if ALREADY_RUNNING in complaint and self._end_orphan():
                return self.start(last_address)
            if CANNOT_LISTEN not in complaint:
                break
            taken.append(str(port))
        raise ServiceError(f"the broker did not start: {_reason(complaint)}", next_step=f"see {self.log}")

    def stop(self, process: psutil.Process) -> None:
        if not processes.end(process, self.data, WAYS_TO_STOP):
            raise ServiceError(f"the broker (process {process.pid}) does not stop", next_step=f"see {self.log}")

    def _end_orphan(self) -> bool:
        """A broker nobody noted, since whoever started it was killed before it could: where it listens is unknown."""
        for process in psutil.process_iter():
            if self.find(process.pid) is not None:
                self.stop(process)
                return True
        return False

    def _wait(self, started: "subprocess.Popen[bytes]", begin: int) -> tuple[str | None, str]:
        """The address it tells, or what it said before it ended."""
        limit = time.monotonic() + START_SECONDS
        while time.monotonic() < limit:
            ended = started.poll() is not None
            said = self._said_since(begin)
            if ready := READY.search(said):
                return ready[1], said
            if ended:
                return None, said
            time.sleep(POLL)
        processes.end(psutil.Process(started.pid), self.data, WAYS_TO_STOP)
        return None, f"headrace: the broker was not ready within {START_SECONDS:.0f} s"

    def _said_since(self, begin: int) -> str:
        if not self.log.exists():
            return ""
        with self.log.open("rb") as file:
            # A log that grew too long was set aside, and this one is new.
            file.seek(begin if begin <= self.log.stat().st_size else 0)
            return file.read().decode(errors="replace")


def _ports(last_address: str | None) -> Iterator[int]:
    """The one it had, the usual one, any."""
    last = int(last_address.rpartition(":")[2]) if last_address else USUAL_PORT
    yield from dict.fromkeys((last, USUAL_PORT, 0))


def _reason(said: str) -> str:
    lines = [line for line in said.strip().splitlines() if line]
    ours = [line.removeprefix("headrace: ") for line in lines if line.startswith("headrace: ")]
    return (ours or lines or ["it printed nothing"])[-1]
