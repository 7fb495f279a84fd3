"""The broker against a model of a few lines: produce, fetch, commit, transactions and restarts in any order."""

from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from headrace.broker.errors import ErrorCode
from tests.broker.faults.batches import encode
from tests.broker.faults.client import EARLIEST, LATEST, Client, Committed, Refused
from tests.broker.faults.harness import Running, abandoned
from tests.broker.faults.journal import patiently

TOPIC = "t"
PARTITIONS = 2
TRANSACTIONAL_IDS = ("one", "two")
FENCED = {
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
}

partitions = st.integers(0, PARTITIONS - 1)
counts = st.integers(1, 3)


@dataclass
class Commit:
    """An offset, and where in the order of all commits it was committed or staged."""

    number: int
    entry: Committed


@dataclass
class Transaction:
    producer: tuple[int, int]
    places: set[int] = field(default_factory=set)
    offsets: dict[int, Commit] = field(default_factory=dict)
    state: str = "open"


@dataclass
class Entry:
    """A record, or a marker where there is no value."""

    value: bytes | None
    transaction: Transaction | None = None


@dataclass
class Idempotent:
    producer: tuple[int, int]
    sent: dict[int, list[tuple[int, tuple[bytes, ...], int]]] = field(default_factory=dict)
    """partition -> (sequence, values, offset)"""

    def next_sequence(self, partition: int) -> int:
        sent = self.sent.get(partition)
        return sent[-1][0] + len(sent[-1][1]) if sent else 0


