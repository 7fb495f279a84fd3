"""What clients tried and what they were told, and what must therefore be true after any crash.

An attempt that was not answered may have happened or not. One that was answered has happened for good.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tests.broker.faults.client import Committed, Membership

ABSENT = None


@dataclass(frozen=True, slots=True)
class CreateTopic:
    """`life` tells apart the topics that bore the same name one after the other."""

    topic: str
    life: int
    partitions: int
    aging: bool = False
    """Whether the broker lets go of old records by itself."""


@dataclass(frozen=True, slots=True)
class AddPartitions:
    topic: str
    life: int
    total: int


@dataclass(frozen=True, slots=True)
class DeleteTopic:
    topic: str


@dataclass(frozen=True, slots=True)
class SetConfig:
    topic: str
    name: str
    value: str


@dataclass(frozen=True, slots=True)
class Send:
    """The answer is the offset of the first value. Each value is sent by one attempt only, or by its retries."""

    topic: str
    partition: int
    values: tuple[bytes, ...]
    producer: tuple[int, int, int] | None = None
    """Id, epoch and sequence of an idempotent producer."""
    transaction: str | None = None
    life: int = 0


@dataclass(frozen=True, slots=True)
class Begin:
    """A transaction, by a name of its own."""

    transaction: str
    transactional_id: str


@dataclass(frozen=True, slots=True)
class End:
    transaction: str
    commit: bool


@dataclass(frozen=True, slots=True)
class CommitOffset:
    group: str
    topic: str
    partition: int
    entry: Committed
    transaction: str | None = None


@dataclass(frozen=True, slots=True)
class InitProducer:
    """The answer is the producer's id and epoch."""

    transactional_id: str | None


@dataclass(frozen=True, slots=True)
class Join:
    """The answer is the membership."""

    group: str


@dataclass(frozen=True, slots=True)
class DeleteRecords:
    topic: str
    partition: int
    before: int


@dataclass(frozen=True, slots=True)
class Saw:
    """A reader saw these records: nobody may ever see anything else there."""

    topic: str
    partition: int
    records: tuple[tuple[int, bytes], ...]
    high_watermark: int
    committed: bool = False
    log_start: int = 0


Action = (
    CreateTopic
    | AddPartitions
    | DeleteTopic
    | Join
    | SetConfig
    | Send
    | Begin
    | End
    | CommitOffset
    | InitProducer
    | DeleteRecords
    | Saw
)


@dataclass(frozen=True, slots=True)
class Attempt:
    number: int
    action: Action


@dataclass(frozen=True, slots=True)
class Answer:
    number: int
    result: Any = None


@dataclass
class SentBatch:
    send: Send
    number: int
    offset: int | None = None
    """Where it stands, if the client was told."""


@dataclass
class Transaction:
    transactional_id: str
    wish: bool | None = None
    """Whether a commit was asked for; None while open."""
    answered: bool = False
    offsets: list[CommitOffset] = field(default_factory=list)

    @property
    def may_be_committed(self) -> bool:
        return self.wish is True

    @property
    def is_committed(self) -> bool:
        return self.wish is True and self.answered


@dataclass
class Expected:
    """Folded from the notes up to a crash: what is certain, and what is possible."""

    lives: dict[str, set[int | None]] = field(default_factory=dict)
    partitions: dict[tuple[str, int], set[int]] = field(default_factory=dict)
    aging: set[str] = field(default_factory=set)
    members: dict[str, Membership | None] = field(default_factory=dict)
    """None while nobody knows whether a member has joined anew."""
    configs: dict[tuple[str, str], set[str | None]] = field(default_factory=dict)
    offsets: dict[tuple[str, str, int], set[Committed | None]] = field(default_factory=dict)
    log_starts: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    """At least, at most."""
    sent: list[SentBatch] = field(default_factory=list)
    transactions: dict[str, Transaction] = field(default_factory=dict)
    producer_ids: dict[int, str | None] = field(default_factory=dict)
    epochs: dict[str, tuple[int, int]] = field(default_factory=dict)
    """The newest id and epoch of each transactional id that a client was told."""
    seen: list[Saw] = field(default_factory=list)

    def possible_lives(self, topic: str) -> set[int | None]:
        return self.lives.setdefault(topic, {ABSENT})


def fold(notes: Iterable[Attempt | Answer | Saw]) -> Expected:
    expected = Expected()
    attempts: dict[int, Action] = {}
    sent: dict[int, SentBatch] = {}
    for note in notes:
        match note:
            case Attempt(number, Send() as send):
                sent[number] = SentBatch(send, number)
                expected.sent.append(sent[number])
            case Attempt(number, action):
                attempts[number] = action
                _tried(expected, action)
            case Answer(number, result) if number in sent:
                sent[number].offset = result
            case Answer(number, result):
                _answered(expected, attempts[number], result)
            case Saw():
                expected.seen.append(note)
    return expected


def _tried(expected: Expected, action: Action) -> None:
    match action:
        case CreateTopic(topic, life, partitions, aging):
            expected.possible_lives(topic).add(life)
            expected.partitions[topic, life] = {partitions}
            if aging:
                expected.aging.add(topic)
        case AddPartitions(topic, life, total):
            expected.partitions[topic, life].add(total)
        case Join(group):
            expected.members[group] = None
        case DeleteTopic(topic):
            expected.possible_lives(topic).add(ABSENT)
        case SetConfig(topic, name, value):
            expected.configs.setdefault((topic, name), {None}).add(value)
        case CommitOffset(group, topic, partition, entry, None):
            expected.offsets.setdefault((group, topic, partition), {None}).add(entry)
        case CommitOffset(transaction=str(transaction)):
            expected.transactions[transaction].offsets.append(action)
        case Begin(transaction, transactional_id):
            expected.transactions[transaction] = Transaction(transactional_id)
        case End(transaction, commit):
            ended = expected.transactions[transaction]
            ended.wish = commit
            if commit:
                for staged in ended.offsets:
                    key = (staged.group, staged.topic, staged.partition)
                    expected.offsets.setdefault(key, {None}).add(staged.entry)
        case DeleteRecords(topic, partition, before):
            low, high = expected.log_starts.get((topic, partition), (0, 0))
            expected.log_starts[topic, partition] = (low, max(high, before))


def _answered(expected: Expected, action: Action, result: Any) -> None:
    match action:
        case CreateTopic(topic, life):
            expected.lives[topic] = {life}
        case AddPartitions(topic, life, total):
            expected.partitions[topic, life] = {total}
        case Join(group):
            expected.members[group] = result
        case DeleteTopic(topic):
            expected.lives[topic] = {ABSENT}
        case SetConfig(topic, name, value):
            expected.configs[topic, name] = {value}
        case CommitOffset(group, topic, partition, entry, None):
            expected.offsets[group, topic, partition] = {entry}
        case End(transaction, commit):
            ended = expected.transactions[transaction]
            ended.answered = True
            if commit:
                for staged in ended.offsets:
                    expected.offsets[staged.group, staged.topic, staged.partition] = {staged.entry}
        case InitProducer(transactional_id):
            producer_id, epoch = result
            expected.producer_ids[producer_id] = transactional_id
            if transactional_id is not None:
                expected.epochs[transactional_id] = (producer_id, epoch)
        case DeleteRecords(topic, partition, before):
            _, high = expected.log_starts[topic, partition]
            expected.log_starts[topic, partition] = (max(result, before), high)
