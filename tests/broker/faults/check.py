"""Whether a broker that came back keeps every promise its predecessor made."""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.broker.errors import ErrorCode
from tests.broker.faults.batches import encode
from tests.broker.faults.client import EARLIEST, LATEST, Client, Log, Refused
from tests.broker.faults.facts import ABSENT, Expected, Send, Transaction

FENCED = {ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_ID_MAPPING}
REMEMBERED = 5


class BrokenPromise(AssertionError):
    pass


class Place(NamedTuple):
    topic: str
    partition: int


@dataclass
class Wanted:
    """One batch over all its tries."""

    send: Send
    tries: int = 0
    offset: int | None = None
    order: int = 0


@dataclass
class Promises:
    """The facts, arranged by the partition they speak of."""

    expected: Expected
    batches: dict[tuple[bytes, ...], Wanted] = field(default_factory=dict)
    values: dict[bytes, Wanted] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for order, sent in enumerate(self.expected.sent):
            wanted = self.batches.setdefault(sent.send.values, Wanted(sent.send, order=order))
            wanted.tries += 1
            if sent.offset is not None:
                if wanted.offset not in (None, sent.offset):
                    raise BrokenPromise(f"a retry got offset {sent.offset} after {wanted.offset}: {wanted.send}")
                wanted.offset = sent.offset
            for value in sent.send.values:
                self.values[value] = wanted

    def transaction(self, send: Send) -> Transaction | None:
        return None if send.transaction is None else self.expected.transactions[send.transaction]


def check(expected: Expected, address: tuple[str, int]) -> None:
    """Raise BrokenPromise if anything a client was told no longer holds. Writes to the broker as well."""
    promises = Promises(expected)
    with Client(address) as client:
        lives = _check_topics(promises, client)
        _check_configs(promises, client, lives)
        _check_members(promises, client)
        _check_offsets(promises, client, lives)
        before = _check_logs(promises, client, lives)
        _check_producer_ids(promises, client)
        _retry(promises, client, lives)
        _end_transactions(promises, client)
        _go_on(promises, client, lives)
        after = _check_logs(promises, client, lives, settled=True)
        for place, log in before.items():
            for offset, value in log.records.items():
                if offset >= after[place].start and after[place].records.get(offset) != value:
                    raise BrokenPromise(f"{place} changed at offset {offset} while it was served")


def _check_topics(promises: Promises, client: Client) -> dict[str, int]:
    """Which life of each topic is there."""
    found = client.topics()
    lives: dict[str, int] = {}
    expected = promises.expected
    for topic, possible in expected.lives.items():
        if topic not in found:
            if ABSENT not in possible:
                raise BrokenPromise(f"topic {topic} is gone; possible lives {possible}")
            continue
        there = {life for life in possible if life is not ABSENT}
        if not there:
            raise BrokenPromise(f"topic {topic} was deleted and is there")
        there = {life for life in there if found[topic] in expected.partitions[topic, life]}
        if not there:
            raise BrokenPromise(f"topic {topic} has {found[topic]} partitions")
        lives[topic] = max(there)
        expected.partitions[topic, lives[topic]] = {found[topic]}
    if unknown := set(found) - set(expected.lives):
        raise BrokenPromise(f"topics nobody made: {unknown}")
    return lives


def _check_configs(promises: Promises, client: Client, lives: dict[str, int]) -> None:
    for (topic, name), possible in promises.expected.configs.items():
        if topic in lives:
            value = client.config(topic, name)
            if value not in possible and None not in possible:
                raise BrokenPromise(f"{name} of {topic} is {value}, possible is {possible}")


def _check_offsets(promises: Promises, client: Client, lives: dict[str, int]) -> None:
    for (group, topic, partition), possible in promises.expected.offsets.items():
        entry = client.committed_offset(group, topic, partition)
        if entry not in possible and topic in lives:
            raise BrokenPromise(f"{group} has {entry} on {topic}-{partition}, possible is {possible}")


def _check_members(promises: Promises, client: Client) -> None:
    """Who was in a group is in it still, with the same assignment, and need not join again."""
    for group, membership in promises.expected.members.items():
        if membership is None:
            continue
        try:
            client.heartbeat(membership)
        except Refused as refused:
            raise BrokenPromise(f"a member of {group} was told {refused}") from refused
        if client.assignment(membership) != membership.assignment:
            raise BrokenPromise(f"the assignment of {membership} is now {client.assignment(membership)!r}")


