"""Reading again from a time: what `--replay NODE:topic=TIME` will do, to show before it is done."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from headrace.config.cluster import Cluster
from headrace.config.run import Offsets
from headrace.engine.run.checkpoints import Checkpoints
from headrace.engine.run.topics import read_topics, written_topics
from headrace.errors import InputError, TopicNotFound
from headrace.topology import QueryNode, Topology, View, node_of
from headrace.topology.nearest import did_you_mean

__all__ = ["Replay", "ReplayRequest", "plan_replays", "query_named"]

FORM = "write NODE:TOPIC=TIME, such as bursts:payments=2026-01-01T00:00"


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    """A node, the topic to read again (all its topics if None), and from which time."""

    node: str
    topic: str | None
    since: datetime

    @classmethod
    def parse(cls, text: str) -> "ReplayRequest":
        """Read `NODE:TOPIC=TIME` or `NODE=TIME`; a time without a zone is UTC."""
        place, equals, time = text.partition("=")
        node, colon, topic = place.partition(":")
        if not equals or not node or (colon and not topic):
            raise InputError(f"{text!r} is not a replay", next_step=FORM)
        try:
            since = datetime.fromisoformat(time)
        except ValueError:
            raise InputError(f"{time!r} is not a time", next_step=FORM) from None
        return cls(node, topic or None, since if since.tzinfo else since.replace(tzinfo=UTC))


@dataclass(frozen=True, slots=True)
class Replay:
    """A node that will start over, and where."""

    node: str
    start: Offsets
    effects: tuple[str, ...]
    """What will be read and written again, one line each."""


def plan_replays(
    requests: Sequence[ReplayRequest], topology: Topology, cluster: Cluster, checkpoints: Checkpoints
) -> list[Replay]:
    """What the requests will do. Nothing is changed."""
    by_node: dict[QueryNode, list[ReplayRequest]] = {}
    for request in requests:
        by_node.setdefault(query_named(topology, request.node), []).append(request)
    return [_planned(node, asked, topology, cluster, checkpoints) for node, asked in by_node.items()]


def query_named(topology: Topology, name: str) -> QueryNode:
    found = topology.nodes.get(name)
    if not isinstance(found, QueryNode):
        known = [query.name for query in topology.queries]
        if found is None:
            problem = f"{topology.app_name!r} has no node {name!r}"
        else:
            problem = f"{name!r} of {topology.app_name!r} is a {found.kind}, which has no checkpoint"
        raise InputError(problem, next_step=did_you_mean(name, known))
    return found


def _planned(
    node: QueryNode,
    asked: Sequence[ReplayRequest],
    topology: Topology,
    cluster: Cluster,
    checkpoints: Checkpoints,
) -> Replay:
    topics = read_topics(topology, node)
    since: dict[str, datetime] = {}
    for request in asked:
        since |= dict.fromkeys(_topics_meant(request, node, topology), request.since)
    ends, beginnings = cluster.ends(topics), cluster.beginnings(topics)
    for topic in topics:
        if not ends[topic]:
            raise TopicNotFound(f"topic {topic!r}, which {node.name!r} reads, does not exist at {cluster.address}")
    # The other topics continue at their current offsets.
    start = {topic: beginnings[topic] | checkpoints.of(node.name).positions().get(topic, {}) for topic in topics}
    effects = []
    for topic, time in since.items():
        start[topic] = cluster.offsets_at(topic, int(time.timestamp() * 1000))
        records = sum(end - start[topic][partition] for partition, end in ends[topic].items())
        effects.append(f"{node.name} reads {topic} again from {time.isoformat()}: {records:,} records")
    if isinstance(node, View):
        effects.append(f"{node.name} updates the rows of the table {node.table_name} again")
    for topic in written_topics(topology, node):
        effects.append(f"{node.name} writes to {topic} again, after what is there")
    readers = {
        reader.name: None
        for feed in (feed for query in topology.queries for feed in topology.feeds(query))
        if node_of(feed) is node
        for reader in topology.readers(feed)
    }
    if readers:
        effects.append(f"{', '.join(readers)} will read what {node.name} writes again")
    return Replay(node.name, start, tuple(effects))


def _topics_meant(request: ReplayRequest, node: QueryNode, topology: Topology) -> list[str]:
    """A topic by its own name, or by the name of the node in the app."""
    topics = read_topics(topology, node)
    if request.topic is None:
        return topics
    names = {topic: topic for topic in topics}
    names |= {str(feed): feed.topic_name for feed in topology.feeds(node) if feed.topic_name in topics}
    if request.topic not in names:
        raise InputError(f"{node.name!r} does not read {request.topic!r}", next_step=did_you_mean(request.topic, names))
    return [names[request.topic]]
