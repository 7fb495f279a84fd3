"""Antifraud at work: payments flow in, bursts and spendings come out at once, and at the end all of it is counted.

The app is examples/fraud.py, on an embedded broker, an embedded PostgreSQL and Spark in this process. A generator
sends payments to it; among them are late, duplicated and malformed ones, and it keeps books. The demo fails unless
every payment is accounted for, the tables' figures are the books' own, every burst was found, and what came too late
for one is told apart.

Run it with `make demo`, or `python examples/fraud_demo.py --seconds 60`. In a terminal it goes on until Ctrl-C,
elsewhere for a minute, and then sums up.
"""

import argparse
import statistics
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import psycopg
from rich.console import Console
from rich.live import Live
from rich.table import Table

import headrace as hr
from fraud import accepted, alarms, app, bursts, cards, payments, spend, tardy
from payments_generator import DUPLICATE, MALFORMED, ORDINARY, Books, Payments

RATE = 50
SECONDS = 60
WARM_UP = 60
WARM_UPS = 3
SIZE, MORE_THAN = timedelta(seconds=20), 5
ACCEPTED = "id STRING, card STRING, amount DECIMAL(12,2), country STRING, at TIMESTAMP"
BURSTS = f"{ACCEPTED}, owner STRING, home STRING, n BIGINT, total DECIMAL(22,2), countries BIGINT, revision INT"
TARDY = "id STRING, card STRING, at TIMESTAMP, amount DECIMAL(12,2)"


class Sender(threading.Thread):
    """Sends payments at a steady pace, and enters each in the books."""

    def __init__(self, producer: hr.Producer, rate: float) -> None:
        super().__init__(daemon=True)
        self.books = Books()
        self.sent_at: dict[str, float] = {}
        """When each payment was sent that should be accepted, in the order of sending; the warm-up is left out."""
        self.error: Exception | None = None
        self._producer = producer
        self._rate = rate
        self._source = Payments()
        self._stopping = threading.Event()

    def send_cards(self) -> None:
        """The table of cards, as it has been for days."""
        since = datetime.now(UTC) - timedelta(days=3)
        for card in self._source.cards():
            self._producer.send(cards, card, timestamp=since)
        self._producer.flush()

    def warm_up(self) -> None:
        """A few payments that are in order: from then on there is a watermark for others to be late by."""
        for _ in range(WARM_UP):
            self._send({ORDINARY: 1})
        self._producer.flush()
        self.sent_at.clear()

    def run(self) -> None:
        started = time.monotonic()
        sent = 0
        try:
            while not self._stopping.wait(max(0.0, started + sent / self._rate - time.monotonic())):
                self._send()
                sent += 1
            self._producer.flush()
        except Exception as error:
            self.error = error

    def stop(self) -> None:
        self._stopping.set()
        self.join()
        if self.error is not None:
            raise self.error

    def _send(self, shares: dict[str, int] | None = None) -> None:
        now = datetime.now(UTC)
        payment = self._source.make(now) if shares is None else self._source.make(now, shares)
        if payment.row is None:
            self._producer.send_raw(payments, payment.raw, key=payment.card)
        else:
            self._producer.send(payments, payment.row)
        self.books.enter(payment)
        if payment.row is not None:
            self.sent_at.setdefault(payment.row["id"], time.monotonic())


class Reader(threading.Thread):
    """Reads a topic as it grows."""

    def __init__(self, consumer: hr.Consumer) -> None:
        super().__init__(daemon=True)
        self.rows: list[dict[str, object]] = []
        self.read_at: dict[str, float] = {}
        self._consumer = consumer

    def run(self) -> None:
        with self._consumer:
            for record in self._consumer:
                if record.row is not None:
                    self.rows.append(record.row)
                    self.read_at.setdefault(record.row["id"], time.monotonic())

    def stop(self) -> None:
        self._consumer.stop()
        self.join()


class Watcher(threading.Thread):
    """Looks into the view all the time: how many payments it has."""

    def __init__(self, dsn: str) -> None:
        super().__init__(daemon=True)
        self.seen: list[tuple[float, int]] = []
        self._dsn = dsn
        self._stopping = threading.Event()

    def run(self) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            while not self._stopping.wait(0.05):
                found = connection.execute("SELECT coalesce(sum(n), 0) FROM fraud.spend").fetchone()
                assert found is not None
                self.seen.append((time.monotonic(), int(found[0])))

    def stop(self) -> None:
        self._stopping.set()
        self.join()


