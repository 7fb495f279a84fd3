"""Snapshots beside locks, rewrites and new slots, topics that are older than their capture, and crashes on the way."""

from __future__ import annotations

import json

import psycopg
import pytest

from headrace.capture.slots import drop_capture
from headrace.config.cluster import Cluster
from tests.capture.capturing import Capturing, until

ORDERS = "CREATE TABLE orders (id int PRIMARY KEY, item text)"
CRASHING = "tests.capture.crashing:main"
WAITING = """
SELECT 1 FROM pg_stat_activity a JOIN pg_locks l ON l.pid = a.pid
WHERE a.application_name = 'headrace capture' AND NOT l.granted AND l.relation = %s::regclass
"""


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.supervised.FIRST_PAUSE", 0.01)
    monkeypatch.setattr("headrace.supervised.LONGEST_PAUSE", 0.2)


def plan(capturing: Capturing, *points: str) -> None:
    """Where the process of the capture kills itself."""
    capturing.main = CRASHING
    (capturing.folder / "crashes.json").write_text(json.dumps(points))


def test_a_table_that_is_rewritten_while_a_chunk_begins(capturing: Capturing) -> None:
    capturing.sql(ORDERS)
    capturing.sql("INSERT INTO orders SELECT i, 'x' FROM generate_series(1, 4000) i")
    topic = capturing.table("orders")
    plan(capturing)
    with psycopg.connect(capturing.dsn) as rewriting, capturing.running():
        until(lambda: capturing.events(topic))
        rewriting.execute(f"ALTER TABLE {capturing.name}.orders ALTER id TYPE bigint")
        assert not any("is complete" in remark for remark in capturing.remarks)
        until(lambda: capturing.sql(WAITING, f"{capturing.name}.orders"))
        rewriting.commit()
        capturing.await_snapshots()
    assert len(capturing.folded(topic)) == 4000


def test_a_limit_that_is_reached_during_a_snapshot(capturing: Capturing) -> None:
    capturing.sql(ORDERS)
    capturing.sql("CREATE TABLE first (id int PRIMARY KEY)")
    capturing.sql("INSERT INTO first SELECT generate_series(1, 4000)")
    capturing.sql("CREATE TABLE busy (n int)")
    first = capturing.table("first")
    topic = capturing.table("orders")
    plan(capturing)
    capturing.more = {"lag_limit": 500_000, "on_lag_limit": "snapshot"}
    with psycopg.connect(capturing.dsn) as locking, capturing.running():
        until(lambda: capturing.events(first))
        locking.execute(f"LOCK TABLE {capturing.name}.first")
        until(lambda: capturing.sql(WAITING, f"{capturing.name}.first"))
        capturing.sql("INSERT INTO orders VALUES (1, 'a')")
        capturing.await_events(topic, 1)
        capturing.sql("INSERT INTO busy SELECT generate_series(1, 20000)")
        until(lambda: any("dropping the slot" in remark for remark in capturing.remarks))
        locking.commit()
        capturing.await_snapshots()
    assert list(capturing.folded(topic)) == ['{"id": 1}']


def test_a_transaction_is_resumed_after_one_of_its_tables_left_the_app(capturing: Capturing) -> None:
    capturing.sql(ORDERS)
    capturing.sql("CREATE TABLE items (id int PRIMARY KEY)")
    topic = capturing.table("orders")
    capturing.table("items")
    plan(capturing)
    with capturing.running(attempts=1):
        capturing.await_snapshots()
        plan(capturing, "after the transaction")
        with capturing.db.transaction():
            for number in range(200):
                capturing.sql(f"INSERT INTO orders VALUES ({number}, 'a')")
                capturing.sql(f"INSERT INTO items VALUES ({number})")
        until(lambda: capturing.threads.failure)
    capturing.threads.failure = None
    del capturing.tables["items"]
    with capturing.running():
        events = capturing.await_events(topic, 200)
    assert {one["after"]["id"] for one in events} == set(range(200))


def test_rows_that_were_deleted_while_nothing_captured_them(capturing: Capturing) -> None:
    capturing.sql(ORDERS)
    capturing.sql("INSERT INTO orders VALUES (1, 'a'), (2, 'b')")
    topic = capturing.table("orders")
    with capturing.running():
        capturing.await_snapshots()
    drop_capture(capturing.task, Cluster(capturing.task.config))
    capturing.sql("DELETE FROM orders WHERE id = 1")
    capturing.remarks.clear()
    with capturing.running():
        capturing.await_snapshots()
    assert list(capturing.folded(topic)) == ['{"id": 2}']


def test_a_crash_before_the_new_slot_is_in_the_ledger(capturing: Capturing) -> None:
    capturing.sql(ORDERS)
    capturing.sql("CREATE TABLE items (id int PRIMARY KEY)")
    capturing.sql("INSERT INTO orders VALUES (1, 'a'), (2, 'b')")
    capturing.sql("INSERT INTO items VALUES (1), (2)")
    topics = capturing.table("orders"), capturing.table("items")
    plan(capturing)
    with capturing.running():
        capturing.await_snapshots()
    capturing.sql("SELECT pg_drop_replication_slot(%s)", capturing.name)
    capturing.sql("DELETE FROM orders WHERE id = 1")
    capturing.sql("DELETE FROM items WHERE id = 1")
    capturing.remarks.clear()
    plan(capturing, "slot dropped", "slot created", "beginning again", "opened")
    with capturing.running(capturing.with_(again=(f"{capturing.name}.orders",), request="once")):
        capturing.await_snapshots()  # of both: the changes of both are lost
    assert json.loads((capturing.folder / "crashes.json").read_text()) == []
    assert [list(capturing.folded(topic)) for topic in topics] == [['{"id": 2}'], ['{"id": 2}']]


