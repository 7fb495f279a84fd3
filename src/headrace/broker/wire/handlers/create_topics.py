"""CreateTopics: durable before it is answered."""

import asyncio
from collections import Counter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from headrace.broker.config_entries import topic_entries
from headrace.broker.errors import ApiError, ErrorCode
from headrace.broker.wire.handlers import RequestContext
from headrace.broker.wire.requests import check_assignment, failure, within

if TYPE_CHECKING:
    from headrace.broker.server import Broker


async def handle(broker: "Broker", request: SimpleNamespace, context: RequestContext) -> dict[str, Any]:
    times = Counter(topic.name for topic in request.topics)
    once = [topic for topic in request.topics if times[topic.name] == 1]
    results = await asyncio.gather(*(_create(broker, topic, request) for topic in once))
    duplicate = failure(ApiError(ErrorCode.INVALID_REQUEST, "Duplicate topic name."))
    results += [{"name": name, "configs": [], **duplicate} for name, count in times.items() if count > 1]
    return {"topics": results}


async def _create(broker: "Broker", asked: SimpleNamespace, request: SimpleNamespace) -> dict[str, Any]:
    try:
        broker.topics.check_new(asked.name)
        overrides = _overrides(asked.configs)
        count = _partition_count(asked, broker)
        creation = broker.topics.create(asked.name, count, overrides, request.validate_only)
        topic = await within(request.timeout, creation)
    except ApiError as error:
        return {"name": asked.name, "configs": [], **failure(error)}
    return {
        "name": topic.name,
        "topic_id": topic.id,
        "num_partitions": count,
        "replication_factor": 1,
        "configs": [
            {
                "name": entry.setting.name,
                "value": entry.value,
                "read_only": entry.read_only,
                "config_source": entry.source,
            }
            for entry in topic_entries(broker.settings, topic.overrides)
        ],
    }


def _overrides(configs: list[SimpleNamespace]) -> dict[str, str]:
    without_value = [config.name for config in configs if config.value is None]
    if without_value:
        message = f"Null value not supported for topic configs: {','.join(without_value)}"
        raise ApiError(ErrorCode.INVALID_CONFIG, message)
    return {config.name: config.value for config in configs}


def _partition_count(asked: SimpleNamespace, broker: "Broker") -> int:
    """How many partitions are asked for, whether by number or by an assignment of each."""
    if asked.assignments:
        return _assigned_count(asked, broker.node_id)
    factor = asked.replication_factor
    if factor == -1:
        factor = broker.settings.default_replication_factor
    if factor < 1:
        message = "Replication factor must be larger than 0, or -1 to use the default value."
        raise ApiError(ErrorCode.INVALID_REPLICATION_FACTOR, message)
    if factor > 1:
        raise ApiError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Unable to replicate the partition {factor} time(s): The target replication factor of {factor} "
            "cannot be reached because only 1 broker(s) are registered.",
        )
    count: int = asked.num_partitions
    return broker.settings.num_partitions if count == -1 else count


def _assigned_count(asked: SimpleNamespace, node_id: int) -> int:
    for field, value in (
        ("replication factor", asked.replication_factor),
        ("numPartitions", asked.num_partitions),
    ):
        if value != -1:
            message = f"A manual partition assignment was specified, but {field} was not set to -1."
            raise ApiError(ErrorCode.INVALID_REQUEST, message)
    indexes = set()
    for assignment in asked.assignments:
        if assignment.partition_index in indexes:
            message = f"Found multiple manual partition assignments for partition {assignment.partition_index}"
            raise ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
        check_assignment(assignment.broker_ids, node_id)
        indexes.add(assignment.partition_index)
    if indexes != set(range(len(indexes))):
        message = "partitions should be a consecutive 0-based integer sequence"
        raise ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
    return len(indexes)
