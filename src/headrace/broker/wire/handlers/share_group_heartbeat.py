"""ShareGroupHeartbeat: join a share group, stay in it, hear of the partitions to read, leave."""

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from headrace.broker.errors import ApiError, ErrorCode
from headrace.broker.groups.share.assignor import by_topic
from headrace.broker.groups.share.coordinator import HeartbeatRequest
from headrace.broker.store import StoreError
from headrace.broker.wire.handlers import RequestContext
from headrace.broker.wire.requests import failure

if TYPE_CHECKING:
    from headrace.broker.server import Broker


async def handle(broker: "Broker", request: SimpleNamespace, context: RequestContext) -> dict[str, Any]:
    names = request.subscribed_topic_names
    try:
        answer = await broker.groups.share.heartbeat(
            HeartbeatRequest(
                group_id=request.group_id,
                member_id=request.member_id,
                epoch=request.member_epoch,
                rack_id=request.rack_id,
                topics=None if names is None else frozenset(names),
                client_id=context.client_id or "",
                client_host=f"/{context.client_host}",  # as Kafka writes addresses
            )
        )
    except ApiError as error:
        return failure(error)
    except StoreError:
        return {"error_code": ErrorCode.COORDINATOR_NOT_AVAILABLE}
    body: dict[str, Any] = {
        "member_id": answer.member_id,
        "member_epoch": answer.epoch,
        "heartbeat_interval": answer.interval_ms,
    }
    if answer.assigned is not None:
        body["assignment"] = {
            "topic_partitions": [
                {"topic_id": topic_id, "partitions": partitions}
                for topic_id, partitions in by_topic(answer.assigned).items()
            ]
        }
    return body
