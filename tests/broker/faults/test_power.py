"""Promise 1 and 2: whatever was acknowledged is there after a power loss at any moment."""

import pytest

from tests.broker.faults.lives import check_after, crashes, record

RECORDINGS = 10
CRASHES_EACH = 200


def survive(seed: int, lives: int, seconds: float, count: int) -> None:
    history = record(seed, lives, seconds)
    for crash in crashes(history, count, seed):
        try:
            check_after(history, crash)
        except Exception as error:
            error.add_note(f"{crash} of recording {seed} with {history.now()} events")
            raise


def test_power_losses() -> None:
    survive(seed=1, lives=2, seconds=0.4, count=30)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(100, 100 + RECORDINGS))
def test_many_power_losses(seed: int) -> None:
    survive(seed, lives=3, seconds=1.0, count=CRASHES_EACH)
