"""DeleteRecords: moves the start of logs up."""

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from headrace.broker.errors import ApiError, ErrorCode
from headrace.broker.store import StoreError
from headrace.broker.wire.handlers import RequestContext
from headrace.broker.wire.requests import within

if TYPE_CHECKING:
    from headrace.broker.server import Broker


async def handle(broker: "Broker", request: SimpleNamespace, context: RequestContext) -> dict[str, Any]:
    topics = []
    for topic in request.topics:
        results = (_delete(broker, topic.name, asked, request.timeout) for asked in topic.partitions)
        topics.append({"name": topic.name, "partitions": await asyncio.gather(*results)})
    return {"topics": topics}


async def _delete(broker: "Broker", name: str, asked: SimpleNamespace, timeout_ms: int) -> dict[str, Any]:
    try:
        partition = broker.topics.partition(name, asked.partition_index)
        if partition is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        low_watermark = await within(timeout_ms, broker.logs.delete_records(partition, asked.offset))
    except ApiError as error:
        return {"partition_index": asked.partition_index, "low_watermark": -1, "error_code": error.code}
    except StoreError:
        code = ErrorCode.KAFKA_STORAGE_ERROR
        return {"partition_index": asked.partition_index, "low_watermark": -1, "error_code": code}
    return {"partition_index": asked.partition_index, "low_watermark": low_watermark}
