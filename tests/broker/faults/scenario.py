"""A real broker process under load, killed and started again; run as a whole under strace.

python -m tests.broker.faults.scenario ROOT MARKERS SEED LIVES SECONDS MUTANT TROUBLE
"""

import os
import random
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from headrace.broker.errors import ErrorCode
from tests.broker.faults.harness import AGING, DATA
from tests.broker.faults.journal import DISK_TROUBLE, STOPPING
from tests.broker.faults.mutants import NONE
from tests.broker.faults.strace import Restarted, encode_marker
from tests.broker.faults.workload import Workload

READY = "ready at 127.0.0.1:"
STOP_SECONDS = 10


def broker_command(data: Path, mutant: str = NONE) -> list[str]:
    if mutant == NONE:
        program = [str(Path(sys.executable).with_name("headrace"))]
    else:
        program = [sys.executable, "-m", "tests.broker.faults.mutated", mutant]
    settings = [word for name, value in AGING.items() for word in ("--set", f"{name}={value}")]
    return [*program, "broker", "--data", str(data), "--listen", "127.0.0.1:0", *settings]


class Markers:
    """Facts, each in one write to a file that strace sees."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def __call__(self, fact: Any) -> None:
        os.write(self._file, encode_marker(fact))


def main(root: Path, markers_path: Path, seed: int, lives: int, seconds: float, mutant: str, trouble: bool) -> None:
    """With `trouble` the disk is known to fail, and clients may be told so."""
    dice = random.Random(seed)
    markers = Markers(markers_path)
    workload = Workload(markers, seed)
    for life in range(lives):
        last = life + 1 == lives
        lifetime = dice.uniform(0.3, 1.0) if not last and dice.random() < 0.3 else seconds
        clean = not last and not trouble and dice.random() < 0.25
        _live(workload, broker_command(root / DATA, mutant), lifetime, clean, DISK_TROUBLE if trouble else STOPPING)
        if not last:
            snapshot = markers_path.parent / f"snapshot-{life}"
            shutil.copytree(root, snapshot, ignore=shutil.ignore_patterns("*-shm"))
            markers(Restarted(snapshot))


def _live(
    workload: Workload, command: list[str], lifetime: float, clean: bool, tolerated: frozenset[ErrorCode]
) -> None:
    """One life of a process, which may end before it is ready to serve."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    killer = threading.Timer(lifetime, process.kill)
    if not clean:
        killer.start()
    line = process.stdout.readline()
    if READY in line:
        if clean:
            threading.Timer(lifetime, process.terminate).start()
        port = int(line.partition(READY)[2].partition(",")[0])
        workload.run(("127.0.0.1", port), lambda: process.poll() is not None, tolerated)
    process.wait(STOP_SECONDS + lifetime)
    if clean:
        assert process.returncode == 0, f"a stop ended with {process.returncode}"
    killer.cancel()


if __name__ == "__main__":
    root, markers, seed, lives, seconds, mutant, trouble = sys.argv[1:]
    main(Path(root), Path(markers), int(seed), int(lives), float(seconds), mutant, trouble == "True")
