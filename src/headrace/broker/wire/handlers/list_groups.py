"""ListGroups: the groups there are, filtered by state (from version 4) and type (from 5)."""

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from headrace.broker.errors import ErrorCode
from headrace.broker.wire.handlers import RequestContext

if TYPE_CHECKING:
    from headrace.broker.server import Broker


async def handle(broker: "Broker", request: SimpleNamespace, context: RequestContext) -> dict[str, Any]:
    return {
        "error_code": ErrorCode.NONE,
        "groups": [
            {
                "group_id": group.group_id,
                "protocol_type": group.protocol_type,
                "group_state": group.state,
                "group_type": group.type,
            }
            for group in broker.groups.list_groups(request.states_filter, request.types_filter)
        ],
    }
