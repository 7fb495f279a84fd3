"""Metadata: the first request of every client, so whole responses are cached as bytes until the topics change."""

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID
from weakref import WeakKeyDictionary

from headrace.broker.errors import ApiError, ErrorCode
from headrace.broker.storage.partition import Partition
from headrace.broker.topic_names import INTERNAL, check_name
from headrace.broker.topics import Topic, Topics
from headrace.broker.wire.codec import write_response
from headrace.broker.wire.handlers import RequestContext
from headrace.broker.wire.operations import NOT_REQUESTED, ON_CLUSTER, ON_TOPIC

if TYPE_CHECKING:
    from headrace.broker.server import Broker

API_KEY = 3
NO_ID = UUID(int=0)
# Ids are in requests from version 10 on, but may be used only from 12 on; only then may names be null.
_IDS_FROM = 12
_KEPT_BYTES = 4 * 1024 * 1024


class _State(NamedTuple):
    """What every answer depends on besides the request."""

    topics_version: int
    offline: tuple[tuple[UUID, int], ...]
    address: tuple[str, int]


class _Kept:
    """Serialised answers, all of one state."""

    def __init__(self) -> None:
        self.state: _State | None = None
        self.answers: dict[object, bytes] = {}
        self.size = 0

    def renew(self, state: _State) -> None:
        if state != self.state or self.size > _KEPT_BYTES:
            self.state, self.answers, self.size = state, {}, 0

    def keep(self, key: object, answer: bytes) -> None:
        self.answers[key] = answer
        self.size += len(answer)


_kept: WeakKeyDictionary[Topics, _Kept] = WeakKeyDictionary()


async def handle(broker: "Broker", request: SimpleNamespace, context: RequestContext) -> dict[str, Any] | bytes:
    version = context.version
    if request.topics is None or (version == 0 and not request.topics):
        topics = list(broker.topics.all())
        key: object = (version, _flags(request))
    else:
        found = await _find(broker, request, version)
        topics = [topic for topic in found if isinstance(topic, Topic)]
        if len(topics) < len(found):
            operations = {"topic_authorized_operations": _on_topic(request)}
            described = [
                _describe(broker, topic, request) if isinstance(topic, Topic) else topic | operations for topic in found
            ]
            return _answer(broker, request, described)
        key = (version, _flags(request), tuple(topic.id for topic in topics))
    kept = _kept.setdefault(broker.topics, _Kept())
    kept.renew(_state(broker))
    answer = kept.answers.get(key)
    if answer is None:
        body = _answer(broker, request, [_describe(broker, topic, request) for topic in topics])
        answer = write_response(API_KEY, version, body)
        kept.keep(key, answer)
    return answer


def _flags(request: SimpleNamespace) -> tuple[bool, bool]:
    return request.include_topic_authorized_operations, request.include_cluster_authorized_operations


def _state(broker: "Broker") -> _State:
    offline = tuple(
        (partition.topic_id, partition.index)
        for topic in broker.topics.all()
        for partition in topic.partitions
        if partition.offline
    )
    return _State(broker.topics.version, offline, broker.advertised)


async def _find(broker: "Broker", request: SimpleNamespace, version: int) -> list[Topic | dict[str, Any]]:
    """Each requested topic, or the error of one that does not exist. If ids are given, names are ignored."""
    asked = request.topics
    if version < _IDS_FROM and any(topic.name is None or topic.topic_id != NO_ID for topic in asked):
        return [_missing(ErrorCode.INVALID_REQUEST, topic.name or "", topic.topic_id) for topic in asked]
    ids = dict.fromkeys(topic.topic_id for topic in asked if topic.topic_id != NO_ID)
    if ids:
        return [broker.topics.by_id(id) or _missing(ErrorCode.UNKNOWN_TOPIC_ID, None, id) for id in ids]
    names = dict.fromkeys(topic.name for topic in asked)
    why_missing = dict.fromkeys(names, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if request.allow_auto_topic_creation and broker.settings.auto_create_topics_enable:
        missing = [name for name in names if name is not None and broker.topics.get(name) is None]
        codes = await asyncio.gather(*(_create(broker, name) for name in missing))
        why_missing.update(zip(missing, codes, strict=True))
    found: list[Topic | dict[str, Any]] = []
    for name in names:
        topic = None if name is None else broker.topics.get(name)
        found.append(topic or _missing(_fault(name) or why_missing[name], name, NO_ID))
    return found


async def _create(broker: "Broker", name: str) -> ErrorCode:
    """Create a topic on request; concurrent requests create it once."""
    if name not in INTERNAL:
        try:
            await broker.topics.create(name)
        except ApiError as error:
            if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                return error.code
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION  # it is not there, or was deleted again


def _fault(name: str | None) -> ErrorCode | None:
    if name is None:
        return ErrorCode.INVALID_REQUEST
    try:
        check_name(name)
    except ApiError as error:
        return error.code
    return None


def _missing(code: ErrorCode, name: str | None, topic_id: UUID) -> dict[str, Any]:
    return {"error_code": code, "name": name, "topic_id": topic_id, "is_internal": name in INTERNAL}


def _describe(broker: "Broker", topic: Topic, request: SimpleNamespace) -> dict[str, Any]:
    return {
        "name": topic.name,
        "topic_id": topic.id,
        "is_internal": False,
        "partitions": [describe_partition(partition, broker.node_id) for partition in topic.partitions],
        "topic_authorized_operations": _on_topic(request),
    }


def _on_topic(request: SimpleNamespace) -> int:
    return ON_TOPIC if request.include_topic_authorized_operations else NOT_REQUESTED


def describe_partition(partition: Partition, node_id: int) -> dict[str, Any]:
    """A partition whose log is offline has no leader: there is no other replica."""
    offline = partition.offline
    return {
        "error_code": ErrorCode.LEADER_NOT_AVAILABLE if offline else ErrorCode.NONE,
        "partition_index": partition.index,
        "leader_id": -1 if offline else node_id,
        "leader_epoch": partition.leader_epoch,
        "replica_nodes": [node_id],
        "isr_nodes": [node_id],
        "offline_replicas": [node_id] if offline else [],
    }


def _answer(broker: "Broker", request: SimpleNamespace, topics: list[dict[str, Any]]) -> dict[str, Any]:
    host, port = broker.advertised
    return {
        "brokers": [{"node_id": broker.node_id, "host": host, "port": port}],
        "cluster_id": broker.cluster_id,
        "controller_id": broker.node_id,
        "topics": topics,
        "cluster_authorized_operations": (
            ON_CLUSTER if request.include_cluster_authorized_operations else NOT_REQUESTED
        ),
    }
