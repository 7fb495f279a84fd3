"""Clients of every kind at once, each of which says what it tries and what it was told.

They may be stopped by the broker's death at any step and go on with the next one, as real clients do.
"""

import random
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from typing import Any

from headrace.broker.wire.errors import ErrorCode
from tests.broker.faults import facts
from tests.broker.faults.batches import encode
from tests.broker.faults.client import Client, Committed, Refused
from tests.broker.faults.facts import Answer, Attempt, Send

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
SEGMENT_BYTES = 4096


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


class PlainWriter(Actor):
    """Neither idempotent nor transactional: acks 1 or all."""

    def step(self, client: Client) -> None:
        send = Send("plain", self.dice.randrange(2), self.values())
        number = self.journal.attempt(send)
        acks = self.dice.choice([1, -1])
        offset = client.produce(send.topic, send.partition, encode(send.values), acks=acks)
        self.journal.answer(number, offset)


class ExactWriter(Actor):
    """Idempotent: sends several batches ahead, and some twice at once over two connections."""

    def __init__(self, name: str, journal: Journal, seed: int, topic: str = "exact") -> None:
        super().__init__(name, journal, seed)
        self._topic = topic
        self._producer: tuple[int, int] | None = None
        self._sequences = [0, 0]
        self._unanswered: list[Send] = []

    def resume(self, client: Client) -> None:
        if self._producer is None:
            self._producer = self.journal.do(facts.InitProducer(None), client.init_producer)
        while self._unanswered:
            self._deliver(client, self._unanswered[:1])

    def step(self, client: Client) -> None:
        assert self._producer is not None
        partition = self.dice.randrange(2)
        # The broker knows no producer before its first batch, so nothing would keep a second from overtaking it.
        ahead = self.dice.choice([1, 1, 3]) if self._sequences[partition] else 1
        for _ in range(ahead):
            values = self.values()
            producer = (*self._producer, self._sequences[partition])
            self._sequences[partition] += len(values)
            self._unanswered.append(Send(self._topic, partition, values, producer))
        if self.dice.random() < 0.4:
            with Client(self.address) as other:
                self._deliver(client, list(self._unanswered), other)
        else:
            self._deliver(client, list(self._unanswered))

    def _deliver(self, client: Client, sends: list[Send], other: Client | None = None) -> None:
        """With `other`, each batch is sent twice, and what comes back first counts."""
        waiting = []
        for send in sends:
            for connection in (client, *([other] if other else [])):
                number = self.journal.attempt(send)
                batch = encode(send.values, *(send.producer or ()))
                waiting.append((number, connection, connection.send_produce(send.topic, send.partition, batch)))
        # The last connection holds only duplicates: were they answered early, it would show here.
        for number, connection, correlation_id in sorted(waiting, key=lambda entry: entry[1] is client):
            self.journal.answer(number, connection.receive_produce(correlation_id))
        del self._unanswered[: len(sends)]


class TransactionalWriter(Actor):
    """Transactions over two topics and a group's offset, committed or aborted."""

    def __init__(self, name: str, journal: Journal, seed: int) -> None:
        super().__init__(name, journal, seed)
        self._producer = (-1, -1)
        self._sequences: dict[tuple[str, int], int] = {}
        self._number = 0

    def resume(self, client: Client) -> None:
        action = facts.InitProducer(self.name)
        self._producer = self.journal.do(action, lambda: self.patiently(lambda: client.init_producer(self.name)))
        self._sequences = {}

    def step(self, client: Client) -> None:
        self._number += 1
        transaction = f"{self.name}-{self._number}"
        self.journal.attempt(facts.Begin(transaction, self.name))
        added: set[tuple[str, int]] = set()
        for _ in range(self.dice.randint(1, 3)):
            place = (self.dice.choice(["exact", "mixed"]), self.dice.randrange(2))
            if place not in added:
                self.patiently(lambda place=place: client.add_partition(self.name, self._producer, *place))
                added.add(place)
            self._send(client, place, transaction)
        if self.dice.random() < 0.5:
            self._stage(client, transaction)
        commit = self.dice.random() < 0.7
        end = facts.End(transaction, commit)
        self.journal.do(
            end,
            lambda: self.patiently(lambda: client.end_transaction(self.name, self._producer, commit=commit)),
        )

    def _send(self, client: Client, place: tuple[str, int], transaction: str) -> None:
        values = self.values()
        producer = (*self._producer, self._sequences.get(place, 0))
        self._sequences[place] = producer[2] + len(values)
        send = Send(*place, values, producer, transaction)
        batch = encode(values, *producer, transactional=True)
        self.journal.do(send, lambda: client.produce(*place, batch, self.name))

    def _stage(self, client: Client, transaction: str) -> None:
        group, entry = f"group of {self.name}", Committed(self._number, transaction)
        self.patiently(lambda: client.add_offsets(self.name, self._producer, group))
        staged = facts.CommitOffset(group, "plain", 0, entry, transaction)
        self.journal.do(staged, lambda: client.stage_offset(self.name, self._producer, group, "plain", 0, entry))


class OffsetCommitter(Actor):
    def step(self, client: Client) -> None:
        self._counter += 1
        partition = self.dice.randrange(2)
        entry = Committed(self._counter, f"seen {self._counter}")
        action = facts.CommitOffset("readers", "plain", partition, entry)
        self.journal.do(action, lambda: client.commit_offset("readers", "plain", partition, entry))


