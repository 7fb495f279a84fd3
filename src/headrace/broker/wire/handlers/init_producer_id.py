"""InitProducerId: an identity for an idempotent producer, or the next epoch of a transactional one."""

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from headrace.broker.errors import ApiError, ErrorCode
from headrace.broker.transactions.state import NOBODY, Producer
from headrace.broker.wire.handlers import RequestContext

if TYPE_CHECKING:
    from headrace.broker.server import Broker

_FIRST_TO_KNOW_FENCED = 4


async def handle(broker: "Broker", request: SimpleNamespace, context: RequestContext) -> dict[str, Any]:
    asked_by = Producer(request.producer_id, request.producer_epoch)
    try:
        if asked_by != NOBODY and (asked_by.id == NOBODY.id or asked_by.epoch == NOBODY.epoch):
            raise ApiError(ErrorCode.INVALID_REQUEST, "a producer id without an epoch, or the reverse")
        expected = None if asked_by == NOBODY else asked_by
        producer = await broker.transactions.init_producer_id(
            request.transactional_id, request.transaction_timeout, expected
        )
    except ApiError as error:
        code = error.code
        if code is ErrorCode.PRODUCER_FENCED and context.version < _FIRST_TO_KNOW_FENCED:
            code = ErrorCode.INVALID_PRODUCER_EPOCH
        return {"error_code": code, "producer_id": NOBODY.id, "producer_epoch": NOBODY.epoch}
    return {"error_code": ErrorCode.NONE, "producer_id": producer.id, "producer_epoch": producer.epoch}
