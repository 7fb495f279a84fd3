"""A real broker process under load, killed and started again; run as a whole under strace.

python -m tests.broker.faults.scenario ROOT MARKERS SEED LIVES SECONDS MUTANT TROUBLE
"""

import os
import random
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from tests.broker.faults.harness import DATA
from tests.broker.faults.history import Killed
from tests.broker.faults.mutants import NONE
from tests.broker.faults.strace import Restarted, encode_marker
from tests.broker.faults.workload import DISK_TROUBLE, Workload

READY = "ready at 127.0.0.1:"


def broker_command(data: Path, mutant: str = NONE) -> list[str]:
    if mutant == NONE:
        program = [str(Path(sys.executable).with_name("headrace"))]
    else:
        program = [sys.executable, "-m", "tests.broker.faults.mutated", mutant]
    return [*program, "broker", "--data", str(data), "--listen", "127.0.0.1:0"]


def start(command: list[str]) -> tuple["subprocess.Popen[str]", int | None]:
    """The process and its port; no port if it ended before it was ready."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if READY in line:
            return process, int(line.partition(READY)[2].partition(",")[0])
    return process, None


class Markers:
    """Facts, each in one write to a file that strace sees. After a kill nothing counts until the next life."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._lock = threading.Lock()
        self.dead = False

    def __call__(self, fact: Any) -> None:
        with self._lock:
            if self.dead:
                raise Killed
            os.write(self._file, encode_marker(fact))


def main(root: Path, markers_path: Path, seed: int, lives: int, seconds: float, mutant: str, trouble: bool) -> None:
    """With `trouble` the disk is known to fail, and clients may be told so."""
    dice = random.Random(seed)
    markers = Markers(markers_path)
    workload = Workload(markers, seed)
    for life in range(lives):
        short = life + 1 < lives and dice.random() < 0.3
        lifetime = dice.uniform(0.3, 1.0) if short else seconds
        process, port = _with_limit(lifetime, short, broker_command(root / DATA, mutant))
        if port is not None:
            end = time.monotonic() + lifetime
            worker = threading.Thread(
                target=workload.run,
                args=[("127.0.0.1", port), lambda: markers.dead, DISK_TROUBLE if trouble else ()],
            )
            worker.start()
            while time.monotonic() < end and process.poll() is None:
                time.sleep(0.005)
            process.kill()
            process.wait()
            markers.dead = True
            worker.join()
        process.kill()
        process.wait()
        markers.dead = False
        if life + 1 < lives:
            snapshot = markers_path.parent / f"snapshot-{life}"
            shutil.copytree(root, snapshot, ignore=shutil.ignore_patterns("*-shm"))
            markers(Restarted(snapshot))


def _with_limit(lifetime: float, short: bool, command: list[str]) -> tuple["subprocess.Popen[str]", int | None]:
    """Start the broker; a short life may end before it is ready."""
    if not short:
        return start(command)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    killer = threading.Timer(lifetime, process.kill)
    killer.start()
    assert process.stdout is not None
    line = process.stdout.readline()
    return process, int(line.partition(READY)[2].partition(",")[0]) if READY in line else None


if __name__ == "__main__":
    root, markers, seed, lives, seconds, mutant, trouble = sys.argv[1:]
    main(Path(root), Path(markers), int(seed), int(lives), float(seconds), mutant, trouble == "True")
