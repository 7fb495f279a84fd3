"""Each operation of the disk in turn is the one at which the process is killed, the disk is full or the disk breaks."""

import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import BrokerError
from tests.broker.faults.actors import Reader
from tests.broker.faults.check import check
from tests.broker.faults.client import Client, Refused
from tests.broker.faults.facts import fold
from tests.broker.faults.faulty import SPACE, SYNCS, Countdown, FaultyDisk, broken, fail_with, full
from tests.broker.faults.harness import DATA, Running, abandoned
from tests.broker.faults.journal import DISK_TROUBLE, Actor
from tests.broker.faults.lives import scratch
from tests.broker.faults.workload import Workload

ROUNDS = 4


class Notes:
    """The facts, where no history of the disk is wanted."""

    def __init__(self) -> None:
        self.facts: list[Any] = []
        self._lock = threading.Lock()

    def __call__(self, fact: Any) -> None:
        with self._lock:
            self.facts.append(fact)


def check_copy(folder: Path, notes: Notes) -> None:
    """Hold a copy of the folder to all that was said so far."""
    with scratch() as copy:
        if (folder / DATA).exists():
            shutil.copytree(folder / DATA, copy / DATA)
        with abandoned(copy) as running:
            check(fold(list(notes.facts)), running.address)


# -- killed


def killed_lives(folder: Path, lives: int, seed: int) -> int:
    """Start a broker on the folder that dies at some operation, and again; each time its promises are checked."""
    dice = random.Random(seed)
    notes = Notes()
    workload = Workload(notes, seed)
    kills = 0
    for _ in range(lives):
        number = dice.choice([dice.randint(1, 30), dice.randint(1, 250)])
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.broker.faults.doomed", str(folder / DATA), str(number)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        try:
            port = process.stdout.readline().strip()
            if port:
                deadline = time.monotonic() + 30

                def over(process: subprocess.Popen[str] = process, deadline: float = deadline) -> bool:
                    return process.poll() is not None or time.monotonic() > deadline

                workload.run(("127.0.0.1", int(port)), over)
            process.wait(10)
            assert process.returncode == -9, f"ended with {process.returncode} before operation {number}"
            kills += 1
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
        check_copy(folder, notes)
    return kills


def test_killed_at_an_operation() -> None:
    with scratch() as folder:
        assert killed_lives(folder, 3, seed=1) == 3


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(200, 206))
def test_killed_at_many_operations(seed: int, tmp_path: Path) -> None:
    assert killed_lives(tmp_path, 25, seed) == 25


# -- full or broken


class Persistent:
    """An actor that goes on after a refusal, as far as it can."""

    def __init__(self, actor: Actor, running: Running) -> None:
        self.actor = actor
        self.running = running
        actor.address = running.address
        self.client = Client(running.address)
        self.refusals: list[Refused] = []
        self.stuck: Refused | None = None
        self._try(actor.resume)

    def step(self) -> None:
        if self.stuck is None:
            self._try(self.actor.step)

    def _try(self, what: Callable[[Client], None]) -> None:
        try:
            what(self.client)
        except Refused as refused:
            self.refusals.append(refused)
            self._resume()

    def _resume(self) -> None:
        for _ in range(5):
            # The old connection may have answers on the way that nobody waits for any more.
            self.client.close()
            self.client = Client(self.running.address)
            try:
                self.actor.resume(self.client)
            except Refused as refused:
                self.stuck = refused
            else:
                self.stuck = None
                return


def _work(workload: Workload, running: Running, patience: float) -> list[Refused]:
    """A few rounds of each actor, one after the other; returns what those were told that could not go on."""
    for _ in range(5):
        try:
            workload.create_topics(running.address)
            break
        except Refused:
            continue
    for each in workload.actors:
        each.patience = patience
    actors = [Persistent(actor, running) for actor in workload.actors if not isinstance(actor, Reader)]
    for _ in range(ROUNDS):
        for actor in actors:
            actor.step()
    for actor in actors:
        actor.client.close()
    refused = [refusal for actor in actors for refusal in actor.refusals]
    assert {refusal.code for refusal in refused} <= DISK_TROUBLE
    return [actor.stuck for actor in actors if actor.stuck is not None]


def _offline(running: Running) -> list[str]:
    return [
        repr(partition) for topic in running.broker.topics.all() for partition in topic.partitions if partition.offline
    ]


def struck(error: Callable[[], OSError], number: int, only: frozenset[str] | None = None) -> str | None:
    """Run through everything with one operation failing; returns which it was."""
    notes = Notes()
    countdown = Countdown(number, fail_with(error))

    def fault(operation: str, path: Path) -> None:
        if only is None or operation in only:
            countdown(operation, path)

    with scratch() as folder:
        offline: list[str] = []
        stuck: list[Refused] = []
        try:
            with abandoned(folder, disk=FaultyDisk(fault)) as running:
                # A transaction on an offline partition cannot end before a restart; all others can, soon.
                stuck = _work(Workload(notes, number), running, 0.2 if error is broken else 10)
                offline = running.call(lambda: _offline(running))
        except (OSError, BrokerError):
            if notes.facts:  # a start may fail, a broker that serves may not
                raise
        operation = countdown.struck[0] if countdown.struck else None
        if operation not in SYNCS:
            assert not offline, f"{operation} took {offline} offline"
            assert not stuck, f"{operation} left clients stuck: {stuck}"
        assert len(offline) <= 1, f"{operation} took more than one partition offline: {offline}"
        assert offline or not stuck, f"clients are stuck, but every partition is online: {stuck}"
        check_copy(folder, notes)
    return operation


def test_the_disk_is_full_or_breaks_at_an_operation() -> None:
    for number in range(3, 150, 48):
        struck(full, number, SPACE)
        struck(broken, number)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("error", "only"), [(full, SPACE), (broken, None)], ids=["full", "broken"])
def test_the_disk_is_full_or_breaks_at_each_operation(
    error: Callable[[], OSError], only: frozenset[str] | None
) -> None:
    failed = []
    for number in range(1, 2000):
        operation = struck(error, number, only)
        if operation is None:
            break
        failed.append(operation)
    assert len(failed) > 50
    assert set(failed) >= (only or SPACE | {"sync", "sync_folder", "remove", "remove_folder"})


@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("error", [full, broken])
def test_the_disk_is_full_or_breaks_at_each_operation_of_a_recovery(error: Callable[[], OSError], step: int) -> None:
    """What cannot be recovered now is offline or keeps the broker from starting; the next start has it all."""
    with scratch() as folder:
        notes = Notes()
        with abandoned(folder) as running:
            _work(Workload(notes, 5), running, 10)
        # Half a batch at the end of each log: something to cut, to keep aside and to rewrite.
        for log in (folder / DATA).rglob("*.log"):
            with log.open("ab") as file:
                file.write(log.read_bytes()[:70])
        failed = set()
        for number in range(1, 500, step):
            countdown = Countdown(number, fail_with(error))
            with scratch() as copy:
                shutil.copytree(folder / DATA, copy / DATA)
                try:
                    with abandoned(copy, disk=FaultyDisk(countdown)) as running:
                        assert len(running.call(lambda: _offline(running))) <= 1
                except (OSError, BrokerError):
                    pass
                if countdown.struck is None:
                    break
                failed.add(countdown.struck[0])
                check_copy(copy, notes)
    assert step > 1 or failed >= {"create", "write", "truncate", "sync", "sync_all", "sync_folder"}
