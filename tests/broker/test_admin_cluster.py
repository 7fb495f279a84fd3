"""The APIs about more than one node, answered by the one there is."""

from headrace.broker.errors import ErrorCode
from tests.broker.node import Node, on_node


@on_node()
async def test_the_cluster_is_one_node(node: Node) -> None:
    for version in (0, 1, 2):
        answer = await node.call("describe_cluster", version, {})
        assert (answer.error_code, answer.cluster_id, answer.controller_id) == (0, "a-cluster", 1)
        assert [(b.broker_id, b.host, b.port, b.rack) for b in answer.brokers] == [(1, "127.0.0.1", 9092, None)]
        assert answer.cluster_authorized_operations == -(1 << 31)
    answer = await node.call("describe_cluster", 2, {"include_cluster_authorized_operations": True})
    assert answer.cluster_authorized_operations == 0b1_1111_1010_0000 & ~(1 << 6)
    for endpoint_type, code in ((2, ErrorCode.MISMATCHED_ENDPOINT_TYPE), (9, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE)):
        answer = await node.call("describe_cluster", 1, {"endpoint_type": endpoint_type})
        assert answer.error_code == code


@on_node()
async def test_leaders_need_no_election(node: Node) -> None:
    await node.topics.create("a", 2)
    node.partition("a", 1).fail("for the test")
    asked = [{"topic": "a", "partitions": [0, 1, 2]}, {"topic": "none", "partitions": [0]}]
    for version in (0, 1, 2):
        answer = await node.call("elect_leaders", version, {"topic_partitions": asked})
        assert answer.error_code == 0
        assert [[p.error_code for p in result.partition_result] for result in answer.replica_election_results] == [
            [
                ErrorCode.ELECTION_NOT_NEEDED,
                ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ],
            [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION],
        ]
        everything = await node.call("elect_leaders", version, {"topic_partitions": None})
        (result,) = everything.replica_election_results
        assert [p.partition_id for p in result.partition_result] == [1]
    unclean = await node.call("elect_leaders", 2, {"election_type": 1, "topic_partitions": asked[:1]})
    assert unclean.replica_election_results[0].partition_result[1].error_code == (
        ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
    )
    assert (await node.call("elect_leaders", 2, {"election_type": 5})).error_code == ErrorCode.INVALID_REQUEST


@on_node()
async def test_partitions_cannot_be_moved(node: Node) -> None:
    await node.topics.create("a", 1)
    replicas: list[list[int] | None] = [[1], None, [2], [], [1, 2]]
    expected = [
        ErrorCode.NONE,
        ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
    ]
    for version in (0, 1):
        for asked, code in zip(replicas, expected, strict=True):
            topic = {"name": "a", "partitions": [{"partition_index": 0, "replicas": asked}]}
            answer = await node.call("alter_partition_reassignments", version, {"topics": [topic]})
            assert answer.error_code == 0
            assert answer.responses[0].partitions[0].error_code == code
        topic = {"name": "a", "partitions": [{"partition_index": 5, "replicas": [1]}]}
        answer = await node.call("alter_partition_reassignments", version, {"topics": [topic]})
        assert answer.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    for topics in (None, [{"name": "a", "partition_indexes": [0]}]):
        listed = await node.call("list_partition_reassignments", 0, {"topics": topics})
        assert (listed.error_code, listed.topics) == (0, [])


@on_node()
async def test_the_quorum_is_one_voter(node: Node) -> None:
    await node.topics.create("a", 1)
    asked = [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]
    for version in (0, 1, 2):
        answer = await node.call("describe_quorum", version, {"topics": asked})
        (partition,) = answer.topics[0].partitions
        assert (answer.error_code, partition.error_code, partition.leader_id) == (0, 0, 1)
        assert [voter.replica_id for voter in partition.current_voters] == [1]
        assert partition.current_voters[0].log_end_offset == partition.high_watermark
        assert partition.observers == []
        if version == 2:
            (host,) = answer.nodes
            assert (host.node_id, host.listeners[0].host, host.listeners[0].port) == (1, "127.0.0.1", 9092)
    asked = [{"topic_name": "a", "partitions": [{"partition_index": 0}]}]
    answer = await node.call("describe_quorum", 2, {"topics": asked})
    assert answer.topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@on_node()
async def test_what_has_a_config_is_listed(node: Node) -> None:
    await node.topics.create("a", 1)
    topic, broker, client_metrics, group = 2, 4, 16, 32

    async def listed(version: int, *kinds: int) -> list[tuple[int, str]]:
        answer = await node.call("list_config_resources", version, {"resource_types": kinds})
        assert answer.error_code == 0
        return [(resource.resource_type, resource.resource_name) for resource in answer.config_resources]

    assert await listed(0) == []
    assert await listed(1) == [(topic, "a"), (broker, "1")]
    assert await listed(1, topic) == [(topic, "a")]
    assert await listed(1, client_metrics, group) == []
    refused = await node.call("list_config_resources", 1, {"resource_types": [77]})
    assert refused.error_code == ErrorCode.UNSUPPORTED_VERSION
