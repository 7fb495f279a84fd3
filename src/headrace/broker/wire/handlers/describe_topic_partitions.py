"""DescribeTopicPartitions: topics by name, in pages of partitions."""

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from headrace.broker.errors import ApiError, ErrorCode
from headrace.broker.topic_names import INTERNAL, check_name
from headrace.broker.wire.handlers import RequestContext
from headrace.broker.wire.handlers.metadata import describe_partition
from headrace.broker.wire.operations import ON_TOPIC

if TYPE_CHECKING:
    from headrace.broker.server import Broker

MAX_PARTITIONS = 2000


async def handle(broker: "Broker", request: SimpleNamespace, context: RequestContext) -> dict[str, Any]:
    cursor = request.cursor
    first = cursor.topic_name if cursor is not None else ""
    asked = [topic.name for topic in request.topics]
    if cursor is not None and (cursor.partition_index < 0 or (asked and first not in asked)):
        refusals = [{"name": name, "error_code": ErrorCode.INVALID_REQUEST} for name in asked]
        return {"topics": refusals}
    names = sorted({name for name in asked or (topic.name for topic in broker.topics.all()) if name >= first})
    room = max(min(MAX_PARTITIONS, request.response_partition_limit), 1)
    described: list[dict[str, Any]] = []
    for name in names:
        if room == 0:
            return {"topics": described, "next_cursor": {"topic_name": name, "partition_index": 0}}
        topic = broker.topics.get(name)
        if topic is None:
            if asked:
                described.append(_missing(name))
            continue
        start = cursor.partition_index if cursor is not None and name == first else 0
        page = topic.partitions[start : start + room]
        described.append(
            {
                "name": name,
                "topic_id": topic.id,
                "partitions": [
                    {
                        **describe_partition(partition, broker.node_id),
                        # Java's client stumbles over null here.
                        "eligible_leader_replicas": [],
                        "last_known_elr": [],
                    }
                    for partition in page
                ],
                "topic_authorized_operations": ON_TOPIC,
            }
        )
        room -= len(page)
        if start + len(page) < len(topic.partitions):
            return {
                "topics": described,
                "next_cursor": {"topic_name": name, "partition_index": start + len(page)},
            }
    return {"topics": described, "next_cursor": None}


def _missing(name: str) -> dict[str, Any]:
    try:
        check_name(name)
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    except ApiError as error:
        code = error.code
    return {
        "error_code": code,
        "name": name,
        "is_internal": name in INTERNAL,
        "topic_authorized_operations": ON_TOPIC,
    }
