"""Queues as they are now: how many messages wait, are in progress, delayed and dead; and what can be done with them."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from confluent_kafka import KafkaError as ClientError
from confluent_kafka import TopicPartition

from headrace.clients import Record
from headrace.clients.records import record_of
from headrace.config.cluster import Cluster
from headrace.config.groups import describe_group
from headrace.config.run import RunConfig
from headrace.config.share_groups import share_positions
from headrace.delivery import RecordProducer
from headrace.errors import GroupNotFound, KafkaError, TopicNotFound, Unreachable
from headrace.queues.delayed import DELAYED
from headrace.queues.delays import index_path
from headrace.queues.index import pending_counts
from headrace.queues.messages import ATTEMPTS_HEADER, GROUP_HEADER
from headrace.queues.working import worker_figures
from headrace.topology.names import ERROR_HEADER, REASON_HEADER, TOPIC_HEADER
from headrace.topology.nearest import nearest

__all__ = ["QueueFigures", "check_queue", "figures_of", "found_queues", "peek", "purge", "retry_dead"]

RETRY = ".retry."
DEAD = ".dead"
READ_SECONDS = 15.0
POLL = 0.2
OF_THE_FAILURE = (ATTEMPTS_HEADER, GROUP_HEADER, REASON_HEADER, ERROR_HEADER)


@dataclass(frozen=True, slots=True)
class QueueFigures:
    """A queue as one group of workers sees it. None where a figure is not known here."""

    queue: str
    group: str
    waiting: int | None
    """Messages that are not done, with those in progress."""
    in_progress: int
    """In the worker processes of this home folder."""
    delayed: int | None
    """Delayed messages and retries that wait for their time."""
    dead: int
    oldest: float | None
    """Seconds since the first message that is not done was sent."""


def found_queues(cluster: Cluster) -> list[tuple[str, str]]:
    """Queues and their groups, by the topics of their retries."""
    names = [name.partition(RETRY) for name in cluster.topic_names()]
    return sorted((queue, group) for queue, _, group in names if group)


def figures_of(cluster: Cluster, config: RunConfig, queue: str, group: str, dead: str | None = None) -> QueueFigures:
    topics = (queue, f"{queue}{RETRY}{group}")
    starts, waiting = _positions(cluster, config, group, topics)
    return QueueFigures(
        queue,
        group,
        waiting,
        sum(said["in_progress"] for said in worker_figures(config.home) if said["group"] == group),
        _delayed(cluster, config, topics),
        _count(cluster, dead or queue + DEAD),
        _oldest(cluster, starts),
    )


def peek(cluster: Cluster, config: RunConfig, queue: str, count: int, *, dead: str | None = None) -> list[Record]:
    """The first messages that are not done, or dead letters. They stay where they are."""
    topic = queue if dead is None else dead
    check_queue(cluster, topic)
    beginnings = {(topic, index): start for index, start in cluster.beginnings([topic])[topic].items()}
    if dead is None:
        for name, group in found_queues(cluster):
            if name == queue:
                starts, _ = _positions(cluster, config, group, (topic,))
                beginnings |= {place: max(start, beginnings[place]) for place, start in starts.items()}
                break
    return list(_read(cluster, beginnings, count))


def retry_dead(cluster: Cluster, config: RunConfig, queue: str, dead: str | None = None) -> int:
    """Send all dead letters of a queue again, each to the group whose worker failed. Returns how many.

    Then they are deleted, up to the first that stays because it is another queue's or its group does not exist.
    """
    topic = dead or queue + DEAD
    check_queue(cluster, topic)
    beginnings = {(topic, index): start for index, start in cluster.beginnings([topic])[topic].items()}
    known = {queue, *(f"{queue}{RETRY}{group}" for name, group in found_queues(cluster) if name == queue)}
    ends: dict[int, int] = {}
    kept: set[int] = set()
    """Partitions in which a letter stays that is another queue's, or of a group that does not exist."""
    count = 0
    producer = RecordProducer(config, **{"linger.ms": 0, "batch.num.messages": 1, "delivery.report.only.error": True})
    try:
        for record in _read(cluster, beginnings, None):
            target = _origin(record, queue)
            if target is None or target not in known:
                kept.add(record.partition)
                continue
            headers = [(name, value) for name, value in record.headers if name not in OF_THE_FAILURE]
            producer.send_record(target, record.key, record.value, headers=headers)
            count += 1
            if record.partition not in kept:
                ends[record.partition] = record.offset + 1
        producer.flush()
    finally:
        producer.close()
    if ends:
        cluster.delete_before({topic: ends})
    return count


