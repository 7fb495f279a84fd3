"""What the commands do with topics and groups, as functions: nothing is printed, and results are values."""

import pytest

from headrace import GroupNotFound, InputError, TopicNotFound
from headrace.config import (
    Cluster,
    OffsetMove,
    RunConfig,
    TopicPosition,
    alter_topic,
    create_topics,
    delete_groups,
    delete_topics,
    describe_group,
    describe_topic,
    list_groups,
    list_topics,
    make_moves,
    plan_moves,
)


@pytest.fixture
def cluster(broker_address: str) -> Cluster:
    return Cluster(RunConfig(kafka=broker_address))


def test_a_topic_from_its_creation_to_its_end(cluster: Cluster, topic: str) -> None:
    [created] = create_topics(cluster, [topic], partitions=2, settings={"retention.ms": "1000"})
    assert (created.name, created.error) == (topic, None)
    other = f"{topic}-other"
    again, fresh = create_topics(cluster, [topic, other], settings={})
    assert again.error is not None
    assert again.error.code == "TOPIC_ALREADY_EXISTS"
    assert fresh.error is None
    alter_topic(cluster, topic, settings={"max.message.bytes": "2000"}, unset=["retention.ms"], partitions=3)
    details = describe_topic(cluster, topic)
    ranges = [(found.partition, found.start, found.end) for found in details.partitions]
    assert ranges == [(0, 0, 0), (1, 0, 0), (2, 0, 0)]
    assert {name: setting.value for name, setting in details.settings.items()} == {"max.message.bytes": "2000"}
    assert (topic, 3) in {(found.topic, found.partitions) for found in list_topics(cluster)}
    assert [outcome.error for outcome in delete_topics(cluster, [topic, other])] == [None, None]
    with pytest.raises(TopicNotFound, match="does not exist"):
        describe_topic(cluster, topic)


def test_the_offsets_of_a_group_are_planned_moved_and_deleted(cluster: Cluster, topic: str) -> None:
    cluster.create(topic, 1)
    producer = cluster.producer({})
    for number in range(5):
        producer.produce(topic, str(number).encode())
    producer.flush(30)
    group = f"{topic}-group"
    with pytest.raises(GroupNotFound, match="no committed offsets"):
        plan_moves(cluster, group, to=TopicPosition.parse("end"))
    moves = plan_moves(cluster, group, to=TopicPosition.parse("-2"), topics=[topic])
    assert moves == [OffsetMove(topic, 0, None, 3)]
    assert group not in {found.group for found in list_groups(cluster)}
    make_moves(cluster, group, moves)
    assert plan_moves(cluster, group, shift=-10) == [OffsetMove(topic, 0, 3, 0)]
    [partition] = describe_group(cluster, group).partitions
    assert (partition.committed, partition.end, partition.lag, partition.member) == (3, 5, 2, None)
    with pytest.raises(InputError, match="no partition '7'"):
        plan_moves(cluster, group, shift=1, topics=[f"{topic}:7"])
    [deleted] = delete_groups(cluster, [group])
    assert deleted.error is None
    with pytest.raises(GroupNotFound, match="does not exist"):
        describe_group(cluster, group)
