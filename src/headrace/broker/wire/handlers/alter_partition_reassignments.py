"""AlterPartitionReassignments: a partition can only be where it is."""

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from headrace.broker.errors import ApiError, ErrorCode
from headrace.broker.wire.handlers import RequestContext
from headrace.broker.wire.requests import check_assignment, failure

if TYPE_CHECKING:
    from headrace.broker.server import Broker


async def handle(broker: "Broker", request: SimpleNamespace, context: RequestContext) -> dict[str, Any]:
    return {
        "allow_replication_factor_change": request.allow_replication_factor_change,
        "responses": [
            {
                "name": topic.name,
                "partitions": [_reassign(broker, topic.name, asked) for asked in topic.partitions],
            }
            for topic in request.topics
        ],
    }


def _reassign(broker: "Broker", name: str, asked: SimpleNamespace) -> dict[str, Any]:
    try:
        if broker.topics.get(name) is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find a topic named {name}.")
        if broker.topics.partition(name, asked.partition_index) is None:
            message = f"Unable to find partition {name}:{asked.partition_index}."
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)
        if asked.replicas is None:
            raise ApiError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "No partition reassignment is in progress.")
        check_assignment(asked.replicas, broker.node_id)
    except ApiError as error:
        return {"partition_index": asked.partition_index, **failure(error)}
    return {"partition_index": asked.partition_index}
