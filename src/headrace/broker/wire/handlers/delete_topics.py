"""DeleteTopics, by name or by id: the deletion is durable before it is answered."""

import asyncio
from collections import Counter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from uuid import UUID

from headrace.broker.errors import ApiError, ErrorCode
from headrace.broker.topics import Topic
from headrace.broker.wire.handlers import RequestContext
from headrace.broker.wire.requests import failure, unknown_topic, within

if TYPE_CHECKING:
    from headrace.broker.server import Broker

NO_ID = UUID(int=0)
# From this version on, clients know the error that says deletion is switched off.
_DELETION_DISABLED_FROM = 3


async def handle(broker: "Broker", request: SimpleNamespace, context: RequestContext) -> dict[str, Any]:
    asked = [(name, NO_ID) for name in request.topic_names]
    asked += [(topic.name, topic.topic_id) for topic in request.topics]
    if not broker.settings.delete_topic_enable:
        known = context.version >= _DELETION_DISABLED_FROM
        code = ErrorCode.TOPIC_DELETION_DISABLED if known else ErrorCode.INVALID_REQUEST
        return {"responses": [_failed(key, ApiError(code, "Topic deletion is disabled.")) for key in asked]}
    times = Counter(asked)
    taken: set[UUID] = set()
    results = [_delete(broker, key, times[key], taken, request.timeout) for key in times]
    return {"responses": await asyncio.gather(*results)}


async def _delete(
    broker: "Broker", key: tuple[str | None, UUID], times: int, taken: set[UUID], timeout_ms: int
) -> dict[str, Any]:
    try:
        topic = _find(broker, key, times)
        if topic.id in taken:
            message = "The provided topic name maps to an ID that was already supplied."
            raise ApiError(ErrorCode.INVALID_REQUEST, message)
        taken.add(topic.id)
        await within(timeout_ms, broker.topics.delete(topic))
    except ApiError as error:
        return _failed(key, error)
    return {"name": topic.name, "topic_id": topic.id}


def _find(broker: "Broker", key: tuple[str | None, UUID], times: int) -> Topic:
    name, topic_id = key
    if name is not None and topic_id != NO_ID:
        raise ApiError(ErrorCode.INVALID_REQUEST, "You may not specify both topic name and topic id.")
    if name is None and topic_id == NO_ID:
        raise ApiError(ErrorCode.INVALID_REQUEST, "Neither topic name nor id were specified.")
    if times > 1:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Duplicate topic {'id' if name is None else 'name'}.")
    topic: Topic | None = broker.topics.by_id(topic_id) if name is None else broker.topics.get(name)
    if topic is None:
        if name is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID, "This server does not host this topic ID.")
        raise unknown_topic(name)
    return topic


def _failed(key: tuple[str | None, UUID], error: ApiError) -> dict[str, Any]:
    return {"name": key[0], "topic_id": key[1], **failure(error)}