class BrokerModel(RuleBasedStateMachine):
    producers = Bundle("producers")

    @initialize()
    def start(self) -> None:
        self.stack = ExitStack()
        shared = Path("/dev/shm")
        self.folder = Path(self.stack.enter_context(TemporaryDirectory(dir=shared if shared.is_dir() else None)))
        self.logs: list[list[Entry]] = [[] for _ in range(PARTITIONS)]
        self.starts = [0] * PARTITIONS
        self.committed: dict[tuple[str, int], Commit] = {}
        self.commits = 0
        self.open: dict[str, Transaction] = {}
        self.epochs: dict[str, tuple[int, int]] = {}
        self.sequences: dict[tuple[tuple[int, int], int], int] = {}
        self.counter = 0
        self._serve()
        self.client.create_topic(TOPIC, PARTITIONS, {"segment.bytes": "600"})

    def _serve(self) -> None:
        self.life = self.stack.enter_context(ExitStack())
        self.running: Running = self.life.enter_context(abandoned(self.folder))
        self.client = self.life.enter_context(Client(self.running.address))

    def teardown(self) -> None:
        if hasattr(self, "stack"):
            self.stack.close()

    def _values(self, count: int) -> tuple[bytes, ...]:
        self.counter += count
        return tuple(f"value {self.counter - each} ".encode() * 3 for each in range(count))

    def _append(self, partition: int, values: tuple[bytes, ...], transaction: Transaction | None = None) -> int:
        offset = len(self.logs[partition])
        self.logs[partition].extend(Entry(value, transaction) for value in values)
        return offset

    # -- records

    @rule(partition=partitions, count=counts, acks=st.sampled_from([1, -1]))
    def produce(self, partition: int, count: int, acks: int) -> None:
        values = self._values(count)
        offset = self.client.produce(TOPIC, partition, encode(values), acks=acks)
        assert offset == self._append(partition, values)

    @rule(target=producers)
    def new_producer(self) -> Idempotent:
        return Idempotent(self.client.init_producer())

    @rule(producer=producers, partition=partitions, count=counts)
    def produce_idempotently(self, producer: Idempotent, partition: int, count: int) -> None:
        values = self._values(count)
        sequence = producer.next_sequence(partition)
        offset = self.client.produce(TOPIC, partition, encode(values, *producer.producer, sequence))
        assert offset == self._append(partition, values)
        producer.sent.setdefault(partition, []).append((sequence, values, offset))

    @rule(producer=producers, partition=partitions, back=st.integers(1, 5))
    def retry(self, producer: Idempotent, partition: int, back: int) -> None:
        sent = producer.sent.get(partition, [])
        if len(sent) >= back:
            sequence, values, offset = sent[-back]
            batch = encode(values, *producer.producer, sequence)
            assert self.client.produce(TOPIC, partition, batch) == offset

    @rule(producer=producers, partition=partitions, gap=st.integers(1, 5))
    def leave_a_gap(self, producer: Idempotent, partition: int, gap: int) -> None:
        if producer.sent.get(partition):
            batch = encode([b"never"], *producer.producer, producer.next_sequence(partition) + gap)
            assert self._refusal(TOPIC, partition, batch) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

    def _refusal(self, topic: str, partition: int, batch: bytes, transactional_id: str | None = None) -> ErrorCode:
        try:
            self.client.produce(topic, partition, batch, transactional_id)
        except Refused as refused:
            return refused.code
        return ErrorCode.NONE

    @rule(partition=partitions, share=st.floats(0, 1))
    def delete_records(self, partition: int, share: float) -> None:
        before = round(share * len(self.logs[partition]))
        self.starts[partition] = max(self.starts[partition], before)
        assert self.client.delete_records(TOPIC, partition, before) == self.starts[partition]

    # -- offsets

    @rule(group=st.sampled_from(["g", "h"]), partition=partitions, offset=st.integers(0, 100))
    def commit_offset(self, group: str, partition: int, offset: int) -> None:
        entry = Committed(offset, f"at {offset}")
        self.client.commit_offset(group, TOPIC, partition, entry)
        self.committed[group, partition] = self._commit(entry)

    def _commit(self, entry: Committed) -> Commit:
        self.commits += 1
        return Commit(self.commits, entry)

    # -- transactions

    @rule(name=st.sampled_from(TRANSACTIONAL_IDS))
    def init_transactions(self, name: str) -> None:
        """Ends what is open under that name, and fences who had it."""
        old = self.epochs.get(name)
        self.epochs[name] = patiently(lambda: self.client.init_producer(name))
        if name in self.open:
            self._end(name, commit=False)
        if old is not None:
            late = encode([b"late"], *old, 1000, transactional=True)
            assert self._refusal(TOPIC, 0, late, name) in FENCED

    @precondition(lambda self: self.epochs)
    @rule(data=st.data(), partition=partitions, count=counts)
    def produce_in_transaction(self, data: st.DataObject, partition: int, count: int) -> None:
        name = data.draw(st.sampled_from(sorted(self.epochs)))
        producer = self.epochs[name]
        transaction = self.open.setdefault(name, Transaction(producer))
        if partition not in transaction.places:
            patiently(lambda: self.client.add_partition(name, producer, TOPIC, partition))
            transaction.places.add(partition)
        values = self._values(count)
        sequence = self.sequences.get((producer, partition), 0)
        batch = encode(values, *producer, sequence, transactional=True)
        offset = self.client.produce(TOPIC, partition, batch, name)
        assert offset == self._append(partition, values, transaction)
        self.sequences[producer, partition] = sequence + count

    @precondition(lambda self: self.open)
    @rule(data=st.data(), partition=partitions, offset=st.integers(0, 100))
    def stage_offset(self, data: st.DataObject, partition: int, offset: int) -> None:
        name = data.draw(st.sampled_from(sorted(self.open)))
        producer, entry = self.epochs[name], Committed(offset, f"with {name}")
        patiently(lambda: self.client.add_offsets(name, producer, "g"))
        self.client.stage_offset(name, producer, "g", TOPIC, partition, entry)
        self.open[name].offsets[partition] = self._commit(entry)

    @precondition(lambda self: self.open)
    @rule(data=st.data(), commit=st.booleans())
    def end_transaction(self, data: st.DataObject, commit: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.open)))
        producer = self.epochs[name]
        patiently(lambda: self.client.end_transaction(name, producer, commit=commit))
        self._end(name, commit=commit)

    def _end(self, name: str, *, commit: bool) -> None:
        """Markers go to every partition that was added; none of them can be seen but by its offset."""
        transaction = self.open.pop(name)
        transaction.state = "committed" if commit else "aborted"
        for partition in transaction.places:
            self.logs[partition].append(Entry(None))
        if commit:
            for partition, staged in transaction.offsets.items():
                there = self.committed.get(("g", partition))
                # What was committed after it was staged stays, as in Kafka.
                if there is None or there.number < staged.number:
                    self.committed["g", partition] = staged

    # -- restarts

    @rule(clean=st.booleans())
    def restart(self, clean: bool) -> None:
        if clean:
            self.running.wait(self.running.broker.stop())
        self.life.close()
        self._serve()

    # -- what must hold at any time

    @invariant()
    def logs_are_as_the_model_says(self) -> None:
        if not hasattr(self, "client"):
            return
        for partition, entries in enumerate(self.logs):
            start = self.starts[partition]
            undecided = [n for n, each in enumerate(entries) if each.transaction and each.transaction.state == "open"]
            stable = min(undecided, default=len(entries))
            plain = self.client.read(TOPIC, partition)
            assert (plain.start, plain.high_watermark) == (start, len(entries))
            visible = {n: each.value for n, each in enumerate(entries) if each.value is not None}
            assert _from(start, plain.records) == _from(start, visible)
            view = self.client.read(TOPIC, partition, committed=True)
            assert view.last_stable_offset == stable
            decided = {
                n: value
                for n, value in visible.items()
                if n < stable and not ((owner := entries[n].transaction) and owner.state == "aborted")
            }
            assert _from(start, view.records) == _from(start, decided)
            assert self.client.offset(TOPIC, partition, EARLIEST) == start
            assert self.client.offset(TOPIC, partition, LATEST) == len(entries)
            assert self.client.offset(TOPIC, partition, LATEST, committed=True) == stable

    @invariant()
    def offsets_are_as_the_model_says(self) -> None:
        if not hasattr(self, "client"):
            return
        for group in ("g", "h"):
            for partition in range(PARTITIONS):
                found = self.client.committed_offset(group, TOPIC, partition)
                expected = self.committed.get((group, partition))
                assert found == (None if expected is None else expected.entry)


def _from(start: int, records: dict[int, bytes | None] | dict[int, bytes]) -> dict[int, bytes | None]:
    return {offset: value for offset, value in records.items() if offset >= start}


QUICK = settings(
    max_examples=20,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def test_the_broker_is_its_model() -> None:
    run_state_machine_as_test(BrokerModel, settings=QUICK)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_broker_is_its_model_for_long() -> None:
    run_state_machine_as_test(BrokerModel, settings=settings(QUICK, max_examples=400, stateful_step_count=60))
