"""A view's table: created from its columns, and compared with an existing one."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import psycopg
from psycopg import sql
from psycopg.rows import TupleRow

from headrace.errors import ViewChanged
from headrace.tables.types import check_names, check_order, postgres_type
from headrace.topology import Schema
from headrace.topology.datatypes import Column

__all__ = ["Definition"]

Cursor = psycopg.Cursor[TupleRow]

COLUMNS: str = """
SELECT attname, format_type(atttypid, atttypmod)
FROM pg_attribute WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""
KEY: str = """
SELECT attname FROM pg_index JOIN pg_attribute ON attrelid = indrelid AND attnum = ANY (indkey)
WHERE indrelid = %s AND indisprimary ORDER BY array_position(indkey, attnum)
"""


@dataclass(frozen=True, slots=True)
class Definition:
    """The table that a view needs."""

    schema_name: str
    table_name: str
    columns: Schema
    key: tuple[str, ...]
    order_by: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_names(self.schema_name, self.table_name, self.columns, self.key)
        check_order(self.name, self.columns, self.order_by)

    @property
    def name(self) -> str:
        return f"{self.schema_name}.{self.table_name}"

    @property
    def table(self) -> sql.Identifier:
        return sql.Identifier(self.schema_name, self.table_name)

    @property
    def key_columns(self) -> list[Column]:
        return [self.columns[name] for name in self.key]

    @property
    def order_columns(self) -> list[Column]:
        return [self.columns[name] for name in self.order_by]

    def exists(self, cursor: Cursor) -> bool:
        return self._oid(cursor) is not None

    def ensure(self, cursor: Cursor) -> None:
        """Create the table, or add missing columns; any other difference is refused."""
        oid = self._oid(cursor)
        if oid is None:
            cursor.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(self.schema_name)))
            cursor.execute(self._create())
            return
        there: dict[str, str] = dict(cursor.execute(COLUMNS, (oid,)).fetchall())
        key = tuple(name for (name,) in cursor.execute(KEY, (oid,)))
        differences = list(self._differences(there, key))
        if differences:
            raise ViewChanged(
                f"the table {self.name} does not match the view: {'; '.join(what for what, _ in differences)}",
                next_step=self._ways_on(statement for _, statement in differences if statement),
            )
        for column in self.columns:
            if column.name not in there:
                # Not NOT NULL, even where the view's column is: existing rows have no value for it.
                cursor.execute(
                    sql.SQL("ALTER TABLE {} ADD COLUMN {} {}").format(
                        self.table, sql.Identifier(column.name), sql.SQL(postgres_type(column.type))
                    )
                )

    def empty(self, cursor: Cursor) -> None:
        """Delete all rows; drop a table that no longer matches the view."""
        oid = self._oid(cursor)
        if oid is None:
            return
        there: dict[str, str] = dict(cursor.execute(COLUMNS, (oid,)).fetchall())
        key = tuple(name for (name,) in cursor.execute(KEY, (oid,)))
        fits = next(self._differences(there, key), None) is None
        statement = sql.SQL("TRUNCATE {}") if fits else sql.SQL("DROP TABLE {}")
        cursor.execute(statement.format(self.table))

    def _oid(self, cursor: Cursor) -> int | None:
        row = cursor.execute(
            """
            SELECT pg_class.oid, relkind FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
            WHERE nspname = %s AND relname = %s
            """,
            (self.schema_name, self.table_name),
        ).fetchone()
        if row is None:
            return None
        if row[1] not in ("r", "p", b"r", b"p"):
            raise ViewChanged(f"{self.name} already exists and is not a table", next_step="rename it, or the view")
        return int(row[0])

    def _create(self) -> sql.Composed:
        columns = [
            sql.SQL("{} {}{}").format(
                sql.Identifier(column.name),
                sql.SQL(postgres_type(column.type)),
                sql.SQL(" NOT NULL" if column.name in self.key else ""),
            )
            for column in self.columns
        ]
        key = sql.SQL("PRIMARY KEY ({})").format(sql.SQL(", ").join(map(sql.Identifier, self.key)))
        return sql.SQL("CREATE TABLE {} ({})").format(self.table, sql.SQL(", ").join([*columns, key]))

    def _differences(self, there: dict[str, str], key: tuple[str, ...]) -> Iterator[tuple[str, str]]:
        """The differences that cannot be resolved automatically, each with the statement that would resolve it."""
        table = _quoted(self.schema_name) + "." + _quoted(self.table_name)
        for column in self.columns:
            wanted = postgres_type(column.type)
            found = there.get(column.name, wanted)
            if found != wanted:
                change = f"ALTER TABLE {table} ALTER COLUMN {_quoted(column.name)} TYPE {wanted}"
                yield f"column {column.name!r} is {found} in the table and {wanted} in the view", change
        for name in there:
            if name not in self.columns:
                drop = f"ALTER TABLE {table} DROP COLUMN {_quoted(name)}"
                yield f"column {name!r} is in the table and not in the view", drop
        if sorted(key) != sorted(self.key):
            yield f"the key is ({', '.join(key)}) in the table and ({', '.join(self.key)}) in the view", ""

    def _ways_on(self, statements: Iterable[str]) -> str:
        typed = "; ".join(statements)
        by_hand = f"change the table: {typed}; or " if typed else ""
        return f"{by_hand}empty it and start over with headrace run APP --reset {self.table_name}; or rename the view"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
