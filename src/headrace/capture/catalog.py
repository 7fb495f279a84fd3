"""What PostgreSQL's catalog says of tables and types."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.capture.values import SESSION, Kind, Kinds, TypeFacts
from headrace.errors import CaptureError
from headrace.tables.connection import Connection, connect
from headrace.topology import Schema
from headrace.topology.captures import Mask, TableName
from headrace.topology.datatypes import Column, Primitive

__all__ = ["Catalog", "CatalogColumn", "CatalogTable", "open_catalog", "table_schema"]

GENERATED_SINCE = 18
"""The version of PostgreSQL from which generated columns are part of the stream."""

TABLE = """
SELECT c.oid, c.relkind, c.relreplident, c.relpersistence,
  (SELECT array_agg(a.attname ORDER BY k.place) FROM pg_index i, unnest(i.indkey) WITH ORDINALITY AS k(number, place)
     JOIN pg_attribute a ON a.attnum = k.number WHERE i.indrelid = c.oid AND i.indisprimary AND a.attrelid = c.oid),
  (SELECT array_agg(a.attname) FROM pg_index i JOIN pg_attribute a ON a.attnum = ANY(i.indkey)
     WHERE i.indrelid = c.oid AND i.indisreplident AND a.attrelid = c.oid)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relname = %s
"""
COLUMNS = """
SELECT attname, atttypid, atttypmod, attnotnull, attgenerated, format_type(atttypid, atttypmod) FROM pg_attribute
WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""
TYPE = """
SELECT t.typname, t.typtype, CASE WHEN t.typcategory = 'A' AND t.typelem <> 0 THEN t.typelem ELSE 0 END,
  coalesce(e.typdelim, ','), t.typbasetype, t.typtypmod,
  (SELECT array_agg(ARRAY[a.attname::text, a.atttypid::text, a.atttypmod::text] ORDER BY a.attnum)
     FROM pg_attribute a WHERE a.attrelid = t.typrelid AND t.typtype = 'c' AND a.attnum > 0 AND NOT a.attisdropped)
FROM pg_type t LEFT JOIN pg_type e ON e.oid = t.typelem WHERE t.oid = %s
"""
KINDS_OF_TABLES = ("r", "p")


@dataclass(frozen=True, slots=True)
class CatalogColumn:
    name: str
    type: int
    modifier: int
    is_not_null: bool
    sql_type: str


@dataclass(frozen=True, slots=True)
class CatalogTable:
    """A table, now."""

    id: int
    name: TableName
    columns: tuple[CatalogColumn, ...]
    """Those that the stream has too."""
    primary_key: tuple[str, ...]
    identity: frozenset[str] | None
    """The columns that the log has of an old row; None where it has all (REPLICA IDENTITY FULL)."""

    def identifies(self, names: Sequence[str]) -> bool:
        """Whether the log has these columns of an old row."""
        return self.identity is None or self.identity >= set(names)


def open_catalog(address: str) -> "Catalog":
    return Catalog(connect(address))


class Catalog:
    """The catalog behind a connection, which prints values as the stream does."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        for name, value in SESSION.items():
            connection.execute("SELECT set_config(%s, %s, false)", (name, value))
        self.version = connection.info.server_version // 10000
        self.kinds = Kinds(self._type)

    def table(self, name: TableName) -> CatalogTable:
        found = self.connection.execute(TABLE, (name.schema, name.name)).fetchone()
        if found is None:
            raise CaptureError(
                f"the table {name} does not exist in the database {self.connection.info.dbname!r}",
                next_step="check its schema and its name in app.capture()",
            )
        id_, kind, identity, persistence, primary, index = found
        if kind not in KINDS_OF_TABLES or persistence != "p":
            what = {"v": "a view", "m": "a materialized view", "f": "a foreign table"}.get(
                kind, "not a permanent table"
            )
            raise CaptureError(
                f"{name} is {what}, whose changes are not in PostgreSQL's log",
                next_step="capture the tables that it is made of",
            )
        columns = [
            CatalogColumn(column, type_, modifier, is_not_null, sql)
            for column, type_, modifier, is_not_null, generated, sql in self.connection.execute(COLUMNS, (id_,))
            if not generated or (generated == "s" and self.version >= GENERATED_SINCE)
        ]
        kept = {"d": primary or (), "i": index or (), "n": ()}
        identifying = None if identity == "f" else frozenset(kept[identity])
        return CatalogTable(id_, name, tuple(columns), tuple(primary or ()), identifying)

    def key_of(self, table: CatalogTable, given: Sequence[str] = ()) -> tuple[str, ...]:
        """The key of a table's records: what was given, or its primary key. The log must have it of every old row."""
        key = tuple(given) or table.primary_key
        if not key:
            raise CaptureError(
                f"the table {table.name} has no primary key, so its changes cannot be assigned to rows",
                next_step=f"type: ALTER TABLE {table.name.quoted} ADD PRIMARY KEY (...); or pass key= to app.capture() "
                f"and type: ALTER TABLE {table.name.quoted} REPLICA IDENTITY FULL",
            )
        missing = [name for name in key if name not in {column.name for column in table.columns}]
        if missing:
            raise CaptureError(f"the table {table.name} has no column {missing[0]!r}, which is named in its key")
        if not table.identifies(key):
            raise CaptureError(
                f"the log does not have the key ({', '.join(key)}) of updated and deleted rows of {table.name}",
                next_step=f"type: ALTER TABLE {table.name.quoted} REPLICA IDENTITY "
                f"{'DEFAULT' if key == table.primary_key else 'FULL'}",
            )
        return key

    def _type(self, type_: int) -> TypeFacts:
        found = self.connection.execute(TYPE, (type_,)).fetchone()
        if found is None:
            return TypeFacts("unknown", "b")  # it was dropped since: its values are taken as text
        name, kind, element, delimiter, base, modifier, fields = found
        return TypeFacts(
            name, kind, element, delimiter, base, modifier,
            tuple((field, int(its), int(more)) for field, its, more in fields or ()),
        )  # fmt: skip


def kept_columns(names: Sequence[str], key: Sequence[str], columns: Sequence[str]) -> list[str]:
    """The columns that enter the log: the key and those that were chosen, all if none were; in the table's order."""
    return [name for name in names if not columns or name in columns or name in key]


def table_schema(
    address: str, table: TableName, columns: tuple[str, ...] = (), masks: Mapping[str, Mask] = {}
) -> tuple[Schema, tuple[str, ...]]:
    """The columns of a table as its topic has them, with Spark's types, and its primary key."""
    catalog = open_catalog(address)
    with catalog.connection:
        found = catalog.table(table)
        check_columns(found, columns, masks)
        key = found.primary_key
        names = kept_columns([column.name for column in found.columns], key, columns)
        return Schema(
            tuple(
                _column(column, catalog.kinds.of(column.type, column.modifier), masks.get(column.name))
                for column in found.columns
                if column.name in names
            )
        ), key


def check_columns(table: CatalogTable, *named: Sequence[str] | Mapping[str, object]) -> None:
    """Refuse columns that the table does not have."""
    names = [column.name for column in table.columns]
    for name in (name for group in named for name in group):
        if name not in names:
            raise CaptureError(
                f"the table {table.name} has no column {name!r}", next_step=f"its columns are: {', '.join(names)}"
            )


def _column(column: CatalogColumn, kind: Kind, mask: Mask | None) -> Column:
    match mask:
        case Mask.HASH:
            return Column(column.name, Primitive.STRING)
        case _:
            return Column(column.name, kind.spark)
