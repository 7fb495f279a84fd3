"""`headrace queues`: list, describe, peek, retry-dead, purge."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.apps import HomeFolder
from headrace.cli.options import Json, Kafka, KafkaSettings, Yes, connect, kafka_arguments
from headrace.cli.output import ask, note, print_json, print_table

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.config import Cluster, RunConfig
    from headrace.queues import QueueFigures

app = typer.Typer(no_args_is_help=True, help="List and inspect queues, retry dead letters, purge.")

Name = Annotated[str, typer.Argument(metavar="QUEUE", help="The topic of the queue.")]
Dead = Annotated[
    str | None, typer.Option("--dead-topic", metavar="TOPIC", help="The dead-letter topic. Default: QUEUE.dead.")
]
COLUMNS = ("queue", "group", "waiting", "in progress", "delayed", "dead", "oldest")


@app.command("list")
def list_all(json: Json = False, kafka: Kafka = None, kafka_set: KafkaSettings = None, home: HomeFolder = None) -> None:
    """List queues with their groups: how many messages wait, are in progress, delayed and dead."""
    cluster, config = _connect(kafka, kafka_set, home)
    from headrace.queues import figures_of, found_queues

    found = [figures_of(cluster, config, *one) for one in found_queues(cluster)]
    if json:
        print_json([asdict(one) for one in found])
    elif found:
        print_table(COLUMNS, [_cells(one) for one in found])
    else:
        note(f"no queues at {cluster.address}; run an app with a worker, or start one with: headrace work FILE")


@app.command("describe")
def describe(
    name: Name,
    dead: Dead = None,
    json: Json = False,
    kafka: Kafka = None,
    kafka_set: KafkaSettings = None,
    home: HomeFolder = None,
) -> None:
    """Show one queue: the figures of each of its groups."""
    cluster, config = _connect(kafka, kafka_set, home)
    from headrace.queues import check_queue, figures_of, found_queues

    check_queue(cluster, name)
    found = [figures_of(cluster, config, queue, group, dead) for queue, group in found_queues(cluster) if queue == name]
    if json:
        print_json([asdict(one) for one in found])
        return
    print(f"{name}  {cluster.partitions([name])[name]} partitions, {len(found)} groups")
    if found:
        print()
        print_table(COLUMNS[1:], [_cells(one)[1:] for one in found])


@app.command("peek")
def peek_at(
    name: Name,
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="How many messages.")] = 10,
    dead: Annotated[bool, typer.Option("--dead", help="Show dead letters, with the reason.")] = False,
    dead_topic: Dead = None,
    json: Json = False,
    kafka: Kafka = None,
    kafka_set: KafkaSettings = None,
    home: HomeFolder = None,
) -> None:
    """Show the first messages that are not done. They stay in the queue."""
    cluster, config = _connect(kafka, kafka_set, home)
    from headrace.queues import peek

    records = peek(cluster, config, name, count, dead=(dead_topic or f"{name}.dead") if dead else None)
    rows = [_message(record, dead) for record in records]
    if json:
        print_json(rows)
    elif rows:
        print_table(list(rows[0]), [list(row.values()) for row in rows])
    else:
        note(f"{name} is empty")


@app.command("retry-dead")
def retry(
    name: Name,
    dead: Dead = None,
    yes: Yes = False,
    kafka: Kafka = None,
    kafka_set: KafkaSettings = None,
    home: HomeFolder = None,
) -> None:
    """Send all dead letters of a queue again, to the group whose worker failed."""
    cluster, config = _connect(kafka, kafka_set, home)
    from headrace.queues import retry_dead

    if not yes:
        ask(f"Send all dead letters of {name} at {cluster.address} again?")
    print(f"sent {retry_dead(cluster, config, name, dead)} dead letters of {name} again")


@app.command("purge")
def purge_all(
    name: Name,
    yes: Yes = False,
    kafka: Kafka = None,
    kafka_set: KafkaSettings = None,
) -> None:
    """Delete all messages of a queue. Delayed messages and dead letters are kept."""
    cluster = connect(kafka, kafka_set)
    from headrace.queues import check_queue, purge

    check_queue(cluster, name)
    if not yes:
        ask(f"Delete all messages of {name} at {cluster.address}?")
    purge(cluster, name)
    print(f"purged {name}")


def _connect(kafka: str | None, kafka_set: list[str] | None, home: "Path | None") -> "tuple[Cluster, RunConfig]":
    from headrace.config import RunConfig
    from headrace.services import find_cluster

    config = RunConfig.load({**kafka_arguments(kafka, kafka_set), "home": home})
    cluster = find_cluster(config)
    return cluster, cluster.config


def _cells(one: "QueueFigures") -> list[Any]:
    oldest = None if one.oldest is None else f"{one.oldest:,.0f} s"
    return [one.queue, one.group, one.waiting, one.in_progress, one.delayed, one.dead, oldest]


def _message(record: Any, dead: bool) -> dict[str, Any]:
    said = {name: (value or b"").decode(errors="replace") for name, value in record.headers}
    row: dict[str, Any] = {
        "partition": record.partition,
        "offset": record.offset,
        "sent": None if record.timestamp is None else record.timestamp.isoformat(timespec="milliseconds"),
        "id": said.get("headrace-id"),
    }
    if dead:
        row |= {
            "group": said.get("headrace-group"),
            "attempts": int(said.get("headrace-attempts") or 0),
            "reason": said.get("headrace-reason"),
        }
    return row | {"value": (record.value or b"").decode(errors="replace")}
