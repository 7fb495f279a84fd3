"""Small things several handlers share."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from headrace.broker.errors import ApiError, ErrorCode

T = TypeVar("T")

_MAX_MESSAGE = 1000


def failure(error: ApiError) -> dict[str, Any]:
    """The two fields in which most answers carry an error. What the message quotes may be of any length."""
    return {"error_code": error.code, "error_message": error.message and error.message[:_MAX_MESSAGE]}


def unknown_topic(name: str) -> ApiError:
    return ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")


async def within(timeout_ms: int, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, or REQUEST_TIMED_OUT while it goes on. 0 and below set no limit."""
    task = asyncio.ensure_future(work)
    task.add_done_callback(_seen)
    try:
        async with asyncio.timeout(timeout_ms / 1000 if timeout_ms > 0 else None):
            return await asyncio.shield(task)
    except TimeoutError:
        raise ApiError(ErrorCode.REQUEST_TIMED_OUT, "The request timed out and is still being processed.") from None


def _seen(task: asyncio.Future[Any]) -> None:
    """Mark a failure as seen: after the response, or after the client has disconnected, nothing reads it."""
    if not task.cancelled():
        task.exception()


def check_assignment(broker_ids: list[int], node_id: int) -> None:
    """A manual assignment can only name this one node."""
    if not broker_ids:
        reason = "The manual partition assignment includes an empty replica list."
    elif any(broker_id != node_id for broker_id in broker_ids):
        stranger = next(broker_id for broker_id in broker_ids if broker_id != node_id)
        reason = f"The manual partition assignment includes broker {stranger}, but no such broker is registered."
    elif len(broker_ids) > 1:
        reason = f"The manual partition assignment includes the broker {node_id} more than once."
    else:
        return
    raise ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, reason)
