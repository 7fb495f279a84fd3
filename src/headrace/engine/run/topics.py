"""The topics of a run: input topics must exist, output topics are created."""

import time
from collections.abc import Iterable, Mapping

from headrace.config.cluster import Cluster
from headrace.config.run import RunConfig
from headrace.engine.run.heartbeats import markers_of
from headrace.errors import KafkaError, TopicNotFound, Unreachable
from headrace.topology import IngestionTime, QueryNode, Topology
from headrace.topology.names import failed_topic, rejected_topic

__all__ = ["ensure_inputs", "ensure_outputs", "read_topics", "real_time_slots", "written_topics"]

SEEN_WITHIN = 30.0
CAPTURED_WITHIN = 60.0
BROKERS_TIME = {"message.timestamp.type": "LogAppendTime"}
# The last row of a key must never go: by compaction where there is a compactor, else by keeping all of them.
COMPACTED = {"cleanup.policy": "compact"}
MARKERS = {"cleanup.policy": "delete", "retention.ms": "3600000", "segment.bytes": str(1 << 20)}
KEPT = {"retention.ms": "-1", "retention.bytes": "-1"}
# A record that its topic took is a little larger with the reason in its headers, and must not be refused for that.
OF_ANY_SIZE = {"max.message.bytes": str(2**31 - 1)}
REFUSALS = ("INVALID_CONFIG", "POLICY_VIOLATION")


def read_topics(topology: Topology, query: QueryNode) -> list[str]:
    """The topics that a query reads."""
    return [feed.topic_name for feed in topology.feeds(query) if feed.has_topic]


def ensure_inputs(topology: Topology, cluster: Cluster, config: RunConfig) -> None:
    """Input topics: created on an embedded broker; on any other a missing one is an error.

    Those of captured tables are created by the process that captures them, which may just have been started.
    """
    captured = [node.topic_name for node in topology.sources() if node.is_captured]
    if missing_yet := _missing_after(cluster, captured, CAPTURED_WITHIN):
        names = ", ".join(map(repr, sorted(missing_yet)))
        raise TopicNotFound(
            f"{'the topic of a capture does' if len(missing_yet) == 1 else 'topics of captures do'} not exist at "
            f"{cluster.address}: {names}",
            next_step="see in capture's log why it has not begun",
        )
    wanted = [node for node in topology.sources() if node.is_input]
    known = cluster.partitions(node.topic_name for node in wanted)
    missing = [node for node in wanted if node.topic_name not in known]
    if missing and not config.create_inputs:
        names = ", ".join(repr(node.topic_name) for node in missing)
        raise TopicNotFound(
            f"{'an input topic does' if len(missing) == 1 else 'input topics do'} not exist at "
            f"{cluster.address}: {names}",
            next_step=f"create it with: headrace topics create {missing[0].topic_name}",
        )
    for node in missing:
        settings = BROKERS_TIME if isinstance(node.event_time, IngestionTime) else {}
        wishes = [COMPACTED, KEPT] if node.is_table else [{}]
        _create(cluster, node.topic_name, None, {**settings, **config.topic_settings}, wishes)
    _wait_for(cluster, [node.topic_name for node in missing])


def ensure_outputs(
    topology: Topology, cluster: Cluster, config: RunConfig, late: Mapping[QueryNode, str | None]
) -> None:
    """Output topics. Each has as many partitions as the topic that its rows come from.

    `late` are those of late rows, where a node diverts them.
    """
    known = cluster.partitions(_all_topics(topology, late))
    sizes = _sizes(topology, known, late)
    made = [topic for topic in sizes if topic not in known]
    tables = {query.topic_name for query in topology.queries if query.is_table}
    rejects = {
        rejected_topic(feed.topic_name) for query in topology.queries for feed in topology.rejects_written_by(query)
    } | {failed_topic(query.topic_name) for query in topology.queries if query.diverts}
    for topic in made:
        wishes = [COMPACTED, KEPT] if topic in tables else [OF_ANY_SIZE, {}] if topic in rejects else [{}]
        _create(cluster, topic, sizes[topic], config.topic_settings, wishes)
    _wait_for(cluster, made)


