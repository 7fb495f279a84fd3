"""AlterReplicaLogDirs: there is one data folder, and every partition is in it."""

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from headrace.broker.errors import ErrorCode
from headrace.broker.wire.handlers import RequestContext

if TYPE_CHECKING:
    from headrace.broker.server import Broker


async def handle(broker: "Broker", request: SimpleNamespace, context: RequestContext) -> dict[str, Any]:
    return {
        "results": [
            {
                "topic_name": topic.name,
                "partitions": [
                    {"partition_index": index, "error_code": _move(broker, topic.name, index, folder.path)}
                    for index in topic.partitions
                ],
            }
            for folder in request.dirs
            for topic in folder.topics
        ]
    }


def _move(broker: "Broker", name: str, index: int, path: str) -> ErrorCode:
    if path != str(broker.data.absolute()):
        return ErrorCode.LOG_DIR_NOT_FOUND
    partition = broker.topics.partition(name, index)
    if partition is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return ErrorCode.KAFKA_STORAGE_ERROR if partition.offline else ErrorCode.NONE
