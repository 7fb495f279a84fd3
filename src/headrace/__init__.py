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
    FunctionFailed,
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
    from headrace.engine.calls.dedup import dedup
    from headrace.engine.calls.enrich import enrich
    from headrace.engine.calls.gather import gather
    from headrace.engine.calls.join import join, merge
    from headrace.engine.calls.windows import windowed
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
    "FunctionFailed",
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
    "dedup": "headrace.engine.calls.dedup",
    "enrich": "headrace.engine.calls.enrich",
    "gather": "headrace.engine.calls.gather",
    "join": "headrace.engine.calls.join",
    "merge": "headrace.engine.calls.join",
    "windowed": "headrace.engine.calls.windows",
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


# What Spark, SQL, pandas and other stream processors call them.
_NEAR = {
    "avg": "mean",
    "average": "mean",
    "total": "sum",
    "size": "count",
    "countDistinct": "count_distinct",
    "approx_count_distinct": "count_distinct",
    "nunique": "count_distinct",
    "collect_list": "collect",
    "array_agg": "collect",
    "earliest": "first",
    "latest": "last",
    "window": "windowed",
    "tumble": "tumbling",
    "hop": "hopping",
    "slide": "sliding",
    "session_window": "session",
    "deduplicate": "dedup",
    "distinct": "dedup",
    "drop_duplicates": "dedup",
    "dropDuplicates": "dedup",
    "union": "merge",
    "concat": "merge",
    "lookup": "enrich",
    "now": "processing_time",
}
_OF_APP = ("topic", "table", "files", "rate", "stream", "view", "step", "producer", "consumer", "read", "running")
_OF_SPARK = ("col", "lit", "expr", "udf", "when", "desc", "asc")


def _suggestion(name: str) -> str:
    if name.startswith("_"):
        return ""
    if name in _NEAR:
        return f"; did you mean {__name__}.{_NEAR[name]}?"
    if name in _OF_APP:
        return f'; it is a method of an app: app = {__name__}.App("name"), then app.{name}(...)'
    if name in _OF_SPARK:
        return f"; it is Spark's: from pyspark.sql import functions as F, then F.{name}(...)"
    from difflib import get_close_matches

    near = get_close_matches(name, __all__, n=1)
    return f"; did you mean {__name__}.{near[0]}?" if near else ""


def __getattr__(name: str) -> typing.Any:
    if name in _errors.RENAMED:
        return _errors.renamed(name)
    if name not in _LAZY:
        # Without `obj`, Python would add a suggestion of its own.
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{_suggestion(name)}", name=name, obj=None)
    value = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
