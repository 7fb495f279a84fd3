"""What a partition remembers of its producers, against a model that remembers everything."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.broker.storage.batch import Batch, following, parse_header
from headrace.broker.storage.producers import REMEMBERED_BATCHES, ProducerStates
from headrace.broker.wire.errors import ApiError, ErrorCode
from tests.broker.faults.batches import encode


def batch(producer: int, epoch: int, sequence: int, count: int = 1, *, transactional: bool = False) -> Batch:
    return parse_header(encode([b"x"] * count, producer, epoch, sequence, transactional=transactional))


def append(states: ProducerStates, given: Batch, offset: int) -> int:
    assert states.check(given) is None
    states.appended(given, offset, 0)
    return offset + given.records


def refusal(states: ProducerStates, given: Batch) -> ErrorCode:
    with pytest.raises(ApiError) as refused:
        states.check(given)
    return refused.value.code


def test_a_retry_of_the_last_five_is_known_and_older_ones_are_out_of_order() -> None:
    states = ProducerStates()
    for number in range(REMEMBERED_BATCHES + 2):
        append(states, batch(1, 0, number * 2, 2), number * 2)
    for number in range(2, REMEMBERED_BATCHES + 2):
        written = states.check(batch(1, 0, number * 2, 2))
        assert written is not None
        assert written.base_offset == number * 2
    assert refusal(states, batch(1, 0, 0, 2)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refusal(states, batch(1, 0, 99)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_sequences_go_on_at_zero_after_the_highest() -> None:
    states = ProducerStates()
    append(states, batch(1, 0, 2**31 - 2, 3), 0)
    append(states, batch(1, 0, 1), 3)
    retried = states.check(batch(1, 0, 2**31 - 2, 3))
    assert retried is not None
    assert retried.last_sequence == 0


def test_a_newer_epoch_begins_anew_and_fences_the_older() -> None:
    states = ProducerStates()
    append(states, batch(1, 3, 0), 0)
    assert refusal(states, batch(1, 4, 5)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    append(states, batch(1, 4, 0), 1)
    assert refusal(states, batch(1, 3, 1)) == ErrorCode.INVALID_PRODUCER_EPOCH


def test_a_marker_of_a_newer_epoch_fences_at_once() -> None:
    states = ProducerStates()
    append(states, batch(1, 0, 0, transactional=True), 0)
    states.ended(1, 1, False, 1, 0, 0)
    assert refusal(states, batch(1, 0, 1, transactional=True)) == ErrorCode.INVALID_PRODUCER_EPOCH
    append(states, batch(1, 1, 0, transactional=True), 2)


def test_within_a_transaction_only_transactional_batches() -> None:
    states = ProducerStates()
    append(states, batch(1, 0, 0, transactional=True), 0)
    assert refusal(states, batch(1, 0, 1)) == ErrorCode.INVALID_TXN_STATE


def test_producers_are_forgotten_when_idle_but_not_in_a_transaction() -> None:
    states = ProducerStates()
    append(states, batch(1, 0, 0), 0)
    append(states, batch(2, 0, 0, transactional=True), 1)
    assert states.expire(before_ms=1)
    assert list(states.entries) == [2]
    assert states.check(batch(1, 0, 7)) is None  # unknown again: any sequence may begin


class Transactions(RuleBasedStateMachine):
    """Open, decided and durable transactions of a few producers, saved and loaded at any moment."""

    def __init__(self) -> None:
        super().__init__()
        self.states = ProducerStates()
        self.sequences: dict[int, int] = {}
        self.open: dict[int, int] = {}
        self.ends: list[tuple[int, int, int, bool]] = []  # producer, first, marker, committed
        self.log_end = 0
        self.synced = 0

    @rule(producer=st.integers(1, 4), count=st.integers(1, 3))
    def write(self, producer: int, count: int) -> None:
        sequence = self.sequences.get(producer, 0)
        given = batch(producer, 0, sequence, count, transactional=True)
        self.open.setdefault(producer, self.log_end)
        self.log_end = append(self.states, given, self.log_end)
        self.sequences[producer] = following(sequence, count)

    @rule(producer=st.integers(1, 4), commit=st.booleans())
    def end(self, producer: int, commit: bool) -> None:
        self.states.ended(producer, 0, commit, self.log_end, 0, 0)
        if producer in self.open:
            self.ends.append((producer, self.open.pop(producer), self.log_end, commit))
        self.log_end += 1

    @rule(data=st.data())
    def sync(self, data: st.DataObject) -> None:
        self.synced = data.draw(st.integers(self.synced, self.log_end))
        self.states.synced_to(self.synced)

    @precondition(lambda self: self.synced == self.log_end)
    @rule()
    def restart(self) -> None:
        self.states = ProducerStates.decode(self.states.encode(), self.states.aborted)

    @invariant()
    def nothing_undecided_is_stable(self) -> None:
        undecided = [*self.open.values(), *(first for _, first, marker, _ in self.ends if marker >= self.synced)]
        assert self.states.first_undecided() == min(undecided, default=None)

    @invariant()
    def aborted_ones_are_listed_where_they_have_records(self) -> None:
        for start in range(0, self.log_end + 1, 3):
            listed = {
                (entry.producer_id, entry.first_offset) for entry in self.states.aborted.between(start, start + 4)
            }
            expected = {
                (producer, first)
                for producer, first, marker, commit in self.ends
                if not commit and marker >= start and first < start + 4
            }
            assert listed == expected


TestTransactions = Transactions.TestCase


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(1, 4)), max_size=60))
def test_what_is_encoded_is_what_is_decoded(writes: list[tuple[int, int]]) -> None:
    states, offset, sequences = ProducerStates(), 0, dict.fromkeys(range(51), 0)
    for producer, count in writes:
        offset = append(states, batch(producer, 2, sequences[producer], count), offset)
        sequences[producer] += count
    again = ProducerStates.decode(states.encode(), [])
    assert again.encode() == states.encode()
    for producer, entry in states.entries.items():
        assert list(again.entries[producer].batches) == list(entry.batches)
