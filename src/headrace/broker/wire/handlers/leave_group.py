"""LeaveGroup: a member leaves, or an administrator removes members (from version 3)."""

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from headrace.broker.errors import ApiError, ErrorCode
from headrace.broker.groups.classic.messages import LeavingMember
from headrace.broker.wire.handlers import RequestContext

if TYPE_CHECKING:
    from headrace.broker.server import Broker

_BATCHED_FROM = 3


async def handle(broker: "Broker", request: SimpleNamespace, context: RequestContext) -> dict[str, Any]:
    if context.version >= _BATCHED_FROM:
        leaving = [LeavingMember(each.member_id, each.group_instance_id, each.reason) for each in request.members]
    else:
        leaving = [LeavingMember(request.member_id)]
    try:
        codes = await broker.groups.classic.leave(request.group_id, leaving)
    except ApiError as error:
        return {"error_code": error.code}
    if context.version < _BATCHED_FROM:
        return {"error_code": codes[0]}
    return {
        "error_code": ErrorCode.NONE,
        "members": [
            {"member_id": each.member_id, "group_instance_id": each.group_instance_id, "error_code": code}
            for each, code in zip(leaving, codes, strict=True)
        ],
    }
