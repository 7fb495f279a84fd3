"""`headrace groups`: list, describe, reset, delete."""

from dataclasses import asdict
from typing import Annotated

import typer

from headrace.cli.options import Json, Kafka, KafkaSettings, Yes, connect, parse_position
from headrace.cli.output import ask, note, print_json, print_outcomes, print_table
from headrace.config import POSITION_HELP

app = typer.Typer(no_args_is_help=True, help="List, describe, reset and delete consumer groups.")

Name = Annotated[str, typer.Argument(metavar="GROUP")]


@app.command("list")
def list_all(
    json: Json = False,
    kafka: Kafka = None,
    kafka_set: KafkaSettings = None,
) -> None:
    """List the consumer groups."""
    cluster = connect(kafka, kafka_set)
    from headrace.config import list_groups

    groups = list_groups(cluster)
    if json:
        print_json([asdict(group) for group in groups])
    elif groups:
        print_table(["group", "state", "type"], [(group.group, group.state, group.type) for group in groups])
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
    from headrace.config import describe_group, describe_share_group

    group = describe_share_group(cluster, name) or describe_group(cluster, name)
    members = [
        asdict(member) | {"partitions": [f"{topic}[{index}]" for topic, index in member.partitions]}
        for member in group.members
    ]
    partitions = [
        {
            "topic": partition.topic,
            "partition": partition.partition,
            "committed": partition.committed,
            "end": partition.end,
            "lag": partition.lag,
            "member": partition.member,
        }
        for partition in group.partitions
    ]
    if json:
        print_json(
            {
                "group": name,
                "state": group.state,
                "assignor": group.assignor,
                "members": members,
                "partitions": partitions,
            }
        )
        return
    print(f"{name}  {group.state}, {len(members)} members, lag {group.lag}")
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
    position = None if to is None else parse_position(to, "--to")
    cluster = connect(kafka, kafka_set)
    from headrace.config import make_moves, plan_moves

    moves = plan_moves(cluster, name, to=position, shift=shift or 0, topics=topics or [])
    if yes:
        make_moves(cluster, name, moves)
    if json:
        print_json({"group": name, "done": yes, "offsets": [asdict(move) for move in moves]})
        return
    print_table(["topic", "partition", "committed", "new"], [list(asdict(move).values()) for move in moves])
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
    from headrace.config import check_deletable, delete_groups

    for name in names:
        check_deletable(cluster, name)
    if not yes:
        ask(f"Delete {', '.join(names)} at {cluster.address}, with all committed offsets?")
    print_outcomes("deleted", delete_groups(cluster, names))
