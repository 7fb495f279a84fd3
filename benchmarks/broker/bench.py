"""What every scenario works with: the brokers, the load clients, and rounds taken in turn."""

from __future__ import annotations

import itertools
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from tests import peers

from benchmarks.broker.clients import LoadClient, producer_settings
from benchmarks.measure import Figures, cpu_seconds

T = TypeVar("T")

OURS, UNSYNCED = "Headrace", "Headrace, unsynced"
KAFKA, SYNCED = "Kafka", "Kafka, synced"


@dataclass(frozen=True)
class Options:
    folder: Path
    quick: bool
    rounds: int
    seconds: float
    gigabytes: float

    def pick(self, full: T, quick: T) -> T:
        return quick if self.quick else full


@dataclass(frozen=True)
class Side:
    """A broker as one contender. Kafka is two, its topics with and without a sync for each batch."""

    name: str
    server: peers.Server
    topic_config: Mapping[str, str] = field(default_factory=dict)

    @property
    def address(self) -> str:
        return self.server.address


@dataclass(frozen=True)
class Measured:
    """One round: what the client told, and what the broker's processes used meanwhile."""

    told: Mapping[str, float]
    cpu: float
    client_busy: float

    @property
    def rate(self) -> float:
        return self.told["records"] / self.told["seconds"]

    @property
    def cpu_microseconds(self) -> float:
        return self.cpu * 1e6 / self.told.get("all", self.told["records"])


class Bench:
    """Starts what a scenario asks for and ends all of it."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self._servers: list[peers.Server] = []
        self._clients: dict[str, LoadClient] = {}
        self._numbers = itertools.count(1)

    # ---- brokers

    def headrace(self, durability: str = "fsync", **properties: str) -> peers.Server:
        return self._own(peers.broker_for_tests(self._home("headrace"), properties, durability))

    def kafka(self, **properties: str) -> peers.Server:
        # Deleted topics would otherwise stay on the disk for a minute.
        return self._own(peers.ApacheKafka(self._home("kafka"), {"log.segment.delete.delay.ms": "1000", **properties}))

    def sides(self, synced: bool = True, unsynced: bool = False) -> list[Side]:
        """Both brokers, started; with Kafka synced as Headrace is, and with Headrace unsynced as Kafka is."""
        ours, kafka = self.headrace(), self.kafka()
        found = [Side(OURS, ours), Side(KAFKA, kafka)]
        if synced:
            found.append(Side(SYNCED, kafka, {"flush.messages": "1"}))
        if unsynced:
            found.append(Side(UNSYNCED, self.headrace(durability="os")))
        for server in dict.fromkeys(side.server for side in found):
            server.start()
        return found

    def _home(self, name: str) -> Path:
        return self.options.folder / f"{name}-{next(self._numbers)}"

    def _own(self, server: peers.Server) -> peers.Server:
        self._servers.append(server)
        return server

    # ---- clients

    def client(self, kind: str) -> LoadClient:
        if kind not in self._clients:
            self._clients[kind] = LoadClient(kind)
        return self._clients[kind]

    def fill(self, side: Side, topic: str, size: int, records: int) -> None:
        """Store records in full batches only, so that every broker holds the very same shape."""
        settings = producer_settings(**{"linger.ms": 1000, "batch.size": 16384})
        told = self.client("java").ask(
            "produce", bootstrap=side.address, topic=topic, size=size, records=records, **settings
        )
        if told["failed"]:
            raise RuntimeError(f"{told['failed']:.0f} records were not stored by {side.name}")

    # ---- measuring

    def measured(self, side: Side, client: LoadClient, verb: str, **arguments: object) -> Measured:
        os.sync()  # what an earlier round left to be written is not this round's to write
        family = side.server.processes()
        before = cpu_seconds(family)
        told = client.ask(verb, bootstrap=side.address, **arguments)
        used = cpu_seconds(family) - before
        if told.get("failed"):
            raise RuntimeError(f"{side.name}: {told['failed']:.0f} records failed")
        return Measured(told, used, client.busy)

    def in_turn(self, label: str, sides: Sequence[Side], round_of: Callable[[Side, bool], T]) -> dict[str, list[T]]:
        """A warm-up of each side, then the rounds, the order turning by one each time."""
        for side in sides:
            round_of(side, True)
        taken: dict[str, list[T]] = {side.name: [] for side in sides}
        for number in range(self.options.rounds):
            shift = number % len(sides)
            for side in [*sides[shift:], *sides[:shift]]:
                taken[side.name].append(round_of(side, False))
            progress(f"{label}: round {number + 1} of {self.options.rounds}")
        return taken

    def close(self) -> None:
        for client in self._clients.values():
            client.close()
        for server in self._servers:
            server.kill()
            shutil.rmtree(server.home, ignore_errors=True)
        self._clients.clear()
        self._servers.clear()


def figures(rounds: Sequence[Measured], of: Callable[[Measured], float]) -> Figures:
    return Figures(tuple(of(each) for each in rounds))


def make_topic(side: Side, name: str, partitions: int) -> None:
    """Make a topic and put one empty record into each partition."""
    admin = _admin(side)
    config = dict(side.topic_config)
    for made in admin.create_topics([NewTopic(name, partitions, 1, config=config)], request_timeout=60).values():
        made.result(60)
    # A topic is there for its users once each partition has acknowledged a record; before that, the Java client
    # sometimes leaves batches unsent until they expire.
    failed: list[str] = []
    producer = Producer({"bootstrap.servers": side.address, "log_level": 3, "acks": "all"})
    for partition in range(partitions):
        producer.produce(
            name, b"", partition=partition, on_delivery=lambda error, _: failed.append(str(error)) if error else None
        )
    if producer.flush(60) or failed:
        raise RuntimeError(f"{side.name}: {name} does not take records {failed[:1]}")


def drop_topic(side: Side, name: str) -> None:
    admin = _admin(side)
    for gone in admin.delete_topics([name], request_timeout=60).values():
        gone.result(60)


def _admin(side: Side) -> AdminClient:
    return AdminClient({"bootstrap.servers": side.address, "log_level": 3})


def topic_name(side: Side, case: str) -> str:
    """Kafka's two sides share a broker, so the side is part of the name."""
    return f"{case}-{side.name.lower().replace(', ', '-')}".replace(" ", "-")


def progress(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)
