"""ListConfigResources: everything that has a config."""

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from headrace.broker.errors import ErrorCode
from headrace.broker.wire.handlers import RequestContext

if TYPE_CHECKING:
    from headrace.broker.server import Broker

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
_TYPES_OF_VERSION = {0: (CLIENT_METRICS,), 1: (TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP)}


async def handle(broker: "Broker", request: SimpleNamespace, context: RequestContext) -> dict[str, Any]:
    known = _TYPES_OF_VERSION[context.version]
    asked = list(dict.fromkeys(request.resource_types)) or known
    if any(resource_type not in known for resource_type in asked):
        return {"error_code": ErrorCode.UNSUPPORTED_VERSION}
    # Levels of loggers and subscriptions to metrics are not served: there are none.
    names = {
        TOPIC: [topic.name for topic in broker.topics.all()],
        BROKER: [str(broker.node_id)],
        GROUP: sorted(broker.groups.configs.group_ids()),
    }
    return {
        "config_resources": [
            {"resource_name": name, "resource_type": resource_type}
            for resource_type in asked
            for name in names.get(resource_type, ())
        ]
    }
