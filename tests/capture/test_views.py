"""A captured table of which the app says only the address and the name, and a view of it: the view is what SQL says."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

import headrace as hr
from headrace.capture import drop_capture, tasks_of
from headrace.config.cluster import Cluster
from headrace.config.run import RunConfig
from headrace.services import Addresses, launch, processes_of
from headrace.threads import Threads
from tests.capture.capturing import until

if TYPE_CHECKING:
    from headrace.testing import Environment

LIMIT = 40.0
OPEN = "SELECT id, total, sent FROM {}.orders WHERE status <> 'shipped' ORDER BY id"
VIEWED = "SELECT id, total, sent FROM {}.open_orders ORDER BY id"

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def name(postgres_dsn: str) -> Iterator[str]:
    """Of an app, and of the schema of its table."""
    chosen = f"shop_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(postgres_dsn, autocommit=True) as database:
        database.execute(f"CREATE SCHEMA {chosen}")
        yield chosen
        database.execute(f"DROP SCHEMA {chosen} CASCADE")


def test_a_view_of_a_captured_table_without_a_schema_is_what_sql_says(
    headrace_environment: Environment, postgres_dsn: str, broker_address: str, name: str, tmp_path: Path
) -> None:
    app = hr.App(name)
    app.capture(postgres_dsn, f"{name}.orders", columns=["status", "total", "sent"])

    @app.view(key="id")
    def open_orders(orders: Any) -> Any:
        return orders.where("status <> 'shipped'").select("id", "total", "sent")

    config = RunConfig(home=tmp_path, kafka=broker_address, postgres=postgres_dsn)
    threads = Threads()
    processes = processes_of(config, threads)
    spark = headrace_environment.spark.newSession()
    launched = launch(app, config, lambda _: Addresses(None, None), spark=spark, threads=threads, processes=processes)
    with psycopg.connect(postgres_dsn, autocommit=True) as database:

        def rows(query: str) -> list[Any]:
            return database.execute(query.format(name)).fetchall()  # type: ignore[arg-type]

        def view_is_sql() -> bool:
            assert threads.failure is None
            return rows(VIEWED) == rows(OPEN)

        table = "id bigint PRIMARY KEY, status text, total numeric(12,2), email text, sent timestamptz"
        database.execute(f"CREATE TABLE {name}.orders ({table})")
        new = "i, 'new', i + 0.25, 'mail', now()"
        insert = f"INSERT INTO {name}.orders SELECT {new} FROM generate_series(%s::int, %s) AS i"
        database.execute(insert, (1, 300))
        try:
            with launched as runner:
                assert runner.output_schemas()["open_orders"].ddl.startswith("id BIGINT, total DECIMAL(12,2), sent TIM")
                until(view_is_sql, LIMIT)
                assert len(rows(VIEWED)) == 300
                with database.transaction():
                    database.execute(insert, (301, 400))
                    database.execute(f"UPDATE {name}.orders SET status = 'shipped' WHERE id % 3 = 0")
                    database.execute(f"UPDATE {name}.orders SET total = total * 2 WHERE id % 5 = 0")
                    database.execute(f"UPDATE {name}.orders SET id = id + 1000 WHERE id % 7 = 0")
                    database.execute(f"DELETE FROM {name}.orders WHERE id % 11 = 0")
                database.execute(f"UPDATE {name}.orders SET status = 'new', sent = NULL WHERE id % 6 = 0")
                with database.transaction(force_rollback=True):
                    database.execute(f"DELETE FROM {name}.orders")
                until(view_is_sql, LIMIT)
                assert 200 < len(rows(VIEWED)) < 400
        finally:
            for task in tasks_of(app.topology(), config):
                drop_capture(task, Cluster(config))
