"""Promises 1 to 3: whatever was acknowledged is there after a power loss at any moment.

The history is recorded inside the process, where every operation of the log is seen, and once more from outside,
where SQLite's files are seen as well.
"""

import pytest

from tests.broker.faults.history import History
from tests.broker.faults.lives import check_after, crashes, record, record_process


def survive(history: History, count: int, seed: int) -> None:
    for crash in crashes(history, count, seed):
        try:
            check_after(history, crash)
        except Exception as error:
            error.add_note(f"{crash} of recording {seed} with {history.now()} events")
            raise


def test_power_losses() -> None:
    survive(record(seed=1, lives=3, seconds=0.3), 30, seed=1)


def test_power_losses_of_a_process() -> None:
    survive(record_process(seed=1, lives=1, seconds=2.0), 15, seed=1)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(100, 110))
def test_many_power_losses(seed: int) -> None:
    survive(record(seed, lives=5, seconds=0.8), 150, seed)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(200, 206))
def test_many_power_losses_of_a_process(seed: int) -> None:
    survive(record_process(seed, lives=4, seconds=2.5), 120, seed)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("fault", "number"),
    [
        *(("fdatasync:error=EIO:when={}", number) for number in (2, 9, 25, 60)),
        *(("pwrite64:error=ENOSPC:when={}..{}", number) for number in (60, 120, 250)),
        *(("pwrite64:error=EIO:when={}", number) for number in (60, 120, 250)),
    ],
)
def test_power_losses_after_a_failure_of_the_disk(fault: str, number: int) -> None:
    """In each thread the syncs or writes of that number fail, SQLite's as well; later the power goes."""
    inject = fault.format(number, number + 5)
    survive(record_process(number, lives=3, seconds=2.0, inject=inject), 30, seed=number)
