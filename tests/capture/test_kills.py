"""kill -9 at every named moment, while random transactions commit, roll back, change keys and alter the table."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import psycopg
import pytest

from headrace.tables import EmbeddedPostgres
from tests.capture.capturing import Capturing, Read, until
from tests.capture.crashing import POINTS
from tests.peers import broker_for_tests

pytestmark = pytest.mark.timeout(300)


class Workload:
    """Random transactions on the table `accounts`, and the rows that each of them left behind."""

    def __init__(self, capturing: Capturing, seed: int) -> None:
        self.capturing = capturing
        self.random = random.Random(seed)
        self.rows: dict[int, tuple[int, str]] = dict.fromkeys(range(150), (0, "start"))
        self.states: dict[int, dict[int, tuple[int, str]]] = {}
        self.columns = 0
        capturing.sql("CREATE TABLE accounts (id int PRIMARY KEY, amount int, note text)")
        capturing.sql("INSERT INTO accounts SELECT i, 0, 'start' FROM generate_series(0, 149) i")
        self.first = dict(self.rows)

    def transaction(self) -> None:
        rows, sql, random = dict(self.rows), self.capturing.sql, self.random
        keeps = random.random() < 0.85
        try:
            with self.capturing.db.transaction():
                for _ in range(random.choice([1, 1, 2, 5, 20, 80])):
                    self._change(rows)
                if random.random() < 0.03:
                    self.columns += 1
                    sql(f"ALTER TABLE accounts ADD COLUMN more{self.columns} int DEFAULT 5")
                (xid,) = sql("SELECT (pg_current_xact_id()::text::bigint % (1::bigint << 32))::bigint")[0]
                if not keeps:
                    raise psycopg.Rollback
        except psycopg.Rollback:
            return
        if keeps:
            self.rows = self.states[xid] = rows

    def _change(self, rows: dict[int, tuple[int, str]]) -> None:
        random, sql = self.random, self.capturing.sql
        free = next(number for number in iter(lambda: random.randrange(5000), None) if number not in rows)
        kind, key = random.random(), random.choice(list(rows)) if rows else None
        if key is None or kind < 0.4:
            rows[free] = (random.randrange(1000), "new")
            sql("INSERT INTO accounts (id, amount, note) VALUES (%s, %s, %s)", free, *rows[free])
        elif kind < 0.7:
            rows[key] = (random.randrange(1000), "changed")
            sql("UPDATE accounts SET amount = %s, note = %s WHERE id = %s", *rows[key], key)
        elif kind < 0.85:
            rows[free] = rows.pop(key)
            sql("UPDATE accounts SET id = %s WHERE id = %s", free, key)
        else:
            del rows[key]
            sql("DELETE FROM accounts WHERE id = %s", key)

    def in_table(self) -> dict[int, tuple[int, str]]:
        return {
            key: (amount, note) for key, amount, note in self.capturing.sql("SELECT id, amount, note FROM accounts")
        }

    def in_topic(self) -> dict[int, tuple[int, str]]:
        rows = self.capturing.folded(self.capturing.tables["accounts"].topic).values()
        return {row["id"]: (row["amount"], row["note"]) for row in rows}


def check_transactions(workload: Workload, records: list[Read]) -> None:
    """Nothing is there twice, and after each transaction the rows are those that the database had."""
    changes = [one.value for one in records if one.value is not None and one.value["op"] != "r"]
    places = [(one["transaction"]["id"], one["transaction"]["total_order"]) for one in changes]
    assert len(places) == len(set(places))
    by_transaction: dict[int, list[Any]] = {}
    for one in sorted(changes, key=lambda one: _place(one)):
        by_transaction.setdefault(one["source"]["txId"], []).append(one)
    rows = dict(workload.first)
    for xid, events in by_transaction.items():
        assert [one["transaction"]["total_order"] for one in events] == list(range(1, len(events) + 1))
        for one in events:
            if one["op"] == "d":
                del rows[one["before"]["id"]]
            else:
                rows[one["after"]["id"]] = (one["after"]["amount"], one["after"]["note"])
        assert rows == workload.states[xid]


def _place(event: dict[str, Any]) -> tuple[int, int]:
    return int(event["transaction"]["id"].partition(":")[2]), event["transaction"]["total_order"]


def crash_again_and_again(capturing: Capturing, times: int, seed: int) -> None:
    capturing.main = "tests.capture.crashing:main"
    capturing.table("accounts")
    plan = capturing.folder / "crashes.json"
    # The first start is not interrupted, so that every transaction of the workload is in the stream.
    plan.write_text("[]")
    workload = Workload(capturing, seed)
    points = list(POINTS) * times
    random.Random(seed).shuffle(points)
    # Chunks come first, as there are only a few; then the starts that follow a crash.
    points.sort(key=lambda point: (point != "chunk", point != "opened"))
    with capturing.running(attempts=1000):
        until(lambda: capturing.sql("SELECT 1 FROM pg_replication_slots WHERE slot_name = %s", capturing.name))
        plan.write_text(json.dumps(points))
        end = time.monotonic() + 150
        while json.loads(plan.read_text()):
            assert time.monotonic() < end, f"not reached: {plan.read_text()}"
            capturing.threads.check()
            workload.transaction()
            time.sleep(0.01)
        until(lambda: capturing.threads.check() or workload.in_topic() == workload.rows, 60)
    assert workload.in_table() == workload.rows
    check_transactions(workload, capturing.read(capturing.tables["accounts"].topic))


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.supervised.FIRST_PAUSE", 0.01)
    monkeypatch.setattr("headrace.supervised.LONGEST_PAUSE", 0.2)


def test_nothing_is_lost_or_written_twice(capturing: Capturing) -> None:
    crash_again_and_again(capturing, 3, seed=1)


def test_what_the_server_sends_again_is_dropped(capturing: Capturing) -> None:
    """Killed once its records are there, and before the slot knows: the server sends the last commit again."""
    capturing.partitions = 1
    capturing.sql("CREATE TABLE orders (id int PRIMARY KEY)")
    topic = capturing.table("orders")
    with capturing.running():
        capturing.await_snapshots()
        for number in range(1, 6):
            capturing.sql(f"INSERT INTO orders VALUES ({number}), ({-number})")
            capturing.await_events(topic, 2 * number)
            pid = capturing.status.pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            until(lambda: capturing.status.pid not in (None, pid))  # noqa: B023
    capturing.await_events(topic, 10)


@pytest.mark.long
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("seed", range(10))
def test_nothing_is_lost_or_written_twice_in_many_crashes(capturing: Capturing, seed: int) -> None:
    crash_again_and_again(capturing, 3, seed)


def test_a_database_that_is_killed(broker_address: str, tmp_path: Path) -> None:
    server = EmbeddedPostgres(tmp_path / "postgres")
    capturing = Capturing(server.start(), broker_address, tmp_path)
    try:
        topic = capturing.table("orders")
        capturing.sql("CREATE TABLE orders (id int PRIMARY KEY)")
        with capturing.running(attempts=1000):
            capturing.await_snapshots()
            for kill in range(3):
                first = kill * 100 + 1
                capturing.sql(f"INSERT INTO orders SELECT generate_series({first}, {first + 99})")
                process = server.process
                assert process is not None
                os.kill(process.pid, signal.SIGKILL)
                until(lambda: server.process is None)
                server.start()
                capturing.reconnect()
                capturing.await_events(topic, kill * 100 + 100)
        assert len(capturing.folded(topic)) == 300
    finally:
        server.stop()


def test_a_broker_that_is_killed(postgres_dsn: str, tmp_path: Path) -> None:
    with broker_for_tests(tmp_path / "broker") as broker:
        capturing = Capturing(postgres_dsn, broker.address, tmp_path)
        try:
            topic = capturing.table("orders")
            capturing.sql("CREATE TABLE orders (id int PRIMARY KEY)")
            with capturing.running(attempts=1000):
                capturing.await_snapshots()
                for kill in range(3):
                    first = kill * 100 + 1
                    capturing.sql(f"INSERT INTO orders SELECT generate_series({first}, {first + 49})")
                    broker.kill()
                    capturing.sql(f"INSERT INTO orders SELECT generate_series({first + 50}, {first + 99})")
                    broker.start()
                    capturing.await_events(topic, kill * 100 + 100)
            assert len(capturing.folded(topic)) == 300
        finally:
            capturing.close()
