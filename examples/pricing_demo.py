"""Dynamic pricing at work: a city runs into a rush hour, and prices follow, zone by zone.

The app is examples/pricing.py, on an embedded broker, an embedded PostgreSQL and Spark in this process. A minute of
the city's time takes two seconds here. The demo fails unless every price is what an independent count makes of it.

Run it with `python examples/pricing_demo.py --seconds 30`.
"""

import argparse
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta

from rich.console import Console
from rich.table import Table

import headrace as hr
from pricing import app, drivers, prices, requests, tariff
from rides_generator import City, Minute

SECONDS = 30
SECONDS_A_MINUTE = 2.0
PRICES = "zone STRING, window_start TIMESTAMP, demand BIGINT, supply BIGINT, multiplier DECIMAL(3,2)"
WAIT = timedelta(seconds=10)
"""How long a minute without drivers, or without requests, is waited for."""

console = Console(highlight=False)


def main() -> int:
    """Run the story and check how it ended."""
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--seconds", type=float, default=SECONDS, help="how long it rains")
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory(prefix="headrace-demo-") as folder:
        say("Starting a broker, PostgreSQL and Spark: some 20 seconds")
        with app.running(home=folder) as run, app.producer(kafka=run.kafka) as producer:
            sent = rain(run, producer, given.seconds)
            run.settle()
            return verdict(run, sent)


def rain(run: hr.Running, producer: hr.Producer, seconds: float) -> list[Minute]:
    """Send minute after minute, and show what a ride costs meanwhile."""
    sent = []
    # A little while ago: an event that claims to be of tomorrow is rejected.
    start = datetime.now(UTC).replace(second=0, microsecond=0) - timedelta(hours=2)
    ends = time.monotonic() + seconds
    for minute in City().minutes(start):
        began = time.monotonic()
        if began >= ends:
            return sent
        producer.send_all(requests, minute.requests)
        producer.send_all(drivers, minute.drivers)
        sent.append(minute)
        show(minute, tariff.rows(postgres=run.postgres))
        time.sleep(max(0.0, SECONDS_A_MINUTE - (time.monotonic() - began)))
    return sent


def show(minute: Minute, rows: list[dict[str, object]]) -> None:
    charged = ", ".join(f"{row['zone']} x{row['multiplier']}" for row in sorted(rows, key=lambda row: str(row["zone"])))
    say(f"{minute.start:%H:%M} {len(minute.requests):>4} requests; {charged or 'no prices yet'}")


def verdict(run: hr.Running, sent: list[Minute]) -> int:
    """Hold the prices to an independent count, for all minutes that are over."""
    watermark = next(node.watermark for node in run.progress() if node.node == "prices")
    counted = {(zone, minute.start): figures for minute in sent for zone, figures in minute.prices().items()}
    over = {
        (zone, start): figures
        for (zone, start), figures in counted.items()
        if watermark is not None and start + timedelta(minutes=1) + WAIT < watermark
    }
    rows = [record.row for record in app.read(prices, schema=PRICES, kafka=run.kafka)]
    found = {(row["zone"], row["window_start"]): (row["demand"], row["supply"], row["multiplier"]) for row in rows}
    last = {zone: figures for (zone, _), figures in sorted(found.items(), key=lambda item: item[0][1])}
    shown = {
        row["zone"]: (row["demand"], row["supply"], row["multiplier"]) for row in tariff.rows(postgres=run.postgres)
    }
    table = Table("zone", "demand", "supply", "multiplier", box=None)
    for zone, figures in sorted(shown.items()):
        table.add_row(zone, *map(str, figures))
    console.print(table)
    right = found.items() <= counted.items() and over.items() <= found.items()
    if not over or not right or len(rows) != len(found) or shown != last:
        say(f"Something is wrong: {len(found.items() & counted.items())} of {len(found)} prices are right")
        return 1
    say(f"All {len(found)} prices are what an independent count makes of {len(sent)} minutes.")
    return 0


def say(text: str) -> None:
    console.print(text, soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
