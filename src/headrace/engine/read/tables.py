"""A table as a node's function is given it: not a DataFrame, since its rows change."""

from collections.abc import Callable
from typing import Any, NoReturn

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from headrace.engine.column_marks import key_of
from headrace.engine.read.parsing import OFFSET
from headrace.engine.write.encoding import DELETED, VALID_FROM, named
from headrace.errors import InputError

__all__ = ["Table", "rows_of", "versions_of"]

BESIDE = (DELETED, VALID_FROM, OFFSET)
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
OTHERWISE = "give it to hr.enrich or hr.join, or write {name}.changes for a DataFrame of its changes"


class Table:
    """The last row of each key. `.where` and `.select` keep it a table, `.changes` is the stream of its changes."""

    def __init__(
        self, name: str, frame: DataFrame, key: tuple[str, ...], watermarked: Callable[[DataFrame], DataFrame] | None
    ) -> None:
        """Of a frame with the table's columns, `_deleted`, `_time` and `_order`; the key's columns are marked.

        `watermarked` gives the rows the watermark of their event time, where they have one.
        """
        self._name = name
        self._frame = frame
        self._key = key
        self._watermarked = watermarked

    @property
    def key(self) -> tuple[str, ...]:
        """The columns that tell its rows apart."""
        return self._key

    @property
    def columns(self) -> list[str]:
        """The names of its columns."""
        return [name for name in self._frame.columns if name not in BESIDE]

    @property
    def changes(self) -> DataFrame:
        """Its changes as a stream: a row as it is from now on, or, where `_deleted` is true, a key that is gone."""
        return rows_of(self).drop(VALID_FROM)

    def where(self, condition: str | Column) -> "Table":
        """Only the rows for which it holds. A row for which it no longer does is deleted."""
        holds = F.expr(condition) if isinstance(condition, str) else condition
        gone = named(DELETED) | ~F.coalesce(holds, F.lit(False))
        return Table(self._name, self._frame.withColumn(DELETED, gone), self._key, self._watermarked)

    def select(self, *columns: str | Column) -> "Table":
        """Other columns; the key's must be among them, under whatever name."""
        chosen = [one for column in columns for one in self._chosen(column)]
        frame = self._frame.select(*chosen, *map(named, BESIDE))
        key = key_of(frame)
        if key is None:
            raise InputError(
                f"the table {self._name!r} loses its key by this select: {', '.join(self._key)}",
                next_step="keep the columns of the key as they are; an alias does no harm",
            )
        return Table(self._name, frame, key, self._watermarked)

    def _chosen(self, column: str | Column) -> list[Column]:
        if not isinstance(column, str):
            return [column]
        if column == "*":
            return [named(name) for name in self.columns]
        return [named(column) if column in self.columns else F.expr(column)]

    def __getattr__(self, name: str) -> NoReturn:
        if name == "_jdf":
            # Spark asks for it where a DataFrame was expected, as in payments.join(cards).
            _refuse(f"{self._name!r} is a table, and this takes a DataFrame", INSTEAD["join"], self._name)
        if not name.startswith("_") and hasattr(DataFrame, name):
            _refuse(f"{self._name!r} is a table, which has no .{name}", INSTEAD.get(name, OTHERWISE), self._name)
        raise AttributeError(f"a table has no attribute {name!r}")

    def __getitem__(self, name: Any) -> NoReturn:
        _refuse(f"{self._name!r} is a table, and has no columns to take", "name columns as text", self._name)

    def __str__(self) -> str:
        return self._name

    def __repr__(self) -> str:
        return f"Table({self._name!r}, key={', '.join(self._key)})"


def rows_of(table: Table) -> DataFrame:
    """A table's changes, each with the time from which on it holds."""
    rows = table._frame if table._watermarked is None else table._watermarked(table._frame)
    return rows.drop(OFFSET)


def versions_of(table: Table) -> DataFrame:
    """All that operators need of a table: its columns, `_deleted`, `_time` and `_order`.

    Without a watermark: a table that nobody changes must not hold back those who look something up in it.
    """
    return table._frame


def _refuse(problem: str, instead: str, name: str) -> NoReturn:
    raise InputError(problem, next_step=instead.format(name=name))
