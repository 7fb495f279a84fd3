"""ElectLeaders: this node leads every partition already, or its log is offline and nothing can lead it."""

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from headrace.broker.errors import ApiError, ErrorCode
from headrace.broker.wire.handlers import RequestContext
from headrace.broker.wire.requests import failure

if TYPE_CHECKING:
    from headrace.broker.server import Broker

NOT_AVAILABLE = {0: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, 1: ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE}


async def handle(broker: "Broker", request: SimpleNamespace, context: RequestContext) -> dict[str, Any]:
    if request.topic_partitions is not None:
        asked = [(topic.topic, topic.partitions) for topic in request.topic_partitions]
    else:
        # Asked for all, only those are named that need a leader and have none.
        asked = [
            (topic.name, [partition.index for partition in topic.partitions if partition.offline])
            for topic in broker.topics.all()
        ]
    results = [
        {
            "topic": name,
            "partition_result": [
                {"partition_id": index, **failure(_elect(broker, name, index, request.election_type))}
                for index in indexes
            ],
        }
        for name, indexes in asked
        if indexes
    ]
    known = request.election_type in NOT_AVAILABLE
    return {
        "error_code": ErrorCode.NONE if known else ErrorCode.INVALID_REQUEST,
        "replica_election_results": results,
    }


def _elect(broker: "Broker", name: str, index: int, election_type: int) -> ApiError:
    if election_type not in NOT_AVAILABLE:
        return ApiError(ErrorCode.INVALID_REQUEST, f"Unknown election type {election_type}")
    if broker.topics.get(name) is None:
        return ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such topic as {name}")
    partition = broker.topics.partition(name, index)
    if partition is None:
        return ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {name}-{index}")
    if partition.offline:
        return ApiError(NOT_AVAILABLE[election_type], f"The log of {name}-{index} is offline.")
    return ApiError(ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition.")
