"""DescribeGroups: a group's state, its members and what each of them reads."""

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from headrace.broker.errors import ErrorCode
from headrace.broker.wire.handlers import RequestContext
from headrace.broker.wire.operations import NOT_REQUESTED, ON_GROUP

if TYPE_CHECKING:
    from headrace.broker.server import Broker

_NOT_FOUND_FROM = 6


async def handle(broker: "Broker", request: SimpleNamespace, context: RequestContext) -> dict[str, Any]:
    operations = ON_GROUP if request.include_authorized_operations else NOT_REQUESTED
    return {"groups": [_group(broker, group_id, operations, context.version) for group_id in request.groups]}


def _group(broker: "Broker", group_id: str, operations: int, version: int) -> dict[str, Any]:
    group = broker.groups.classic.describe(group_id)
    if not group.found and version >= _NOT_FOUND_FROM:
        return {
            "error_code": ErrorCode.GROUP_ID_NOT_FOUND,
            "error_message": f"Group {group_id} not found.",
            "group_id": group_id,
            "group_state": group.state,
            "protocol_type": "",
            "protocol_data": "",
            "members": [],
        }
    return {
        "error_code": ErrorCode.NONE,
        "group_id": group_id,
        "group_state": group.state,
        "protocol_type": group.protocol_type,
        "protocol_data": group.protocol_name,
        "members": [
            {
                "member_id": member.member_id,
                "group_instance_id": member.group_instance_id,
                "client_id": member.client_id,
                "client_host": member.client_host,
                "member_metadata": member.metadata,
                "member_assignment": member.assignment,
            }
            for member in group.members
        ],
        "authorized_operations": operations,
    }
