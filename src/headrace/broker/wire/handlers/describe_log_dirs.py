"""DescribeLogDirs: the one data folder, what each partition takes of it, and what is left."""

import asyncio
import os
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from headrace.broker.errors import ErrorCode
from headrace.broker.wire.handlers import RequestContext

if TYPE_CHECKING:
    from headrace.broker.server import Broker


async def handle(broker: "Broker", request: SimpleNamespace, context: RequestContext) -> dict[str, Any]:
    try:
        space = await asyncio.to_thread(os.statvfs, broker.data)
    except OSError:
        return {"results": [{"log_dir": str(broker.data.absolute()), "error_code": ErrorCode.KAFKA_STORAGE_ERROR}]}
    wanted = None if request.topics is None else {topic.topic: set(topic.partitions) for topic in request.topics}
    topics = []
    for topic in broker.topics.all():
        sizes = [
            {"partition_index": partition.index, "partition_size": partition.size_bytes}
            for partition in topic.partitions
            if wanted is None or partition.index in wanted.get(topic.name, ())
        ]
        if sizes:
            topics.append({"name": topic.name, "partitions": sizes})
    folder = {
        "log_dir": str(broker.data.absolute()),
        "topics": topics,
        "total_bytes": space.f_frsize * space.f_blocks,
        "usable_bytes": space.f_frsize * space.f_bavail,
    }
    return {"results": [folder]}