def test_rows_that_change_during_a_snapshot_keep_their_large_values(capturing: Capturing) -> None:
    capturing.sql("CREATE TABLE orders (id int PRIMARY KEY, n int, body text)")
    capturing.sql("ALTER TABLE orders ALTER body SET STORAGE EXTERNAL")
    capturing.sql("INSERT INTO orders SELECT i, 0, repeat('x', 5000) FROM generate_series(1, 1200) i")
    topic = capturing.table("orders")
    plan(capturing)
    with capturing.running():
        until(lambda: capturing.folded(topic))
        capturing.sql("UPDATE orders SET n = 1 WHERE id > 1100")
        assert not any("is complete" in remark for remark in capturing.remarks)
        capturing.await_snapshots()
        until(lambda: sum(row["n"] for row in capturing.folded(topic).values()) == 100)
    assert {len(row["body"]) for row in capturing.folded(topic).values()} == {5000}


def test_policies_that_hide_rows(capturing: Capturing) -> None:
    capturing.sql(ORDERS)
    role = f"{capturing.name}_role"
    capturing.sql(f"CREATE ROLE {role} LOGIN PASSWORD 'secret' REPLICATION")
    try:
        capturing.sql(f"GRANT USAGE ON SCHEMA {capturing.name} TO {role}")
        capturing.sql(f"GRANT SELECT ON orders TO {role}")
        capturing.sql("ALTER TABLE orders ENABLE ROW LEVEL SECURITY")
        capturing.sql(f"CREATE PUBLICATION {capturing.name} FOR TABLE orders")
        capturing.table("orders")
        server = capturing.db.info
        capturing.more = {"address": f"postgresql://{role}:secret@{server.host}:{server.port}/postgres"}
        assert "ALTER ROLE ... BYPASSRLS" in capturing.failure()
    finally:
        capturing.sql(f"DROP OWNED BY {role}")
        capturing.sql(f"DROP ROLE {role}")


def test_a_transaction_that_is_older_than_the_capture_of_its_table(capturing: Capturing) -> None:
    capturing.sql(ORDERS)
    capturing.sql("CREATE TABLE items (id int PRIMARY KEY, n int)")
    capturing.sql("INSERT INTO items VALUES (1, 0)")
    capturing.table("orders")
    with capturing.running():
        capturing.await_snapshots()
    topic = capturing.table("items")
    with psycopg.connect(capturing.dsn) as open_:
        open_.execute(f"UPDATE {capturing.name}.items SET n = 1")
        with capturing.running():
            capturing.sql("INSERT INTO orders VALUES (1, 'a')")
            capturing.await_events(capturing.tables["orders"].topic, 1)
            assert not capturing.events(topic)
            open_.commit()
            capturing.await_snapshots()
    assert capturing.folded(topic) == {'{"id": 1}': {"id": 1, "n": 1}}


def test_a_publication_that_leaves_something_out(capturing: Capturing) -> None:
    capturing.sql("CREATE TABLE orders (id int PRIMARY KEY, item text) PARTITION BY RANGE (id)")
    capturing.table("orders")
    name = capturing.name
    for published, advice in (
        ("orders WITH (publish = 'insert')", "SET (publish = 'insert, update, delete, truncate')"),
        ("orders WITH (publish_via_partition_root = false)", "SET (publish_via_partition_root = true)"),
        ("orders (id) WITH (publish_via_partition_root = true)", f'DROP TABLE "{name}"."orders"'),
    ):
        capturing.sql(f"CREATE PUBLICATION {name} FOR TABLE {published}")
        failure = capturing.failure()
        assert f'ALTER PUBLICATION "{name}" {advice}' in failure
        capturing.sql(f"DROP PUBLICATION {name}")
        capturing.threads.failure = None


def test_a_declaration_that_has_changed(capturing: Capturing) -> None:
    capturing.sql(ORDERS)
    capturing.sql("ALTER TABLE orders REPLICA IDENTITY FULL")
    capturing.sql("INSERT INTO orders VALUES (1, 'a'), (2, 'b')")
    topic = capturing.table("orders", where="item = 'a'")
    with capturing.running():
        capturing.await_snapshots()
    capturing.table("orders", where="item = 'b'")
    name = f"{capturing.name}.orders"
    assert f"headrace capture FILE --snapshot again={name}" in capturing.failure()
    capturing.threads.failure = None
    capturing.remarks.clear()
    with capturing.running(capturing.with_(again=(name,), request="once")):
        capturing.await_snapshots()
    assert list(capturing.folded(topic)) == ['{"id": 2}']


def test_a_large_primary_key(capturing: Capturing) -> None:
    capturing.sql("CREATE TABLE orders (id text, n int, PRIMARY KEY (id))")
    capturing.sql("ALTER TABLE orders ALTER id SET STORAGE EXTERNAL")
    topic = capturing.table("orders")
    with capturing.running():
        capturing.await_snapshots()
        capturing.sql("INSERT INTO orders VALUES (repeat('x', 2500), 0)")
        capturing.sql("UPDATE orders SET n = 1")
        assert [one["op"] for one in capturing.await_events(topic, 2)] == ["c", "u"]
    assert [(len(row["id"]), row["n"]) for row in capturing.folded(topic).values()] == [(2500, 1)]
