"""A database's changes at work: random transactions change a shop's orders, and a topic and a view follow them.

The app is examples/orders.py, on an embedded broker, an embedded PostgreSQL and Spark in this process. At the end the
demo fails unless the topic, folded by key, and the view are what SQL says of the table.

Run it with `python examples/orders_demo.py --seconds 20`.
"""

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psycopg
from rich.console import Console

import headrace as hr
from headrace.services import Services
from headrace.threads import Threads
from orders import app, open_orders, orders

SECONDS = 20.0
LIMIT = 60.0
AT_FIRST = 2_000
STATUSES = ("new", "paid", "packed", "shipped")
TABLE = """
CREATE SCHEMA shop;
CREATE TABLE shop.orders (
    id bigint PRIMARY KEY, customer text NOT NULL, email text NOT NULL,
    status text NOT NULL, total numeric(12,2) NOT NULL
)
"""
INSERT = "INSERT INTO shop.orders VALUES (%s, %s, %s, %s, %s)"
ORDERS = "SELECT id, customer, status, total FROM shop.orders"
OPEN_ORDERS = f"{ORDERS} WHERE status <> 'shipped'"
Rows = dict[int, tuple[Any, ...]]

console = Console(highlight=False)


def main() -> int:
    """Run the story and check how it ended."""
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--seconds", type=float, default=SECONDS, help="how long transactions run")
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory(prefix="headrace-demo-") as folder:
        say("Starting a broker, PostgreSQL and Spark: some 20 seconds")
        threads = Threads(Path(folder) / "log")
        with (
            Services(Path(folder)).used(kafka=True, postgres=True, threads=threads) as services,
            psycopg.connect(str(services.postgres)) as database,
        ):
            shop = Shop(database)
            say(f"The table shop.orders has {AT_FIRST:,} rows before anybody captures it")
            with app.running(home=folder, kafka=services.kafka, postgres=services.postgres) as run:
                shop.trade(given.seconds)
                say(f"{shop.committed:,} transactions were committed and {shop.rolled_back:,} rolled back")
                return verdict(run, shop)


class Shop:
    """Transactions that create, change, move and delete orders."""

    def __init__(self, database: "psycopg.Connection[Any]") -> None:
        self.database = database
        self.chance = random.Random(7)
        self.last_id = 0
        self.committed = self.rolled_back = 0
        database.execute(TABLE)
        for _ in range(AT_FIRST):
            self.create()
        database.commit()

    def trade(self, seconds: float) -> None:
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            for _ in range(self.chance.randint(1, 40)):
                self.chance.choice((self.create, self.change, self.change, self.change, self.move, self.delete))()
            if self.chance.random() < 0.1:
                self.database.rollback()
                self.rolled_back += 1
            else:
                self.database.commit()
                self.committed += 1

    def create(self) -> None:
        self.last_id += 1
        customer = f"customer {self.chance.randint(1, 500)}"
        email = f"{customer.replace(' ', '')}@example.com"
        total = self.chance.randint(100, 100_000) / 100
        self.database.execute(INSERT, (self.last_id, customer, email, "new", total))

    def change(self) -> None:
        change = "UPDATE shop.orders SET status = %s, total = total + 1 WHERE id = %s"
        self.database.execute(change, (self.chance.choice(STATUSES), self.some_id()))

    def move(self) -> None:
        self.last_id += 1
        self.database.execute("UPDATE shop.orders SET id = %s WHERE id = %s", (self.last_id, self.some_id()))

    def delete(self) -> None:
        self.database.execute("DELETE FROM shop.orders WHERE id = %s", (self.some_id(),))

    def some_id(self) -> int:
        return self.chance.randint(1, self.last_id)

    def rows(self, query: str) -> Rows:
        found = {row[0]: row[1:] for row in self.database.execute(query).fetchall()}
        self.database.commit()
        return found


def verdict(run: hr.Running, shop: Shop) -> int:
    """Wait until the view has followed, then hold both to SQL."""
    is_open = shop.rows(OPEN_ORDERS)
    ends = time.monotonic() + LIMIT
    while (viewed := view_rows(run)) != is_open and time.monotonic() < ends:
        time.sleep(0.5)
    expected, folded = shop.rows(ORDERS), topic_rows(run)
    same = {
        f"the topic {orders.topic_name}, folded by key, has {len(folded):,} rows, SQL {len(expected):,}": folded
        == expected,
        f"the view open_orders has {len(viewed):,} rows, SQL {len(is_open):,}": viewed == is_open,
    }
    for words, holds in same.items():
        say(f"{words}: {'the same' if holds else 'NOT the same'}")
    if not all(same.values()):
        return 1
    say("Topic and view are what SQL says of the table")
    return 0


def view_rows(run: hr.Running) -> Rows:
    columns = ("customer", "status", "total")
    return {row["id"]: tuple(row[name] for name in columns) for row in open_orders.rows(postgres=run.postgres)}


def topic_rows(run: hr.Running) -> Rows:
    """The last row of each key in the topic, as any consumer would find it."""
    rows: dict[bytes | None, Any] = {}
    for record in app.read(orders, kafka=run.kafka):
        rows[record.key] = None if record.row is None else record.row["after"]
    kept = [row for row in rows.values() if row is not None]
    return {row["id"]: (row["customer"], row["status"], row["total"]) for row in kept}


def say(words: str) -> None:
    console.print(words)


if __name__ == "__main__":
    sys.exit(main())
