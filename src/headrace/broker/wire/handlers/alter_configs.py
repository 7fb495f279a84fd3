"""AlterConfigs: what is given replaces all that was set."""

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from headrace.broker.errors import ApiError, ErrorCode
from headrace.broker.wire.alteration import Change, alter
from headrace.broker.wire.handlers import RequestContext

if TYPE_CHECKING:
    from headrace.broker.server import Broker


async def handle(broker: "Broker", request: SimpleNamespace, context: RequestContext) -> dict[str, Any]:
    return await alter(broker, request, _replacement)


def _replacement(broker: "Broker", resource: SimpleNamespace) -> Change:
    without_value = [config.name for config in resource.configs if config.value is None]
    if without_value:
        message = f"Null value not supported for : {', '.join(without_value)}"
        raise ApiError(ErrorCode.INVALID_REQUEST, message)
    overrides = {config.name: config.value for config in resource.configs}
    return lambda current: overrides
