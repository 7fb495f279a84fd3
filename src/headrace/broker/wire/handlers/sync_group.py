"""SyncGroup: the leader sends the assignment, and each member gets its part."""

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from headrace.broker.errors import ErrorCode
from headrace.broker.groups.classic.messages import SyncRequest
from headrace.broker.wire.handlers import RequestContext

if TYPE_CHECKING:
    from headrace.broker.server import Broker

_PROTOCOL_FROM = 5


async def handle(broker: "Broker", request: SimpleNamespace, context: RequestContext) -> dict[str, Any]:
    if context.version >= _PROTOCOL_FROM and (request.protocol_type is None or request.protocol_name is None):
        return {"error_code": ErrorCode.INCONSISTENT_GROUP_PROTOCOL}
    answer = await broker.groups.classic.sync(
        SyncRequest(
            group_id=request.group_id,
            member_id=request.member_id,
            generation=request.generation_id,
            group_instance_id=request.group_instance_id,
            protocol_type=request.protocol_type,
            protocol_name=request.protocol_name,
            assignments=tuple((each.member_id, each.assignment) for each in request.assignments),
        )
    )
    return {
        "error_code": answer.error,
        "protocol_type": answer.protocol_type,
        "protocol_name": answer.protocol_name,
        "assignment": answer.assignment,
    }