def ensure_markers(topics: Iterable[str], cluster: Cluster, config: RunConfig) -> None:
    """The marker topics of these topics: small, with a short retention."""
    wanted = [markers_of(topic) for topic in topics]
    known = cluster.partitions(wanted)
    made = [name for name in wanted if name not in known]
    replication = {name: value for name, value in config.topic_settings.items() if name == "replication.factor"}
    for topic in made:
        cluster.create(topic, 1, {**MARKERS, **replication, "partitions": "1"})
    _wait_for(cluster, made)


def real_time_slots(topology: Topology, cluster: Cluster, config: RunConfig) -> int:
    """How many tasks the real-time nodes run at all times: one for each partition of what they read and shuffle."""
    sizes = _sizes(topology, cluster.partitions(_all_topics(topology, {})), {})
    slots = 0
    for query in topology.queries:
        if query.is_real_time:
            rejected = [feed.topic_name for feed in topology.rejects_written_by(query)]  # read once more
            read = [*read_topics(topology, query), *rejected]
            slots += sum(sizes.get(topic) or 1 for topic in read) + config.state_partitions
    return slots


def _all_topics(topology: Topology, late: Mapping[QueryNode, str | None]) -> set[str]:
    """The topics that the queries read and write."""
    topics = {topic for topic in late.values() if topic is not None}
    for query in topology.queries:
        topics |= {*read_topics(topology, query), *written_topics(topology, query)}
    return topics


def _sizes(topology: Topology, known: Mapping[str, int], late: Mapping[QueryNode, str | None]) -> dict[str, int | None]:
    """The partitions of all topics, those too that the app will make; None is the cluster's default."""
    sizes: dict[str, int | None] = dict(known)
    for query in topology.queries:
        written = written_topics(topology, query)
        if (topic_of_late := late.get(query)) is not None:
            written[topic_of_late] = next(iter(read_topics(topology, query)), None)
        for topic, source in written.items():
            sizes.setdefault(topic, None if source is None else sizes.get(source))
    return sizes


def written_topics(topology: Topology, query: QueryNode) -> dict[str, str | None]:
    """The topics that a query writes, those of rejects and failed rows too, each with the topic its rows come from."""
    first = next(iter(read_topics(topology, query)), None)
    rejected = [feed.topic_name for feed in topology.rejects_written_by(query)]
    failed = {failed_topic(query.topic_name): first} if query.diverts else {}
    return (
        {output.topic_name: first for output in query.outputs}
        | {rejected_topic(topic): topic for topic in rejected}
        | failed
    )


def _create(
    cluster: Cluster, topic: str, partitions: int | None, settings: Mapping[str, str], wishes: list[dict[str, str]]
) -> None:
    """With the first of the settings that the cluster accepts."""
    *before, last = wishes
    for wish in before:
        try:
            cluster.create(topic, partitions, {**wish, **settings})
            return
        except KafkaError as error:
            if error.code not in REFUSALS:
                raise
    cluster.create(topic, partitions, {**last, **settings})


def _wait_for(cluster: Cluster, topics: Iterable[str]) -> None:
    """A cluster of several brokers tells of a new topic a little later."""
    if missing := _missing_after(cluster, topics, SEEN_WITHIN):
        raise Unreachable(f"{cluster.address} does not list the topics that were created: {', '.join(missing)}")


def _missing_after(cluster: Cluster, topics: Iterable[str], seconds: float) -> set[str]:
    """The topics that do not exist after so many seconds; none as soon as all exist."""
    deadline = time.monotonic() + seconds
    wanted = set(topics)
    while wanted and (missing := wanted - cluster.partitions(wanted).keys()):
        if time.monotonic() > deadline:
            return missing
        time.sleep(0.1)
    return set()
