"""Payments at a steady pace, and how long each takes to every place where what came of it can be read."""

import json
import math
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.engine.topology.payments import LATE, ORDINARY, SHARES, STRAGGLER, Payments

__all__ = ["HOPS", "RATE", "Burst", "Eyes", "Sender", "Sent", "delays", "make_topics", "percentile", "producer"]

RATE = 50
HOPS = {  # what is measured, by the node that it is read from
    "accepted": "first topic",
    "known": "second topic",
    "spend": "in the view",
    "bursts": "burst reported (third topic)",
    "alarms": "burst in the view",
    "tardy": "late payment told (fourth topic)",
}
READ = ("accepted", "known", "bursts", "tardy")
EVERY_PAYMENT = {"accepted": (ORDINARY, STRAGGLER, LATE), "known": (ORDINARY, STRAGGLER, LATE)}
"""The kinds of which all must come; of what else is read, what came counts."""


@dataclass(frozen=True)
class Sent:
    id: str
    kind: str
    at: float


def encoded(row: Mapping[str, Any]) -> bytes:
    """As a client writes it: an amount as a number with its cents, a time to the microsecond."""
    at = row["at"].astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    text = (
        f'"id":"{row["id"]}","card":"{row["card"]}","amount":{row["amount"]},"country":"{row["country"]}","at":"{at}"'
    )
    return f"{{{text}}}".encode()


def producer(address: str, linger: int = 5) -> Producer:
    settings = {"bootstrap.servers": address, "partitioner": "murmur2_random", "linger.ms": linger}
    return Producer({**settings, "log_level": 0})  # it outlives its broker, and would go on about that


def make_topics(address: str, topics: Sequence[str]) -> None:
    """With as many partitions as the broker gives by itself, and records of any age."""
    admin = AdminClient({"bootstrap.servers": address})
    wanted = [NewTopic(name, config={"retention.ms": "-1"}) for name in topics]
    for made in admin.create_topics(wanted).values():
        made.result(60)


class Sender(threading.Thread):
    """Sends payments until it is stopped."""

    def __init__(self, address: str) -> None:
        super().__init__(daemon=True)
        self.sent: list[Sent] = []
        """Each payment when it was first sent; malformed ones are not among them."""
        self._producer = producer(address)
        self._source = Payments()
        self._known: set[str] = set()
        self._stopping = threading.Event()

    def send_cards(self) -> None:
        """The table of cards, as it has been for days."""
        since = int((datetime.now(UTC) - timedelta(days=3)).timestamp() * 1000)
        for card in self._source.cards():
            self._producer.produce("cards", json.dumps(card), card["card"], timestamp=since)
        if self._producer.flush(60):
            raise RuntimeError("the cards were not acknowledged")

    def run(self) -> None:
        started, number = time.monotonic(), 0
        while not self._stopping.wait(max(0.0, started + number / RATE - time.monotonic())):
            number += 1
            payment = self._source.make(datetime.now(UTC))
            value = payment.raw if payment.row is None else encoded(payment.row)
            now = time.time()
            self._producer.produce("payments", value, payment.card)
            self._producer.poll(0)
            if payment.row is not None and payment.row["id"] not in self._known:
                self._known.add(payment.row["id"])
                self.sent.append(Sent(payment.row["id"], payment.kind, now))

    def stop(self) -> None:
        self._stopping.set()
        if self.is_alive():
            self.join()
        self._producer.flush(60)
        del self._producer  # it would look for its topics in the next broker at this address, and so make them there


class Burst:
    """Sends some payments at once, in one batch of the producer's, so that one batch of Spark's reads them all."""

    def __init__(self, address: str, count: int) -> None:
        self._producer = producer(address, linger=50)
        self._source = Payments()
        self._count = count
        self.sent = 0

    def send(self) -> None:
        for _ in range(self._count):
            payment = self._source.make(datetime.now(UTC), {kind: SHARES[kind] for kind in (ORDINARY, STRAGGLER)})
            assert payment.row is not None
            self._producer.produce("payments", encoded(payment.row), payment.card)
        if self._producer.flush(60):
            raise RuntimeError("payments were not acknowledged")
        self.sent += self._count

    def close(self) -> None:
        del self._producer


@dataclass
class Eyes:
    """Reads the topics and looks into the views, and notes when each payment was first seen where."""

    kafka: str
    postgres: str
    seen: dict[str, dict[str, float]] = field(default_factory=lambda: {node: {} for node in HOPS})
    counted: list[tuple[float, int]] = field(default_factory=list)
    """How many payments the view of spendings had counted at which time."""
    error: Exception | None = None

    def __post_init__(self) -> None:
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._kept, args=(work,)) for work in (self._read, self._look)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()
        if self.error is not None:
            raise self.error

    def _kept(self, work: Any) -> None:
        try:
            work()
        except Exception as error:
            self.error = error

    def _read(self) -> None:
        settings = {"bootstrap.servers": self.kafka, "group.id": "eyes", "isolation.level": "read_committed"}
        settings |= {"auto.offset.reset": "earliest", "fetch.wait.max.ms": "10", "log_level": "0"}
        consumer = Consumer(settings)
        consumer.subscribe(list(READ))
        try:
            while not self._stopping.is_set():
                message = consumer.poll(0.05)  # of many at once, `consume` would wait for the last
                if message is not None and message.error() is None and message.value() is not None:
                    id = json.loads(message.value())["id"]
                    self.seen[message.topic()].setdefault(id, time.time())
        finally:
            consumer.close()

    def _look(self) -> None:
        # Payments of yesterday may be counted as well, while there is no watermark that they could be late by.
        counting = "SELECT coalesce(sum(n), 0) FROM fraud.spend WHERE window_start > now() - interval '3 hours'"
        with psycopg.connect(self.postgres, autocommit=True) as connection:
            while not self._stopping.wait(0.05):
                (count,) = connection.execute(counting).fetchone() or (0,)
                now = time.time()
                if not self.counted or count != self.counted[-1][1]:
                    self.counted.append((now, int(count)))
                for (id,) in connection.execute("SELECT id FROM fraud.alarms").fetchall():
                    self.seen["alarms"].setdefault(id, now)


def delays(node: str, sent: Sequence[Sent], eyes: Eyes, begin: float, end: float) -> list[float]:
    """Sorted seconds of the payments that were sent in a span of time.

    Where all must come, one that has not counts as if it came just now.
    """
    now = time.time()
    if node == "spend":
        return sorted(view_delays(sent, eyes.counted, begin, end, now))
    seen, musts = dict(eyes.seen[node]), EVERY_PAYMENT.get(node, ())
    among = [one for one in sent if begin <= one.at < end and (one.id in seen or one.kind in musts)]
    return sorted(seen.get(one.id, now) - one.at for one in among)


def view_delays(
    sent: Sequence[Sent], counted: Sequence[tuple[float, int]], begin: float, end: float, now: float
) -> list[float]:
    """The view only tells how many it has counted: the first so many that were sent, late ones aside."""
    found = []
    looks = iter(counted)
    moment, count = next(looks, (now, len(sent)))
    for number, one in enumerate(one for one in sent if one.kind != LATE):
        while count <= number:
            moment, count = next(looks, (now, len(sent)))
        if begin <= one.at < end:
            found.append(moment - one.at)
    return found


def percentile(values: Sequence[float], share: float) -> float:
    """Of sorted values, the one that so large a share of them does not exceed."""
    if not values:
        raise ValueError("there are no values")
    return values[max(0, math.ceil(len(values) * share) - 1)]
