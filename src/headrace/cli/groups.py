"""`headrace groups`: list, describe, reset, delete."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace import GroupInUse, GroupNotFound, InputError
from headrace.cli.options import Json, Kafka, KafkaSettings, Yes, connect
from headrace.cli.output import ask, note, print_json, print_table
from headrace.cli.positions import POSITION_HELP, Position

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient, ConsumerGroupDescription

    from headrace.cli.kafka import Cluster, Partitions

app = typer.Typer(no_args_is_help=True, help="List, describe, reset and delete consumer groups.")

Name = Annotated[str, typer.Argument(metavar="GROUP")]


@app.command("list")
def list_groups(
    json: Json = False,
    kafka: Kafka = None,
    kafka_set: KafkaSettings = None,
) -> None:
    """List the consumer groups."""
    cluster = connect(kafka, kafka_set)
    from headrace.cli.kafka import REQUEST_SECONDS

    admin = cluster.admin()
    listing = cluster.result(admin.list_consumer_groups(request_timeout=REQUEST_SECONDS), "list groups")
    rows = sorted((group.group_id, _word(group.state), _word(group.type)) for group in listing.valid)
    if json:
        print_json([{"group": name, "state": state, "type": kind} for name, state, kind in rows])
    elif rows:
        print_table(["group", "state", "type"], rows)
    else:
        note(f"no groups at {cluster.address}; start one with: headrace consume TOPIC --group NAME")


@app.command("describe")
def describe(
    name: Name,
    json: Json = False,
    kafka: Kafka = None,
    kafka_set: KafkaSettings = None,
) -> None:
    """Show a group's members, their partitions and their lag."""
    cluster = connect(kafka, kafka_set)
    from confluent_kafka.admin import OffsetSpec

    admin = cluster.admin()
    group = _group(cluster, admin, name)
    committed = _committed(cluster, admin, name)
    owners = {
        (partition.topic, partition.partition): member
        for member in group.members
        for partition in member.assignment.topic_partitions
    }
    keys = sorted(committed.keys() | owners.keys())
    ends = cluster.offsets(admin, keys, OffsetSpec.latest())
    members: list[dict[str, Any]] = [
        {
            "member": member.member_id,
            "instance": member.group_instance_id,
            "client": member.client_id,
            "host": member.host,
            "partitions": [f"{p.topic}[{p.partition}]" for p in member.assignment.topic_partitions],
        }
        for member in group.members
    ]
    partitions: list[dict[str, Any]] = [
        {
            "topic": topic,
            "partition": index,
            "committed": committed.get((topic, index)),
            "end": ends[topic, index],
            "lag": ends[topic, index] - committed[topic, index] if (topic, index) in committed else None,
            "member": owners[topic, index].member_id if (topic, index) in owners else None,
        }
        for topic, index in keys
    ]
    if json:
        print_json(
            {
                "group": name,
                "state": _word(group.state),
                "assignor": group.partition_assignor or None,
                "members": members,
                "partitions": partitions,
            }
        )
        return
    lag = sum(row["lag"] or 0 for row in partitions)
    print(f"{name}  {_word(group.state)}, {len(members)} members, lag {lag}")
    if members:
        print()
        print_table(
            ["member", "instance", "client", "host", "partitions"],
            [[*list(row.values())[:-1], " ".join(row["partitions"]) or None] for row in members],
        )
    if partitions:
        print()
        print_table(list(partitions[0]), [list(row.values()) for row in partitions])


@app.command("reset")
def reset(
    name: Name,
    to: Annotated[str | None, typer.Option("--to", metavar="POSITION", help=POSITION_HELP)] = None,
    shift: Annotated[
        int | None, typer.Option("--shift", metavar="N", help="Move by N records; negative moves back.")
    ] = None,
    topics: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            metavar="TOPIC[:PARTITION]",
            help="Only this topic or partition. Default: all with committed offsets.",
        ),
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Make the changes. Without it, they are only shown.")
    ] = False,
    json: Json = False,
    kafka: Kafka = None,
    kafka_set: KafkaSettings = None,
) -> None:
    """Move a group's committed offsets. Shows the moves; --yes makes them."""
    if (to is None) == (shift is None):
        raise typer.BadParameter("pass either --to or --shift")
    position = None if to is None else Position.parse(to, "--to")
    cluster = connect(kafka, kafka_set)
    admin = cluster.admin()
    _check_unused(cluster, admin, name)
    committed = _committed(cluster, admin, name)
    keys = _chosen(cluster, admin, topics) if topics else sorted(committed)
    if not keys:
        raise GroupNotFound(
            f"group {name!r} has no committed offsets at {cluster.address}", next_step="name the topics with --topic"
        )
    if position is not None:
        targets = position.resolve(cluster, admin, keys)
    else:
        targets = _shifted(cluster, admin, keys, committed, shift or 0)
    moves = [
        {
            "topic": topic,
            "partition": index,
            "committed": committed.get((topic, index)),
            "new": targets[topic, index],
        }
        for topic, index in keys
    ]
    if yes:
        _commit(cluster, admin, name, targets)
    if json:
        print_json({"group": name, "done": yes, "offsets": moves})
        return
    print_table(["topic", "partition", "committed", "new"], [list(move.values()) for move in moves])
    if yes:
        note(f"moved {len(moves)} offsets of {name}")
    else:
        note("nothing was changed; pass --yes to make these changes")


