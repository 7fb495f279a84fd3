"""DescribeQuorum: the one node is the one voter, and it leads."""

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from headrace.broker.wire.errors import ErrorCode
from headrace.broker.wire.handlers import RequestContext

if TYPE_CHECKING:
    from headrace.broker.server import Broker

METADATA_TOPIC = "__cluster_metadata"


async def handle(broker: "Broker", request: SimpleNamespace, context: RequestContext) -> dict[str, Any]:
    described = [
        {
            "topic_name": topic.topic_name,
            "partitions": [_describe(broker, topic.topic_name, asked.partition_index) for asked in topic.partitions],
        }
        for topic in request.topics
    ]
    host, port = broker.advertised
    listener = {"name": "PLAINTEXT", "host": host, "port": port}
    found = any(topic.topic_name == METADATA_TOPIC for topic in request.topics)
    return {"topics": described, "nodes": [{"node_id": broker.node_id, "listeners": [listener]}] if found else []}


def _describe(broker: "Broker", name: str, index: int) -> dict[str, Any]:
    if (name, index) != (METADATA_TOPIC, 0):
        return {"partition_index": index, "error_code": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    # There is no log of metadata; the count of changes to the topics rises as its end would.
    end, now = broker.topics.version, broker.clock.wall_ms()
    voter = {
        "replica_id": broker.node_id,
        "log_end_offset": end,
        "last_fetch_timestamp": now,
        "last_caught_up_timestamp": now,
    }
    return {
        "partition_index": index,
        "leader_id": broker.node_id,
        "leader_epoch": 1,
        "high_watermark": end,
        "current_voters": [voter],
    }
