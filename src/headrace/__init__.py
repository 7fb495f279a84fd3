"""Headrace: event streams end to end, for Python engineers."""

from headrace.errors import (
    BrokerError,
    CheckpointError,
    EngineError,
    Error,
    GroupInUse,
    GroupNotFound,
    InputError,
    KafkaError,
    NodeFailed,
    NotDelivered,
    NotLoaded,
    PlanError,
    Problem,
    TopicNotFound,
    TopologyError,
    Unreachable,
)

__version__ = "0.1.0"

__all__ = [
    "BrokerError",
    "CheckpointError",
    "EngineError",
    "Error",
    "GroupInUse",
    "GroupNotFound",
    "InputError",
    "KafkaError",
    "NodeFailed",
    "NotDelivered",
    "NotLoaded",
    "PlanError",
    "Problem",
    "TopicNotFound",
    "TopologyError",
    "Unreachable",
    "__version__",
]
