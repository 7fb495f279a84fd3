"""A share group's window against a simple model: one entry per record, every rule spelled out."""

from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from headrace.broker.errors import ApiError, ErrorCode
from headrace.broker.groups.share.assignor import Place, assign
from headrace.broker.groups.share.window import (
    ACCEPT,
    ACKNOWLEDGED,
    ACQUIRED,
    ARCHIVED,
    AVAILABLE,
    GAP,
    REJECT,
    RELEASE,
    RENEW,
    Ack,
    Ranges,
    Window,
    check_acks,
)

WIDTH = 12
LIMIT = 3
MEMBERS = st.sampled_from(["a", "b", "c"])
FINAL = (ACKNOWLEDGED, ARCHIVED)
ASKED = {GAP: ARCHIVED, ACCEPT: ACKNOWLEDGED, RELEASE: AVAILABLE, REJECT: ARCHIVED}


@dataclass
class Record:
    state: int = AVAILABLE
    deliveries: int = 0
    member: str | None = None
    deadline: float = 0
    asked: int | None = None
    """What it will be once that is durable."""
    lock_over: bool = False

    def back(self) -> None:
        self.deliveries += 1
        self.member = None
        self.state = ARCHIVED if self.deliveries >= LIMIT else AVAILABLE


class Model:
    def __init__(self, start: int = 0) -> None:
        self.start = start
        self.records: dict[int, Record] = {}

    @property
    def end(self) -> int:
        return max(self.records, default=self.start - 1) + 1

    def advance(self) -> None:
        while (first := self.records.get(self.start)) is not None and first.asked is None and first.state in FINAL:
            del self.records[self.start]
            self.start += 1

    def stored(self) -> "Model":
        """What is found after a crash if all that was written is there."""
        after = Model(self.start)
        for offset, record in self.records.items():
            state = record.state if record.asked is None else record.asked
            after.records[offset] = Record(AVAILABLE if state == ACQUIRED else state, record.deliveries)
        after.advance()
        while after.records and after.records[after.end - 1] == Record():
            del after.records[after.end - 1]
        return after


