"""ShareAcknowledge: what became of the records that a member holds. Answered once that is durable."""

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from headrace.broker.errors import ApiError, ErrorCode
from headrace.broker.groups.share.assignor import Place
from headrace.broker.groups.share.sessions import CLOSING, OPENING
from headrace.broker.wire.handlers import RequestContext
from headrace.broker.wire.requests import failure
from headrace.broker.wire.sharing import acknowledgements, highest_type, session_key

if TYPE_CHECKING:
    from headrace.broker.server import Broker

_NO_LEADER = {"leader_id": -1, "leader_epoch": -1}


async def handle(broker: "Broker", request: SimpleNamespace, context: RequestContext) -> dict[str, Any]:
    share, epoch = broker.groups.share, request.share_session_epoch
    try:
        key = group_id, member_id = session_key(request)
        group = share.group(group_id)
        allowed = highest_type(broker, group_id, request, context.version)
        if epoch == OPENING:
            raise ApiError(ErrorCode.INVALID_SHARE_SESSION_EPOCH)
        if epoch == CLOSING:
            share.sessions.close(key)
        else:
            share.sessions.next(key, epoch)
    except ApiError as error:
        return failure(error)
    taken = share.acknowledge(group, member_id, acknowledgements(request), allowed)
    released = share.release(group, member_id) if epoch == CLOSING else []
    codes = await taken.outcome()
    if released:
        await asyncio.wait(released)
    return {
        "acquisition_lock_timeout": broker.groups.configs.of(group_id).share_record_lock_duration_ms,
        "responses": _responses(codes),
    }


def _responses(codes: dict[Place, ErrorCode]) -> list[dict[str, Any]]:
    topics: dict[Any, list[dict[str, Any]]] = {}
    for (topic_id, index), code in codes.items():
        answer = {"partition_index": index, "error_code": code, "current_leader": _NO_LEADER}
        topics.setdefault(topic_id, []).append(answer)
    return [{"topic_id": topic_id, "partitions": partitions} for topic_id, partitions in topics.items()]
