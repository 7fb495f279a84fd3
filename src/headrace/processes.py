"""Processes in sessions of their own: started with a log, found again by their command line, ended."""

import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from signal import Signals

import psutil

__all__ = ["end", "find", "spawn"]

LARGEST_LOG = 10 << 20
POLL = 0.02


def spawn(
    command: Sequence[str], log: Path, *, folder: Path = Path("/"), descriptors: Sequence[int] = ()
) -> "subprocess.Popen[bytes]":
    """Start a process in its own session, so that Ctrl-C in this terminal does not reach it.

    `descriptors` are the files that it inherits.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    if log.exists() and log.stat().st_size > LARGEST_LOG:
        log.replace(log.with_name(log.name + ".1"))
    with log.open("ab") as file:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
            cwd=folder,
            pass_fds=descriptors,
        )


def find(pid: int, folder: Path) -> psutil.Process | None:
    """The process with this id, if its command line names the folder: ids are reused."""
    try:
        process = psutil.Process(pid)
        if process.status() != psutil.STATUS_ZOMBIE and str(folder) in process.cmdline():
            return process
    except psutil.Error:
        pass
    return None


def end(process: psutil.Process, folder: Path, ways: Sequence[tuple[Signals, float]]) -> bool:
    """Send signals in turn, each with seconds to wait; False if the process still runs."""
    for signal, seconds in ways:
        try:
            process.send_signal(signal)
        except psutil.NoSuchProcess:
            return True
        limit = time.monotonic() + seconds
        while time.monotonic() < limit:
            if find(process.pid, folder) is None:
                return True
            time.sleep(POLL)
    return find(process.pid, folder) is None
