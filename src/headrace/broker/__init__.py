"""What Kafka clients talk to: a durable, partitioned, replayable log."""

from headrace.broker.server import Broker, serve
from headrace.broker.settings import BrokerSettings

__all__ = ["Broker", "BrokerSettings", "serve"]
