"""AddPartitionsToTxn: the partitions a producer is about to write to in its transaction. All are added, or none."""

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from headrace.broker.errors import ApiError, ErrorCode
from headrace.broker.transactions.state import Producer
from headrace.broker.wire.handlers import RequestContext

if TYPE_CHECKING:
    from headrace.broker.server import Broker

_FIRST_TO_KNOW_FENCED = 2


async def handle(broker: "Broker", request: SimpleNamespace, context: RequestContext) -> dict[str, Any]:
    keys = [(topic.name, index) for topic in request.v3_and_below_topics for index in topic.partitions]
    unknown = {key for key in keys if broker.topics.partition(*key) is None}
    codes: dict[tuple[str, int], ErrorCode]
    if unknown:
        codes = {
            key: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if key in unknown else ErrorCode.OPERATION_NOT_ATTEMPTED
            for key in keys
        }
    else:
        codes = dict.fromkeys(keys, await _add(broker, request, context, keys))
    return {
        "results_by_topic_v3_and_below": [
            {
                "name": topic.name,
                "results_by_partition": [
                    {"partition_index": index, "partition_error_code": codes[topic.name, index]}
                    for index in topic.partitions
                ],
            }
            for topic in request.v3_and_below_topics
        ]
    }


async def _add(
    broker: "Broker", request: SimpleNamespace, context: RequestContext, keys: list[tuple[str, int]]
) -> ErrorCode:
    try:
        await broker.transactions.add_partitions(
            request.v3_and_below_transactional_id,
            Producer(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch),
            keys,
            context.connection,
        )
    except ApiError as error:
        if error.code is ErrorCode.PRODUCER_FENCED and context.version < _FIRST_TO_KNOW_FENCED:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        return error.code
    return ErrorCode.NONE
