"""Headrace: event streams end to end, for Python engineers."""

from headrace.errors import (
    BrokerError,
    Error,
    GroupInUse,
    GroupNotFound,
    InputError,
    KafkaError,
    NotDelivered,
    NotLoaded,
    Problem,
    TopicNotFound,
    TopologyError,
    Unreachable,
)

__version__ = "0.1.0"

__all__ = [
    "BrokerError",
    "Error",
    "GroupInUse",
    "GroupNotFound",
    "InputError",
    "KafkaError",
    "NotDelivered",
    "NotLoaded",
    "Problem",
    "TopicNotFound",
    "TopologyError",
    "Unreachable",
    "__version__",
]
