"""JoinGroup: become a member, or stay one through a rebalance. Answered when the generation begins."""

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from headrace.broker.groups.classic.messages import JoinRequest, Protocol
from headrace.broker.wire.handlers import RequestContext

if TYPE_CHECKING:
    from headrace.broker.server import Broker

_REBALANCE_TIMEOUT_FROM = 1
_KNOWN_ID_FROM = 4
_NULL_PROTOCOL_FROM = 7
_SKIP_ASSIGNMENT_FROM = 9


async def handle(broker: "Broker", request: SimpleNamespace, context: RequestContext) -> dict[str, Any]:
    has_rebalance_timeout = context.version >= _REBALANCE_TIMEOUT_FROM
    # A name given twice counts once.
    protocols = {protocol.name: protocol.metadata for protocol in reversed(request.protocols)}
    answer = await broker.groups.classic.join(
        JoinRequest(
            group_id=request.group_id,
            member_id=request.member_id,
            group_instance_id=request.group_instance_id,
            session_timeout_ms=request.session_timeout,
            rebalance_timeout_ms=request.rebalance_timeout if has_rebalance_timeout else request.session_timeout,
            protocol_type=request.protocol_type,
            protocols=tuple(
                Protocol(name, protocols[name]) for name in dict.fromkeys(p.name for p in request.protocols)
            ),
            client_id=context.client_id or "",
            client_host=f"/{context.client_host}",  # as Kafka writes addresses
            needs_known_id=context.version >= _KNOWN_ID_FROM,
            may_skip_assignment=context.version >= _SKIP_ASSIGNMENT_FROM,
            reason=request.reason,
        )
    )
    no_protocol = None if context.version >= _NULL_PROTOCOL_FROM else ""
    return {
        "error_code": answer.error,
        "generation_id": answer.generation,
        "protocol_type": answer.protocol_type,
        "protocol_name": answer.protocol_name or no_protocol,
        "leader": answer.leader,
        "skip_assignment": answer.skip_assignment,
        "member_id": answer.member_id,
        "members": [member._asdict() for member in answer.members],
    }