def _places(promises: Promises, lives: dict[str, int]) -> list[Place]:
    return [
        Place(topic, partition)
        for topic, life in lives.items()
        for partition in range(max(promises.expected.partitions[topic, life]))
    ]


def _check_logs(
    promises: Promises, client: Client, lives: dict[str, int], *, settled: bool = False
) -> dict[Place, Log]:
    """`settled`: every transaction was ended, so that the committed view is whole."""
    logs = {}
    views = {}
    for place in _places(promises, lives):
        logs[place] = client.read(*place)
        views[place] = client.read(*place, committed=True)
        _check_log(promises, place, logs[place], lives[place.topic])
        _check_view(promises, place, logs[place], views[place], settled=settled)
    _check_atomic(promises, logs, views, settled=settled)
    _check_seen(promises, logs, lives)
    return logs


def _check_log(promises: Promises, place: Place, log: Log, life: int) -> None:
    if log.end != log.high_watermark:
        raise BrokenPromise(f"{place} can be read to {log.end}, not to {log.high_watermark}")
    low, high = promises.expected.log_starts.get(place, (0, 0))
    if place.topic in promises.expected.aging:
        high = log.end
    if not low <= log.start <= high:
        raise BrokenPromise(f"{place} starts at {log.start}, possible is {low} to {high}")
    found: dict[bytes, int] = {}
    newest: dict[tuple[int, int], int] = defaultdict(lambda: -1)
    for batch in log.batches:
        wanted = promises.batches.get(batch.values)
        if wanted is None:
            raise BrokenPromise(f"{place} holds what nobody sent, at {batch.base_offset}: {batch.values}")
        send = wanted.send
        if Place(send.topic, send.partition) != place or send.life != life:
            raise BrokenPromise(f"{place} of life {life} holds what was sent to {send}")
        if batch.values[0] in found:
            raise BrokenPromise(f"{place} holds {batch.values} at {found[batch.values[0]]} and {batch.base_offset}")
        found[batch.values[0]] = batch.base_offset
        if send.producer is not None:
            key = send.producer[:2]
            if send.producer[2] <= newest[key]:
                raise BrokenPromise(f"{place}: producer {key} is out of order at {batch.base_offset}")
            newest[key] = send.producer[2]
    for wanted in promises.batches.values():
        send = wanted.send
        if wanted.offset is None or Place(send.topic, send.partition) != place or send.life != life:
            continue
        if wanted.offset < log.start:
            continue
        if found.get(send.values[0]) != wanted.offset:
            raise BrokenPromise(
                f"{place}: acknowledged at {wanted.offset}, found at {found.get(send.values[0])}: {send}"
            )


def _check_view(promises: Promises, place: Place, log: Log, view: Log, *, settled: bool) -> None:
    """What read_committed shows: only what is committed, and nothing that the log does not hold."""
    for offset, value in view.records.items():
        if log.records.get(offset) != value:
            raise BrokenPromise(f"{place}: read_committed shows {value!r} at {offset}, the log does not")
        transaction = promises.transaction(promises.values[value].send)
        if transaction is not None and not transaction.may_be_committed:
            raise BrokenPromise(f"{place}: {value!r} of a transaction that was not committed is shown at {offset}")
    if settled and view.last_stable_offset != view.high_watermark:
        raise BrokenPromise(f"{place}: every transaction has ended, but readers are held at {view.end}")
    stable = log.high_watermark if settled else view.last_stable_offset
    for offset, value in log.records.items():
        transaction = promises.transaction(promises.values[value].send)
        certain = transaction is None or transaction.is_committed
        if certain and offset < stable and offset not in view.records:
            raise BrokenPromise(f"{place}: {value!r} at {offset} is committed and not shown")


def _check_atomic(promises: Promises, logs: dict[Place, Log], views: dict[Place, Log], *, settled: bool) -> None:
    """A transaction whose end was not answered is shown whole or not at all."""
    shown: dict[str, set[bool]] = defaultdict(set)
    for place, log in logs.items():
        for offset, value in log.records.items():
            name = promises.values[value].send.transaction
            if name is not None and (settled or offset < views[place].last_stable_offset):
                shown[name].add(offset in views[place].records)
    for name, answers in shown.items():
        if len(answers) > 1:
            raise BrokenPromise(f"transaction {name} is shown in part")


