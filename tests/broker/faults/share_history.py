"""What members of a share group did and saw, and whether it can have been right."""

import threading
from typing import NamedTuple


class Sent(NamedTuple):
    value: str


class Stored(NamedTuple):
    """The broker acknowledged that it was sent."""

    value: str


class Delivered(NamedTuple):
    value: str
    member: str
    deliveries: int
    life: int = 0
    """Of the broker, when the request was sent: what it had in memory is lost between lives."""


class Asked(NamedTuple):
    """The member said what became of the record. Whether the broker took it is not known yet."""

    value: str
    accepted: bool


class Answered(NamedTuple):
    """The broker said that this is so."""

    value: str
    accepted: bool


Event = Sent | Stored | Delivered | Asked | Answered


class Violation(AssertionError):
    pass


class ShareHistory:
    """Events in the order they were seen. What is asked is noted before it is sent, what is heard after it came."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.life = 0
        self._lock = threading.Lock()

    def add(self, *events: Event) -> None:
        with self._lock:
            self.events += events

    def check(self, *, limit: int, drained: bool = True) -> None:
        """Raise Violation if a record was lost, made up, delivered after its end, or delivered too often."""
        told = _Told()
        for number, event in enumerate(self.events):
            try:
                told.see(event, limit)
            except Violation as violation:
                violation.add_note(f"event {number} of {len(self.events)}: {event}")
                raise
        if drained:
            lost = told.stored - told.seen
            if lost:
                raise Violation(f"sent and never delivered: {sorted(lost)}")
            unfinished = told.stored - told.ended - told.archived - told.asked
            if unfinished:
                raise Violation(f"delivered and never finished: {sorted(unfinished)}")


class _Told:
    def __init__(self) -> None:
        self.sent: set[str] = set()
        self.stored: set[str] = set()
        self.seen: set[str] = set()
        self.asked: set[str] = set()
        self.ended: set[str] = set()
        self.archived: set[str] = set()
        self.deliveries: dict[tuple[str, int], int] = {}

    def see(self, event: Event, limit: int) -> None:
        match event:
            case Sent(value):
                self.sent.add(value)
            case Stored(value):
                self.stored.add(value)
            case Delivered():
                self._delivered(event, limit)
            case Asked(value, _):
                self.asked.add(value)
            case Answered(value, _):
                if value not in self.asked:
                    raise Violation(f"{value} was answered and not asked")
                self.ended.add(value)

    def _delivered(self, event: Delivered, limit: int) -> None:
        value, _, deliveries, life = event
        if value not in self.sent:
            raise Violation(f"{value} was delivered and never sent")
        if value in self.ended:
            raise Violation(f"{value} was delivered after its end was answered")
        if deliveries > limit:
            raise Violation(f"{value} was delivered {deliveries} times, more than {limit}")
        before = self.deliveries.get((value, life), 0)
        if deliveries <= before:
            raise Violation(f"{value}: delivery {deliveries} came after delivery {before}")
        self.seen.add(value)
        self.deliveries[value, life] = deliveries
        if deliveries == limit:
            self.archived.add(value)  # the last one, whatever becomes of it
