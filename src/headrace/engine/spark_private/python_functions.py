"""Python functions whose errors are noted instead of raised, so that a task that finds one does not fail.

A task that fails is tried again, and its Python process starts anew each time: some seconds for one error. PySpark
turns every function that a DataFrame calls (UDFs, mapInPandas, ...) into Java's counterpart in one place, which is
where the function is wrapped. Kinds of functions that cannot give a result for rows on which they raise are left alone.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any

from pyspark.accumulators import Accumulator, AccumulatorParam
from pyspark.sql import SparkSession
from pyspark.sql.types import DataType, StructType
from pyspark.sql.udf import UserDefinedFunction
from pyspark.util import PythonEvalType

__all__ = ["Noted", "noted_errors"]

Noted = list[tuple[str | None, str]]
"""Of each error that was noted: the user's line, if it is known, and the last line of the traceback."""
_PER_ROW = (PythonEvalType.SQL_BATCHED_UDF, PythonEvalType.SQL_ARROW_BATCHED_UDF)
_PER_SERIES = (PythonEvalType.SQL_SCALAR_PANDAS_UDF,)
_PER_PARTITION = (PythonEvalType.SQL_MAP_PANDAS_ITER_UDF, PythonEvalType.SQL_MAP_ARROW_ITER_UDF)

_notes: ContextVar["Accumulator[Noted] | None"] = ContextVar("notes", default=None)


class _FirstErrors(AccumulatorParam[Noted]):
    """The first error of each task."""

    def zero(self, value: Noted) -> Noted:
        return []

    def addInPlace(self, value1: Noted, value2: Noted) -> Noted:
        return [*value1, *value2]


@contextmanager
def noted_errors(spark: SparkSession) -> Iterator[Noted]:
    """Inside of the block, functions are wrapped where they are called. After it, the list has what was noted.

    Of a task, only the first error counts: a function may raise because another one had no result.
    """
    _install()
    notes = spark.sparkContext.accumulator([], _FirstErrors())
    found: Noted = []
    token = _notes.set(notes)
    try:
        yield found
    finally:
        _notes.reset(token)
        found.extend(notes.value)


def _install() -> None:
    """Let PySpark ask here which function to send to the workers."""
    if getattr(UserDefinedFunction, "_headrace_asks", False):
        return
    usual = UserDefinedFunction._judf

    def java_function(self: UserDefinedFunction) -> Any:
        notes = _notes.get()
        wrapped = None if notes is None else _noting(self.func, self.evalType, self.returnType, notes)
        # Not kept: the function that is called outside of the block is the user's own.
        return usual.__get__(self) if wrapped is None else self._create_judf(wrapped)

    UserDefinedFunction._judf = property(java_function)  # type: ignore[method-assign, assignment]
    UserDefinedFunction._headrace_asks = True  # type: ignore[attr-defined]


def _noting(
    function: Callable[..., Any], kind: int, result: DataType, notes: "Accumulator[Noted]"
) -> Callable[..., Any] | None:
    """The function as it is sent to the workers; None for a kind that cannot go on after an error."""

    def note(error: Exception) -> None:
        from headrace.topology.place import raised_at

        if not notes._value:
            notes.add([raised_at(error)])

    if kind in _PER_ROW:

        @wraps(function)
        def called(*values: Any, **named: Any) -> Any:
            try:
                return function(*values, **named)
            except Exception as error:
                note(error)
                return None

        return called
    if kind in _PER_SERIES:
        fields = result.names if isinstance(result, StructType) else None

        @wraps(function)
        def called_with_series(*values: Any, **named: Any) -> Any:
            import pandas as pd  # type: ignore[import-untyped]

            try:
                return function(*values, **named)
            except Exception as error:
                note(error)
            rows = range(len([*values, *named.values()][0]))
            return pd.Series(None, rows, object) if fields is None else pd.DataFrame(None, rows, fields, object)

        return called_with_series
    if kind in _PER_PARTITION:

        @wraps(function)
        def called_with_batches(batches: Any) -> Any:
            try:
                yield from function(batches)
            except Exception as error:
                note(error)
                for _ in batches:
                    pass

        return called_with_batches
    return None
