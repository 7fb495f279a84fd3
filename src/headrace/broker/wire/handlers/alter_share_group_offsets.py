"""AlterShareGroupOffsets: let a share group without members go on from other offsets."""

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from headrace.broker.errors import ApiError, ErrorCode
from headrace.broker.groups.share.offsets import alter
from headrace.broker.storage.partition import Partition
from headrace.broker.wire.handlers import RequestContext
from headrace.broker.wire.requests import failure

if TYPE_CHECKING:
    from headrace.broker.server import Broker


async def handle(broker: "Broker", request: SimpleNamespace, context: RequestContext) -> dict[str, Any]:
    logs: dict[tuple[str, int], Partition | None] = {}
    wanted: dict[Partition, int] = {}
    for topic in request.topics:
        for asked in topic.partitions:
            log = broker.topics.partition(topic.topic_name, asked.partition_index)
            logs[topic.topic_name, asked.partition_index] = log
            if log is not None:
                wanted[log] = asked.start_offset
    try:
        codes = await alter(broker.groups.share, request.group_id, wanted)
    except ApiError as error:
        return failure(error)

    def code(topic: SimpleNamespace, index: int) -> ErrorCode:
        log = logs[topic.topic_name, index]
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if log is None else codes[log]

    return {
        "responses": [
            {
                "topic_name": topic.topic_name,
                **({} if (found := broker.topics.get(topic.topic_name)) is None else {"topic_id": found.id}),
                "partitions": [
                    {"partition_index": p.partition_index, "error_code": code(topic, p.partition_index)}
                    for p in topic.partitions
                ],
            }
            for topic in request.topics
        ]
    }
