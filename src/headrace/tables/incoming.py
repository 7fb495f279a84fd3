"""A batch on its way into a view's table: copied beside it, then merged by key."""

import hashlib
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
from psycopg import sql

from headrace.errors import InputError
from headrace.tables.definition import Definition
from headrace.tables.encoding import csv_lines, encoded
from headrace.tables.types import postgres_type
from headrace.topology.datatypes import Column, Decimal, Primitive

__all__ = ["Incoming"]

DELETED = "_deleted"
ORDER = "_order"
POSITION = "_position"


class Incoming:
    """A temporary table that holds a batch as it came, and the statements that move it into the view's."""

    def __init__(self, definition: Definition, arrived: Any) -> None:
        self._columns = definition.columns
        missing = [name for name in self._columns.names if name not in arrived.names]
        if missing:
            raise InputError(f"rows came without {', '.join(missing)}")
        self._orders = [_order_column(field) for field in arrived if field.name.startswith(ORDER)]
        self._deletes = DELETED in arrived.names
        self._build(definition)

    def lines(self, batch: Any, position: int) -> bytes:
        columns = [encoded(batch.column(column.name), column) for column in (*self._columns, *self._orders)]
        if self._deletes:
            columns.append(batch.column(DELETED))
        columns.append(pa.array(range(position, position + batch.num_rows), pa.int64()))
        return csv_lines(columns)

    def _build(self, definition: Definition) -> None:
        typed = [(column.name, postgres_type(column.type)) for column in (*self._columns, *self._orders)]
        if self._deletes:
            typed.append((DELETED, "boolean"))
        typed.append((POSITION, "bigint"))
        # A view has a table of its own for each shape, so that a session can keep it from batch to batch.
        name = hashlib.sha256(repr((definition.name, typed)).encode()).hexdigest()[:24]
        incoming = sql.Identifier("pg_temp", f"incoming_{name}")
        defined = [sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(type_)) for name, type_ in typed]
        self.create = sql.SQL("CREATE TEMPORARY TABLE IF NOT EXISTS {} ({}) ON COMMIT DELETE ROWS").format(
            incoming, _listed(defined)
        )
        self.copy = sql.SQL("COPY {} FROM STDIN (FORMAT csv)").format(incoming)
        keys = [sql.Identifier(name) for name in definition.key]
        self.without_key = sql.SQL("SELECT count(*) FROM {} WHERE {}").format(
            incoming, sql.SQL(" OR ").join(sql.SQL("{} IS NULL").format(key) for key in keys)
        )
        self.merge = self._merge(definition, incoming, keys)

    def _merge(self, definition: Definition, incoming: sql.Identifier, keys: list[sql.Identifier]) -> sql.Composed:
        names = [sql.Identifier(name) for name in self._columns.names]
        others = [sql.Identifier(name) for name in self._columns.names if name not in definition.key]
        by_place = sql.SQL("{} DESC").format(sql.Identifier(POSITION))
        latest = sql.SQL("SELECT DISTINCT ON ({}) * FROM {} ORDER BY {}").format(
            _listed(keys), incoming, _listed([*keys, *map(_descending, self._orders), by_place])
        )
        updates = _listed(sql.SQL("{} = excluded.{}").format(other, other) for other in others)
        update = sql.SQL("UPDATE SET {}").format(updates) if others else sql.SQL("NOTHING")
        gone = kept = sql.Composed([])
        if self._deletes:
            same = sql.SQL(" AND ").join(sql.SQL("view.{} = latest.{}").format(key, key) for key in keys)
            gone = sql.SQL(", gone AS (DELETE FROM {} AS view USING latest WHERE latest.{} AND {})").format(
                definition.table, sql.Identifier(DELETED), same
            )
            kept = sql.SQL("WHERE {} IS NOT TRUE").format(sql.Identifier(DELETED))
        return sql.SQL(
            "WITH latest AS MATERIALIZED ({latest}){gone} "
            "INSERT INTO {table} ({names}) SELECT {names} FROM latest {kept} ON CONFLICT ({keys}) DO {update}"
        ).format(
            latest=latest,
            gone=gone,
            table=definition.table,
            names=_listed(names),
            kept=kept,
            keys=_listed(keys),
            update=update,
        )


def _order_column(field: Any) -> Column:
    """A column to sort by, by what it is in Arrow: the view's schema does not have it."""
    kind = field.type
    if pa.types.is_integer(kind):
        return Column(field.name, Primitive.BIGINT)
    if pa.types.is_floating(kind):
        return Column(field.name, Primitive.DOUBLE)
    if pa.types.is_timestamp(kind):
        return Column(field.name, Primitive.TIMESTAMP_NTZ)
    if pa.types.is_date(kind):
        return Column(field.name, Primitive.DATE)
    if pa.types.is_decimal(kind):
        return Column(field.name, Decimal(kind.precision, max(kind.scale, 0)))
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return Column(field.name, Primitive.STRING)
    if pa.types.is_boolean(kind):
        return Column(field.name, Primitive.BOOLEAN)
    raise InputError(f"rows cannot be put in order by {kind}", next_step="order by a number, a time or a text")


def _descending(column: Column) -> sql.Composed:
    """As Spark sorts: text by its bytes, null before everything."""
    collation = sql.SQL(' COLLATE "C"' if column.type is Primitive.STRING else "")
    return sql.SQL("{}{} DESC NULLS LAST").format(sql.Identifier(column.name), collation)


def _listed(parts: Iterable[sql.Composable]) -> sql.Composed:
    return sql.SQL(", ").join(parts)
