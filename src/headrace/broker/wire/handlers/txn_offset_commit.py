"""TxnOffsetCommit: a group's offsets, to be committed with the producer's transaction or not at all."""

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from headrace.broker.errors import ApiError, ErrorCode
from headrace.broker.groups.offsets import OffsetEntry
from headrace.broker.transactions.state import Producer
from headrace.broker.wire.handlers import RequestContext

if TYPE_CHECKING:
    from headrace.broker.server import Broker

_FIRST_TO_KNOW_ABORTABLE = 4


async def handle(broker: "Broker", request: SimpleNamespace, context: RequestContext) -> dict[str, Any]:
    codes: dict[tuple[str, int], ErrorCode] = {}
    entries: list[OffsetEntry] = []
    for topic in request.topics:
        for partition in topic.partitions:
            key = (topic.name, partition.partition_index)
            if broker.topics.partition(*key) is None:
                codes[key] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif broker.offsets.metadata_too_large(partition.committed_metadata):
                codes[key] = ErrorCode.OFFSET_METADATA_TOO_LARGE
            else:
                epoch, metadata = partition.committed_leader_epoch, partition.committed_metadata or ""
                entries.append(OffsetEntry(*key, partition.committed_offset, epoch, metadata))
    if entries:
        code = await _commit(broker, request, context, entries)
        codes |= {(entry.topic, entry.partition): code for entry in entries}
    return {
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    {"partition_index": each.partition_index, "error_code": codes[topic.name, each.partition_index]}
                    for each in topic.partitions
                ],
            }
            for topic in request.topics
        ]
    }


async def _commit(
    broker: "Broker", request: SimpleNamespace, context: RequestContext, entries: list[OffsetEntry]
) -> ErrorCode:
    if not request.group_id:
        return ErrorCode.INVALID_GROUP_ID
    try:
        await broker.transactions.commit_offsets(
            request.transactional_id,
            Producer(request.producer_id, request.producer_epoch),
            request.group_id,
            request.member_id,
            request.generation_id,
            request.group_instance_id,
            entries,
        )
    except ApiError as error:
        if error.code is ErrorCode.PRODUCER_FENCED:
            # Kafka's group coordinator speaks so of epochs, in every version.
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if error.code is ErrorCode.INVALID_TXN_STATE and context.version >= _FIRST_TO_KNOW_ABORTABLE:
            return ErrorCode.TRANSACTION_ABORTABLE
        return error.code
    return ErrorCode.NONE
