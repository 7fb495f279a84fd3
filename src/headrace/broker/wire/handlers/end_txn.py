"""EndTxn: commit or abort. Answered once every partition and every group shows it."""

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from headrace.broker.errors import ApiError, ErrorCode
from headrace.broker.transactions.state import Producer
from headrace.broker.wire.handlers import RequestContext

if TYPE_CHECKING:
    from headrace.broker.server import Broker

_FIRST_TO_KNOW_FENCED = 2


async def handle(broker: "Broker", request: SimpleNamespace, context: RequestContext) -> dict[str, Any]:
    producer = Producer(request.producer_id, request.producer_epoch)
    try:
        await broker.transactions.end(request.transactional_id, producer, request.committed, context.connection)
    except ApiError as error:
        if error.code is ErrorCode.PRODUCER_FENCED and context.version < _FIRST_TO_KNOW_FENCED:
            return {"error_code": ErrorCode.INVALID_PRODUCER_EPOCH}
        return {"error_code": error.code}
    return {"error_code": ErrorCode.NONE}