@app.command("delete")
def delete(
    names: Annotated[list[str], typer.Argument(metavar="GROUP...")],
    yes: Yes = False,
    kafka: Kafka = None,
    kafka_set: KafkaSettings = None,
) -> None:
    """Delete groups and their committed offsets."""
    cluster = connect(kafka, kafka_set)
    from headrace.cli.kafka import REQUEST_SECONDS

    admin = cluster.admin()
    for name in names:
        _group(cluster, admin, name)
        _check_unused(cluster, admin, name)
    if not yes:
        ask(f"Delete {', '.join(names)} at {cluster.address}, with all committed offsets?")
    for name, future in admin.delete_consumer_groups(names, request_timeout=REQUEST_SECONDS).items():
        cluster.result(future, f"delete group {name!r}")
        print(f"deleted {name}")


def _group(cluster: "Cluster", admin: "AdminClient", name: str) -> "ConsumerGroupDescription":
    """The group; one that does not exist is an error here, though Kafka describes it as dead."""
    from confluent_kafka import ConsumerGroupState

    missing = GroupNotFound(
        f"group {name!r} does not exist at {cluster.address}", next_step="list the groups with: headrace groups list"
    )
    try:
        group = _describe(cluster, admin, name)
    except GroupNotFound as error:
        raise missing from error
    if group.state == ConsumerGroupState.DEAD:
        raise missing
    return group


def _describe(cluster: "Cluster", admin: "AdminClient", name: str) -> "ConsumerGroupDescription":
    from headrace.cli.kafka import REQUEST_SECONDS

    futures = admin.describe_consumer_groups([name], request_timeout=REQUEST_SECONDS)
    group: ConsumerGroupDescription = cluster.result(futures[name], f"describe group {name!r}")
    return group


def _check_unused(cluster: "Cluster", admin: "AdminClient", name: str) -> None:
    try:
        members = len(_describe(cluster, admin, name).members)
    except GroupNotFound:
        return  # offsets can be set for a group that is yet to come
    if members:
        raise GroupInUse(
            f"group {name!r} has {members} members at {cluster.address}; its offsets cannot be changed now",
            next_step="stop the members first",
        )


def _committed(cluster: "Cluster", admin: "AdminClient", name: str) -> "Partitions":
    from confluent_kafka import ConsumerGroupTopicPartitions

    from headrace.cli.kafka import REQUEST_SECONDS

    request = [ConsumerGroupTopicPartitions(name)]
    future = admin.list_consumer_group_offsets(request, request_timeout=REQUEST_SECONDS)[name]
    try:
        answer: Any = cluster.result(future, f"list the offsets of group {name!r}")
    except GroupNotFound:
        return {}
    return {(p.topic, p.partition): p.offset for p in answer.topic_partitions or [] if p.offset >= 0}


def _commit(cluster: "Cluster", admin: "AdminClient", name: str, targets: "Partitions") -> None:
    from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

    from headrace.cli.kafka import REQUEST_SECONDS

    partitions = [TopicPartition(topic, index, offset) for (topic, index), offset in targets.items()]
    request = [ConsumerGroupTopicPartitions(name, partitions)]
    future = admin.alter_consumer_group_offsets(request, request_timeout=REQUEST_SECONDS)[name]
    answer: Any = cluster.result(future, f"move the offsets of group {name!r}")
    for partition in answer.topic_partitions or []:
        if partition.error is not None:
            raise cluster.explain(partition.error, f"move {partition.topic}[{partition.partition}] of group {name!r}")


def _shifted(
    cluster: "Cluster", admin: "AdminClient", keys: list[tuple[str, int]], committed: "Partitions", by: int
) -> "Partitions":
    for topic, index in keys:
        if (topic, index) not in committed:
            raise InputError(f"{topic}[{index}] has no committed offset to move", next_step="use --to instead")
    starts = Position("beginning").resolve(cluster, admin, keys)
    ends = Position("end").resolve(cluster, admin, keys)
    return {key: min(max(starts[key], committed[key] + by), ends[key]) for key in keys}


def _chosen(cluster: "Cluster", admin: "AdminClient", items: list[str]) -> list[tuple[str, int]]:
    """`TOPIC` means all its partitions, `TOPIC:PARTITION` one of them."""
    keys = set()
    for item in items:
        topic, colon, index = item.partition(":")
        known = [partition.id for partition in cluster.topic(admin, topic).partitions]
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
