"""What every client of the tests has in common: it says what it tries, and what it was told."""

import random
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from headrace.broker.errors import ErrorCode
from tests.broker.faults import facts
from tests.broker.faults.client import Client, Refused
from tests.broker.faults.facts import Answer, Attempt

Note = Callable[[Any], None]
Address = tuple[str, int]

BUSY = {ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
DISK_TROUBLE = frozenset(
    {
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,  # sent after a batch that was refused
    }
)
"""What clients may be told while the disk is full or broken."""
STOPPING = frozenset({ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR})
"""What clients may be told by a broker that is about to go."""


class Journal:
    """Numbers the attempts of all actors and hands them to `note` in order."""

    def __init__(self, note: Note) -> None:
        self.note = note
        self._lock = threading.Lock()
        self._next = 0

    def attempt(self, action: facts.Action) -> int:
        with self._lock:
            self._next += 1
            number = self._next
        self.note(Attempt(number, action))
        return number

    def answer(self, number: int, result: Any = None) -> None:
        self.note(Answer(number, result))

    def saw(self, saw: facts.Saw) -> None:
        self.note(saw)

    def do(self, action: facts.Action, call: Callable[[], Any]) -> Any:
        number = self.attempt(action)
        result = call()
        self.answer(number, result)
        return result


class Actor(ABC):
    """One client. `step` is done again and again; after the broker was away, `resume` comes first."""

    def __init__(self, name: str, journal: Journal, seed: int) -> None:
        self.name = name
        self.journal = journal
        self.dice = random.Random(f"{name}-{seed}")
        self.address: Address = ("", 0)
        self.patience = 20.0
        self._counter = 0

    def value(self) -> bytes:
        self._counter += 1
        size = self.dice.choice([0, 10, 100, 700, 2000])
        return f"{self.name}-{self._counter}-".encode() + self.dice.randbytes(size)

    def values(self) -> tuple[bytes, ...]:
        return tuple(self.value() for _ in range(self.dice.randint(1, 3)))

    def run(self, address: Address, until: Callable[[], bool]) -> None:
        """Work until told to stop or until the broker is gone."""
        self.address = address
        try:
            with Client(address) as client:
                self.resume(client)
                while not until():
                    self.step(client)
        except TimeoutError:
            raise  # it lives, but does not answer
        except OSError:
            return  # it died

    def patiently(self, call: Callable[[], Any]) -> Any:
        return patiently(call, self.patience)

    def resume(self, client: Client) -> None:  # noqa: B027 - most have nothing to clean up
        """Deal with what the last run left unanswered."""

    @abstractmethod
    def step(self, client: Client) -> None: ...


def patiently(call: Callable[[], Any], seconds: float = 20.0) -> Any:
    """Try again while the coordinator is busy with the last transaction."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return call()
        except Refused as refused:
            if refused.code not in BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.002)
