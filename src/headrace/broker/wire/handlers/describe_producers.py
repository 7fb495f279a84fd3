"""DescribeProducers: what each partition stores about its producers."""

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from headrace.broker.errors import ApiError, ErrorCode
from headrace.broker.topic_names import check_name
from headrace.broker.wire.handlers import RequestContext
from headrace.broker.wire.requests import failure

if TYPE_CHECKING:
    from headrace.broker.server import Broker


async def handle(broker: "Broker", request: SimpleNamespace, context: RequestContext) -> dict[str, Any]:
    return {
        "topics": [
            {
                "name": topic.name,
                "partitions": [_describe(broker, topic.name, index) for index in topic.partition_indexes],
            }
            for topic in request.topics
        ]
    }


def _describe(broker: "Broker", name: str, index: int) -> dict[str, Any]:
    try:
        check_name(name)
        partition = broker.topics.partition(name, index)
        if partition is None:
            message = "This server does not host this topic-partition."
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)
        partition.check_online()
    except ApiError as error:
        return {"partition_index": index, **failure(error)}
    return {
        "partition_index": index,
        "active_producers": [
            {
                "producer_id": producer_id,
                "producer_epoch": producer.epoch,
                "last_sequence": producer.last_sequence,
                "last_timestamp": producer.last_timestamp,
                "coordinator_epoch": 0,
                "current_txn_start_offset": (-1 if producer.transaction_start is None else producer.transaction_start),
            }
            for producer_id, producer in partition.producers.entries.items()
        ],
    }
