"""The topics of a run: those it reads must be there, those it writes are made if they are not."""

import time
from collections.abc import Iterable

from headrace.engine.cluster import Cluster
from headrace.engine.config import RunConfig
from headrace.errors import TopicNotFound, Unreachable
from headrace.topology import Files, IngestionTime, QueryNode, Rate, Stream, Topic, Topology

__all__ = ["ensure_inputs", "ensure_outputs", "read_topics", "written_topics"]

SEEN_WITHIN = 30.0
BROKERS_TIME = {"message.timestamp.type": "LogAppendTime"}


def read_topics(topology: Topology, query: QueryNode) -> list[str]:
    """The topics that a query reads."""
    return [feed.topic_name for feed in topology.feeds(query) if not isinstance(feed, Rate | Files)]


def ensure_inputs(topology: Topology, cluster: Cluster, config: RunConfig) -> None:
    """Topics that others write: made on a broker that is the app's own, missed on any other."""
    known = cluster.partitions()
    wanted = [node for node in topology.nodes.values() if isinstance(node, Topic) and topology.readers(node)]
    missing = [node for node in wanted if node.topic_name not in known]
    if missing and not config.create_inputs:
        names = ", ".join(repr(node.topic_name) for node in missing)
        raise TopicNotFound(
            f"{'a topic that is read does' if len(missing) == 1 else 'topics that are read do'} not exist at "
            f"{cluster.address}: {names}",
            next_step=f"create it with: headrace topics create {missing[0].topic_name}",
        )
    for node in missing:
        brokers_time = BROKERS_TIME if isinstance(node.event_time, IngestionTime) else {}
        cluster.create(node.topic_name, None, {**brokers_time, **config.topic_settings})
    _wait_for(cluster, [node.topic_name for node in missing])


def ensure_outputs(topology: Topology, cluster: Cluster, config: RunConfig) -> None:
    """Topics that the app writes; one has as many partitions as the topic that its rows come from."""
    sizes: dict[str, int | None] = dict(cluster.partitions())
    made = []
    for query in topology.queries:
        for topic, source in written_topics(topology, query).items():
            if topic not in sizes:
                sizes[topic] = None if source is None else sizes.get(source)
                cluster.create(topic, sizes[topic], config.topic_settings)
                made.append(topic)
    _wait_for(cluster, made)


def written_topics(topology: Topology, query: QueryNode) -> dict[str, str | None]:
    """The topics of a query's outputs and of the rejects it writes, each with the topic its rows come from."""
    first = next(iter(read_topics(topology, query)), None)
    outputs = query.outputs if isinstance(query, Stream) else ()
    rejected = [feed.topic_name for feed in topology.rejects_written_by(query)]
    return {output.topic_name: first for output in outputs} | {f"{topic}.rejected": topic for topic in rejected}


def _wait_for(cluster: Cluster, topics: Iterable[str]) -> None:
    """A cluster of several brokers tells of a new topic a little later."""
    deadline = time.monotonic() + SEEN_WITHIN
    while missing := set(topics) - cluster.partitions().keys():
        if time.monotonic() > deadline:
            raise Unreachable(f"{cluster.address} does not show the topics that were made: {', '.join(missing)}")
        time.sleep(0.1)
