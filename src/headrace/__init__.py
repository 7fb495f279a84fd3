"""Headrace: event streams end to end, for Python engineers.

Importing it loads neither Spark nor a client: what needs them is loaded when it is first used.
"""

import importlib
import typing

from headrace import errors as _errors
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
    NotCovered,
    NotDelivered,
    NotLoaded,
    PlanError,
    PostgresUnavailable,
    Problem,
    ServiceError,
    TableError,
    TopicNotFound,
    TopologyError,
    Unreachable,
    ViewChanged,
    ViewFenced,
)

if typing.TYPE_CHECKING:
    from headrace.app import App, Running
    from headrace.clients import Consumer, Producer, Receipt, Record
    from headrace.engine.dedup import dedup
    from headrace.engine.enriching import enrich
    from headrace.engine.gathering import gather
    from headrace.engine.joins import join, merge
    from headrace.engine.windows import windowed
    from headrace.topology import (
        collect,
        corrected_time,
        count,
        count_distinct,
        first,
        hopping,
        ingestion_time,
        last,
        max,
        mean,
        min,
        processing_time,
        session,
        sliding,
        sum,
        tumbling,
    )

__version__ = "0.1.0"

__all__ = [
    "App",
    "BrokerError",
    "CheckpointError",
    "Consumer",
    "EngineError",
    "Error",
    "GroupInUse",
    "GroupNotFound",
    "InputError",
    "KafkaError",
    "NodeFailed",
    "NotCovered",
    "NotDelivered",
    "NotLoaded",
    "PlanError",
    "PostgresUnavailable",
    "Problem",
    "Producer",
    "Receipt",
    "Record",
    "Running",
    "ServiceError",
    "TableError",
    "TopicNotFound",
    "TopologyError",
    "Unreachable",
    "ViewChanged",
    "ViewFenced",
    "__version__",
    "collect",
    "corrected_time",
    "count",
    "count_distinct",
    "dedup",
    "enrich",
    "first",
    "gather",
    "hopping",
    "ingestion_time",
    "join",
    "last",
    "max",
    "mean",
    "merge",
    "min",
    "processing_time",
    "session",
    "sliding",
    "sum",
    "tumbling",
    "windowed",
]

_LAZY = {
    "App": "headrace.app",
    "Running": "headrace.app",
    "Consumer": "headrace.clients",
    "Producer": "headrace.clients",
    "Receipt": "headrace.clients",
    "Record": "headrace.clients",
    "dedup": "headrace.engine.dedup",
    "enrich": "headrace.engine.enriching",
    "gather": "headrace.engine.gathering",
    "join": "headrace.engine.joins",
    "merge": "headrace.engine.joins",
    "windowed": "headrace.engine.windows",
    "collect": "headrace.topology",
    "corrected_time": "headrace.topology",
    "count": "headrace.topology",
    "count_distinct": "headrace.topology",
    "first": "headrace.topology",
    "hopping": "headrace.topology",
    "ingestion_time": "headrace.topology",
    "last": "headrace.topology",
    "max": "headrace.topology",
    "mean": "headrace.topology",
    "min": "headrace.topology",
    "processing_time": "headrace.topology",
    "sum": "headrace.topology",
    "session": "headrace.topology",
    "sliding": "headrace.topology",
    "tumbling": "headrace.topology",
}


def __getattr__(name: str) -> typing.Any:
    if name in _errors.RENAMED:
        return _errors.renamed(name)
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
