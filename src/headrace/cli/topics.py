"""`headrace topics`: list, create, describe, alter, delete."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.options import Json, Kafka, KafkaSettings, Yes, connect, pairs
from headrace.cli.output import ask, note, print_json, print_outcomes, print_table

if TYPE_CHECKING:
    from headrace.services import TopicReaders

app = typer.Typer(no_args_is_help=True, help="List, create, describe, alter and delete topics.")

Name = Annotated[str, typer.Argument(metavar="TOPIC")]
Configs = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A topic setting, such as retention.ms=60000. Repeatable."),
]


@app.command("list")
def list_all(
    internal: Annotated[bool, typer.Option("--internal", help="Show internal topics too.")] = False,
    json: Json = False,
    kafka: Kafka = None,
    kafka_set: KafkaSettings = None,
) -> None:
    """List the topics and how many partitions each has."""
    cluster = connect(kafka, kafka_set)
    from headrace.config import list_topics

    topics = list_topics(cluster, internal=internal)
    if json:
        print_json([asdict(topic) for topic in topics])
    elif topics:
        print_table(["topic", "partitions", "replicas"], [list(asdict(topic).values()) for topic in topics])
    else:
        note(f"no topics at {cluster.address}; create one with: headrace topics create NAME")


@app.command("create")
def create(
    names: Annotated[list[str], typer.Argument(metavar="TOPIC...")],
    partitions: Annotated[
        int | None, typer.Option("--partitions", min=1, help="The number of partitions. Default: the cluster's.")
    ] = None,
    replicas: Annotated[
        int | None, typer.Option("--replicas", min=1, help="The replication factor. Default: the cluster's.")
    ] = None,
    settings: Configs = None,
    if_missing: Annotated[bool, typer.Option("--if-missing", help="Do nothing for a topic that exists.")] = False,
    kafka: Kafka = None,
    kafka_set: KafkaSettings = None,
) -> None:
    """Create topics."""
    config = pairs(settings, "--set")
    cluster = connect(kafka, kafka_set)
    from headrace.config import create_topics

    outcomes = create_topics(cluster, names, partitions=partitions, replicas=replicas, settings=config)
    print_outcomes("created", outcomes, may_exist=if_missing)


@app.command("describe")
def describe(
    name: Name,
    all_settings: Annotated[
        bool, typer.Option("--all-settings", help="Show every setting, not only those set on the topic.")
    ] = False,
    json: Json = False,
    kafka: Kafka = None,
    kafka_set: KafkaSettings = None,
) -> None:
    """Show a topic's partitions, offsets and settings."""
    cluster = connect(kafka, kafka_set)
    from headrace.config import describe_topic

    topic = describe_topic(cluster, name, all_settings=all_settings)
    if json:
        print_json(asdict(topic))
        return
    print(f"{name}  (id {topic.id})")
    print_table(
        ["partition", "leader", "replicas", "in sync", "start", "end"],
        [[_cell(value) for value in asdict(partition).values()] for partition in topic.partitions],
    )
    if topic.settings:
        print()
        print_table(
            ["setting", "value", "source"],
            [[key, setting.value, setting.source] for key, setting in topic.settings.items()],
        )


@app.command("alter")
def alter(
    name: Name,
    partitions: Annotated[
        int | None, typer.Option("--partitions", min=1, help="Raise the number of partitions to this.")
    ] = None,
    settings: Configs = None,
    unset: Annotated[
        list[str] | None, typer.Option("--unset", metavar="NAME", help="Reset a setting to its default. Repeatable.")
    ] = None,
    kafka: Kafka = None,
    kafka_set: KafkaSettings = None,
) -> None:
    """Change a topic's settings, or give it more partitions."""
    changes = pairs(settings, "--set")
    if not changes and not unset and partitions is None:
        raise typer.BadParameter("nothing to change: pass --set, --unset or --partitions")
    cluster = connect(kafka, kafka_set)
    from headrace.config import alter_topic

    alter_topic(cluster, name, settings=changes, unset=unset or [], partitions=partitions)
    print(f"changed {name}")


@app.command("delete")
def delete(
    names: Annotated[list[str], typer.Argument(metavar="TOPIC...")],
    yes: Yes = False,
    kafka: Kafka = None,
    kafka_set: KafkaSettings = None,
) -> None:
    """Delete topics and everything in them."""
    cluster = connect(kafka, kafka_set)
    from headrace.config import RunConfig, delete_topics
    from headrace.services import readers_of

    for name in names:
        cluster.topic(name)
    for readers in readers_of(cluster, names, RunConfig.load().home):
        for warning in _warnings(readers):
            note(f"warning: {warning}")
    if not yes:
        ask(f"Delete {', '.join(names)} at {cluster.address}, with all records?")
    print_outcomes("deleted", delete_topics(cluster, names))


def _warnings(readers: "TopicReaders") -> Iterator[str]:
    topic = readers.topic
    for app, nodes in readers.apps.items():
        yield f"topic {topic!r} is being read by the running app {app!r} ({', '.join(nodes)}), which will fail"
    for group in readers.groups:
        yield f"topic {topic!r} is being read by the group {group!r}"


def _cell(value: Any) -> Any:
    return ",".join(map(str, value)) if isinstance(value, tuple) else value