class Reader(Actor):
    """Follows the logs, in both isolation levels."""

    def __init__(self, name: str, journal: Journal, seed: int) -> None:
        super().__init__(name, journal, seed)
        self._positions: dict[tuple[str, int, bool], int] = {}

    def step(self, client: Client) -> None:
        topic, partition = self.dice.choice(["plain", "exact", "mixed"]), self.dice.randrange(2)
        committed = self.dice.random() < 0.5
        key = (topic, partition, committed)
        start = self._positions.get(key, 0)
        log = client.read(topic, partition, committed=committed, start=start)
        # Without an answer from a broker that was told to keep it, the end is a promise as well.
        self.journal.saw(facts.Saw(topic, partition, tuple(log.records.items()), log.high_watermark, committed))
        self._positions[key] = log.end
        time.sleep(0.002)


class Trimmer(Actor):
    """Writes small segments and lets their beginning go, as an idempotent producer."""

    def __init__(self, name: str, journal: Journal, seed: int) -> None:
        super().__init__(name, journal, seed)
        self._producer: tuple[int, int] | None = None
        self._sequence = 0
        self._unanswered: Send | None = None

    def resume(self, client: Client) -> None:
        if self._producer is None:
            self._producer = self.journal.do(facts.InitProducer(None), client.init_producer)
        if self._unanswered is not None:
            self._deliver(client, self._unanswered)

    def step(self, client: Client) -> None:
        assert self._producer is not None
        values = self.values()
        self._unanswered = Send("trimmed", 0, values, (*self._producer, self._sequence))
        self._sequence += len(values)
        offset = self._deliver(client, self._unanswered)
        if self.dice.random() < 0.15:
            before = self.dice.randint(max(0, offset - 10), offset + len(values))
            action = facts.DeleteRecords("trimmed", 0, before)
            self.journal.do(action, lambda: client.delete_records("trimmed", 0, before))

    def _deliver(self, client: Client, send: Send) -> int:
        batch = encode(send.values, *(send.producer or ()))
        offset: int = self.journal.do(send, lambda: client.produce(send.topic, send.partition, batch))
        self._unanswered = None
        return offset


class Administrator(Actor):
    """Makes, changes and deletes topics, one of them under the same name again and again."""

    def __init__(self, name: str, journal: Journal, seed: int) -> None:
        super().__init__(name, journal, seed)
        self._life = 0

    def resume(self, client: Client) -> None:
        if "churn" in client.topics():
            self._delete(client)

    def step(self, client: Client) -> None:
        self._life += 1
        life = self._life
        action = facts.CreateTopic("churn", life, 1 + life % 3)
        self.journal.do(action, lambda: client.create_topic("churn", action.partitions))
        for _ in range(self.dice.randint(0, 3)):
            send = Send("churn", self.dice.randrange(action.partitions), self.values(), life=life)
            self.journal.do(send, lambda: client.produce(send.topic, send.partition, encode(send.values)))  # noqa: B023
        value = str(1_000_000 + life)
        change = facts.SetConfig("plain", "max.message.bytes", value)
        self.journal.do(change, lambda: client.set_config("plain", change.name, change.value))
        self._delete(client)

    def _delete(self, client: Client) -> None:
        self.journal.do(facts.DeleteTopic("churn"), lambda: client.delete_topic("churn"))


class Workload:
    """All actors, over as many lives of the broker as the test wants."""

    def __init__(self, note: Note, seed: int) -> None:
        self.journal = Journal(note)
        journal = self.journal
        self.actors: list[Actor] = [
            PlainWriter("plain", journal, seed),
            ExactWriter("exact", journal, seed),
            TransactionalWriter("transactional", journal, seed),
            OffsetCommitter("committer", journal, seed),
            Reader("reader", journal, seed),
            Trimmer("trimmer", journal, seed),
            Administrator("administrator", journal, seed),
        ]
        self._missing = [
            ("plain", 2, {}),
            ("exact", 2, {"segment.bytes": str(SEGMENT_BYTES * 4)}),
            ("mixed", 2, {}),
            ("trimmed", 1, {"segment.bytes": str(SEGMENT_BYTES * 2)}),
        ]

    def run(
        self,
        address: Address,
        until: Callable[[], bool],
        tolerated: Collection[ErrorCode] = (),
    ) -> None:
        """Every actor at work in a thread of its own, until told to stop or until the broker is gone.

        One that is refused for a tolerated reason waits for the broker's next life.
        """
        try:
            self.create_topics(address)
        except TimeoutError:
            raise
        except Refused as refused:
            if refused.code not in tolerated:
                raise
            return
        except OSError:
            return
        failures: list[BaseException] = []

        def work(actor: Actor) -> None:
            try:
                actor.run(address, until)
            except Refused as refused:
                if refused.code not in tolerated:
                    failures.append(refused)
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=[actor], name=actor.name) for actor in self.actors]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]

    def create_topics(self, address: Address) -> None:
        with Client(address) as client:
            there = client.topics()
            while self._missing:
                topic, partitions, configs = self._missing[0]
                number = self.journal.attempt(facts.CreateTopic(topic, 0, partitions))
                if topic not in there:
                    client.create_topic(topic, partitions, configs)
                self.journal.answer(number)
                del self._missing[0]


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
