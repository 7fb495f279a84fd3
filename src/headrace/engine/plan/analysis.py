"""What Spark's analyser knows of a streaming plan before it runs: output modes, state, real-time fitness."""

import re
from collections.abc import Iterator
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from headrace.engine.adapters import source_adapter
from headrace.operators.hosting import METRIC
from headrace.operators.packing import PACKED
from headrace.topology import Feed

__all__ = [
    "APPEND",
    "UPDATE",
    "is_projection",
    "keeps_python_state",
    "mode_problem",
    "origins",
    "real_time_complaint",
    "real_time_problems",
    "runs_python",
    "runs_users_python",
    "shortened",
    "stateful_operators",
    "stream_joins",
]

APPEND, UPDATE = "append", "update"
CHECKER = "org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker"

# Operators of Spark's logical plan that its real-time mode does not run, and what people call them.
NOT_IN_REAL_TIME = {
    "Sort": "sorting",
    "GlobalLimit": "a limit",
    "LocalLimit": "a limit",
    "Window": "SQL window functions",
    "Distinct": "distinct()",
    "Intersect": "intersect",
    "Except": "except",
    "RepartitionByExpression": "repartition",
    "Repartition": "repartition",
    "RebalancePartitions": "repartition",
}
# What Spark makes of a time window in an analysed plan: a function of its own, and lengths in microseconds.
WINDOWING = "precisetimestampconversion"
SPAN = re.compile(r"\b\d+L|INTERVAL '[^']*'|CAST\([^()]* AS INTERVAL\)")
# What keeps state and is not among what Spark's own check of chained operators calls stateful.
STATEFUL_TOO = ("Deduplicate", "Distinct", "GlobalLimit")
REAL_TIME_PREFIX = "Streaming real-time mode has the following limitation: "
SESSION = "spark.sessionWindow"
PYTHON_NODES = ("Pandas", "Arrow", "Python", "PySpark")


def plan_of(frame: DataFrame) -> Any:
    return frame._jdf.queryExecution().analyzed()


def mode_problem(frame: DataFrame, mode: str) -> str | None:
    """Why Spark would not run the plan in an output mode; None where it would."""
    return _complaint(frame, mode, "checkForStreaming")


def stateful_operators(frame: DataFrame) -> list[str]:
    """A description of each stateful operator. It changes if the operator could no longer read its state."""
    checker = _class(frame, CHECKER)
    return [
        _described(node)
        for node in _walk(plan_of(frame))
        if checker.isStatefulOperation(node)
        or (node.getClass().getSimpleName() in STATEFUL_TOO and any(c.isStreaming() for c in _items(node.children())))
    ]


def stream_joins(frame: DataFrame) -> int:
    """How many joins of two streams a plan has."""
    return sum(
        node.getClass().getSimpleName() == "Join" and all(child.isStreaming() for child in _items(node.children()))
        for node in _walk(plan_of(frame))
    )


def keeps_python_state(frame: DataFrame) -> bool:
    """Whether an operator of Headrace's own runs in it."""
    return any(node.getClass().getSimpleName().startswith("TransformWithState") for node in _walk(plan_of(frame)))


def places_of(frame: DataFrame, feed: Feed) -> int:
    """In how many places a plan reads a feed: each is a separate source with its own offsets."""
    return sum(source_adapter(feed).is_leaf(feed, node) for node in _walk(plan_of(frame)))


def real_time_problems(frame: DataFrame) -> list[str]:
    """The parts of a plan that Spark's real-time mode cannot run, by name."""
    found: dict[str, None] = {}
    plan = plan_of(frame)
    for node in _walk(plan):
        kind = node.getClass().getSimpleName()
        if kind in NOT_IN_REAL_TIME:
            found[NOT_IN_REAL_TIME[kind]] = None
        elif any(word in kind for word in PYTHON_NODES):
            found[f"Python code ({kind})"] = None
        elif kind == "Join" and all(child.isStreaming() for child in _items(node.children())):
            found["a join of two streams"] = None
        elif any(column.metadata().contains(SESSION) for column in _items(node.output())):
            found["session windows"] = None
    if _has_python_udf(frame, plan):
        found["a Python UDF"] = None
    return list(found)


def runs_python(frame: DataFrame) -> bool:
    """Whether rows are sent to Python processes."""
    plan = plan_of(frame)
    return _has_python_udf(frame, plan) or any(
        word in node.getClass().getSimpleName() for node in _walk(plan) for word in PYTHON_NODES
    )


