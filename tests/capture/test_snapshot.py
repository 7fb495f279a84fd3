"""Snapshots in chunks beside the stream, tables that are added later, filters and masks, and the limits of a slot."""

from __future__ import annotations

import hashlib
import time

from hypothesis import given
from hypothesis import strategies as st

from headrace.capture.snapshot import Visibility
from tests.capture.capturing import Capturing, until

ORDERS = "CREATE TABLE orders (id int PRIMARY KEY, item text, price numeric(10,2))"


@given(st.integers(3, 1 << 40), st.integers(0, 100), st.sets(st.integers(0, 100)), st.integers(-1000, 200))
def test_which_transactions_a_snapshot_sees(first: int, width: int, running: set[int], distance: int) -> None:
    inside = {first + one for one in running if one < width}
    xids = ",".join(map(str, sorted(inside)))
    seen = Visibility.of(f"{first}:{first + width}:{xids}")
    whole = max(first + distance, 0)
    assert seen.sees(whole % (1 << 32)) == (whole < first + width and whole not in inside)


def test_a_snapshot_of_many_chunks_beside_changes(capturing: Capturing) -> None:
    capturing.sql("CREATE TABLE orders (a text, b int, n int, PRIMARY KEY (a, b))")
    capturing.sql("INSERT INTO orders SELECT md5(i::text), i, 0 FROM generate_series(1, 45000) i")
    topic = capturing.table("orders")
    with capturing.running():
        changes = 0
        while not any("is complete" in remark for remark in capturing.remarks):
            capturing.threads.check()
            changes += 1
            capturing.sql("UPDATE orders SET n = n + 1 WHERE b %% 997 = %s", changes % 997)
            capturing.sql("DELETE FROM orders WHERE b = %s", changes * 7)
            capturing.sql("INSERT INTO orders VALUES (md5(%s::text), %s, 1)", -changes, -changes)
            time.sleep(0.02)
        expected = {(a, b): n for a, b, n in capturing.sql("SELECT a, b, n FROM orders")}

        def folded() -> dict[tuple[str, int], int]:
            return {(row["a"], row["b"]): row["n"] for row in capturing.folded(topic).values()}

        until(lambda: folded() == expected, 30)
    assert changes > 3


def test_a_table_that_is_added_later_gets_its_snapshot(capturing: Capturing) -> None:
    capturing.sql(ORDERS)
    capturing.sql("INSERT INTO orders VALUES (1, 'a', 1)")
    first = capturing.table("orders")
    with capturing.running():
        capturing.await_snapshots()
    capturing.sql("CREATE TABLE items (id int PRIMARY KEY)")
    capturing.sql("INSERT INTO items VALUES (1), (2)")
    capturing.sql("INSERT INTO orders VALUES (2, 'b', 2)")
    second = capturing.table("items")
    third = capturing.table("never", snapshot="never")
    capturing.sql("CREATE TABLE never (id int PRIMARY KEY)")
    capturing.sql("INSERT INTO never VALUES (1)")
    with capturing.running():
        assert [one["op"] for one in capturing.await_events(second, 2)] == ["r", "r"]
        assert sorted(one["op"] for one in capturing.await_events(first, 2)) == ["c", "r"]
        capturing.sql("INSERT INTO never VALUES (2)")
        assert [one["after"] for one in capturing.await_events(third, 1)] == [{"id": 2}]


def test_columns_conditions_and_masks(capturing: Capturing) -> None:
    capturing.sql("CREATE TABLE people (id int PRIMARY KEY, name text, email text, age int, country text)")
    capturing.sql("ALTER TABLE people REPLICA IDENTITY FULL")
    capturing.sql("INSERT INTO people VALUES (1, 'Ann', 'ann@x', 30, 'nl'), (2, 'Bob', 'bob@x', 40, 'us')")
    topic = capturing.table(
        "people",
        columns=("name", "email", "country"),
        where="country LIKE 'n%'",
        masks={"name": "null", "email": "hash"},
    )
    with capturing.running():
        capturing.await_snapshots()
        capturing.sql("UPDATE people SET country = 'no' WHERE id = 2")
        capturing.sql("UPDATE people SET country = 'us' WHERE id = 1")
        events = capturing.await_events(topic, 3)
    by_key = {(one["op"], (one["after"] or one["before"])["id"]): one for one in events}
    assert set(by_key) == {("r", 1), ("c", 2), ("d", 1)}

    def row(number: int, email: str, country: str) -> dict[str, object]:
        hashed = hashlib.sha256(email.encode()).hexdigest()
        return {"id": number, "name": None, "email": hashed, "country": country}

    assert by_key["r", 1]["after"] == row(1, "ann@x", "nl")
    assert by_key["c", 2]["after"] == row(2, "bob@x", "no")
    assert by_key["d", 1]["before"] == row(1, "ann@x", "nl")
    assert list(capturing.folded(topic)) == ['{"id": 2}']


def test_an_idle_slot_moves_on_and_a_limit_takes_the_snapshot_again(capturing: Capturing) -> None:
    capturing.sql(ORDERS)
    capturing.sql("INSERT INTO orders VALUES (1, 'a', 1), (2, 'b', 2)")
    capturing.sql("CREATE TABLE busy (n int)")
    topic = capturing.table("orders")
    with capturing.running():
        capturing.await_snapshots()
        (before,) = capturing.sql(
            "SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = %s", capturing.name
        )[0]
        capturing.sql("INSERT INTO busy SELECT generate_series(1, 20000)")
        moved = "SELECT confirmed_flush_lsn > %s::pg_lsn + 1000000 FROM pg_replication_slots WHERE slot_name = %s"
        until(lambda: capturing.sql(moved, before, capturing.name)[0][0])
    # While nobody reads the slot, it keeps the log.
    capturing.sql("DELETE FROM orders WHERE id = 1")
    capturing.sql("INSERT INTO busy SELECT generate_series(1, 20000)")
    capturing.remarks.clear()
    capturing.more = {"lag_limit": 1000, "on_lag_limit": "snapshot"}
    with capturing.running():
        until(lambda: any("more than the limit of 1,000 B" in remark for remark in capturing.remarks))
        capturing.await_snapshots()
        until(lambda: list(capturing.folded(topic)) == ['{"id": 2}'])
    assert any("dropping the slot" in remark for remark in capturing.remarks)
