"""What cannot be captured is told with the statement to type."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from headrace.tables import EmbeddedPostgres
from tests.capture.capturing import Capturing, until

ORDERS = "CREATE TABLE orders (id int PRIMARY KEY, item text, price numeric(10,2))"


def test_a_table_that_does_not_exist(capturing: Capturing) -> None:
    capturing.table("orders")
    assert "orders does not exist in the database 'postgres'" in capturing.failure()


def test_a_table_without_a_primary_key(capturing: Capturing) -> None:
    capturing.sql("CREATE TABLE orders (id int)")
    capturing.table("orders")
    failure = capturing.failure()
    assert "has no primary key" in failure
    assert f'ALTER TABLE "{capturing.name}"."orders" ADD PRIMARY KEY' in failure


def test_a_table_without_a_primary_key_and_with_a_key(capturing: Capturing) -> None:
    capturing.sql("CREATE TABLE orders (id int, item text)")
    capturing.sql("ALTER TABLE orders REPLICA IDENTITY FULL")
    capturing.sql("INSERT INTO orders VALUES (1, 'a')")
    topic = capturing.table("orders", key=("id",))
    with capturing.running():
        capturing.await_snapshots()
        capturing.sql("DELETE FROM orders")
        capturing.await_events(topic, 2)
    assert capturing.folded(topic) == {}


def test_a_key_that_the_log_does_not_have(capturing: Capturing) -> None:
    capturing.sql(ORDERS)
    capturing.table("orders", key=("item",))
    assert f'ALTER TABLE "{capturing.name}"."orders" REPLICA IDENTITY FULL' in capturing.failure()


def test_a_view(capturing: Capturing) -> None:
    capturing.sql("CREATE VIEW orders AS SELECT 1 AS id")
    capturing.table("orders")
    assert "is a view, whose changes are not in PostgreSQL's log" in capturing.failure()


def test_columns_that_do_not_exist(capturing: Capturing) -> None:
    capturing.sql(ORDERS)
    capturing.table("orders", columns=("id", "itme"))
    assert "has no column 'itme'; its columns are: id, item, price" in capturing.failure()


def test_a_condition_that_the_log_cannot_decide(capturing: Capturing) -> None:
    capturing.sql(ORDERS)
    capturing.table("orders", where="price > 10")
    assert "REPLICA IDENTITY FULL" in capturing.failure()
    capturing.sql("INSERT INTO orders VALUES (1, 'a', 1)")
    capturing.sql("UPDATE orders SET price = 2")  # the publication was not left behind: nobody's updates are refused


def test_a_condition_that_is_not_sql(capturing: Capturing) -> None:
    capturing.sql(ORDERS)
    capturing.table("orders", where="id >")
    assert "correct where= of app.capture()" in capturing.failure()


def test_a_slot_that_was_dropped(capturing: Capturing) -> None:
    capturing.sql(ORDERS)
    capturing.sql("INSERT INTO orders VALUES (1, 'a', 1), (2, 'b', 2)")
    topic = capturing.table("orders")
    with capturing.running():
        capturing.await_snapshots()
    capturing.sql("SELECT pg_drop_replication_slot(%s)", capturing.name)
    capturing.sql("DELETE FROM orders WHERE id = 1")
    failure = capturing.failure()
    assert "was dropped: changes after" in failure
    assert "headrace capture FILE --snapshot again" in failure
    capturing.threads.failure = None
    capturing.remarks.clear()
    with capturing.running(capturing.with_(again=(f"{capturing.name}.orders",), request="once")):
        capturing.await_snapshots()
        assert list(capturing.folded(topic)) == ['{"id": 2}']
        before = capturing.read(topic)
        assert capturing.status.pid is not None
        os.kill(capturing.status.pid, signal.SIGKILL)
        capturing.sql("INSERT INTO orders VALUES (3, 'c', 3)")
        until(lambda: len(capturing.folded(topic)) == 2)
    assert len(capturing.read(topic)) == len(before) + 1  # the snapshot was taken once


def test_a_slot_that_another_process_reads(capturing: Capturing) -> None:
    capturing.sql(ORDERS)
    capturing.table("orders")
    with capturing.running():
        capturing.await_snapshots()
        second = Capturing(capturing.dsn, capturing.kafka, capturing.folder / "second")
        second.table("orders")
        second.sql(ORDERS)
        second.more = {"slot": capturing.name}
        try:
            # It fences the first, which then finds its slot taken; both wait for it.
            with second.running(patience=1.0):
                failure = str(until(lambda: second.threads.failure))
        finally:
            second.close()
    assert "was captured into these topics before" in failure or "is read by another process" in failure


def test_a_slot_of_another_database(capturing: Capturing) -> None:
    capturing.sql(ORDERS)
    capturing.table("orders")
    other = f"{capturing.name}_other"
    capturing.sql(f"CREATE DATABASE {other}")
    with psycopg.connect(capturing.dsn, dbname=other, autocommit=True) as connection:
        connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (capturing.name,))
        assert f"is one of the plugin pgoutput in the database '{other}'" in capturing.failure()
        connection.execute("SELECT pg_drop_replication_slot(%s)", (capturing.name,))
    capturing.sql(f"DROP DATABASE {other}")


def test_a_position_ahead_of_the_database(capturing: Capturing) -> None:
    """As after a restore to an older state: the ledger knows of a position that the log has not reached."""
    from headrace.capture.slots import writer_name
    from headrace.config.cluster import Cluster
    from headrace.delivery import LedgeredWriter

    capturing.sql(ORDERS)
    capturing.table("orders")
    with capturing.running():
        capturing.await_snapshots()
    task = capturing.task
    writer = LedgeredWriter(writer_name(task), task.config, Cluster(task.config))
    found = {}

    def agree(entry: object) -> object:
        found["entry"] = entry
        return entry

    entry = writer.ledger.last()
    assert entry is not None
    writer.open(entry.writer, agree, None)  # type: ignore[arg-type]
    with writer.transaction(entry.position | {"lsn": 1 << 60}):
        pass
    writer.close()
    failure = capturing.failure()
    assert "it was restored or failed over to an older state" in failure
    assert "--snapshot again" in failure
    capturing.threads.failure = None
    capturing.remarks.clear()
    with capturing.running(capturing.with_(again=(f"{capturing.name}.orders",), request="once")):
        capturing.await_snapshots()


def test_a_role_without_permissions(capturing: Capturing) -> None:
    capturing.sql(ORDERS)
    role = f"{capturing.name}_role"
    capturing.sql(f"CREATE ROLE {role} LOGIN PASSWORD 'secret'")
    try:
        capturing.sql(f"GRANT USAGE ON SCHEMA {capturing.name} TO {role}")
        capturing.table("orders")
        host = capturing.db.info
        capturing.more = {"address": f"postgresql://{role}:secret@{host.host}:{host.port}/postgres"}
        failure = capturing.failure()
        assert f'ALTER ROLE "{role}" REPLICATION' in failure
        assert "secret" not in failure
        capturing.sql(f"ALTER ROLE {role} REPLICATION")
        capturing.threads.failure = None
        failure = capturing.failure()
        assert "type, as the owner of the table or a superuser: CREATE PUBLICATION" in failure
    finally:
        capturing.sql(f"DROP OWNED BY {role}")
        capturing.sql(f"DROP ROLE {role}")


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EmbeddedPostgres]:
    """A server of its own, with few slots."""
    from headrace.tables import server as module

    settings = {**module.SETTINGS, "wal_level": "replica", "max_replication_slots": "2", "max_wal_senders": "1"}
    monkeypatch.setattr(module, "SETTINGS", settings)
    one = EmbeddedPostgres(tmp_path / "postgres")
    try:
        yield one
    finally:
        one.stop()


def test_servers_that_are_not_set_up_for_it(
    server: EmbeddedPostgres, broker_address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from headrace.tables import server as module

    capturing = Capturing(server.start(), broker_address, tmp_path)
    capturing.sql(ORDERS)
    capturing.table("orders")
    assert "type: ALTER SYSTEM SET wal_level = 'logical'; then restart the server" in capturing.failure()
    capturing.db.close()
    server.stop()
    monkeypatch.setitem(module.SETTINGS, "wal_level", "logical")
    server.start()
    capturing.reconnect()
    capturing.threads.failure = None
    for other in ("first", "second"):
        capturing.sql("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", other)
    failure = capturing.failure()
    assert "all replication slots of the database are in use" in failure
    assert "ALTER SYSTEM SET max_replication_slots = 20" in failure
    capturing.sql("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")
    capturing.threads.failure = None
    other_one = Capturing(capturing.dsn, broker_address, tmp_path / "other")
    other_one.sql(ORDERS)
    other_one.table("orders")
    with capturing.running():
        capturing.await_snapshots()
        failure = other_one.failure()
    assert "all replication connections of the database are in use" in failure
    assert "ALTER SYSTEM SET max_wal_senders = 20" in failure
    other_one.db.close()
    capturing.db.close()
