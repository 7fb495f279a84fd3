"""OffsetDelete: deletes a group's offsets in topics that it does not read."""

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from headrace.broker.errors import ApiError, ErrorCode
from headrace.broker.groups.offsets import PartitionKey
from headrace.broker.store import StoreError
from headrace.broker.wire.handlers import RequestContext

if TYPE_CHECKING:
    from headrace.broker.server import Broker


async def handle(broker: "Broker", request: SimpleNamespace, context: RequestContext) -> dict[str, Any]:
    try:
        is_subscribed_to = broker.groups.classic.check_offset_delete(request.group_id)
    except ApiError as error:
        return {"error_code": error.code}
    doomed: set[PartitionKey] = set()
    topics = []
    for topic in request.topics:
        partitions = []
        for partition in topic.partitions:
            index = partition.partition_index
            code = ErrorCode.NONE
            if broker.topics.partition(topic.name, index) is None:
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif is_subscribed_to(topic.name):
                code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
            else:
                doomed.add(PartitionKey(topic.name, index))
            partitions.append({"partition_index": index, "error_code": code})
        topics.append({"name": topic.name, "partitions": partitions})
    if doomed:
        try:
            await broker.offsets.delete(request.group_id, doomed)
        except StoreError:
            return {"error_code": ErrorCode.COORDINATOR_NOT_AVAILABLE}
    return {"error_code": ErrorCode.NONE, "topics": topics}
