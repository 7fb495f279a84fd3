"""Recordings of a broker at work, killed and started again, and what is left of it when the power goes."""

import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.broker.faults.check import check
from tests.broker.faults.facts import Answer, Attempt, Expected, Saw, fold
from tests.broker.faults.harness import AGING, abandoned, recording
from tests.broker.faults.history import History, Note
from tests.broker.faults.journal import STOPPING
from tests.broker.faults.mutants import NONE
from tests.broker.faults.powerloss import Loss, image_after
from tests.broker.faults.strace import parse, traced
from tests.broker.faults.workload import Workload

POWER_LOSSES = (Loss.NONE_KEPT, Loss.PREFIX_KEPT, Loss.SUBSET_KEPT)
SYNC_SECONDS = 0.004

Parts = Callable[[Path, History], Mapping[str, Any]]


def plain_parts(folder: Path, history: History) -> Mapping[str, Any]:
    """The disk and store of a recording; mutants put others in their place."""
    return recording(folder, history, SYNC_SECONDS) | {"settings": AGING}


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder in memory where there is one: what is read back was never meant to outlive the test."""
    memory = Path("/dev/shm")
    with TemporaryDirectory(prefix="headrace-", dir=memory if memory.is_dir() else None) as name:
        yield Path(name)


def record(seed: int, lives: int, seconds: float, parts: Parts = plain_parts) -> History:
    """The history of a broker under load that was killed or stopped as often, sometimes before it had begun."""
    history = History()
    workload = Workload(history.note, seed)
    dice = random.Random(seed)
    for life in range(lives):
        last = life + 1 == lives
        lifetime = seconds * dice.uniform(0.5, 1.5)
        if not last and dice.random() < 0.3:
            history = _stopped_life(history, workload, lifetime, parts)
        else:
            short = not last and dice.random() < 0.4
            history = _killed_life(history, workload, dice.uniform(0, 0.1) if short else lifetime, parts)
    return history


def _killed_life(history: History, workload: Workload, lifetime: float, parts: Parts) -> History:
    """One life from the files the last one left in sight, ended after that many seconds at whatever it does."""
    killed: list[History] = []
    end = threading.Timer(lifetime, lambda: killed.append(history.kill()))
    with scratch() as folder, _prepared(history, workload, folder):
        end.start()
        with abandoned(folder, **parts(folder, history)) as running:
            workload.run(running.address, lambda: bool(killed))
            end.join()
    return killed[0]


def _stopped_life(history: History, workload: Workload, lifetime: float, parts: Parts) -> History:
    """The same, but ended as SIGTERM does it, in the middle of all requests."""
    with (
        scratch() as folder,
        _prepared(history, workload, folder),
        abandoned(folder, **parts(folder, history)) as running,
    ):
        stopped: list[BaseException | None] = []

        def stop() -> None:
            try:
                running.wait(running.broker.stop())
                stopped.append(None)
            except BaseException as error:
                stopped.append(error)

        end = threading.Timer(lifetime, stop)
        end.start()
        try:
            workload.run(running.address, lambda: False, STOPPING)
        except BaseException:
            end.cancel()
            raise
        end.join()
        if stopped[0] is not None:
            raise stopped[0]
    return history.kill()


@contextmanager
def _prepared(history: History, workload: Workload, folder: Path) -> Iterator[None]:
    workload.journal.note = history.note
    image_after(history, history.now(), Loss.ALL_KEPT).write_to(folder)
    yield


def record_process(
    seed: int,
    lives: int,
    seconds: float,
    mutant: str = NONE,
    *,
    inject: str | None = None,
) -> History:
    """The same of a real process, read from strace; `inject` is a fault in strace's words."""
    with scratch() as folder:
        root, markers, log = folder / "root", folder / "markers", folder / "strace.log"
        root.mkdir()
        scenario = [str(root), str(markers), str(seed), str(lives), str(seconds), mutant, str(inject is not None)]
        command = traced(
            log,
            [sys.executable, "-m", "tests.broker.faults.scenario", *scenario],
            sync_delay=0 if inject else SYNC_SECONDS,
            options=("-e", f"inject={inject}") if inject else (),
        )
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        if done.returncode:
            raise RuntimeError(f"the scenario failed:\n{done.stderr[-4000:]}")
        return parse(log, root, markers)


def facts_before(history: History, point: int) -> Expected:
    notes = [event.fact for event in history.events[:point] if isinstance(event, Note)]
    return fold(note for note in notes if isinstance(note, Attempt | Answer | Saw))


@dataclass(frozen=True)
class Crash:
    point: int
    loss: Loss
    seed: int


def crashes(history: History, count: int, seed: int) -> list[Crash]:
    """Points all over the history, half of them right after somebody was told something."""
    dice = random.Random(seed)
    told = [
        index + 1
        for index, event in enumerate(history.events)
        if isinstance(event, Note) and isinstance(event.fact, Answer | Saw)
    ]
    points = [dice.choice(told) if told and number % 2 else dice.randint(0, history.now()) for number in range(count)]
    return [
        Crash(point, POWER_LOSSES[number // 2 % len(POWER_LOSSES)], seed * 1_000_003 + number)
        for number, point in enumerate(points)
    ]


def check_after(history: History, crash: Crash) -> None:
    """Start a broker on what that crash left, and hold it to all that was said before."""
    with scratch() as folder:
        image_after(history, crash.point, crash.loss, crash.seed).write_to(folder)
        with abandoned(folder) as running:
            check(facts_before(history, crash.point), running.address)
