"""Consumer groups of a cluster: list, describe, move their offsets, delete; and which of them read a topic."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import ConsumerGroupState, ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import ConsumerGroupDescription, OffsetSpec

from headrace.config.cluster import REQUEST_SECONDS, Cluster, Partitions
from headrace.config.kafka_errors import LIST_GROUPS, STOP_MEMBERS
from headrace.config.outcomes import Outcome, outcomes
from headrace.config.positions import TopicPosition
from headrace.config.share_groups import share_group_states, share_positions
from headrace.errors import GroupInUse, GroupNotFound, InputError

__all__ = [
    "GroupDetails",
    "GroupMember",
    "GroupPartition",
    "GroupSummary",
    "OffsetMove",
    "check_deletable",
    "check_unused",
    "delete_groups",
    "describe_group",
    "describe_share_group",
    "group_names_by_topic",
    "list_groups",
    "make_moves",
    "plan_moves",
]


SHARE = "share"


@dataclass(frozen=True, slots=True)
class GroupSummary:
    group: str
    state: str
    type: str


@dataclass(frozen=True, slots=True)
class GroupMember:
    member: str
    instance: str | None
    client: str
    host: str
    partitions: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class GroupPartition:
    """A partition that a member reads, or for which an offset is committed."""

    topic: str
    partition: int
    committed: int | None
    end: int
    member: str | None

    @property
    def lag(self) -> int | None:
        return None if self.committed is None else self.end - self.committed


@dataclass(frozen=True, slots=True)
class GroupDetails:
    group: str
    state: str
    assignor: str | None
    members: tuple[GroupMember, ...]
    partitions: tuple[GroupPartition, ...]

    @property
    def lag(self) -> int:
        return sum(partition.lag or 0 for partition in self.partitions)


@dataclass(frozen=True, slots=True)
class OffsetMove:
    """What becomes of a committed offset."""

    topic: str
    partition: int
    committed: int | None
    new: int


def list_groups(cluster: Cluster) -> list[GroupSummary]:
    listing = cluster.result(cluster.admin.list_consumer_groups(request_timeout=REQUEST_SECONDS), "list groups")
    found = [GroupSummary(group.group_id, _word(group.state), _word(group.type)) for group in listing.valid]
    found += [GroupSummary(name, state, SHARE) for name, state in _share_groups(cluster).items()]
    return sorted(found, key=lambda group: group.group)


def _share_groups(cluster: Cluster) -> dict[str, str]:
    brokers = cluster.admin.list_topics(timeout=REQUEST_SECONDS).brokers.values()
    return share_group_states(cluster.config, [(str(broker.host), int(broker.port)) for broker in brokers])


def describe_share_group(cluster: Cluster, name: str) -> GroupDetails | None:
    """A share group: where each partition's first record is that is not done. None if there is no such group."""
    state = _share_groups(cluster).get(name)
    if state is None:
        return None
    positions = share_positions(cluster.config, name) or {}
    ends = cluster.offsets(sorted(positions), OffsetSpec.latest())
    partitions = tuple(
        GroupPartition(*place, found.start, ends[place], None) for place, found in sorted(positions.items())
    )
    return GroupDetails(name, state, None, (), partitions)


def describe_group(cluster: Cluster, name: str) -> GroupDetails:
    """A group that must exist: its members, their partitions and their lag."""
    group = _group(cluster, name)
    members = tuple(
        GroupMember(
            member.member_id,
            member.group_instance_id,
            member.client_id,
            member.host,
            tuple((partition.topic, partition.partition) for partition in member.assignment.topic_partitions),
        )
        for member in group.members
    )
    owners = {key: member.member for member in members for key in member.partitions}
    committed = _committed(cluster, name)
    keys = sorted(committed.keys() | owners.keys())
    ends = cluster.offsets(keys, OffsetSpec.latest())
    partitions = tuple(GroupPartition(*key, committed.get(key), ends[key], owners.get(key)) for key in keys)
    return GroupDetails(name, _word(group.state), group.partition_assignor or None, members, partitions)


def plan_moves(
    cluster: Cluster,
    name: str,
    *,
    to: TopicPosition | None = None,
    shift: int = 0,
    topics: Sequence[str] = (),
) -> list[OffsetMove]:
    """The moves to a position, or by a number of records. Nothing is changed.

    `topics` are `TOPIC` or `TOPIC:PARTITION`; without them, all partitions with committed offsets are moved.
    """
    check_unused(cluster, name)
    committed = _committed(cluster, name)
    keys = _chosen(cluster, topics) if topics else sorted(committed)
    if not keys:
        raise GroupNotFound(
            f"group {name!r} has no committed offsets at {cluster.address}", next_step="name the topics with --topic"
        )
    targets = _shifted(cluster, keys, committed, shift) if to is None else to.resolve(cluster, keys)
    return [OffsetMove(*key, committed.get(key), targets[key]) for key in keys]


