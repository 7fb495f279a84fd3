"""DescribeTransactions: the state of transactional ids, and the partitions of their open transactions."""

from itertools import groupby
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from headrace.broker.errors import ErrorCode
from headrace.broker.wire.handlers import RequestContext

if TYPE_CHECKING:
    from headrace.broker.server import Broker


async def handle(broker: "Broker", request: SimpleNamespace, context: RequestContext) -> dict[str, Any]:
    return {"transaction_states": [_describe(broker, name) for name in request.transactional_ids]}


def _describe(broker: "Broker", transactional_id: str) -> dict[str, Any]:
    transaction = broker.transactions.get(transactional_id)
    if transaction is None:
        unknown = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND if transactional_id else ErrorCode.INVALID_REQUEST
        return {"error_code": unknown, "transactional_id": transactional_id}
    return {
        "error_code": ErrorCode.NONE,
        "transactional_id": transactional_id,
        "transaction_state": transaction.state.value,
        "transaction_timeout": transaction.timeout_ms,
        "transaction_start_time": transaction.started_ms,
        "producer_id": transaction.producer.id,
        "producer_epoch": transaction.producer.epoch,
        "topics": [
            {"topic": topic, "partitions": [index for _, index in keys]}
            for topic, keys in groupby(sorted(transaction.partitions), key=lambda key: key[0])
        ],
    }
