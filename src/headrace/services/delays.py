"""The delay service of `headrace up` as a process of its own: started, found again, stopped."""

import sys
from pathlib import Path
from signal import SIGKILL, SIGTERM

import psutil

from headrace import processes

__all__ = ["DelaysProcess"]

WAYS_TO_STOP = ((SIGTERM, 15.0), (SIGKILL, 5.0))


class DelaysProcess:
    """Hands delayed messages over on the embedded broker. It needs no address: nobody connects to it."""

    def __init__(self, home: Path, log: Path) -> None:
        self.data = home / "delays"
        self.log = log
        self._home = home

    def find(self, pid: int) -> psutil.Process | None:
        return processes.find(pid, self._home)

    def start(self, kafka: str) -> int:
        """Returns its process's number."""
        words = [sys.executable, "-m", "headrace", "delays", "--home", str(self._home), "--kafka", kafka]
        return processes.spawn(words, self.log).pid

    def stop(self, process: psutil.Process) -> None:
        processes.end(process, self._home, WAYS_TO_STOP)
