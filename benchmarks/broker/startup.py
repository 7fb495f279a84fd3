"""From the start of the process to the first Metadata answer that names every topic with its leaders."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tests import peers

from benchmarks.broker.bench import KAFKA, OURS, Bench, Side, make_topic, progress
from benchmarks.broker.clients import LoadClient, producer_settings
from benchmarks.measure import Figures, cpu_seconds, first_metadata
from benchmarks.report import Section

LIMIT = 180.0
STORED_PARTITIONS = 4
CLEAN, KILLED = "after a clean stop", "after kill -9"

Found = dict[tuple[str, str], "Starts"]


@dataclass(frozen=True)
class Starts:
    """Seconds on the clock and of CPU, each until the first answer."""

    waited: Figures
    cpu: Figures


def run(bench: Bench) -> Section:
    gigabytes = bench.options.gigabytes
    section = Section(
        "startup",
        "Start",
        [
            "Seconds from the start of the process to the first Metadata answer that names every topic and leader. "
            f"{gigabytes:g} GB are 1 KB records in {STORED_PARTITIONS} partitions; each of the many partitions holds "
            "records. kill -9 comes while a producer writes to all of them."
        ],
    )
    partitions = bench.options.pick(1000, 100)
    stored, many = f"{gigabytes:g} GB", f"{partitions:,} partitions"
    found = {
        name: {**_with_data(bench, name, make(), stored), **_with_partitions(bench, name, make(), partitions, many)}
        for name, make in ((OURS, bench.headrace), (KAFKA, bench.kafka))
    }
    for case, how, at_most in (
        ("nothing stored", CLEAN, 1.0),
        (stored, CLEAN, 1.0),
        (stored, KILLED, 5.0),
        (many, CLEAN, 2.0),
        (many, KILLED, 2.0),
    ):
        ours, kafka = (found[name][case, how] for name in (OURS, KAFKA))
        section.hold(case, how, ours.waited, at_most=at_most, peer=kafka.waited, unit=" s")
        section.hold(case, f"CPU of the start {how}", ours.cpu, peer=kafka.cpu, unit=" s")
    return section


def _with_data(bench: Bench, name: str, server: peers.Server, case: str) -> Found:
    side = _started(name, server)
    found = {("nothing stored", CLEAN): _restarts(bench, side, {}, server.stop)}
    make_topic(side, "stored", STORED_PARTITIONS)
    progress(f"{name}: storing {case}")
    bench.fill(side, "stored", 1000, int(bench.options.gigabytes * 1e9 / 1000))
    topics = {"stored": STORED_PARTITIONS}
    found[case, CLEAN] = _restarts(bench, side, topics, server.stop)
    found[case, KILLED] = _restarts(bench, side, topics, lambda: _kill_while_writing(bench, side, "stored"))
    server.kill()
    return found


def _with_partitions(bench: Bench, name: str, server: peers.Server, partitions: int, case: str) -> Found:
    side = _started(name, server)
    make_topic(side, "many", partitions)
    settings = producer_settings()
    bench.client("java").ask(
        "produce", bootstrap=side.address, topic="many", size=100, records=20 * partitions, keyed=1, **settings
    )
    topics = {"many": partitions}
    found = {(case, CLEAN): _restarts(bench, side, topics, server.stop)}
    found[case, KILLED] = _restarts(bench, side, topics, lambda: _kill_while_writing(bench, side, "many"))
    server.kill()
    return found


def _started(name: str, server: peers.Server) -> Side:
    # A port of the ephemeral range can connect to itself while nothing listens there.
    server.port = peers.free_port()
    server.start()
    return Side(name, server)


def _restarts(bench: Bench, side: Side, topics: Mapping[str, int], end: Callable[[], object]) -> Starts:
    taken: list[tuple[float, float]] = []
    for _ in range(bench.options.rounds):
        end()
        started = time.perf_counter()
        side.server.spawn()
        first_metadata(side.server.port, dict(topics), LIMIT)
        taken.append((time.perf_counter() - started, cpu_seconds(side.server.processes())))
        side.server.wait_until_serving(LIMIT)
    waited, cpu = (Figures(column) for column in zip(*taken, strict=True))
    progress(f"{side.name}: {waited.show(2, ' s')}")
    return Starts(waited, cpu)


def _kill_while_writing(bench: Bench, side: Side, topic: str) -> None:
    writer = LoadClient("librdkafka")
    settings = producer_settings(**{"message.timeout.ms": 5000})
    writer.begin("produce", bootstrap=side.address, topic=topic, size=1000, seconds=60, keyed=1, **settings)
    time.sleep(bench.options.pick(3.0, 1.5))
    side.server.kill()
    writer.kill()