def make_moves(cluster: Cluster, name: str, moves: Sequence[OffsetMove]) -> None:
    """Commit the new offsets."""
    partitions = [TopicPartition(move.topic, move.partition, move.new) for move in moves]
    request = [ConsumerGroupTopicPartitions(name, partitions)]
    future = cluster.admin.alter_consumer_group_offsets(request, request_timeout=REQUEST_SECONDS)[name]
    answer: Any = cluster.result(future, f"move the offsets of group {name!r}")
    for partition in answer.topic_partitions or []:
        if partition.error is not None:
            raise cluster.explain(partition.error, f"move {partition.topic}[{partition.partition}] of group {name!r}")


def check_unused(cluster: Cluster, name: str) -> None:
    """Raise GroupInUse if the group has members: its offsets are theirs. It need not exist."""
    try:
        members = len(_described(cluster, name).members)
    except GroupNotFound:
        return  # offsets can be set for a group that is yet to come
    if members:
        raise GroupInUse(
            f"group {name!r} has {members} members at {cluster.address}; its offsets cannot be changed now",
            next_step=STOP_MEMBERS,
        )


def check_deletable(cluster: Cluster, name: str) -> None:
    """Raise GroupNotFound or GroupInUse if the group cannot be deleted."""
    _group(cluster, name)
    check_unused(cluster, name)


def delete_groups(cluster: Cluster, names: Sequence[str]) -> list[Outcome]:
    """Delete groups and their committed offsets."""
    futures = cluster.admin.delete_consumer_groups([*names], request_timeout=REQUEST_SECONDS)
    return outcomes(cluster, futures, "delete group")


def group_names_by_topic(cluster: Cluster, topics: Sequence[str]) -> dict[str, list[str]]:
    """By topic: the groups with a member that reads it now."""
    found: dict[str, list[str]] = {topic: [] for topic in topics}
    names = [group.group for group in list_groups(cluster) if group.type != SHARE]
    if not names:
        return found
    for name, future in cluster.admin.describe_consumer_groups(names, request_timeout=REQUEST_SECONDS).items():
        group = cluster.result(future, f"describe group {name!r}")
        for topic in {partition.topic for member in group.members for partition in member.assignment.topic_partitions}:
            if topic in found:
                found[topic].append(name)
    return found


def _group(cluster: Cluster, name: str) -> ConsumerGroupDescription:
    """The group; one that does not exist is an error here, though Kafka describes it as dead."""
    missing = GroupNotFound(f"group {name!r} does not exist at {cluster.address}", next_step=LIST_GROUPS)
    try:
        group = _described(cluster, name)
    except GroupNotFound as error:
        raise missing from error
    if group.state == ConsumerGroupState.DEAD:
        raise missing
    return group


def _described(cluster: Cluster, name: str) -> ConsumerGroupDescription:
    futures = cluster.admin.describe_consumer_groups([name], request_timeout=REQUEST_SECONDS)
    group: ConsumerGroupDescription = cluster.result(futures[name], f"describe group {name!r}")
    return group


def _committed(cluster: Cluster, name: str) -> Partitions:
    request = [ConsumerGroupTopicPartitions(name)]
    future = cluster.admin.list_consumer_group_offsets(request, request_timeout=REQUEST_SECONDS)[name]
    try:
        answer: Any = cluster.result(future, f"list the offsets of group {name!r}")
    except GroupNotFound:
        return {}
    return {(p.topic, p.partition): p.offset for p in answer.topic_partitions or [] if p.offset >= 0}


def _shifted(cluster: Cluster, keys: list[tuple[str, int]], committed: Partitions, by: int) -> Partitions:
    for topic, index in keys:
        if (topic, index) not in committed:
            raise InputError(f"{topic}[{index}] has no committed offset to move", next_step="use --to instead")
    starts = cluster.offsets(keys, OffsetSpec.earliest())
    ends = cluster.offsets(keys, OffsetSpec.latest())
    return {key: min(max(starts[key], committed[key] + by), ends[key]) for key in keys}


def _chosen(cluster: Cluster, items: Sequence[str]) -> list[tuple[str, int]]:
    """`TOPIC` means all its partitions, `TOPIC:PARTITION` one of them."""
    keys = set()
    for item in items:
        topic, colon, index = item.partition(":")
        known = [partition.id for partition in cluster.topic(topic).partitions]
        if not colon:
            keys |= {(topic, partition) for partition in known}
        elif index.isdecimal() and int(index) in known:
            keys.add((topic, int(index)))
        else:
            raise InputError(
                f"topic {topic!r} has no partition {index!r}, it has {len(known)}",
                next_step=f"see them with: headrace topics describe {topic}",
            )
    return sorted(keys)


def _word(value: Any) -> str:
    return str(value.name).lower().replace("_", " ")
