"""What Spark's analyser knows of a streaming plan before it runs: output modes, state, real-time fitness."""

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from headrace.engine.adapters import source_adapter
from headrace.engine.spark_private.plans import PlanNode, error_in_output_mode, error_in_real_time_mode, plan_of
from headrace.operators.hosting import METRIC, WAITING
from headrace.operators.packing import PACKED
from headrace.topology import Feed

__all__ = [
    "APPEND",
    "UPDATE",
    "can_fall_due",
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
# What keeps state and is not among what Spark's own check of chained operators calls stateful.
STATEFUL_TOO = ("Deduplicate", "Distinct", "GlobalLimit")
# What keeps state and holds no row back.
AT_ONCE = ("Deduplicate", "DeduplicateWithinWatermark", "Distinct")
REAL_TIME_PREFIX = "Streaming real-time mode has the following limitation: "
PYTHON_STATE = "TransformWithState"
PYTHON_NODES = ("Pandas", "Arrow", "Python", "PySpark")


def mode_problem(frame: DataFrame, mode: str) -> str | None:
    """Why Spark would not run the plan in an output mode; None where it would."""
    error = error_in_output_mode(frame, mode)
    return None if error is None else shortened(error)


def stateful_operators(frame: DataFrame) -> list[str]:
    """A description of each stateful operator. It changes if the operator could no longer read its state."""
    return [
        _described(node)
        for node in plan_of(frame).walk()
        if node.is_stateful or (node.kind in STATEFUL_TOO and any(child.is_streaming for child in node.children))
    ]


def can_fall_due(frame: DataFrame, mode: str) -> bool:
    """Whether rows may come out because the watermark has moved, without another row coming in."""
    at_once = 0
    for node in plan_of(frame).walk():
        if node.kind == "CollectMetrics" and node.metric_name.startswith(METRIC):
            at_once += not node.metric_name.endswith(WAITING)
        elif node.kind.startswith(PYTHON_STATE):
            at_once -= 1
        elif node.kind in AT_ONCE or (node.kind == "Aggregate" and mode == UPDATE):
            continue
        elif node.is_stateful:
            return True
    return at_once < 0


def stream_joins(frame: DataFrame) -> int:
    """How many joins of two streams a plan has."""
    return sum(_is_stream_join(node) for node in plan_of(frame).walk())


def keeps_python_state(frame: DataFrame) -> bool:
    """Whether an operator of Headrace's own runs in it."""
    return any(node.kind.startswith(PYTHON_STATE) for node in plan_of(frame).walk())


def places_of(frame: DataFrame, feed: Feed) -> int:
    """In how many places a plan reads a feed: each is a separate source with its own offsets."""
    return sum(source_adapter(feed).is_leaf(feed, node) for node in plan_of(frame).walk())


def real_time_problems(frame: DataFrame) -> list[str]:
    """The parts of a plan that Spark's real-time mode cannot run, by name."""
    found: dict[str, None] = {}
    plan = plan_of(frame)
    for node in plan.walk():
        kind = node.kind
        if kind in NOT_IN_REAL_TIME:
            found[NOT_IN_REAL_TIME[kind]] = None
        elif _runs_in_python(kind):
            found[f"Python code ({kind})"] = None
        elif _is_stream_join(node):
            found["a join of two streams"] = None
        elif node.has_session_window:
            found["session windows"] = None
    if plan.contains_python_udf:
        found["a Python UDF"] = None
    return list(found)


def runs_python(frame: DataFrame) -> bool:
    """Whether rows are sent to Python processes."""
    plan = plan_of(frame)
    return plan.contains_python_udf or any(_runs_in_python(node.kind) for node in plan.walk())


def runs_users_python(frame: DataFrame) -> bool:
    """Whether rows are sent to Python processes for a function of the user, and not only for Headrace's operators."""
    return any(
        not _is_ours(node) and (_runs_in_python(node.kind) or node.calls_python_udf) for node in plan_of(frame).walk()
    )


def _is_stream_join(node: PlanNode) -> bool:
    return node.kind == "Join" and all(child.is_streaming for child in node.children)


def _runs_in_python(kind: str) -> bool:
    return any(word in kind for word in PYTHON_NODES)


def _is_ours(node: PlanNode) -> bool:
    """Whether a part of a plan is the state of an operator, or packs or unpacks its rows."""
    kind = node.kind
    if kind.startswith(PYTHON_STATE):
        return True
    if kind != "MapInArrow":
        return False
    if list(node.columns.values()) == list(PACKED.names):
        return True
    below = node.children[0]
    return below.kind == "CollectMetrics" and below.metric_name.startswith(METRIC)


def real_time_complaint(frame: DataFrame) -> str | None:
    """Why Spark refuses to run a plan in real-time mode; None if it does not."""
    error = error_in_output_mode(frame, UPDATE) or error_in_real_time_mode(frame, UPDATE)
    return None if error is None else shortened(error).removeprefix(REAL_TIME_PREFIX)


def is_projection(frame: DataFrame) -> str | None:
    """What a frame does besides selecting and computing columns, row by row and in the JVM.

    None where it does nothing else.
    """
    plan = plan_of(frame)
    kinds = [node.kind for node in (plan, plan.children[0])]
    other = next((kind for kind in kinds if kind != "Project"), None)
    if other is not None:
        return {"Generate": "explode() and its like", "Window": "SQL window functions"}.get(other, other)
    return "a Python UDF" if plan.calls_python_udf else None


def origins(frame: DataFrame, base: DataFrame) -> dict[str, frozenset[str]]:
    """For each column of a frame the columns of `base` that it is computed from. Between both are projections alone."""
    given = {number: frozenset([name]) for number, name in plan_of(base).columns.items()}

    def below(node: PlanNode) -> dict[int, frozenset[str]]:
        if all(column in given for column in node.columns):
            return given
        known = below(node.children[0])
        return {column: frozenset().union(*(known[one] for one in read)) for column, read in node.columns_read.items()}

    plan = plan_of(frame)
    found = below(plan)
    return {name: found[number] for number, name in plan.columns.items()}


def shortened(error: BaseException) -> str:
    """Spark's error message in one line, without error class, SQLSTATE and plan."""
    text = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if isinstance(error, PySparkException) and text.startswith("["):
        text = text.partition("] ")[2] or text
    text = text.partition(" SQLSTATE:")[0].partition(";")[0]
    return text.rstrip(" .")


def _described(node: PlanNode) -> str:
    # Also the time windows that the rows were put in below the operator.
    lengths = dict.fromkeys(length for below in node.walk() for length in below.window_lengths)
    return f"{node.kind}: {', '.join([*node.expressions, *lengths])}"