class ShareWindow(RuleBasedStateMachine):
    settling = Bundle("settling")

    def __init__(self) -> None:
        super().__init__()
        self.window = Window(0)
        self.model = Model()
        self.now = 0.0
        self.under_way: list[tuple[Ranges, int]] = []
        self.life = 0

    # What happens

    @rule(member=MEMBERS, most=st.integers(1, WIDTH), lock=st.integers(1, 10), ahead=st.integers(0, 3))
    def acquire(self, member: str, most: int, lock: int, ahead: int) -> None:
        """As a fetch does: the first records that can be had, up to `most`, where the log goes `ahead` further."""
        first = self.window.next_available()
        expected = [o for o in range(self.model.start, self.model.end) if self.model.records[o].state == AVAILABLE]
        expected = [o for o in expected if self.model.records[o].asked is None]
        assert first == (expected[0] if expected else self.model.end)
        last = min(max(self.model.end - 1, first) + ahead, first + most - 1)
        runs = list(self.window.available(first, last, WIDTH))
        offsets = [o for run in runs for o in range(run.first, run.last + 1)]
        beyond = range(max(self.model.end, first), min(last, self.model.start + WIDTH - 1) + 1)
        assert offsets == [o for o in expected if first <= o <= last] + list(beyond)
        for run in runs:
            self.window.acquire(run, member, self.now + lock)
            for offset in range(run.first, run.last + 1):
                record = self.model.records.setdefault(offset, Record())
                assert record.deliveries == run.deliveries
                record.state, record.member, record.deadline, record.lock_over = (
                    ACQUIRED,
                    member,
                    self.now + lock,
                    False,
                )

    @rule(target=settling, member=MEMBERS, data=st.data())
    def acknowledge(self, member: str, data: st.DataObject) -> tuple[int, int]:
        """Ranges of any sort, many of them wrong."""
        acks, at = [], max(self.model.start - 2, 0)
        for _ in range(data.draw(st.integers(1, 3))):
            first = at + data.draw(st.integers(0, 3))
            last = first + data.draw(st.integers(0, 3))
            kinds = st.sampled_from([GAP, ACCEPT, RELEASE, REJECT, RENEW])
            count = data.draw(st.sampled_from([1, last - first + 1]))
            types = data.draw(st.lists(kinds, min_size=count, max_size=count))
            acks.append(Ack(first, last, types))
            at = last + 1
        check_acks(acks, RENEW)
        expected = self._code(member, acks)
        if expected is not ErrorCode.NONE:
            with pytest.raises(ApiError) as refused:
                self.window.acknowledge(member, acks, LIMIT, self.now + 5)
            assert refused.value.code is expected, acks
            return self.life, -1
        ranges = self.window.acknowledge(member, acks, LIMIT, self.now + 5)
        for offset, kind in _each(acks):
            if offset < self.model.start:
                continue
            record = self.model.records[offset]
            if kind == RENEW:
                record.deadline = self.now + 5
                continue
            record.asked = ASKED[kind]
            if kind == RELEASE:
                record.deliveries += 1
                record.asked = ARCHIVED if record.deliveries >= LIMIT else AVAILABLE
        self.under_way.append((ranges, self.life))
        return self.life, len(self.under_way) - 1

    def _code(self, member: str, acks: list[Ack]) -> ErrorCode:
        for ack in acks:
            if ack.last >= self.model.end:
                return ErrorCode.INVALID_REQUEST
            for offset in range(max(ack.first, self.model.start), ack.last + 1):
                record = self.model.records[offset]
                if record.state != ACQUIRED or record.asked is not None or record.member != member:
                    return ErrorCode.INVALID_RECORD_STATE
        return ErrorCode.NONE

    @rule(which=settling, durable=st.booleans())
    def settle(self, which: tuple[int, int], durable: bool) -> None:
        life, number = which
        if life != self.life or number < 0 or not (ranges := self.under_way[number][0]):
            return
        self.under_way[number] = ([], life)
        self.window.settle(ranges, durable)
        for first, last in ranges:
            for offset in range(max(first, self.model.start), last + 1):
                record = self.model.records[offset]
                assert record.asked is not None
                if durable:
                    record.state, record.member = record.asked, None
                elif record.lock_over:
                    record.state, record.member = AVAILABLE, None
                record.asked = None
        self.model.advance()

    @rule(seconds=st.integers(0, 6))
    def time_passes(self, seconds: int) -> None:
        self.now += seconds
        self.window.expire(self.now, LIMIT)
        for record in self.model.records.values():
            if record.state == ACQUIRED and record.deadline <= self.now:
                self._unlock(record)
        self.model.advance()

    @rule(member=MEMBERS)
    def release(self, member: str) -> None:
        self.window.release(member, LIMIT)
        for record in self.model.records.values():
            if record.state == ACQUIRED and record.member == member:
                self._unlock(record)
        self.model.advance()

    @staticmethod
    def _unlock(record: Record) -> None:
        if record.asked is None:
            record.back()
        else:
            record.lock_over = True

    @rule(first=st.integers(0, 5), last=st.integers(0, 5))
    def archive(self, first: int, last: int) -> None:
        first = self.model.start + first
        last = first + last
        self.window.archive(first, last)
        for offset in range(self.model.end, last + 1):
            self.model.records[offset] = Record()
        for offset in range(first, last + 1):
            record = self.model.records[offset]
            if record.state == AVAILABLE and record.asked is None:
                record.state = ARCHIVED
        self.model.advance()

    @rule(by=st.integers(0, 6))
    def log_start_moves(self, by: int) -> None:
        offset = self.model.start + by
        self.window.move_start(offset)
        for gone in [o for o in self.model.records if o < offset]:
            del self.model.records[gone]
        self.model.start = offset
        self.model.advance()

    @rule()
    def crash(self) -> None:
        """All that was on its way is in the store: what is found is what was asked."""
        self.window = Window(*self.window.stored())
        self.model = self.model.stored()
        self.life += 1
        self.under_way.clear()

    # What holds

    @invariant()
    def the_same(self) -> None:
        assert (self.window.start, self.window.end) == (self.model.start, self.model.end)
        for offset, record in self.model.records.items():
            expected = record.state if record.asked is None else record.asked | 8
            assert self.window.state(offset) == expected, offset
        states = [r.state for r in self.model.records.values() if r.asked is None]
        assert self.window.acquired == states.count(ACQUIRED)
        assert self.window.final == sum(states.count(state) for state in FINAL)

    @invariant()
    def locks_are_those_of_acquired_records(self) -> None:
        deadline = self.window.locks.next_deadline()
        held = [r.deadline for r in self.model.records.values() if r.state == ACQUIRED and not r.lock_over]
        assert deadline == min(held, default=None)


def _each(acks: list[Ack]) -> list[tuple[int, int]]:
    return [
        (offset, ack.types[0] if len(ack.types) == 1 else ack.types[offset - ack.first])
        for ack in acks
        for offset in range(ack.first, ack.last + 1)
    ]


def run(examples: int, steps: int) -> None:
    checks = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(ShareWindow, settings=checks)


def test_a_window_does_what_its_model_does() -> None:
    run(150, 40)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_window_does_what_its_model_does_for_long() -> None:
    run(1_500, 80)


places = st.tuples(st.uuids(), st.integers(0, 3))


@given(st.data())
def test_assignments_are_even_and_stay(data: st.DataObject) -> None:
    """Where all subscribe to the same."""
    some: list[Place] = sorted(data.draw(st.sets(places, min_size=1, max_size=12)))
    members = [f"m{number}" for number in range(data.draw(st.integers(1, 12)))]
    before = {m: frozenset(data.draw(st.sets(st.sampled_from(some), max_size=6))) for m in members}
    after = assign(dict.fromkeys(members, frozenset(some)), before)
    sizes = [len(found) for found in after.values()]
    holders = [sum(place in found for found in after.values()) for place in some]
    assert min(sizes) >= 1
    assert min(holders) >= 1
    if len(some) >= len(members):
        assert max(sizes) - min(sizes) <= 1
        assert set(holders) == {1}
    else:
        assert set(sizes) == {1}
        assert max(holders) - min(holders) <= 1
    assert assign(dict.fromkeys(members, frozenset(some)), after) == after, "nothing moves without need"
