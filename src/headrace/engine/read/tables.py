"""A table as a node's function is given it: not a DataFrame, since its rows change."""

from collections.abc import Callable
from typing import Any, NoReturn

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from headrace.engine.column_metadata import key_of
from headrace.engine.spark_private.plans import is_read_by_spark_of_a_dataframe
from headrace.engine.write.encoding import named
from headrace.errors import InputError
from headrace.topology.names import DELETED, ORDER, VALID_FROM
from headrace.topology.sources import TABLE_COLUMNS

__all__ = ["Table", "rows_of", "versions_of"]

INSTEAD = {
    "join": "write hr.enrich(stream, {name}, on=...) for a stream, hr.join({name}, other, on=...) for another table",
    "filter": "write {name}.where(...)",
    "withColumn": 'write {name}.select("*", ...)',
    "withColumns": 'write {name}.select("*", ...)',
    "selectExpr": "write {name}.select(...)",
    "withColumnRenamed": "write {name}.select(...) with an alias",
    "drop": "write {name}.select(...)",
    "union": "write {name}.changes for a DataFrame of its changes",
}
OTHERWISE = "pass it to hr.enrich or hr.join, or write {name}.changes for a DataFrame of its changes"


class Table:
    """The last row of each key. `.where` and `.select` return a table, `.changes` is the stream of its changes."""

    def __init__(
        self,
        name: str,
        frame: DataFrame,
        key: tuple[str, ...],
        watermarked: Callable[[DataFrame], DataFrame] | None,
        is_timed: bool | None = None,
    ) -> None:
        """Of a frame with the table's columns, `_deleted`, `_time` and `_order`; the key's columns are marked.

        `watermarked` gives the rows the watermark of their event time, where they have one. `is_timed` says whether
        an event time tells since when rows are valid, and not the time at which they were written.
        """
        self._name = name
        self._frame = frame
        self._key = key
        self._watermarked = watermarked
        self._is_timed = watermarked is not None if is_timed is None else is_timed

    @property
    def key(self) -> tuple[str, ...]:
        """The columns of its key."""
        return self._key

    @property
    def is_timed(self) -> bool:
        """Whether rows are valid from an event time on, rather than from the time of their record."""
        return self._is_timed

    @property
    def columns(self) -> list[str]:
        """The names of its columns."""
        return [name for name in self._frame.columns if name not in TABLE_COLUMNS]

    @property
    def changes(self) -> DataFrame:
        """Its changes as a stream: the new row of a key, or, where `_deleted` is true, a key that was deleted."""
        return rows_of(self).drop(VALID_FROM)

    def where(self, condition: str | Column) -> "Table":
        """Only the rows for which the condition is true. A row for which it becomes false is deleted."""
        holds = F.expr(condition) if isinstance(condition, str) else condition
        gone = named(DELETED) | ~F.coalesce(holds, F.lit(False))
        return Table(self._name, self._frame.withColumn(DELETED, gone), self._key, self._watermarked, self._is_timed)

    def select(self, *columns: str | Column) -> "Table":
        """Other columns; those of the key must be kept, and can be renamed."""
        chosen = [one for column in columns for one in self._chosen(column)]
        frame = self._frame.select(*chosen, *map(named, TABLE_COLUMNS))
        key = key_of(frame)
        if key is None:
            raise InputError(
                f"this select drops the key of the table {self._name!r}: {', '.join(self._key)}",
                next_step="select the columns of the key as well; they can be renamed",
            )
        return Table(self._name, frame, key, self._watermarked, self._is_timed)

    def _chosen(self, column: str | Column) -> list[Column]:
        if not isinstance(column, str):
            return [column]
        if column == "*":
            return [named(name) for name in self.columns]
        return [named(column) if column in self.columns else F.expr(column)]

    def __getattr__(self, name: str) -> NoReturn:
        if is_read_by_spark_of_a_dataframe(name):
            _refuse(f"{self._name!r} is a table, not a DataFrame", INSTEAD["join"], self._name)
        if not name.startswith("_") and hasattr(DataFrame, name):
            _refuse(f"{self._name!r} is a table, and has no .{name}", INSTEAD.get(name, OTHERWISE), self._name)
        raise AttributeError(f"a table has no attribute {name!r}")

    def __getitem__(self, name: Any) -> NoReturn:
        _refuse(f"{self._name!r} is a table, and cannot be indexed", "write the names of columns as text", self._name)

    def __str__(self) -> str:
        return self._name

    def __repr__(self) -> str:
        return f"Table({self._name!r}, key={', '.join(self._key)})"


def rows_of(table: Table) -> DataFrame:
    """A table's changes, each with the time from which it is valid."""
    rows = table._frame if table._watermarked is None else table._watermarked(table._frame)
    return rows.drop(ORDER)


def versions_of(table: Table) -> DataFrame:
    """What operators need of a table: its columns, `_deleted`, `_time` and `_order`.

    Without a watermark: a table without changes must not delay those who look something up in it.
    """
    return table._frame


def _refuse(problem: str, instead: str, name: str) -> NoReturn:
    raise InputError(problem, next_step=instead.format(name=name))
