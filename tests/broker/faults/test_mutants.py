"""Each promise taken out of the broker must make these tests fail; the broker as it is must not."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.broker.faults import facts
from tests.broker.faults.batches import encode
from tests.broker.faults.check import BrokenPromise
from tests.broker.faults.client import Client, Refused
from tests.broker.faults.faulty import broken
from tests.broker.faults.harness import abandoned
from tests.broker.faults.history import History
from tests.broker.faults.journal import Journal
from tests.broker.faults.lives import Crash, check_after, crashes, record, record_process, scratch
from tests.broker.faults.mutants import MUTANTS, NONE, mutated
from tests.broker.faults.powerloss import Loss
from tests.broker.faults.recording import FaultyRecordingDisk, RecordingDisk, RecordingStore

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

Trial = Callable[[str], None]


def inside(mutant: str) -> None:
    """Power losses, recorded inside the process, over several lives; several times, as chance may spare a mutant."""
    for seed in range(7, 12):
        with mutated(mutant, RecordingDisk):
            history = record(seed, lives=6, seconds=0.4)
        for crash in crashes(history, 60, seed):
            check_after(history, crash)


def outside(mutant: str) -> None:
    """Power losses of a process, recorded with strace."""
    history = record_process(7, lives=1, seconds=2.5, mutant=mutant)
    for crash in crashes(history, 60, seed=7):
        check_after(history, crash)


def after_a_failed_sync(mutant: str) -> None:
    """Every third sync fails; what is acknowledged all the same must be there when the power goes."""
    history, syncs = History(), 0

    def fault(operation: str, path: Path) -> None:
        nonlocal syncs
        if operation == "sync":
            syncs += 1
            if syncs % 3 == 0:
                raise broken()

    journal = Journal(history.note)
    with mutated(mutant, RecordingDisk), scratch() as folder:
        disk = FaultyRecordingDisk(folder, history, fault=fault)
        with (
            abandoned(folder, disk=disk, store=partial(RecordingStore, disk=disk)) as running,
            Client(running.address) as client,
        ):
            journal.do(facts.CreateTopic("t", 0, 4), lambda: client.create_topic("t", 4))
            for number in range(40):
                send = facts.Send("t", number % 4, (f"value {number}".encode(),))
                answer = journal.attempt(send)
                try:
                    journal.answer(answer, client.produce("t", send.partition, encode(send.values)))
                except Refused:
                    continue
    check_after(history, Crash(history.now(), Loss.NONE_KEPT, 0))


TRIALS: dict[str, Trial] = {
    "no fdatasync": inside,
    "no folder sync": inside,
    "no folder sync at a roll": inside,
    "synchronous=NORMAL": outside,
    "acknowledging before the sync": inside,
    "recovery without a sync": inside,
    "fsync tried again after EIO": after_a_failed_sync,
    "a duplicate answered early": inside,
}


def test_each_mutant_has_a_trial() -> None:
    assert set(TRIALS) == set(MUTANTS)


@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_mutant_is_caught(mutant: str) -> None:
    with pytest.raises((BrokenPromise, Refused)):
        TRIALS[mutant](mutant)


@pytest.mark.parametrize("trial", [inside, outside, after_a_failed_sync])
def test_the_broker_as_it_is_passes(trial: Trial) -> None:
    trial(NONE)
