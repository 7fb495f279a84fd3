"""Anonymous memory of the broker's processes: idle, with many partitions, under many connections and large requests."""

from __future__ import annotations

import resource
import socket
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack

from tests import peers

from benchmarks.broker.bench import KAFKA, OURS, Bench, Side, make_topic, progress
from benchmarks.broker.clients import consumer_settings, producer_settings
from benchmarks.measure import Figures, anonymous_bytes, greet
from benchmarks.report import Section

MB = 1e6
PRODUCERS, CONSUMERS = 32, 50
REQUEST = 1_000_000


def run(bench: Bench) -> Section:
    connections = bench.options.pick(2000, 200)
    partitions = bench.options.pick(1000, 100)
    section = Section(
        "memory",
        "Memory",
        [
            "Anonymous memory (RssAnon) of all the broker's processes, the highest of samples taken every 50 ms. Kafka "
            "runs with the heap of its own start script (1 GB)."
        ],
    )
    busy = f"{PRODUCERS} producers of 1 MB requests, {CONSUMERS} consumers, {connections:,} idle connections"
    many = f"{partitions:,} partitions, all written and read"
    found: dict[str, dict[str, Figures]] = {}
    for name, make in ((OURS, bench.headrace), (KAFKA, bench.kafka)):
        found[name] = {}
        side = _started(name, make())
        found[name]["idle"] = _peak(side, lambda: time.sleep(bench.options.pick(5.0, 1.0)))
        found[name][many] = _peak(side, lambda side=side: _use_partitions(bench, side, partitions))  # type: ignore[misc]
        side.server.kill()
        side = _started(name, make())
        found[name][busy] = _peak(side, lambda side=side: _flood(bench, side, connections))  # type: ignore[misc]
        side.server.kill()
        progress(f"{name}: " + ", ".join(f"{value.median:.0f} MB" for value in found[name].values()))
    for case, limit in (("idle", 60), (many, 100), (busy, 200)):
        section.hold(case, "peak", found[OURS][case], at_most=limit, peer=found[KAFKA][case], digits=0, unit=" MB")
    return section


def _started(name: str, server: peers.Server) -> Side:
    server.start()
    return Side(name, server)


def _peak(side: Side, work: Callable[[], object]) -> Figures:
    """The highest reading in megabytes while the work is done."""
    family = side.server.processes()
    readings = [anonymous_bytes(family)]
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.05):
            readings.append(anonymous_bytes(side.server.processes()))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        work()
    finally:
        done.set()
        watcher.join()
    return Figures((max(readings) / MB,))


def _use_partitions(bench: Bench, side: Side, partitions: int) -> None:
    make_topic(side, "many", partitions)
    records = 100 * partitions
    common = {"bootstrap": side.address, "topic": "many", "records": records}
    java = bench.client("java")
    java.ask("produce", **common, size=100, keyed=1, **producer_settings())
    read = java.ask("consume", **common, **consumer_settings("java"))
    if read["all"] < records:
        raise RuntimeError(f"{side.name} gave {read['all']:.0f} of {records} records")


def _flood(bench: Bench, side: Side, connections: int) -> None:
    make_topic(side, "flood", CONSUMERS)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, connections + 1000)), hard))
    with ExitStack() as idle:
        for _ in range(connections):
            greet(idle.enter_context(socket.create_connection(("127.0.0.1", side.server.port), timeout=30)))
        told = bench.client("java").ask(
            "flood",
            bootstrap=side.address,
            topic="flood",
            producers=PRODUCERS,
            consumers=CONSUMERS,
            size=REQUEST,
            seconds=bench.options.pick(10, 2),
            **producer_settings(**{"buffer.memory": 8 * REQUEST, "max.block.ms": 60000}),
            **consumer_settings("java"),
        )
    if told["failed"]:
        raise RuntimeError(f"{told['failed']:.0f} requests failed at {side.name}")
    progress(f"{side.name}: {told['records'] / told['seconds']:.0f} requests/s, {told['read']:.0f} records read")
