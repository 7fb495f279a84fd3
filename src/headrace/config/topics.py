"""Topics of a cluster: list, create, describe, alter, delete."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from headrace.config.cluster import DEFAULT, REQUEST_SECONDS, Cluster
from headrace.config.outcomes import Outcome, outcomes
from headrace.errors import KafkaError

__all__ = [
    "PartitionDetails",
    "TopicDetails",
    "TopicSetting",
    "TopicSummary",
    "alter_topic",
    "create_topics",
    "delete_topics",
    "describe_topic",
    "list_topics",
]

INTERNAL = "__"
EXISTS = "TOPIC_ALREADY_EXISTS"


@dataclass(frozen=True, slots=True)
class TopicSummary:
    topic: str
    partitions: int
    replicas: int


@dataclass(frozen=True, slots=True)
class PartitionDetails:
    """The nodes by their ids, and the offsets of the first record and after the last."""

    partition: int
    leader: int | None
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class TopicSetting:
    value: str | None
    source: str


@dataclass(frozen=True, slots=True)
class TopicDetails:
    topic: str
    id: str
    partitions: tuple[PartitionDetails, ...]
    settings: Mapping[str, TopicSetting]


def list_topics(cluster: Cluster, *, internal: bool = False) -> list[TopicSummary]:
    """All topics, by name. Those of Kafka itself are left out unless `internal`."""
    with cluster.asked_to("list topics"):
        found = cluster.admin.list_topics(timeout=REQUEST_SECONDS).topics
    return [
        TopicSummary(
            name,
            len(topic.partitions),
            max((len(partition.replicas) for partition in topic.partitions.values()), default=0),
        )
        for name, topic in sorted(found.items())
        if internal or not name.startswith(INTERNAL)
    ]


def create_topics(
    cluster: Cluster,
    names: Sequence[str],
    *,
    partitions: int | None = None,
    replicas: int | None = None,
    settings: Mapping[str, str],
) -> list[Outcome]:
    """Create topics; a number that is None is the cluster's. The code of one that exists is TOPIC_ALREADY_EXISTS."""
    new = [
        NewTopic(name, partitions or DEFAULT, replicas or DEFAULT, config=dict(settings))
        for name in dict.fromkeys(names)
    ]
    found = outcomes(cluster, cluster.admin.create_topics(new, request_timeout=REQUEST_SECONDS), "create topic")
    return [
        Outcome(outcome.name, _exists(cluster, outcome.name, outcome.error))
        if outcome.error is not None and outcome.error.code == EXISTS
        else outcome
        for outcome in found
    ]


def describe_topic(cluster: Cluster, name: str, *, all_settings: bool = False) -> TopicDetails:
    """A topic that must exist, with the settings that were set on it, or all."""
    topic = cluster.topic(name)
    keys = [(name, partition.id) for partition in topic.partitions]
    starts = cluster.offsets(keys, OffsetSpec.earliest())
    ends = cluster.offsets(keys, OffsetSpec.latest())
    partitions = tuple(
        PartitionDetails(
            partition.id,
            partition.leader.id if partition.leader else None,
            tuple(node.id for node in partition.replicas),
            tuple(node.id for node in partition.isr),
            starts[name, partition.id],
            ends[name, partition.id],
        )
        for partition in topic.partitions
    )
    return TopicDetails(name, str(topic.topic_id), partitions, _settings(cluster, name, all_settings))


def alter_topic(
    cluster: Cluster,
    name: str,
    *,
    settings: Mapping[str, str],
    unset: Sequence[str] = (),
    partitions: int | None = None,
) -> None:
    """Change settings, reset others to their defaults, and raise the number of partitions."""
    cluster.topic(name)
    entries = [
        ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET) for key, value in settings.items()
    ] + [ConfigEntry(key, None, incremental_operation=AlterConfigOpType.DELETE) for key in unset]
    if entries:
        resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=entries)
        futures = cluster.admin.incremental_alter_configs([resource], request_timeout=REQUEST_SECONDS)
        for future in futures.values():
            cluster.result(future, f"change the settings of topic {name!r}")
    if partitions is not None:
        future = cluster.admin.create_partitions([NewPartitions(name, partitions)], request_timeout=REQUEST_SECONDS)[
            name
        ]
        cluster.result(future, f"give topic {name!r} {partitions} partitions")


def delete_topics(cluster: Cluster, names: Sequence[str]) -> list[Outcome]:
    """Delete topics and everything in them."""
    futures = cluster.admin.delete_topics([*names], request_timeout=REQUEST_SECONDS)
    return outcomes(cluster, futures, "delete topic")


def _settings(cluster: Cluster, name: str, everything: bool) -> dict[str, TopicSetting]:
    resource = ConfigResource(ResourceType.TOPIC, name)
    futures = cluster.admin.describe_configs([resource], request_timeout=REQUEST_SECONDS)
    entries = cluster.result(futures[resource], f"describe the settings of topic {name!r}")
    own = ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    return {
        key: TopicSetting(entry.value, ConfigSource(entry.source).name.lower().replace("_", " "))
        for key, entry in sorted(entries.items())
        if everything or entry.source == own
    }


def _exists(cluster: Cluster, name: str, error: KafkaError) -> KafkaError:
    exists = KafkaError(
        f"topic {name!r} already exists at {cluster.address}",
        next_step=f"see it with: headrace topics describe {name}",
        code=error.code,
    )
    exists.__cause__ = error
    return exists
