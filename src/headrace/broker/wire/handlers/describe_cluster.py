"""DescribeCluster: one node, which is its own controller."""

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from headrace.broker.wire.errors import ApiError, ErrorCode
from headrace.broker.wire.handlers import RequestContext
from headrace.broker.wire.operations import NOT_REQUESTED, ON_CLUSTER
from headrace.broker.wire.requests import failure

if TYPE_CHECKING:
    from headrace.broker.server import Broker

BROKERS, CONTROLLERS = 1, 2


async def handle(broker: "Broker", request: SimpleNamespace, context: RequestContext) -> dict[str, Any]:
    if request.endpoint_type == CONTROLLERS:
        message = "The request was sent to an endpoint of type BROKER, but we wanted an endpoint of type CONTROLLER"
        return failure(ApiError(ErrorCode.MISMATCHED_ENDPOINT_TYPE, message))
    if request.endpoint_type != BROKERS:
        message = f"Unsupported endpoint type {request.endpoint_type}"
        return failure(ApiError(ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, message))
    host, port = broker.advertised
    return {
        "cluster_id": broker.cluster_id,
        "controller_id": broker.node_id,
        "brokers": [{"broker_id": broker.node_id, "host": host, "port": port}],
        "cluster_authorized_operations": (
            ON_CLUSTER if request.include_cluster_authorized_operations else NOT_REQUESTED
        ),
    }