def _check_seen(promises: Promises, logs: dict[Place, Log], lives: dict[str, int]) -> None:
    for saw in promises.expected.seen:
        place = Place(saw.topic, saw.partition)
        if place not in logs or lives[saw.topic] != 0:
            continue
        log = logs[place]
        if saw.high_watermark > log.high_watermark:
            raise BrokenPromise(f"{place} ended at {saw.high_watermark}, and now at {log.high_watermark}")
        if saw.log_start > log.start:
            raise BrokenPromise(f"{place} started at {saw.log_start}, and now at {log.start}")
        for offset, value in saw.records:
            if offset >= log.start and log.records.get(offset) != value:
                raise BrokenPromise(f"{place}: {value!r} was read at {offset}, now {log.records.get(offset)!r}")
            transaction = promises.transaction(promises.values[value].send)
            if saw.committed and transaction is not None and not transaction.may_be_committed:
                raise BrokenPromise(f"{place}: {value!r} was read as committed at {offset}, and never was")


def _check_producer_ids(promises: Promises, client: Client) -> None:
    producer_id, _ = client.init_producer()
    if producer_id in promises.expected.producer_ids:
        raise BrokenPromise(f"producer id {producer_id} was given out twice")


def _retry(promises: Promises, client: Client, lives: dict[str, int]) -> None:
    """Send again what idempotent producers sent last: acknowledged or not, it must end up there once."""
    streams: dict[tuple[int, int, Place], list[Wanted]] = defaultdict(list)
    for wanted in promises.batches.values():
        send = wanted.send
        if send.producer is not None and send.transaction is None and lives.get(send.topic) == send.life:
            streams[*send.producer[:2], Place(send.topic, send.partition)].append(wanted)
    newest_epoch: dict[int, int] = {}
    for producer_id, epoch, _ in streams:
        newest_epoch[producer_id] = max(epoch, newest_epoch.get(producer_id, 0))
    for (producer_id, epoch, place), stream in streams.items():
        if epoch < newest_epoch[producer_id]:
            continue
        stream.sort(key=lambda wanted: wanted.send.producer[2] if wanted.send.producer else 0)
        for wanted in stream[-REMEMBERED:]:
            assert wanted.send.producer is not None
            try:
                offset = client.produce(*place, encode(wanted.send.values, *wanted.send.producer))
            except Refused as refused:
                raise BrokenPromise(f"{place}: a retry was refused with {refused}: {wanted.send}") from refused
            if wanted.offset is not None and offset != wanted.offset:
                raise BrokenPromise(f"{place}: a retry got {offset}, was {wanted.offset}: {wanted.send}")
            wanted.offset = offset


def _end_transactions(promises: Promises, client: Client) -> None:
    """A new epoch of each transactional id ends what its predecessor left open, and fences it."""
    by_id: dict[str, Send] = {}
    for wanted in promises.batches.values():
        transaction = promises.transaction(wanted.send)
        if transaction is not None:
            by_id[transaction.transactional_id] = wanted.send
    for transactional_id, send in by_id.items():
        producer_id, epoch = client.init_producer(transactional_id)
        known = promises.expected.epochs.get(transactional_id)
        if known is not None and producer_id == known[0] and epoch <= known[1]:
            raise BrokenPromise(f"{transactional_id} got epoch {epoch} after {known[1]}")
        if send.producer is None or send.producer[:2] == (producer_id, epoch):
            continue
        late = encode((b"late",), *send.producer[:2], send.producer[2] + 1, transactional=True)
        try:
            client.produce(send.topic, send.partition, late, transactional_id)
        except Refused as refused:
            if refused.code not in FENCED and refused.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise BrokenPromise(f"a fenced producer got {refused}") from refused
        else:
            raise BrokenPromise(f"a fenced producer of {transactional_id} wrote again")


def _go_on(promises: Promises, client: Client, lives: dict[str, int]) -> None:
    """The broker serves: new records get the next offset."""
    for number, place in enumerate(_places(promises, lives)):
        end = client.offset(*place, LATEST)
        send = Send(*place, (f"after {number}".encode(),), life=lives[place.topic])
        offset = client.produce(*place, encode(send.values))
        if offset != end or client.offset(*place, LATEST) != end + 1:
            raise BrokenPromise(f"{place} ended at {end}, the next record got {offset}")
        if client.offset(*place, EARLIEST) > offset:
            raise BrokenPromise(f"{place} starts after its newest record")
        wanted = Wanted(send, 1, offset)
        promises.batches[send.values] = promises.values[send.values[0]] = wanted