class Screen:
    """A table that stays in place on a terminal, a line every five seconds elsewhere."""

    def __init__(self, sender: Sender, reader: Reader, alarms: Reader, run: hr.Running) -> None:
        self.console = Console(highlight=False)
        self._sender, self._reader, self._alarms, self._run = sender, reader, alarms, run
        self._spend = spend.reader(postgres=run.postgres)
        self._last_line = 0.0
        self._latest: deque[str] = deque(maxlen=5)
        self._told = 0

    @contextmanager
    def shown(self) -> Iterator[None]:
        if not self.console.is_terminal:
            yield
            return
        with Live(get_renderable=self._table, console=self.console, refresh_per_second=2, transient=True):
            yield

    def look(self) -> None:
        """Called again and again while payments flow; a node that failed ends the demo here."""
        self._run.progress()
        if not self.console.is_terminal and time.monotonic() - self._last_line >= 5:
            self._last_line = time.monotonic()
            sent = sum(self._sender.books.sent.values())
            say(
                self.console,
                f"  {sent} sent, {len(self._reader.rows)} accepted ({self._delay()}), {len(self._alarms.rows)} bursts",
            )

    def _delay(self) -> str:
        recent = topic_delays(self._sender, self._reader)[-500:]
        return f"{statistics.median(recent):.2f} s after they were sent" if recent else "none yet"

    def _table(self) -> Table:
        for row in self._alarms.rows[self._told :]:
            self._latest.append(f"{row['card']}: {row['n']} payments, {row['countries']} countries, {row['total']}")
        self._told = len(self._alarms.rows)
        table = Table(title="fraud: Ctrl-C stops it", box=None, title_style="bold", show_header=False, pad_edge=False)
        counts = self._sender.books.sent
        table.add_row("sent", f"{sum(counts.values()):,} ({', '.join(f'{n} {kind}' for kind, n in counts.items())})")
        table.add_row("accepted", f"{len(self._reader.rows):,}, {self._delay()}")
        for node in self._run.progress():
            lag = "?" if node.lag is None else f"{node.lag:,}"
            told = f"{node.rows_per_second:,.0f} rows/s, lag {lag}, {node.late} late, {node.rejected} rejected"
            table.add_row(f"  {node.node}", told)
        table.add_row("bursts", "\n".join(self._latest) or "none yet")
        top = sorted(self._spend.rows(), key=lambda row: row["total"], reverse=True)[:5]
        table.add_row("top spenders", "\n".join(f"{row['card']}: {row['total']} in {row['n']} payments" for row in top))
        return table


def topic_delays(sender: Sender, reader: Reader) -> list[float]:
    """For each payment, the seconds from its sending to somebody's reading it in the topic of accepted ones."""
    sent_at = dict(sender.sent_at)
    return [moment - sent_at[id] for id, moment in list(reader.read_at.items()) if id in sent_at]


def view_delays(sender: Sender, watcher: Watcher) -> list[float]:
    """For each payment, the seconds from its sending to the view's counting it."""
    counted = {row["id"] for row in sender.books.accepted}
    sent = [moment for id, moment in sender.sent_at.items() if id in counted]
    delays: list[float] = []
    for moment, count in watcher.seen:
        there = min(len(sent), count - WARM_UP * WARM_UPS)
        delays += [moment - sent[number] for number in range(len(delays), there)]
    return delays


def say(console: Console, text: str, style: str | None = None) -> None:
    console.print(text, style=style, soft_wrap=True)


def main() -> int:
    """Run the story and check how it ended."""
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--seconds", type=float, help="how long payments flow; until Ctrl-C in a terminal")
    arguments.add_argument("--rate", type=float, default=RATE, help="payments a second")
    given = arguments.parse_args()
    console = Console(highlight=False)
    seconds = given.seconds or (None if console.is_terminal else SECONDS)
    with tempfile.TemporaryDirectory(prefix="headrace-demo-") as folder:
        say(console, "Starting a broker, PostgreSQL and Spark: some 20 seconds", "bold")
        began = time.monotonic()
        with app.running(home=folder) as run, app.producer(kafka=run.kafka) as producer:
            say(console, f"The app runs after {time.monotonic() - began:.0f} s; Kafka is at {run.kafka}")
            sender = Sender(producer, given.rate)
            sender.send_cards()
            for _ in range(WARM_UPS):
                sender.warm_up()
                run.settle()
            return story(run, sender, seconds, console)


