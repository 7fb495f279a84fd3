"""ListPartitionReassignments: with one node, never any."""

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from headrace.broker.wire.handlers import RequestContext

if TYPE_CHECKING:
    from headrace.broker.server import Broker


async def handle(broker: "Broker", request: SimpleNamespace, context: RequestContext) -> dict[str, Any]:
    return {"topics": []}
