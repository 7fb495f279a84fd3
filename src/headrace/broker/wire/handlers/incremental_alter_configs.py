"""IncrementalAlterConfigs: set, delete, append to and subtract from what is set."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from headrace.broker.config import ConfigType
from headrace.broker.errors import ApiError, ErrorCode
from headrace.broker.settings import TOPIC_SETTINGS
from headrace.broker.wire.alteration import APPEND, DELETE, SET, SUBTRACT, Change, alter
from headrace.broker.wire.handlers import RequestContext

if TYPE_CHECKING:
    from headrace.broker.server import Broker

_WORDS = {APPEND: "APPEND", SUBTRACT: "SUBTRACT"}


async def handle(broker: "Broker", request: SimpleNamespace, context: RequestContext) -> dict[str, Any]:
    return await alter(broker, request, _change)


def _change(broker: "Broker", resource: SimpleNamespace) -> Change:
    without_value = [
        config.name for config in resource.configs if config.value is None and config.config_operation != DELETE
    ]
    if without_value:
        message = f"Null value not supported for : {', '.join(without_value)}"
        raise ApiError(ErrorCode.INVALID_REQUEST, message)
    for config in resource.configs:
        if config.config_operation not in (SET, DELETE, APPEND, SUBTRACT):
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Unknown operations type {config.config_operation}")

    def change(current: Mapping[str, str]) -> Mapping[str, str]:
        overrides = dict(current)
        for config in resource.configs:
            if config.config_operation == SET:
                overrides[config.name] = config.value
            elif config.config_operation == DELETE:
                overrides.pop(config.name, None)
            else:
                overrides[config.name] = _changed_list(broker, overrides, config)
        return overrides

    return change


def _changed_list(broker: "Broker", overrides: Mapping[str, str], config: SimpleNamespace) -> str:
    """A list with values added or taken away; where the topic does not set it, it starts with the default."""
    setting = TOPIC_SETTINGS.get(config.name)
    if setting is None or setting.type is not ConfigType.LIST:
        message = f"Can't {_WORDS[config.config_operation]} to key {config.name} because its type is not LIST."
        raise ApiError(ErrorCode.INVALID_CONFIG, message)
    current = overrides.get(config.name)
    if current is None:
        current = ",".join(getattr(broker.settings.topic_defaults, setting.attribute))
    values = dict.fromkeys(value.strip() for value in current.split(",") if value.strip())
    for value in config.value.split(","):
        if config.config_operation == APPEND:
            values[value.strip()] = None
        else:
            values.pop(value.strip(), None)
    return ",".join(values)
