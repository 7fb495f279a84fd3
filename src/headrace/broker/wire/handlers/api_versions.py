"""ApiVersions: which APIs are served, and in which versions."""

import re
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from headrace.broker.errors import ErrorCode
from headrace.broker.wire.apis import APIS
from headrace.broker.wire.codec import API_VERSIONS, write_response
from headrace.broker.wire.handlers import RequestContext

if TYPE_CHECKING:
    from headrace.broker.server import Broker

# Kafka asks this of the client's name and version since both end up as labels of metrics.
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
_FIRST_WITH_SOFTWARE = 3


async def handle(broker: "Broker", request: SimpleNamespace, context: RequestContext) -> dict[str, Any]:
    """The ranges. No feature is offered, so the epoch of finalized features stays unknown, -1."""
    if context.version >= _FIRST_WITH_SOFTWARE and not (
        _SOFTWARE.fullmatch(request.client_software_name) and _SOFTWARE.fullmatch(request.client_software_version)
    ):
        return {"error_code": ErrorCode.INVALID_REQUEST}
    return {"error_code": ErrorCode.NONE, "api_keys": _ranges()}


def unsupported_version_body() -> bytes:
    """The answer to an ApiVersions request of a version not served, in the version every client reads."""
    body = {"error_code": ErrorCode.UNSUPPORTED_VERSION, "api_keys": _ranges()}
    return write_response(API_VERSIONS, 0, body)


def _ranges() -> list[dict[str, int]]:
    return [{"api_key": api.key, "min_version": api.advertised_min, "max_version": api.max} for api in APIS.values()]
