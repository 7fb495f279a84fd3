"""A batch on its way into a view: copied into a temporary table, then merged into the view by key."""

import hashlib
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql
from psycopg.rows import TupleRow

from headrace.errors import InputError
from headrace.tables.definition import Definition
from headrace.tables.encoding import csv_lines, encoded
from headrace.tables.order import Order
from headrace.tables.statements import column, listed, names, same
from headrace.tables.types import POSITION, postgres_type
from headrace.topology.names import DELETED, STAYS

__all__ = ["Incoming"]

Cursor = psycopg.Cursor[TupleRow]


class Incoming:
    """The temporary table that holds a batch, and the statements that move it into the view."""

    def __init__(self, definition: Definition, arrived: Any) -> None:
        self._definition = definition
        self._columns = definition.columns
        missing = [name for name in self._columns.names if name not in arrived.names]
        if missing:
            raise InputError(f"the rows lack {', '.join(missing)}")
        self._flags = [name for name in (DELETED, STAYS) if name in arrived.names]
        self._deleted = DELETED if DELETED in self._flags else None
        self._order = Order(definition) if definition.order_by else None
        self._has_unordered = False
        typed = [(one.name, postgres_type(one.type)) for one in self._columns]
        typed += [(name, "boolean") for name in self._flags] + [(POSITION, "bigint")]
        self._typed = typed
        # A view has one table for each shape of its rows, so that a session can keep it from batch to batch.
        name = hashlib.sha256(repr((definition.name, typed)).encode()).hexdigest()[:24]
        self._table = sql.Identifier("pg_temp", f"incoming_{name}")

    def create(self, cursor: Cursor) -> None:
        defined = [sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(type_)) for name, type_ in self._typed]
        cursor.execute(
            sql.SQL("CREATE TEMPORARY TABLE IF NOT EXISTS {} ({}) ON COMMIT DELETE ROWS").format(
                self._table, listed(defined)
            )
        )

    def copy(self, cursor: Cursor, batch: Any, position: int) -> None:
        """Add rows, the first of which is at that position in the batch."""
        columns = [encoded(batch.column(one.name), one) for one in self._columns]
        columns += [batch.column(name) for name in self._flags]
        columns.append(pa.array(range(position, position + batch.num_rows), pa.int64()))
        self._has_unordered |= self._unordered(batch)
        with cursor.copy(sql.SQL("COPY {} FROM STDIN (FORMAT csv)").format(self._table)) as copy:
            copy.write(csv_lines(columns))

    def count_without_key(self, cursor: Cursor) -> int:
        is_null = (sql.SQL("{} IS NULL").format(sql.Identifier(name)) for name in self._definition.key)
        row = cursor.execute(
            sql.SQL("SELECT count(*) FROM {} WHERE {}").format(self._table, sql.SQL(" OR ").join(is_null))
        ).fetchone()
        return 0 if row is None else int(row[0])

    def merge(self, cursor: Cursor) -> None:
        """The newest row of each key into the view."""
        order, update = self._order, self._update()
        if order is None:
            cursor.execute(self._upsert(update))
            return
        cursor.execute(order.upsert(self._latest(), update, self._deleted))
        if self._deleted is not None and self._has_unordered:
            cursor.execute(order.delete_unordered(self._table, self._deleted, POSITION))

    def _unordered(self, batch: Any) -> bool:
        """Whether there are deletes without an order value, such as the tombstones of a table's changelog."""
        if self._order is None or self._deleted is None:
            return False
        found = pc.fill_null(batch.column(DELETED), False)
        for name in self._definition.order_by:
            found = pc.and_(found, batch.column(name).is_null())
        return bool(pc.any(found).as_py())

    def _latest(self) -> sql.Composed:
        """The row of each key that wins in the batch: by the view's order, and of equals the one that came last."""
        keys = [sql.Identifier(name) for name in self._definition.key]
        order, which = [], sql.SQL("").format()
        if self._order is not None:
            order = self._order.descending()
            if self._deleted is not None and self._has_unordered:
                unordered = sql.SQL("{} AND {}").format(sql.Identifier(self._deleted), self._order.is_unknown())
                which = sql.SQL("WHERE ({}) IS NOT TRUE").format(unordered)
        last = [name for name in (STAYS, POSITION) if name == POSITION or name in self._flags]
        order += [sql.SQL("{} DESC NULLS LAST").format(sql.Identifier(name)) for name in last]
        return sql.SQL("SELECT DISTINCT ON ({}) * FROM {} {} ORDER BY {}").format(
            listed(keys), self._table, which, listed([*keys, *order])
        )

    def _update(self) -> sql.Composed:
        """What becomes of a row that is there."""
        others = [sql.Identifier(name) for name in self._columns.names if name not in self._definition.key]
        if not others:
            return sql.SQL("NOTHING").format()
        updates = listed(sql.SQL("{0} = excluded.{0}").format(other) for other in others)
        where = sql.SQL("").format() if self._order is None else self._order.not_newer()
        return sql.SQL("UPDATE SET {}{}").format(updates, where)

    def _upsert(self, update: sql.Composed) -> sql.Composed:
        known = self._definition
        gone = kept = sql.SQL("").format()
        if self._deleted is not None:
            gone = sql.SQL(", gone AS (DELETE FROM {} AS view USING latest WHERE {} AND {})").format(
                known.table, column("latest", self._deleted), same("view", known.key, "latest", known.key)
            )
            kept = sql.SQL("WHERE {} IS NOT TRUE").format(sql.Identifier(self._deleted))
        return sql.SQL(
            "WITH latest AS MATERIALIZED ({latest}){gone} "
            "INSERT INTO {table} ({columns}) SELECT {columns} FROM latest {kept} ON CONFLICT ({keys}) DO {update}"
        ).format(
            latest=self._latest(),
            gone=gone,
            table=known.table,
            columns=names(known.columns.names),
            kept=kept,
            keys=names(known.key),
            update=update,
        )
