"""Who reads a topic now: running apps, which Kafka does not know as groups, and members of consumer groups."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.errors import KafkaError
from headrace.services.home import Home

if TYPE_CHECKING:
    from headrace.config import Cluster

__all__ = ["TopicReaders", "readers_of"]


@dataclass(frozen=True, slots=True)
class TopicReaders:
    """The readers of a topic: the apps with their nodes that read it, and the groups."""

    topic: str
    apps: Mapping[str, tuple[str, ...]]
    groups: tuple[str, ...]


def readers_of(cluster: "Cluster", topics: Sequence[str], home: Path) -> list[TopicReaders]:
    """By topic. Of apps, those that run in the home folder are known."""
    from headrace.config import group_names_by_topic

    apps = Home(home)
    id = cluster.id()
    try:
        groups = group_names_by_topic(cluster, topics)
    except KafkaError:
        groups = {}  # some clusters let nobody list groups
    return [
        TopicReaders(
            topic,
            {app: tuple(nodes) for app, nodes in apps.readers(id, topic).items()},
            tuple(groups.get(topic, ())),
        )
        for topic in dict.fromkeys(topics)
    ]
