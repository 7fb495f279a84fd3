"""OffsetForLeaderEpoch: where a leader epoch ended, so that a reader notices what it read and is no longer there."""

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from headrace.broker.errors import ApiError, ErrorCode
from headrace.broker.wire.handlers import RequestContext

if TYPE_CHECKING:
    from headrace.broker.server import Broker


async def handle(broker: "Broker", request: SimpleNamespace, context: RequestContext) -> dict[str, Any]:
    return {
        "topics": [
            {
                "topic": topic.topic,
                "partitions": [_look_up(broker, topic.topic, asked) for asked in topic.partitions],
            }
            for topic in request.topics
        ]
    }


def _look_up(broker: "Broker", name: str, asked: SimpleNamespace) -> dict[str, Any]:
    try:
        partition = broker.topics.partition(name, asked.partition)
        if partition is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        partition.check_online()
        partition.check_epoch(asked.current_leader_epoch)
    except ApiError as error:
        return {"partition": asked.partition, "error_code": error.code}
    epoch, end = partition.epoch_end(asked.leader_epoch)
    return {"partition": asked.partition, "leader_epoch": epoch, "end_offset": end}