def _origin(record: Record, queue: str) -> str | None:
    """The topic to which a dead letter of the queue is sent again; None if it is not the queue's."""
    said = {name: (value or b"").decode(errors="replace") for name, value in record.headers}
    retries = f"{queue}{RETRY}{said.get(GROUP_HEADER)}"
    return retries if said.get(TOPIC_HEADER) in (queue, retries) else None


def purge(cluster: Cluster, queue: str) -> int:
    """Delete all messages of a queue, and the retries that are due. Returns how many offsets went."""
    check_queue(cluster, queue)
    topics = [queue, *(f"{queue}{RETRY}{group}" for name, group in found_queues(cluster) if name == queue)]
    ends = cluster.filled(topics)
    beginnings = cluster.beginnings(topics)
    cluster.delete_before(ends)
    return sum(end - beginnings[topic][index] for topic, found in ends.items() for index, end in found.items())


def check_queue(cluster: Cluster, topic: str) -> None:
    if topic not in cluster.partitions([topic]):
        near = nearest(topic, cluster.topic_names())
        raise TopicNotFound(
            f"queue {topic!r} does not exist at {cluster.address}",
            next_step=f"did you mean {near!r}?" if near else "list them with: headrace queues list",
        )


def _positions(
    cluster: Cluster, config: RunConfig, group: str, topics: Sequence[str]
) -> tuple[dict[tuple[str, int], int], int | None]:
    """Where each partition's first message is that is not done, and how many are not done in all."""
    beginnings, ends = cluster.beginnings(topics), cluster.ends(topics)
    places = [(topic, index) for topic in topics for index in ends[topic]]
    shared = share_positions(config, group)
    if shared:
        starts = {place: shared[place].start for place in places if place in shared}
        lags = [shared[place].lag if place in shared else _left(place, beginnings, ends) for place in places]
        return starts, None if None in lags else sum(filter(None, lags))
    committed: dict[tuple[str, int], int] = {}
    try:
        found = describe_group(cluster, group).partitions
        committed = {(one.topic, one.partition): one.committed for one in found if one.committed is not None}
    except GroupNotFound:
        pass
    except (KafkaError, Unreachable):
        return {}, None
    if shared is None and not committed:
        return {}, None
    starts = {place: committed.get(place, beginnings[place[0]][place[1]]) for place in places}
    return starts, sum(ends[topic][index] - starts[topic, index] for topic, index in places)


def _left(place: tuple[str, int], beginnings: Any, ends: Any) -> int:
    topic, index = place
    return int(ends[topic][index] - beginnings[topic][index])


def _delayed(cluster: Cluster, config: RunConfig, topics: Sequence[str]) -> int | None:
    if DELAYED not in cluster.partitions([DELAYED]):
        return 0
    counts = pending_counts(index_path(config.home, cluster))
    return None if counts is None else sum(counts.get(topic, 0) for topic in topics)


def _count(cluster: Cluster, topic: str) -> int:
    ends, beginnings = cluster.ends([topic])[topic], cluster.beginnings([topic])[topic]
    return sum(end - beginnings[index] for index, end in ends.items())


def _oldest(cluster: Cluster, starts: dict[tuple[str, int], int]) -> float | None:
    times = [
        record.timestamp
        for place, start in starts.items()
        for record in _read(cluster, {place: start}, 1)
        if record.timestamp is not None
    ]
    return max((datetime.now(UTC) - min(times)).total_seconds(), 0.0) if times else None


def _read(cluster: Cluster, starts: dict[tuple[str, int], int], count: int | None) -> Iterator[Record]:
    """The committed records from these offsets to the end, as many as wanted."""
    topics = {topic for topic, _ in starts}
    ends = cluster.ends(topics)
    left = {place: ends[place[0]][place[1]] for place, start in starts.items() if start < ends[place[0]][place[1]]}
    if not left or count == 0:
        return
    consumer = cluster.consumer(
        {
            "group.id": "headrace.queues",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )
    try:
        consumer.assign([TopicPartition(*place, starts[place]) for place in left])
        deadline = time.monotonic() + READ_SECONDS
        given = 0
        while left and time.monotonic() < deadline:
            message = consumer.poll(POLL)
            if message is None:
                continue
            place = (message.topic() or "", message.partition() or 0)
            if message.error() is None:
                if (message.offset() or 0) + 1 >= left.get(place, 0):
                    left.pop(place, None)
                deadline = time.monotonic() + READ_SECONDS
                yield record_of(message)
                given += 1
                if given == count:
                    return
            elif (error := message.error()) is not None and error.code() == ClientError._PARTITION_EOF:
                left.pop(place, None)
    finally:
        consumer.close()
