"""A kind of sink that Headrace does not have: a SQLite table, exactly once by its own ledger of batches."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa

from headrace.engine import register_sink
from headrace.engine.write.row_sink import RowSinkAdapter, SinkContext
from headrace.topology import Sink


@dataclass(frozen=True)
class SqliteTable(Sink):
    kind = "sqlite"

    file: str

    @property
    def described(self) -> str:
        return f"SQLite {self.file}"


class SqliteStore:
    def __init__(self, file: str, table: str, columns: list[str], key: tuple[str, ...]) -> None:
        self._file, self._table, self._columns, self._key = file, table, columns, key

    def prepare(self) -> None:
        with self._database() as database:
            database.execute("CREATE TABLE IF NOT EXISTS batches (name PRIMARY KEY, query, batch)")
            key = f", PRIMARY KEY ({', '.join(self._key)})" if self._key else ""
            database.execute(f"CREATE TABLE IF NOT EXISTS {self._table} ({', '.join(self._columns)}{key})")

    def reset(self) -> None:
        with self._database() as database:
            database.execute(f"DROP TABLE IF EXISTS {self._table}")

    def last_entry(self) -> tuple[str, int] | None:
        with self._database() as database:
            return database.execute("SELECT query, batch FROM batches WHERE name = ?", (self._table,)).fetchone()

    def claim(self, query_id: str, batch: int) -> None:
        self.write(query_id, batch, {}, [])

    def write(
        self, query_id: str, batch: int, offsets: Mapping[str, Any], rows: Iterable[pa.RecordBatch],
        *, claimed: bool = False, forget_before: datetime | None = None,
    ) -> None:  # fmt: skip
        places = ", ".join("?" * len(self._columns))
        with self._database() as database:
            database.execute("INSERT OR REPLACE INTO batches VALUES (?, ?, ?)", (self._table, query_id, batch))
            for part in rows:
                values = zip(*(part.column(name).to_pylist() for name in self._columns), strict=True)
                database.executemany(f"INSERT OR REPLACE INTO {self._table} VALUES ({places})", values)

    def close(self) -> None: ...

    def _database(self) -> sqlite3.Connection:
        return sqlite3.connect(self._file)


class SqliteAdapter(RowSinkAdapter):
    ledger_name = "sqlite"

    def store(self, context: SinkContext) -> SqliteStore:
        node: Any = context.planned.node
        return SqliteStore(node.sink.file, node.name, context.planned.output_schema.names, node.key)


register_sink(SqliteTable, SqliteAdapter())
