"""Clients of every kind. The broker may die at any step of theirs; they go on with the next one, as real ones do."""

import time

from headrace.broker.errors import ErrorCode
from tests.broker.faults import facts
from tests.broker.faults.batches import encode
from tests.broker.faults.client import EARLIEST, Client, Committed, Membership, Refused
from tests.broker.faults.facts import Send
from tests.broker.faults.journal import Actor, Journal


class PlainWriter(Actor):
    """Neither idempotent nor transactional: acks 1 or all."""

    def step(self, client: Client) -> None:
        if self.dice.random() < 0.3:
            self._send_to_both(client)
            return
        send = Send("plain", self.dice.randrange(2), self.values())
        number = self.journal.attempt(send)
        acks = self.dice.choice([1, -1])
        offset = client.produce(send.topic, send.partition, encode(send.values), acks=acks)
        self.journal.answer(number, offset)

    def _send_to_both(self, client: Client) -> None:
        sends = [Send("plain", partition, self.values()) for partition in range(2)]
        numbers = [self.journal.attempt(send) for send in sends]
        offsets = client.produce_to_many("plain", {send.partition: encode(send.values) for send in sends})
        for number, send in zip(numbers, sends, strict=True):
            self.journal.answer(number, offsets[send.partition])


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
        places = [(topic, partition) for topic in ("plain", "exact", "mixed") for partition in range(2)]
        topic, partition = self.dice.choice([*places, ("aging", 0)])
        committed = self.dice.random() < 0.5
        key = (topic, partition, committed)
        start = self._positions.get(key, 0)
        try:
            log = client.read(topic, partition, committed=committed, start=start)
        except Refused as refused:
            # What it wanted to read next is gone: it begins again with what is left.
            if topic != "aging" or refused.code is not ErrorCode.OFFSET_OUT_OF_RANGE:
                raise
            self._positions[key] = client.offset(topic, partition, EARLIEST)
            return
        records = tuple(log.records.items())
        self.journal.saw(facts.Saw(topic, partition, records, log.high_watermark, committed, log.start))
        self._positions[key] = log.end
        time.sleep(0.002)


class Ager(Actor):
    """An idempotent producer to small segments that the broker lets go of by itself."""

    topic = "aging"

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
        self._unanswered = Send(self.topic, 0, values, (*self._producer, self._sequence))
        self._sequence += len(values)
        offset = self._deliver(client, self._unanswered)
        self.delivered(client, offset, offset + len(values))

    def delivered(self, client: Client, offset: int, end: int) -> None:
        pass

    def _deliver(self, client: Client, send: Send) -> int:
        batch = encode(send.values, *(send.producer or ()))
        offset: int = self.journal.do(send, lambda: client.produce(send.topic, send.partition, batch))
        self._unanswered = None
        return offset


class Trimmer(Ager):
    """Lets the beginning of its log go now and then."""

    topic = "trimmed"

    def delivered(self, client: Client, offset: int, end: int) -> None:
        if self.dice.random() < 0.15:
            before = self.dice.randint(max(0, offset - 10), end)
            action = facts.DeleteRecords(self.topic, 0, before)
            self.journal.do(action, lambda: client.delete_records(self.topic, 0, before))


class Member(Actor):
    """The only member of its group: joins, joins again, and finds itself still a member after each restart."""

    def __init__(self, name: str, journal: Journal, seed: int) -> None:
        super().__init__(name, journal, seed)
        self._membership: Membership | None = None
        self._groups = 0

    def step(self, client: Client) -> None:
        if self._membership is None:
            # Whether an unanswered join of the last group has happened, nobody knows.
            self._groups += 1
            self._join(client, f"group {self._groups} of {self.name}", "")
        elif self.dice.random() < 0.2:
            joined, self._membership = self._membership, None
            self._join(client, joined.group, joined.member_id)
        else:
            client.heartbeat(self._membership)
            time.sleep(0.005)

    def _join(self, client: Client, group: str, member_id: str) -> None:
        assignment = self.value()
        self._membership = self.journal.do(facts.Join(group), lambda: client.join(group, member_id, assignment))


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
        total = action.partitions
        if self.dice.random() < 0.5:
            total += 2
            more = facts.AddPartitions("churn", life, total)
            self.journal.do(more, lambda: client.add_partitions("churn", more.total))
        for _ in range(self.dice.randint(0, 3)):
            send = Send("churn", self.dice.randrange(total), self.values(), life=life)
            self.journal.do(send, lambda: client.produce(send.topic, send.partition, encode(send.values)))  # noqa: B023
        value = str(1_000_000 + life)
        change = facts.SetConfig("plain", "max.message.bytes", value)
        self.journal.do(change, lambda: client.set_config("plain", change.name, change.value))
        self._delete(client)

    def _delete(self, client: Client) -> None:
        self.journal.do(facts.DeleteTopic("churn"), lambda: client.delete_topic("churn"))
