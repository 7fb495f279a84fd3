"""What a query that runs reports: its progress, and the metrics that it observes.

Where Spark has ended, all calls to it raise `Py4JError` or an `OSError`.
"""

import json
from typing import Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.sql.streaming.query import StreamingQuery

__all__ = [
    "GROUP_COUNTING_OPERATORS",
    "PYTHON_STATE_OPERATOR",
    "Py4JError",
    "ReportId",
    "observed_number",
    "reports_since",
]

PYTHON_STATE_OPERATOR = "transformWithStateInPySparkExec"
"""In a report: the operator that keeps state for Python code, such as Headrace's operators."""
GROUP_COUNTING_OPERATORS = ("stateStoreSave", "sessionWindowStateStoreSaveExec")
"""In a report: operators that drop late rows after they were aggregated, so that rows of one key and window count as
one."""

ReportId = tuple[str, str]
"""The run and the time of a report."""


def reports_since(query: StreamingQuery, seen: ReportId | None) -> tuple[list[dict[str, Any]], ReportId | None]:
    """The reports of progress after the one that was `seen`, oldest first, and the id of the last.

    PySpark's own `recentProgress` parses all of them at every call.
    """
    newest = query._jsq.lastProgress()
    if newest is None or (last := _id(newest)) == seen:
        return [], seen
    recent = query._jsq.recentProgress()
    new = []
    for index in range(len(recent) - 1, -1, -1):
        if _id(recent[index]) == seen:
            break
        new.append(json.loads(recent[index].json()))
    return new[::-1], last


def observed_number(query: StreamingQuery, metric: str) -> int | None:
    """The first number of an observed metric in the batch that runs; None if it has not been computed.

    The query's report has it only after the batch has finished.
    """
    metrics = query._jsq.streamingQuery().lastExecution().observedMetrics().get(metric)
    return int(metrics.get().getLong(0)) if metrics.isDefined() else None


def _id(report: Any) -> ReportId:
    return (report.runId().toString(), report.timestamp())
