"""Who reads a topic now: running apps, which Kafka does not know as groups, and members of consumer groups."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from headrace import KafkaError

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

    from headrace.cli.kafka import Cluster

__all__ = ["readers_of"]


def readers_of(cluster: "Cluster", admin: "AdminClient", topics: Sequence[str]) -> Iterator[str]:
    """A sentence for each reader. Of apps, those that run in the home folder of this folder are known."""
    yield from _apps(cluster, admin, topics)
    try:
        yield from _groups(cluster, admin, topics)
    except KafkaError:
        pass  # some clusters let nobody list groups; this is only a warning


def _apps(cluster: "Cluster", admin: "AdminClient", topics: Sequence[str]) -> Iterator[str]:
    from headrace.cli.kafka import REQUEST_SECONDS
    from headrace.config.run import RunConfig
    from headrace.services import Home

    home = Home(RunConfig.load().home)
    with cluster.asked_to("ask the cluster for its id"):
        id = str(admin.list_topics(timeout=REQUEST_SECONDS).cluster_id)
    for topic in topics:
        for app, nodes in home.readers(id, topic).items():
            yield f"topic {topic!r} is being read by the running app {app!r} ({', '.join(nodes)}), which will fail"


def _groups(cluster: "Cluster", admin: "AdminClient", topics: Sequence[str]) -> Iterator[str]:
    from headrace.cli.kafka import REQUEST_SECONDS

    listing = cluster.result(admin.list_consumer_groups(request_timeout=REQUEST_SECONDS), "list groups")
    names = sorted(group.group_id for group in listing.valid)
    if not names:
        return
    for name, future in admin.describe_consumer_groups(names, request_timeout=REQUEST_SECONDS).items():
        group = cluster.result(future, f"describe group {name!r}")
        read = {partition.topic for member in group.members for partition in member.assignment.topic_partitions}
        for topic in topics:
            if topic in read:
                yield f"topic {topic!r} is being read by the group {name!r}"