def story(run: hr.Running, sender: Sender, seconds: float | None, console: Console) -> int:
    """Let payments flow, then stop, let all of it through, and count."""
    reader = Reader(app.consumer(accepted, group="demo", schema=ACCEPTED, kafka=run.kafka))
    bursts_read = Reader(app.consumer(bursts, group="demo-bursts", schema=BURSTS, kafka=run.kafka))
    watcher = Watcher(run.postgres or "")
    screen = Screen(sender, reader, bursts_read, run)
    how_long = "Ctrl-C stops it" if seconds is None else f"for {seconds:.0f} s"
    say(console, f"Payments flow, {how_long}: late, duplicated and malformed ones among them")
    for thread in (reader, bursts_read, watcher, sender):
        thread.start()
    ends = None if seconds is None else time.monotonic() + seconds
    try:
        with screen.shown():
            while ends is None or time.monotonic() < ends:
                screen.look()
                time.sleep(0.2)
    except KeyboardInterrupt:
        pass
    sender.stop()
    run.settle()
    for thread in (reader, bursts_read, watcher):
        thread.stop()
    failed = verdict(run, sender.books, console)
    for what, delays in (
        ("until it is in the topic", topic_delays(sender, reader)),
        ("until a burst is told", topic_delays(sender, bursts_read)),
        ("until it is in the view", view_delays(sender, watcher)),
    ):
        if len(delays) > 1:
            cuts = statistics.quantiles(delays, n=100, method="inclusive")
            say(console, f"{what:>28}: {cuts[49]:.2f} s (median), {cuts[98]:.2f} s (99 of 100)")
    if failed:
        say(console, f"Something is wrong: {', '.join(failed)}", "bold red")
        return 1
    sent = sum(sender.books.sent.values())
    say(console, f"All {sent} payments are accounted for, and every total is right.", "bold green")
    return 0


def verdict(run: hr.Running, books: Books, console: Console) -> list[str]:
    """Hold what came out to the books; returns what does not agree."""
    nodes = {node.node: node for node in run.progress()}
    rows = [record.row for record in app.read(accepted, schema=ACCEPTED, kafka=run.kafka)]
    rejected = list(app.read(payments.rejected, kafka=run.kafka))
    late = [record.row for record in app.read(tardy, schema=TARDY, kafka=run.kafka)]
    twice = nodes["accepted"].rows - len(rows) - len(rejected)
    checks = Checks(console)
    say(console, "")
    checks.equal("accepted", len(rows), len(books.accepted) + len(books.late))
    checks.equal("came again", twice, books.sent[DUPLICATE])
    checks.equal("malformed", len(rejected), books.sent[MALFORMED])
    checks.equal("accounted for", len(rows) + twice + len(rejected), sum(books.sent.values()))
    checks.equal("accepted, each once", len({row["id"] for row in rows}), len(rows))
    checks.equal(
        "a day late, each once", sorted(row["id"] for row in late) == sorted(row["id"] for row in books.late), True
    )

    table = {(row["card"], row["window_start"]): (row["n"], row["total"]) for row in spend.rows(postgres=run.postgres)}
    checks.equal("rows of the view that agree", len(table.items() & books.spent().items()), len(books.spent()))
    total = sum((total for _, total in table.values()), Decimal(0))
    checks.equal("spent, by the view", total, sum((row["amount"] for row in books.accepted), Decimal(0)))

    wanted = books.bursts(SIZE, MORE_THAN)
    found: dict[bytes | None, dict[str, Any] | None] = {}
    for record in app.read(bursts, schema=BURSTS, kafka=run.kafka):
        found[record.key] = record.row
    told = {row["id"]: row for row in found.values() if row is not None}
    figures = {id: (row["n"], row["total"], row["countries"]) for id, row in told.items()}
    checks.equal("bursts found", len(figures), len(wanted))
    checks.equal("bursts that agree", len(figures.items() & wanted.items()), len(wanted))
    abroad = {id for id, row in told.items() if row["country"] != row["home"]}
    checks.equal("alarms away from home", {row["id"] for row in alarms.rows(postgres=run.postgres)} == abroad, True)
    return checks.failed


class Checks:
    """Figures beside those they must equal."""

    def __init__(self, console: Console) -> None:
        self.failed: list[str] = []
        self._console = console

    def equal(self, what: str, found: object, expected: object) -> None:
        if found == expected:
            say(self._console, f"{what:>28}: {found}")
        else:
            self.failed.append(what)
            say(self._console, f"{what:>28}: {found}, and the books say {expected}", "red")


if __name__ == "__main__":
    sys.exit(main())
