"""FindCoordinator: where a group's or a transactional id's coordinator is. Here, as there is one node."""

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from headrace.broker.errors import ErrorCode
from headrace.broker.wire.handlers import RequestContext

if TYPE_CHECKING:
    from headrace.broker.server import Broker

_GROUP, _TRANSACTION = 0, 1
_BATCHED_FROM = 4


async def handle(broker: "Broker", request: SimpleNamespace, context: RequestContext) -> dict[str, Any]:
    host, port = broker.advertised
    if request.key_type in (_GROUP, _TRANSACTION):
        found: dict[str, Any] = {
            "error_code": ErrorCode.NONE,
            "node_id": broker.node_id,
            "host": host,
            "port": port,
        }
    else:
        # The coordinators of share groups' state, which brokers ask each other for, are not served to clients.
        found = {
            "error_code": ErrorCode.INVALID_REQUEST,
            "error_message": f"There is no coordinator of type {request.key_type} here.",
            "node_id": -1,
            "host": "",
            "port": -1,
        }
    if context.version < _BATCHED_FROM:
        return found
    return {"coordinators": [{"key": key, **found} for key in request.coordinator_keys]}
