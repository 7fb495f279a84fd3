"""OffsetCommit: the offsets of a group; answered when they are durable."""

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from uuid import UUID

from headrace.broker.errors import ApiError, ErrorCode
from headrace.broker.groups.offsets import OffsetEntry
from headrace.broker.store import StoreError
from headrace.broker.wire.handlers import RequestContext

if TYPE_CHECKING:
    from headrace.broker.server import Broker

_RETENTION_UNTIL = 4
_GROUP_NOT_FOUND_FROM = 9
_TOPIC_IDS_FROM = 10


async def handle(broker: "Broker", request: SimpleNamespace, context: RequestContext) -> dict[str, Any]:
    entries: list[OffsetEntry] = []
    accepted: list[dict[str, Any]] = []
    topics = []
    for topic in request.topics:
        name, unknown = _resolve(broker, topic.name, topic.topic_id, context.version)
        partitions = []
        for partition in topic.partitions:
            answer = {"partition_index": partition.partition_index, "error_code": unknown}
            partitions.append(answer)
            if unknown is not ErrorCode.NONE:
                continue
            if broker.topics.partition(name, partition.partition_index) is None:
                answer["error_code"] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                continue
            accepted.append(answer)
            if broker.offsets.metadata_too_large(partition.committed_metadata):
                answer["error_code"] = ErrorCode.OFFSET_METADATA_TOO_LARGE
                continue
            entries.append(
                OffsetEntry(
                    name,
                    partition.partition_index,
                    partition.committed_offset,
                    partition.committed_leader_epoch,
                    partition.committed_metadata or "",
                )
            )
        topics.append({"name": topic.name, "topic_id": topic.topic_id, "partitions": partitions})
    if accepted:
        failure = await _commit(broker, request, context, entries)
        if failure is not None:
            for answer in accepted:
                answer["error_code"] = failure
    return {"topics": topics}


def _resolve(broker: "Broker", name: str, topic_id: UUID, version: int) -> tuple[str, ErrorCode]:
    if version >= _TOPIC_IDS_FROM:
        topic, unknown = broker.topics.by_id(topic_id), ErrorCode.UNKNOWN_TOPIC_ID
    else:
        topic, unknown = broker.topics.get(name), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if topic is None or broker.offsets.topic_is_going(topic.name):
        return "", unknown
    return topic.name, ErrorCode.NONE


async def _commit(
    broker: "Broker", request: SimpleNamespace, context: RequestContext, entries: list[OffsetEntry]
) -> ErrorCode | None:
    """Commit what can be committed; the code for all of it if the group does not allow it."""
    retention_ms = None
    if context.version <= _RETENTION_UNTIL and request.retention_time >= 0:
        retention_ms = request.retention_time
    not_found = context.version >= _GROUP_NOT_FOUND_FROM
    try:
        broker.groups.classic.check_commit(
            request.group_id,
            request.member_id,
            request.generation_id_or_member_epoch,
            request.group_instance_id,
            transactional=False,
            unknown_group=ErrorCode.GROUP_ID_NOT_FOUND if not_found else ErrorCode.ILLEGAL_GENERATION,
        )
        if entries:
            await broker.offsets.commit(request.group_id, entries, retention_ms=retention_ms)
    except ApiError as error:
        return error.code
    except StoreError:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return None
