"""What AlterConfigs and IncrementalAlterConfigs share: which resources can be altered, and how."""

from collections import Counter
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from headrace.broker.config import nearest
from headrace.broker.errors import ApiError, ErrorCode
from headrace.broker.settings import BROKER_SETTINGS
from headrace.broker.topic_names import check_name
from headrace.broker.wire.requests import failure, unknown_topic

if TYPE_CHECKING:
    from headrace.broker.server import Broker

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3

Change = Callable[[Mapping[str, str]], Mapping[str, str]]


async def alter(
    broker: "Broker", request: SimpleNamespace, change_of: Callable[["Broker", SimpleNamespace], Change]
) -> dict[str, Any]:
    """Answer a request; `change_of` tells what a resource of it does to a topic's or a group's overrides."""
    times = Counter((resource.resource_type, resource.resource_name) for resource in request.resources)
    responses = []
    for resource in request.resources:
        key = resource.resource_type, resource.resource_name
        answer = {"resource_type": key[0], "resource_name": key[1]}
        try:
            if times[key] > 1:
                raise ApiError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
            if len({config.name for config in resource.configs}) < len(resource.configs):
                raise ApiError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
            await _alter(broker, resource, change_of, request.validate_only)
        except ApiError as error:
            answer |= failure(error)
        responses.append(answer)
    return {"responses": responses}


async def _alter(
    broker: "Broker",
    resource: SimpleNamespace,
    change_of: Callable[["Broker", SimpleNamespace], Change],
    validate_only: bool,
) -> None:
    change = change_of(broker, resource)
    if resource.resource_type == TOPIC:
        if not resource.resource_name:
            raise ApiError(ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed.")
        check_name(resource.resource_name)
        topic = broker.topics.get(resource.resource_name)
        if topic is None:
            raise unknown_topic(resource.resource_name)
        await broker.topics.alter_config(topic, change, validate_only)
    elif resource.resource_type == BROKER:
        check_broker_name(broker, resource.resource_name)
        # Deleting is what Kafka's tools do to be sure that nothing is set, and nothing ever is.
        kept = [config.name for config in resource.configs if getattr(config, "config_operation", None) != DELETE]
        _refuse_broker_settings(kept)
    elif resource.resource_type == GROUP:
        check_group_name(resource.resource_name)
        await broker.groups.configs.alter(resource.resource_name, change, validate_only)
    else:
        raise unserved_resource(resource.resource_type)


def check_group_name(name: str) -> None:
    if not name:
        raise ApiError(ErrorCode.INVALID_REQUEST, "Default group resources are not allowed.")


def check_broker_name(broker: "Broker", name: str) -> None:
    """A broker resource is this node, or nameless: the default of all nodes."""
    if not name:
        return
    if not name.isascii() or not name.isdigit():
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Node id must be an integer, but it is: {name}")
    if int(name) != broker.node_id:
        message = f"Unexpected broker id, expected {broker.node_id} or empty string, but received {name}"
        raise ApiError(ErrorCode.INVALID_REQUEST, message)


def unserved_resource(resource_type: int) -> ApiError:
    names = {BROKER_LOGGER: "BROKER_LOGGER", CLIENT_METRICS: "CLIENT_METRICS"}
    if resource_type in names:
        message = f"Configs of the resource type {names[resource_type]} are not served."
        return ApiError(ErrorCode.INVALID_REQUEST, message)
    return ApiError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {resource_type}")


def _refuse_broker_settings(names: list[str]) -> None:
    """The broker reads its settings when it starts, so none can be altered while it runs."""
    for name in names:
        if name not in BROKER_SETTINGS:
            message = f"Unknown broker config name: {name}. The nearest served is {nearest(name, BROKER_SETTINGS)}."
            raise ApiError(ErrorCode.INVALID_CONFIG, message)
    if names:
        message = (
            f"Cannot update these configs dynamically: {', '.join(sorted(names))}. They are set when the broker starts."
        )
        raise ApiError(ErrorCode.INVALID_REQUEST, message)