def runs_users_python(frame: DataFrame) -> bool:
    """Whether rows are sent to Python processes for a function of the user, and not only for Headrace's operators."""
    patterns = _class(frame, "org.apache.spark.sql.catalyst.trees.TreePattern")
    for node in _walk(plan_of(frame)):
        if _is_ours(node):
            continue
        if any(word in node.getClass().getSimpleName() for word in PYTHON_NODES):
            return True
        if any(expression.containsPattern(patterns.PYTHON_UDF()) for expression in _items(node.expressions())):
            return True
    return False


def _is_ours(node: Any) -> bool:
    """Whether a part of a plan is the state of an operator, or packs or unpacks its rows."""
    kind = node.getClass().getSimpleName()
    if kind.startswith("TransformWithState"):
        return True
    if kind != "MapInArrow":
        return False
    if [column.name() for column in _items(node.output())] == list(PACKED.names):
        return True
    below = node.children().apply(0)
    return below.getClass().getSimpleName() == "CollectMetrics" and str(below.name()).startswith(METRIC)


def real_time_complaint(frame: DataFrame) -> str | None:
    """Why Spark refuses to run a plan in real-time mode; None if it does not."""
    said = mode_problem(frame, UPDATE) or _complaint(frame, UPDATE, "checkAdditionalRealTimeModeConstraints")
    return None if said is None else said.removeprefix(REAL_TIME_PREFIX)


def is_projection(frame: DataFrame) -> str | None:
    """What a frame does besides selecting and computing columns, row by row and in the JVM.

    None where it does nothing else.
    """
    plan = plan_of(frame)
    kinds = [str(node.getClass().getSimpleName()) for node in (plan, plan.children().apply(0))]
    other = next((kind for kind in kinds if kind != "Project"), None)
    if other is not None:
        return {"Generate": "explode() and its like", "Window": "SQL window functions"}.get(other, other)
    patterns = _class(frame, "org.apache.spark.sql.catalyst.trees.TreePattern")
    if any(expression.containsPattern(patterns.PYTHON_UDF()) for expression in _items(plan.expressions())):
        return "a Python UDF"
    return None


def origins(frame: DataFrame, base: DataFrame) -> dict[str, frozenset[str]]:
    """For each column of a frame the columns of `base` that it is computed from. Between both are projections alone."""
    given = {column.exprId().id(): frozenset([str(column.name())]) for column in _items(plan_of(base).output())}

    def below(node: Any) -> dict[int, frozenset[str]]:
        columns = [column.exprId().id() for column in _items(node.output())]
        if all(column in given for column in columns):
            return given
        known = below(node.children().apply(0))
        read = {one.exprId().id(): _items(one.references().toSeq()) for one in _items(node.projectList())}
        return {
            column: frozenset().union(*(known[one.exprId().id()] for one in columns_read))
            for column, columns_read in read.items()
        }

    found = below(plan_of(frame))
    return {str(column.name()): found[column.exprId().id()] for column in _items(plan_of(frame).output())}


def shortened(error: BaseException) -> str:
    """Spark's error message in one line, without error class, SQLSTATE and plan."""
    text = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if isinstance(error, PySparkException) and text.startswith("["):
        text = text.partition("] ")[2] or text
    text = text.partition(" SQLSTATE:")[0].partition(";")[0]
    return text.rstrip(" .")


def _complaint(frame: DataFrame, mode: str, check: str) -> str | None:
    modes = _class(frame, "org.apache.spark.sql.streaming.OutputMode")
    wanted = modes.Update() if mode == UPDATE else modes.Append()
    try:
        getattr(_class(frame, CHECKER), check)(plan_of(frame), wanted)
    except PySparkException as error:
        return shortened(error)
    return None


def _has_python_udf(frame: DataFrame, plan: Any) -> bool:
    patterns = _class(frame, "org.apache.spark.sql.catalyst.trees.TreePattern")
    return bool(plan.containsPattern(patterns.PYTHON_UDF()))


def _described(node: Any) -> str:
    kind = node.getClass().getSimpleName()
    expressions = [expression.sql() for expression in _items(node.expressions())]
    return f"{kind}: {', '.join([*expressions, *_spans_below(node)])}"


def _spans_below(node: Any) -> list[str]:
    """The lengths of the time windows that the rows below a stateful operator were put in."""
    spans: dict[str, None] = {}
    for below in _walk(node):
        for expression in _items(below.expressions()):
            text = expression.sql()
            if WINDOWING in text:
                spans |= dict.fromkeys(SPAN.findall(text))
    return [span for span in spans if span != "0L"]


def _walk(node: Any) -> Iterator[Any]:
    yield node
    for child in _items(node.children()):
        yield from _walk(child)


def _items(sequence: Any) -> Iterator[Any]:
    return (sequence.apply(index) for index in range(sequence.size()))


def _class(frame: DataFrame, name: str) -> Any:
    found: Any = frame.sparkSession._jvm
    for part in name.split("."):
        found = getattr(found, part)
    return found
