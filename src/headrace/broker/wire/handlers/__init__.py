"""One module per API, named as the API, each with a coroutine `handle`; imported when first asked for."""

from collections.abc import Awaitable, Callable
from functools import cache
from importlib import import_module
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.broker.wire.apis import APIS

if TYPE_CHECKING:
    from headrace.broker.server import Broker

# Produce, Fetch and ShareFetch have no handler: their path between socket and log is too hot for a body of namespaces.
_HOT = (0, 1, 78)
HANDLERS: dict[int, str] = {key: f"{__name__}.{api.name}" for key, api in APIS.items() if key not in _HOT}


class RequestContext(NamedTuple):
    """What a handler may want to know besides the body of the request."""

    version: int
    client_id: str | None
    client_host: str
    connection: int = 0
    """Rises with each connection accepted: of two requests, which came on the connection opened later."""


# The body of a response, or its bytes where they are at hand already.
Body = dict[str, Any] | bytes
Handler = Callable[["Broker", SimpleNamespace, RequestContext], Awaitable[Body]]


@cache
def handler(api_key: int) -> Handler:
    """The handler of a served API."""
    handle: Handler = import_module(HANDLERS[api_key]).handle
    return handle


async def dispatch(broker: "Broker", api_key: int, request: SimpleNamespace, context: RequestContext) -> Body:
    """Answer one request; raises whatever its handler raises, ApiError included."""
    return await handler(api_key)(broker, request, context)
