"""ListTransactions: the transactional ids there are, by state, producer, duration and pattern."""

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from headrace.broker.errors import ErrorCode
from headrace.broker.transactions.pattern import InvalidPattern, Pattern
from headrace.broker.transactions.state import State, Transaction
from headrace.broker.wire.handlers import RequestContext

if TYPE_CHECKING:
    from headrace.broker.server import Broker

# States of Kafka that nobody is ever seen in.
_TRANSIENT = {"Dead", "PrepareEpochFence"}
_AT_ONCE = 200


async def handle(broker: "Broker", request: SimpleNamespace, context: RequestContext) -> dict[str, Any]:
    states = set(request.state_filters)
    producer_ids = set(request.producer_id_filters)
    unknown = sorted(states - {state.value for state in State} - _TRANSIENT)
    try:
        pattern = Pattern(request.transactional_id_pattern) if request.transactional_id_pattern else None
    except InvalidPattern:
        return {"error_code": ErrorCode.INVALID_REGULAR_EXPRESSION}
    now = broker.clock.steady_ms()

    def wanted(transaction: Transaction) -> bool:
        return (
            (not states or transaction.state.value in states)
            and (not producer_ids or transaction.producer.id in producer_ids)
            and (request.duration_filter < 0 or now - transaction.started_ms > request.duration_filter)
            and (pattern is None or pattern.matches(transaction.transactional_id))
        )

    found = []
    for number, transaction in enumerate(broker.transactions.all(), 1):
        if wanted(transaction):
            found.append(
                {
                    "transactional_id": transaction.transactional_id,
                    "producer_id": transaction.producer.id,
                    "transaction_state": transaction.state.value,
                }
            )
        if number % _AT_ONCE == 0:
            await asyncio.sleep(0)  # there may be very many, and others wait
    return {"error_code": ErrorCode.NONE, "unknown_state_filters": unknown, "transaction_states": found}
