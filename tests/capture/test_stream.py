"""The stream of changes: Debezium's envelope, keys, order, transactions, truncate, TOAST and schema changes."""

from __future__ import annotations

import json

from tests.capture.capturing import Capturing, until

ORDERS = "CREATE TABLE orders (id int PRIMARY KEY, item text, price numeric(10,2))"


def ops(events: list[dict[str, object]]) -> list[object]:
    return [event["op"] for event in events]


def test_rows_and_changes_are_in_debeziums_envelope(capturing: Capturing) -> None:
    capturing.partitions = 1
    capturing.sql(ORDERS)
    capturing.sql("INSERT INTO orders VALUES (1, 'a', 1.50)")
    topic = capturing.table("orders")
    with capturing.running():
        (row,) = capturing.await_events(topic, 1)
        with capturing.db.transaction():
            capturing.sql("INSERT INTO orders VALUES (2, 'b', NULL)")
            capturing.sql("UPDATE orders SET price = 2 WHERE id = 1")
            capturing.sql("DELETE FROM orders WHERE id = 2")
            xid = capturing.sql("SELECT pg_current_xact_id()::text::bigint % (1::bigint << 32)")[0][0]
        events = capturing.await_events(topic, 4)
    assert row["op"] == "r"
    assert row["after"] == {"id": 1, "item": "a", "price": 1.5}
    assert ops(events) == ["r", "c", "u", "d"]
    created, updated, deleted = events[1:]
    assert created["before"] is None
    assert created["after"] == {"id": 2, "item": "b", "price": None}
    assert updated["after"] == {"id": 1, "item": "a", "price": 2.0}
    assert deleted["before"] == {"id": 2, "item": None, "price": None}
    assert deleted["after"] is None
    source = updated["source"]
    assert source["connector"] == "postgresql"
    assert (source["schema"], source["table"], source["txId"]) == (capturing.name, "orders", xid)
    assert source["snapshot"] == "false"
    assert source["name"] == capturing.name
    assert isinstance(source["lsn"], int)
    assert len(json.loads(source["sequence"])) == 2
    assert [event["transaction"]["total_order"] for event in events[1:]] == [1, 2, 3]
    records = capturing.read(topic)
    assert records[-1].value is None
    assert records[-1].key == {"id": 2}
    assert [record.timestamp for record in records] == sorted(record.timestamp for record in records)
    transactions = capturing.events(f"{capturing.name}.transaction")
    assert [one["status"] for one in transactions] == ["BEGIN", "END"]
    assert transactions[1]["event_count"] == 3
    assert transactions[1]["data_collections"] == [{"data_collection": f"{capturing.name}.orders", "event_count": 3}]
    assert transactions[0]["id"] == created["transaction"]["id"]


def test_a_changed_key_is_a_delete_and_a_create(capturing: Capturing) -> None:
    capturing.partitions = 1
    capturing.sql(ORDERS)
    topic = capturing.table("orders")
    with capturing.running():
        capturing.await_snapshots()
        capturing.sql("INSERT INTO orders VALUES (1, 'a', 1)")
        capturing.sql("UPDATE orders SET id = 7")
        assert ops(capturing.await_events(topic, 3)) == ["c", "d", "c"]
    records = capturing.read(topic)
    assert [(record.key, record.value and record.value["op"]) for record in records] == [
        ({"id": 1}, "c"),
        ({"id": 1}, "d"),
        ({"id": 1}, None),
        ({"id": 7}, "c"),
    ]


def test_several_tables_share_a_process_and_what_is_not_captured_is_left_out(capturing: Capturing) -> None:
    capturing.sql(ORDERS)
    capturing.sql('CREATE TABLE "Items of ""x""" ("a b" text, n bigint, PRIMARY KEY (n, "a b"))')
    capturing.sql("CREATE TABLE other (id int PRIMARY KEY)")
    first, second = capturing.table("orders"), f"{capturing.name}.items"
    capturing.tables["items"] = capturing.tables["orders"].__class__(
        table=type(capturing.tables["orders"].table)(capturing.name, 'Items of "x"'), topic=second, masks={}
    )
    with capturing.running():
        capturing.await_snapshots()
        with capturing.db.transaction():
            capturing.sql("INSERT INTO orders VALUES (1, 'a', 1)")
            capturing.sql("INSERT INTO other VALUES (1)")
            capturing.sql('INSERT INTO "Items of ""x""" VALUES (%s, 5)', 'it\'s "50 %"')
        capturing.await_events(first, 1)
        (event,) = capturing.await_events(second, 1)
    assert event["after"] == {"a b": 'it\'s "50 %"', "n": 5}
    assert capturing.read(second)[0].key == {"n": 5, "a b": 'it\'s "50 %"'}


