"""`headrace topics`: list, create, describe, alter, delete."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace import KafkaError
from headrace.cli.options import Json, Kafka, KafkaSettings, Yes, connect, pairs
from headrace.cli.output import ask, note, print_json, print_table

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

    from headrace.cli.kafka import Cluster

app = typer.Typer(no_args_is_help=True, help="List, create, describe, alter and delete topics.")

Name = Annotated[str, typer.Argument(metavar="TOPIC")]
Configs = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A topic setting, such as retention.ms=60000. Repeatable."),
]


@app.command("list")
def list_topics(
    internal: Annotated[bool, typer.Option("--internal", help="Show internal topics too.")] = False,
    json: Json = False,
    kafka: Kafka = None,
    kafka_set: KafkaSettings = None,
) -> None:
    """List the topics and how many partitions each has."""
    cluster = connect(kafka, kafka_set)
    from headrace.cli.kafka import REQUEST_SECONDS

    admin = cluster.admin()
    with cluster.asked_to("list topics"):
        topics = admin.list_topics(timeout=REQUEST_SECONDS).topics
    rows: list[dict[str, Any]] = [
        {
            "topic": name,
            "partitions": len(topic.partitions),
            "replicas": max((len(partition.replicas) for partition in topic.partitions.values()), default=0),
        }
        for name, topic in sorted(topics.items())
        if internal or not name.startswith("__")
    ]
    if json:
        print_json(rows)
    elif rows:
        print_table(["topic", "partitions", "replicas"], [list(row.values()) for row in rows])
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
    from confluent_kafka.admin import NewTopic

    from headrace.cli.kafka import REQUEST_SECONDS

    admin = cluster.admin()
    new = [
        NewTopic(name, num_partitions=partitions or -1, replication_factor=replicas or -1, config=config)
        for name in dict.fromkeys(names)
    ]
    futures = admin.create_topics(new, request_timeout=REQUEST_SECONDS)
    for name, future in futures.items():
        try:
            cluster.result(future, f"create topic {name!r}")
            print(f"created {name}")
        except KafkaError as error:
            if error.code != "TOPIC_ALREADY_EXISTS":
                raise
            if not if_missing:
                raise KafkaError(
                    f"topic {name!r} already exists at {cluster.address}",
                    next_step=f"see it with: headrace topics describe {name}",
                ) from error
            print(f"{name} exists")


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
    from confluent_kafka.admin import OffsetSpec

    admin = cluster.admin()
    topic = cluster.topic(admin, name)
    keys = [(name, partition.id) for partition in topic.partitions]
    starts = cluster.offsets(admin, keys, OffsetSpec.earliest())
    ends = cluster.offsets(admin, keys, OffsetSpec.latest())
    partitions = [
        {
            "partition": partition.id,
            "leader": partition.leader.id if partition.leader else None,
            "replicas": [node.id for node in partition.replicas],
            "in_sync": [node.id for node in partition.isr],
            "start": starts[name, partition.id],
            "end": ends[name, partition.id],
        }
        for partition in topic.partitions
    ]
    settings = _settings(cluster, admin, name, all_settings)
    if json:
        print_json({"topic": name, "id": str(topic.topic_id), "partitions": partitions, "settings": settings})
        return
    print(f"{name}  (id {topic.topic_id})")
    print_table(
        ["partition", "leader", "replicas", "in sync", "start", "end"],
        [[_cell(value) for value in row.values()] for row in partitions],
    )
    if settings:
        print()
        print_table(["setting", "value", "source"], [[key, *value.values()] for key, value in settings.items()])


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
    from confluent_kafka.admin import (
        AlterConfigOpType,
        ConfigEntry,
        ConfigResource,
        NewPartitions,
        ResourceType,
    )

    from headrace.cli.kafka import REQUEST_SECONDS

    admin = cluster.admin()
    cluster.topic(admin, name)
    entries = [
        ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET) for key, value in changes.items()
    ] + [ConfigEntry(key, None, incremental_operation=AlterConfigOpType.DELETE) for key in unset or []]
    if entries:
        resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=entries)
        futures = admin.incremental_alter_configs([resource], request_timeout=REQUEST_SECONDS)
        for future in futures.values():
            cluster.result(future, f"change the settings of topic {name!r}")
    if partitions is not None:
        future = admin.create_partitions([NewPartitions(name, partitions)], request_timeout=REQUEST_SECONDS)[name]
        cluster.result(future, f"give topic {name!r} {partitions} partitions")
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
    from headrace.cli.kafka import REQUEST_SECONDS
    from headrace.cli.readers import readers_of

    admin = cluster.admin()
    for name in names:
        cluster.topic(admin, name)
    for reader in readers_of(cluster, admin, names):
        note(f"warning: {reader}")
    if not yes:
        ask(f"Delete {', '.join(names)} at {cluster.address}, with all records?")
    for name, future in admin.delete_topics(names, request_timeout=REQUEST_SECONDS).items():
        cluster.result(future, f"delete topic {name!r}")
        print(f"deleted {name}")


def _settings(cluster: "Cluster", admin: "AdminClient", name: str, everything: bool) -> dict[str, dict[str, Any]]:
    from confluent_kafka.admin import ConfigResource, ConfigSource, ResourceType

    from headrace.cli.kafka import REQUEST_SECONDS

    resource = ConfigResource(ResourceType.TOPIC, name)
    futures = admin.describe_configs([resource], request_timeout=REQUEST_SECONDS)
    entries = cluster.result(futures[resource], f"describe the settings of topic {name!r}")
    own = ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    return {
        key: {"value": entry.value, "source": ConfigSource(entry.source).name.lower().replace("_", " ")}
        for key, entry in sorted(entries.items())
        if everything or entry.source == own
    }


def _cell(value: Any) -> Any:
    return ",".join(map(str, value)) if isinstance(value, list) else value
