"""Analysed plans of Spark, which are Java objects, and what Spark's own checks say of them."""

import re
from collections.abc import Iterator
from functools import cached_property
from typing import Any, TypeVar

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

__all__ = [
    "WATERMARK_DELAY",
    "ClassicDataFrame",
    "PlanNode",
    "error_in_output_mode",
    "error_in_real_time_mode",
    "is_read_by_spark_of_a_dataframe",
    "plan_of",
    "with_the_plan_of",
]

WATERMARK_DELAY = "spark.watermarkDelayMs"
"""In the metadata of a column that has a watermark: the delay in milliseconds."""
SESSION_WINDOW = "spark.sessionWindow"
"""In the metadata of a column that is a session window."""
CHECKER = "org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker"
OUTPUT_MODES = "org.apache.spark.sql.streaming.OutputMode"
TREE_PATTERNS = "org.apache.spark.sql.catalyst.trees.TreePattern"
# What Spark makes of a time window in an analysed plan: a function of its own, and lengths in microseconds.
WINDOWING = "precisetimestampconversion"
LENGTH = re.compile(r"\b\d+L|INTERVAL '[^']*'|CAST\([^()]* AS INTERVAL\)")

F = TypeVar("F", bound=ClassicDataFrame)


class PlanNode:
    """A node of Spark's logical plan."""

    def __init__(self, java: Any, classes: "_Classes") -> None:
        self._java = java
        self._classes = classes

    @property
    def kind(self) -> str:
        """The name of its class, such as `Project` or `Join`."""
        return str(self._java.getClass().getSimpleName())

    @property
    def is_streaming(self) -> bool:
        return bool(self._java.isStreaming())

    @property
    def children(self) -> "list[PlanNode]":
        return [PlanNode(child, self._classes) for child in _items(self._java.children())]

    def walk(self) -> "Iterator[PlanNode]":
        """It and all nodes below it."""
        yield self
        for child in self.children:
            yield from child.walk()

    @property
    def columns(self) -> dict[int, str]:
        """The names of its columns, by the number that Spark knows a column by."""
        return {column.exprId().id(): str(column.name()) for column in _items(self._java.output())}

    @property
    def columns_read(self) -> dict[int, list[int]]:
        """Of a `Project`: for each of its columns, the columns below that it is computed from."""
        return {
            column.exprId().id(): [read.exprId().id() for read in _items(column.references().toSeq())]
            for column in _items(self._java.projectList())
        }

    @property
    def expressions(self) -> list[str]:
        """Its expressions as SQL."""
        return [expression.sql() for expression in _items(self._java.expressions())]

    @property
    def window_lengths(self) -> list[str]:
        """The lengths of the time windows in its expressions."""
        found = [length for text in self.expressions if WINDOWING in text for length in LENGTH.findall(text)]
        return [length for length in dict.fromkeys(found) if length != "0L"]

    @property
    def is_stateful(self) -> bool:
        """Whether Spark's check of chained operators calls it stateful."""
        return bool(self._classes.of(CHECKER).isStatefulOperation(self._java))

    @property
    def has_session_window(self) -> bool:
        return any(column.metadata().contains(SESSION_WINDOW) for column in _items(self._java.output()))

    @property
    def calls_python_udf(self) -> bool:
        """Whether one of its own expressions calls a Python UDF."""
        udf = self._classes.python_udf
        return any(expression.containsPattern(udf) for expression in _items(self._java.expressions()))

    @property
    def contains_python_udf(self) -> bool:
        """Whether an expression of it, or of a node below it, calls a Python UDF."""
        return bool(self._java.containsPattern(self._classes.python_udf))

    @property
    def metric_name(self) -> str:
        """Of a `CollectMetrics`: the name of the observed metric."""
        return str(self._java.name())

    def reads_topic(self, topic: str) -> bool:
        """Whether it is a source that reads a topic with Spark's Kafka connector."""
        return self.kind == "StreamingRelationV2" and bool(self._java.extraOptions().get("subscribe") == topic)

    def reads_files(self, folder: str) -> bool:
        """Whether it is a source that reads the files of a folder."""
        return self.kind == "StreamingRelation" and bool(self._java.dataSource().options().get("path").contains(folder))


def plan_of(frame: DataFrame) -> PlanNode:
    """The root of the analysed plan of a DataFrame."""
    return PlanNode(frame._jdf.queryExecution().analyzed(), _Classes(frame.sparkSession._jvm))


def error_in_output_mode(frame: DataFrame, mode: str) -> PySparkException | None:
    """Why Spark does not run a streaming plan in an output mode; None if it does."""
    return _error(frame, mode, "checkForStreaming")


def error_in_real_time_mode(frame: DataFrame, mode: str) -> PySparkException | None:
    """Which limit of its real-time mode Spark finds exceeded; None if there is none."""
    return _error(frame, mode, "checkAdditionalRealTimeModeConstraints")


def with_the_plan_of(frame: DataFrame, kind: type[F]) -> F:
    """A DataFrame of another class, a subclass of PySpark's, with the same plan."""
    return kind(frame._jdf, frame.sparkSession)


def is_read_by_spark_of_a_dataframe(attribute: str) -> bool:
    """Whether it is the attribute that PySpark reads of its argument where it expects a DataFrame, as in a join."""
    return attribute == "_jdf"


def _error(frame: DataFrame, mode: str, check: str) -> PySparkException | None:
    classes = _Classes(frame.sparkSession._jvm)
    modes = classes.of(OUTPUT_MODES)
    wanted = modes.Update() if mode == "update" else modes.Append()
    try:
        getattr(classes.of(CHECKER), check)(frame._jdf.queryExecution().analyzed(), wanted)
    except PySparkException as error:
        return error
    return None


def _items(sequence: Any) -> Iterator[Any]:
    return (sequence.apply(index) for index in range(sequence.size()))


class _Classes:
    """Classes of Java. Each part of a name costs a call to Java, so what was found is kept for a whole plan."""

    def __init__(self, jvm: Any) -> None:
        self._jvm = jvm
        self._found: dict[str, Any] = {}

    def of(self, name: str) -> Any:
        if name not in self._found:
            found = self._jvm
            for part in name.split("."):
                found = getattr(found, part)
            self._found[name] = found
        return self._found[name]

    @cached_property
    def python_udf(self) -> Any:
        """The pattern of a Python UDF in a plan."""
        return self.of(TREE_PATTERNS).PYTHON_UDF()
