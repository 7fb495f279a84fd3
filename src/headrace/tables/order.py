"""The order of a view's rows, held across batches: an older row never replaces a newer one, nor a newer delete.

A row that is in the view carries its order values itself. Those of a delete are kept in a table of the schema
`headrace`, one marker for each key, so that an older row that arrives later does not bring the key back.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

import psycopg
from psycopg import sql
from psycopg.rows import TupleRow

from headrace.tables.definition import Definition
from headrace.tables.statements import column, every, listed, names, same
from headrace.tables.types import postgres_type
from headrace.topology.datatypes import Column, Primitive

__all__ = ["Order", "drop_markers"]

Cursor = psycopg.Cursor[TupleRow]


@dataclass(frozen=True, slots=True)
class Order:
    """A view with `order_by`, and the table of its delete markers. A key is in the view or there, never in both."""

    definition: Definition

    def ensure(self, cursor: Cursor) -> None:
        """Create the table of markers. One made for another key or order cannot be compared: it is replaced."""
        keys, columns = self.definition.key_columns, self.definition.order_columns
        about = f"delete markers of view {self.definition.name}, key ({_typed(keys)}), order ({_typed(columns)})"
        found = cursor.execute(
            "SELECT obj_description(to_regclass(%s), 'pg_class')", (self._markers.as_string(cursor),)
        ).fetchone()
        if found == (about,):
            return
        drop_markers(cursor, self.definition)
        defined = [
            *(_defined(name, one, " NOT NULL") for name, one in zip(self._keys, keys, strict=True)),
            *(_defined(name, one) for name, one in zip(self._orders, columns, strict=True)),
        ]
        cursor.execute(
            sql.SQL("CREATE TABLE {} ({}, PRIMARY KEY ({}))").format(self._markers, listed(defined), names(self._keys))
        )
        cursor.execute(sql.SQL("COMMENT ON TABLE {} IS {}").format(self._markers, sql.Literal(about)))
        if columns[0].type is Primitive.TIMESTAMP:
            cursor.execute(sql.SQL("CREATE INDEX ON {} ({})").format(self._markers, names(self._orders[:1])))

    def forget(self, cursor: Cursor, before: datetime) -> None:
        """Remove the markers of deletes whose first order value is a time before that."""
        cursor.execute(
            sql.SQL("DELETE FROM {} WHERE {} < %s").format(self._markers, names(self._orders[:1])), (before,)
        )

    def descending(self) -> list[sql.Composed]:
        """To sort by, the newest first. As Spark sorts: text by its bytes, null before everything."""
        return [
            sql.SQL("{} DESC NULLS LAST").format(_comparable(sql.Identifier(one.name), one))
            for one in self.definition.order_columns
        ]

    def is_unknown(self) -> sql.Composed:
        """Whether a row has no order value at all."""
        return every(sql.SQL("{} IS NULL").format(sql.Identifier(name)) for name in self.definition.order_by)

    def upsert(self, latest: sql.Composed, update: sql.Composed, deleted: str | None) -> sql.Composed:
        """The newest row of each key in a batch into the view, where the view and the markers have no newer one."""
        known = self.definition
        view_newer, marker_newer = self._view_newer("latest"), self._marker_newer("latest")
        at_marker = same("marker", self._keys, "latest", known.key)
        stays, deletes = sql.SQL("true").format(), sql.SQL("").format()
        if deleted is not None:
            stays = sql.SQL("{} IS NOT TRUE").format(column("latest", deleted))
            deletes = sql.SQL(
                """
                dead AS MATERIALIZED (
                    SELECT {marker} FROM latest
                    LEFT JOIN {view} AS view ON {at_view} LEFT JOIN {markers} AS marker ON {at_marker}
                    WHERE {deleted} AND NOT {view_newer} AND NOT {marker_newer}
                ),
                gone AS (DELETE FROM {view} AS view USING dead WHERE {at_dead}),
                marked AS ({mark} SELECT * FROM dead {remark}),
                """
            ).format(
                # Under names of their own: a column may be both in the key and in the order.
                marker=listed(
                    sql.SQL("{} AS {}").format(column("latest", name), sql.Identifier(alias))
                    for name, alias in zip((*known.key, *known.order_by), (*self._keys, *self._orders), strict=True)
                ),
                view=known.table,
                at_view=same("view", known.key, "latest", known.key),
                markers=self._markers,
                at_marker=at_marker,
                deleted=column("latest", deleted),
                view_newer=view_newer,
                marker_newer=marker_newer,
                at_dead=same("view", known.key, "dead", self._keys),
                mark=self._mark,
                remark=self._remark,
            )
        return sql.SQL(
            """
            WITH latest AS MATERIALIZED ({latest}), {deletes}
            revived AS (
                DELETE FROM {markers} AS marker USING latest WHERE {at_marker} AND {stays} AND NOT {marker_newer}
            )
            INSERT INTO {view} AS view ({columns}) SELECT {columns} FROM latest
            WHERE {stays} AND NOT EXISTS (SELECT FROM {markers} AS marker WHERE {at_marker} AND {marker_newer})
            ON CONFLICT ({keys}) DO {update}
            """
        ).format(
            latest=latest,
            deletes=deletes,
            markers=self._markers,
            at_marker=at_marker,
            stays=stays,
            marker_newer=marker_newer,
            view=known.table,
            columns=names(known.columns.names),
            keys=names(known.key),
            update=update,
        )

    def not_newer(self) -> sql.Composed:
        """The condition of an update: the row that is there is not newer than the one that arrives."""
        return sql.SQL(" WHERE NOT {}").format(self._view_newer("excluded"))

    def delete_unordered(self, incoming: sql.Identifier, deleted: str, position: str) -> sql.Composed:
        """Deletes without an order value, after the rest of the batch is in the view.

        Each has the order of the row that it finds: that is what is deleted, unless the batch has a row of the key
        that came later and is not older.
        """
        known = self.definition
        return sql.SQL(
            """
            WITH last AS MATERIALIZED (
                SELECT {keys}, max({position}) AS {position} FROM {incoming}
                WHERE {deleted} AND {unknown} GROUP BY {keys}
            ),
            gone AS (
                DELETE FROM {view} AS view USING last WHERE {at_view} AND NOT EXISTS (
                    SELECT FROM {incoming} AS later
                    WHERE {at_later} AND later.{position} > last.{position} AND NOT {newer}
                ) RETURNING {found}
            )
            {mark} SELECT * FROM gone {remark}
            """
        ).format(
            keys=names(known.key),
            position=sql.Identifier(position),
            incoming=incoming,
            deleted=sql.Identifier(deleted),
            unknown=self.is_unknown(),
            view=known.table,
            at_view=same("view", known.key, "last", known.key),
            at_later=same("later", known.key, "last", known.key),
            newer=self._view_newer("later"),
            found=listed(column("view", name) for name in (*known.key, *known.order_by)),
            mark=self._mark,
            remark=self._remark,
        )

    @property
    def _markers(self) -> sql.Identifier:
        return _markers_of(self.definition)

    @property
    def _keys(self) -> list[str]:
        """The key's columns in the table of markers."""
        return [f"key_{index}" for index in range(len(self.definition.key))]

    @property
    def _orders(self) -> list[str]:
        """The columns of `order_by` in the table of markers."""
        return [f"order_{index}" for index in range(len(self.definition.order_by))]

    @property
    def _mark(self) -> sql.Composed:
        return sql.SQL("INSERT INTO {} ({})").format(self._markers, names([*self._keys, *self._orders]))

    @property
    def _remark(self) -> sql.Composed:
        updates = (sql.SQL("{0} = excluded.{0}").format(sql.Identifier(name)) for name in self._orders)
        return sql.SQL("ON CONFLICT ({}) DO UPDATE SET {}").format(names(self._keys), listed(updates))

    def _view_newer(self, other: str) -> sql.Composed:
        return self._newer([column("view", name) for name in self.definition.order_by], other)

    def _marker_newer(self, other: str) -> sql.Composed:
        return self._newer([column("marker", name) for name in self._orders], other)

    def _newer(self, there: Sequence[sql.Identifier], other: str) -> sql.Composed:
        """By the first column that differs; null is the least, and where no row is there all are null."""
        newer = sql.SQL("false").format()
        for value, one in reversed(list(zip(there, self.definition.order_columns, strict=True))):
            left, right = _comparable(value, one), _comparable(column(other, one.name), one)
            newer = sql.SQL(
                "(coalesce({0} > {1}, {0} IS NOT NULL AND {1} IS NULL) OR {0} IS NOT DISTINCT FROM {1} AND {2})"
            ).format(left, right, newer)
        return newer


def drop_markers(cursor: Cursor, definition: Definition) -> None:
    cursor.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(_markers_of(definition)))


def _markers_of(definition: Definition) -> sql.Identifier:
    # The names of an app and a view may together be longer than a table's may be.
    name = hashlib.sha256(definition.name.encode()).hexdigest()[:24]
    return sql.Identifier("headrace", f"deletes_{name}")


def _defined(name: str, one: Column, suffix: str = "") -> sql.Composed:
    return sql.SQL("{} {}{}").format(sql.Identifier(name), sql.SQL(postgres_type(one.type)), sql.SQL(suffix))


def _typed(columns: Iterable[Column]) -> str:
    return ", ".join(f"{one.name} {postgres_type(one.type)}" for one in columns)


def _comparable(value: sql.Identifier, one: Column) -> sql.Composed:
    return sql.SQL('{} COLLATE "C"' if one.type is Primitive.STRING else "{}").format(value)