def test_a_truncate_deletes_every_key_and_is_an_event(capturing: Capturing) -> None:
    capturing.sql(ORDERS)
    capturing.sql("INSERT INTO orders SELECT i, 'x', i FROM generate_series(1, 50) i")
    topic = capturing.table("orders")
    with capturing.running():
        capturing.await_events(topic, 50)
        with capturing.db.transaction():
            capturing.sql("INSERT INTO orders VALUES (100, 'y', 1)")
            capturing.sql("TRUNCATE orders")
            capturing.sql("INSERT INTO orders VALUES (5, 'z', 1)")
        until(lambda: len(capturing.folded(topic)) == 1)
    assert list(capturing.folded(topic)) == ['{"id": 5}']
    truncates = [one for one in capturing.read(topic) if one.value and one.value["op"] == "t"]
    assert [(one.key, one.value["before"], one.value["after"]) for one in truncates] == [(None, None, None)]  # type: ignore[index]


def test_large_values_that_did_not_change(capturing: Capturing) -> None:
    capturing.partitions = 1
    capturing.sql("CREATE TABLE notes (id int PRIMARY KEY, n int, body text)")
    capturing.sql("ALTER TABLE notes ALTER body SET STORAGE EXTERNAL")
    topic = capturing.table("notes")
    with capturing.running():
        capturing.await_snapshots()
        capturing.sql("INSERT INTO notes VALUES (1, 1, repeat('x', 9000))")
        capturing.sql("UPDATE notes SET n = 2")
        capturing.sql("ALTER TABLE notes REPLICA IDENTITY FULL")
        capturing.sql("UPDATE notes SET n = 3")
        _, marked, filled = capturing.await_events(topic, 3)
        until(lambda: any("REPLICA IDENTITY FULL" in remark for remark in capturing.remarks))
    assert marked["after"] == {"id": 1, "n": 2, "body": "__debezium_unavailable_value"}
    assert filled["after"] == {"id": 1, "n": 3, "body": "x" * 9000}
    assert filled["before"] == {"id": 1, "n": 2, "body": "x" * 9000}


def test_a_new_column_is_followed_and_a_dropped_one_reported(capturing: Capturing) -> None:
    capturing.partitions = 1
    capturing.sql(ORDERS)
    topic = capturing.table("orders")
    with capturing.running():
        capturing.await_snapshots()
        capturing.sql("INSERT INTO orders VALUES (1, 'a', 1)")
        capturing.sql("ALTER TABLE orders ADD COLUMN note text DEFAULT 'none'")
        capturing.sql("INSERT INTO orders VALUES (2, 'b', 1, 'new')")
        capturing.sql("ALTER TABLE orders RENAME item TO thing")
        capturing.sql("INSERT INTO orders VALUES (3, 'c', 1, 'new')")
        first, second, third = capturing.await_events(topic, 3)
        until(lambda: any("added thing; dropped item" in remark for remark in capturing.remarks))
    assert list(first["after"]) == ["id", "item", "price"]
    assert second["after"] == {"id": 2, "item": "b", "price": 1.0, "note": "new"}
    assert list(third["after"]) == ["id", "thing", "price", "note"]


def test_a_declared_column_that_was_added_while_nobody_read(capturing: Capturing) -> None:
    capturing.partitions = 1
    capturing.sql(ORDERS)
    topic = capturing.table("orders")
    with capturing.running():
        capturing.await_snapshots()
    capturing.sql("INSERT INTO orders VALUES (1, 'a', 1)")
    capturing.sql("ALTER TABLE orders ADD COLUMN note text")
    capturing.sql("INSERT INTO orders VALUES (2, 'b', 1, 'new')")
    capturing.table("orders", declared={"id": "INT", "note": "STRING"})
    with capturing.running():
        first, second = capturing.await_events(topic, 2)
    assert "note" not in first["after"]
    assert second["after"]["note"] == "new"


def test_a_declared_column_that_is_dropped_or_retyped_stops_the_capture(capturing: Capturing) -> None:
    capturing.sql(ORDERS)
    topic = capturing.table("orders", declared={"id": "INT", "item": "STRING"})
    with capturing.running():
        capturing.await_snapshots()
        capturing.sql("INSERT INTO orders VALUES (1, 'a', 1)")
        capturing.await_events(topic, 1)
        # Once the slot is past it, the server does not send the old definition again.
        (end,) = capturing.sql("SELECT pg_current_wal_lsn()")[0]
        past = "SELECT confirmed_flush_lsn >= %s::pg_lsn FROM pg_replication_slots WHERE slot_name = %s"
        until(lambda: capturing.sql(past, end, capturing.name)[0][0])
        capturing.sql("ALTER TABLE orders ALTER id TYPE bigint")
        capturing.sql("INSERT INTO orders VALUES (2, 'a', 1)")
        failure = until(lambda: capturing.threads.failure)
    assert "the column 'id' of" in str(failure)
    assert "is BIGINT now, and the app declares INT; change the schema" in str(failure)
    capturing.threads.failure = None
    assert "is BIGINT now, and the app declares INT; change the schema" in capturing.failure()  # after a restart too
    capturing.threads.failure = None
    capturing.table("orders", declared={"id": "BIGINT", "item": "STRING"})
    with capturing.running():
        capturing.await_events(topic, 2)
        capturing.sql("ALTER TABLE orders RENAME item TO thing")
        capturing.sql("INSERT INTO orders VALUES (3, 'a', 1)")
        failure = until(lambda: capturing.threads.failure)
    assert "was dropped or renamed" in str(failure)
    assert "its new name is among: thing, price" in str(failure)
