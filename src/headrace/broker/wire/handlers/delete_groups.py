"""DeleteGroups: groups without members go, with their offsets."""

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from headrace.broker.wire.handlers import RequestContext

if TYPE_CHECKING:
    from headrace.broker.server import Broker


async def handle(broker: "Broker", request: SimpleNamespace, context: RequestContext) -> dict[str, Any]:
    group_ids = list(dict.fromkeys(request.groups_names))
    codes = await broker.groups.delete(group_ids)
    return {
        "results": [{"group_id": group_id, "error_code": code} for group_id, code in zip(group_ids, codes, strict=True)]
    }
