"""OffsetFetch: the committed offsets of a group, for some partitions or for all."""

from collections.abc import Iterable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from headrace.broker.errors import ErrorCode
from headrace.broker.wire.handlers import RequestContext

if TYPE_CHECKING:
    from headrace.broker.server import Broker

_GROUPS_FROM = 8
_TOPIC_IDS_FROM = 10
_NONE = {"committed_offset": -1, "committed_leader_epoch": -1, "metadata": ""}


async def handle(broker: "Broker", request: SimpleNamespace, context: RequestContext) -> dict[str, Any]:
    if context.version < _GROUPS_FROM:
        return await _group(broker, request, request.require_stable, context.version)
    return {
        "groups": [
            {
                "group_id": group.group_id,
                **await _group(broker, group, request.require_stable, context.version),
            }
            for group in request.groups
        ]
    }


async def _group(broker: "Broker", group: SimpleNamespace, stable: bool, version: int) -> dict[str, Any]:
    if stable:
        await broker.offsets.caught_up(group.group_id)
    if group.topics is None:
        topics = _all_topics(broker, group.group_id, stable, version)
    else:
        topics = [_topic(broker, group.group_id, topic, stable, version) for topic in group.topics]
    return {"error_code": ErrorCode.NONE, "topics": topics}


def _topic(broker: "Broker", group_id: str, topic: SimpleNamespace, stable: bool, version: int) -> dict[str, Any]:
    indexes = topic.partition_indexes
    if version < _TOPIC_IDS_FROM:
        return _partitions(broker, group_id, topic.name, {"name": topic.name}, indexes, stable)
    known = broker.topics.by_id(topic.topic_id)
    if known is not None:
        return _partitions(broker, group_id, known.name, {"topic_id": known.id}, indexes, stable)
    unknown = {**_NONE, "error_code": ErrorCode.UNKNOWN_TOPIC_ID}
    return {"topic_id": topic.topic_id, "partitions": [{"partition_index": index, **unknown} for index in indexes]}


def _all_topics(broker: "Broker", group_id: str, stable: bool, version: int) -> list[dict[str, Any]]:
    indexes: dict[str, list[int]] = {}
    for key in broker.offsets.of_group(group_id):
        indexes.setdefault(key.topic, []).append(key.partition)
    topics = []
    for name, of_topic in indexes.items():
        identity: dict[str, Any] = {"name": name}
        if version >= _TOPIC_IDS_FROM:
            known = broker.topics.get(name)
            if known is None:
                continue  # it cannot be named any more
            identity = {"topic_id": known.id}
        topics.append(_partitions(broker, group_id, name, identity, sorted(of_topic), stable))
    return topics


def _partitions(
    broker: "Broker", group_id: str, name: str, identity: dict[str, Any], indexes: Iterable[int], stable: bool
) -> dict[str, Any]:
    return {
        **identity,
        "partitions": [_partition(broker, group_id, name, index, stable) for index in indexes],
    }


def _partition(broker: "Broker", group_id: str, name: str, index: int, stable: bool) -> dict[str, Any]:
    if stable and broker.offsets.pending(group_id, name, index):
        return {"partition_index": index, **_NONE, "error_code": ErrorCode.UNSTABLE_OFFSET_COMMIT}
    offset = broker.offsets.fetch(group_id, name, index)
    if offset is None:
        return {"partition_index": index, **_NONE, "error_code": ErrorCode.NONE}
    return {
        "partition_index": index,
        "committed_offset": offset.offset,
        "committed_leader_epoch": offset.leader_epoch,
        "metadata": offset.metadata,
        "error_code": ErrorCode.NONE,
    }
