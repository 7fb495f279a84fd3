"""CreatePartitions: more partitions for topics there are."""

import asyncio
from collections import Counter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from headrace.broker.errors import ApiError, ErrorCode
from headrace.broker.wire.handlers import RequestContext
from headrace.broker.wire.requests import check_assignment, failure, unknown_topic, within

if TYPE_CHECKING:
    from headrace.broker.server import Broker


async def handle(broker: "Broker", request: SimpleNamespace, context: RequestContext) -> dict[str, Any]:
    times = Counter(topic.name for topic in request.topics)
    once = [topic for topic in request.topics if times[topic.name] == 1]
    results = await asyncio.gather(*(_extend(broker, topic, request) for topic in once))
    duplicate = failure(ApiError(ErrorCode.INVALID_REQUEST, "Duplicate topic name."))
    results += [{"name": name, **duplicate} for name, count in times.items() if count > 1]
    return {"results": results}


async def _extend(broker: "Broker", asked: SimpleNamespace, request: SimpleNamespace) -> dict[str, Any]:
    try:
        topic = broker.topics.get(asked.name)
        if topic is None:
            raise unknown_topic(asked.name)
        if asked.assignments is not None and asked.count > len(topic.partitions):
            _check_assignments(asked.assignments, asked.count - len(topic.partitions), broker.node_id)
        addition = broker.topics.add_partitions(topic, asked.count, request.validate_only)
        await within(request.timeout, addition)
    except ApiError as error:
        return {"name": asked.name, **failure(error)}
    return {"name": asked.name}


def _check_assignments(assignments: list[SimpleNamespace], additional: int, node_id: int) -> None:
    if len(assignments) != additional:
        raise ApiError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"Attempted to add {additional} additional partition(s), but only {len(assignments)} "
            "assignment(s) were specified.",
        )
    for assignment in assignments:
        check_assignment(assignment.broker_ids, node_id)
