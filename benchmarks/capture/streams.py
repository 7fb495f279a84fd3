"""The rates of stream and snapshot, the latency of a change, memory, and the CPU of an idle capture."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
from confluent_kafka import OFFSET_END, Consumer, KafkaException, TopicPartition
from tests.capture.capturing import Capturing, until
from tests.peers import broker_for_tests

from benchmarks.bench import Bench, progress
from benchmarks.measure import Figures
from benchmarks.report import Section
from headrace.tables import EmbeddedPostgres

ROWS_IN_TRANSACTION = 1000
SNAPSHOT_ROWS = 1_000_000
IDLE_SECONDS = 15.0
ROW = "%s, 'customer ' || %s, %s * 1.25, now(), 'open'"
TABLE = "id bigint PRIMARY KEY, customer text, total numeric(12,2), at timestamptz, state text"


def measured(bench: Bench) -> Section:
    options = bench.options
    changes = min(options.events, 400_000)
    with broker_for_tests(options.folder / "broker", {}) as broker:
        server = EmbeddedPostgres(options.folder / "postgres")
        try:
            capturing = Capturing(server.start(), broker.address, options.folder, partitions=1)
            rate, memory = _stream(capturing, changes)
            progress(f"stream {rate:,.0f} changes/s in {memory:,.0f} MB")
            p50, p99, idle = _latency(capturing, min(options.seconds, 20.0))
            progress(f"latency p50 {p50:.1f} ms, p99 {p99:.1f} ms; idle {idle:.2f} % of a core")
            snapshot, more = _snapshot(capturing)
            progress(f"snapshot {snapshot:,.0f} rows/s")
        finally:
            server.stop()
    section = Section(
        "capture",
        "Capture",
        [
            f"A table of five columns. Stream: {changes:,} changes, half inserts and half updates, "
            f"{ROWS_IN_TRANSACTION:,} rows a transaction, waiting in the slot when the capture starts. "
            "Latency: from the end of COMMIT to the record in a consumer (read_committed), up to 50 transactions a "
            f"second. Snapshot: {SNAPSHOT_ROWS:,} rows, while another table of the capture changes 50 times a second. "
            "Memory: the largest resident set of the process.",
        ],
        peer="",
    )
    section.reach("stream", "changes", Figures((rate,)), 50_000, unit="/s")
    section.hold("stream", "memory", Figures((memory,)), at_most=150, unit=" MB")
    section.hold("one row", "commit to readable, p50", Figures((p50,)), at_most=20, unit=" ms")
    section.hold("one row", "commit to readable, p99", Figures((p99,)), at_most=100, unit=" ms")
    section.reach("snapshot", "rows", Figures((snapshot,)), 100_000, unit="/s")
    section.hold("snapshot", "memory", Figures((more,)), at_most=150, unit=" MB")
    section.hold("idle", "CPU, of one core", Figures((idle,)), at_most=1, unit=" %")
    return section


def _stream(capturing: Capturing, changes: int) -> tuple[float, float]:
    capturing.sql(f"CREATE TABLE orders ({TABLE})")
    topic = capturing.table("orders")
    with capturing.running():
        capturing.await_snapshots()
    for first in range(0, changes // 2, ROWS_IN_TRANSACTION):
        last = first + ROWS_IN_TRANSACTION - 1
        chosen = ROW.replace("%s", "i")
        capturing.sql(f"INSERT INTO orders SELECT {chosen} FROM generate_series({first}, {last}) i")
        capturing.sql(f"UPDATE orders SET state = 'paid' WHERE id BETWEEN {first} AND {last}")
    with capturing.running(), _memory(capturing) as largest:
        until(lambda: _end(capturing, topic) > 0, 60)
        began, before = time.monotonic(), _end(capturing, topic)
        until(lambda: _end(capturing, topic) >= changes, 240)
        took = time.monotonic() - began
    return (changes - before) / took, largest[0] / 1e6


def _latency(capturing: Capturing, seconds: float) -> tuple[float, float, float]:
    capturing.sql(f"CREATE TABLE single ({TABLE})")
    topic = capturing.table("single")
    delays: list[float] = []
    with capturing.running():
        until(lambda: any("single is complete" in remark for remark in capturing.remarks))
        consumer = _consumer(capturing, topic)
        number = 0
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            number += 1
            capturing.sql(f"INSERT INTO single VALUES ({ROW.replace('%s', str(number))})")
            committed = time.perf_counter()
            while (message := consumer.poll(5.0)) is None or message.error() is not None:
                pass
            delays.append((time.perf_counter() - committed) * 1000)
            time.sleep(max(0.0, 0.02 - delays[-1] / 1000))
        consumer.close()
        time.sleep(2)
        process = psutil.Process(capturing.status.pid)
        used = sum(process.cpu_times()[:2])
        time.sleep(IDLE_SECONDS)
        idle = (sum(process.cpu_times()[:2]) - used) / IDLE_SECONDS * 100
    delays.sort()
    return delays[len(delays) // 2], delays[int(len(delays) * 0.99)], idle


def _snapshot(capturing: Capturing) -> tuple[float, float]:
    capturing.sql(f"CREATE TABLE large ({TABLE})")
    capturing.sql(f"INSERT INTO large SELECT {ROW.replace('%s', 'i')} FROM generate_series(1, {SNAPSHOT_ROWS}) i")
    capturing.sql("ANALYZE large")
    topic = capturing.table("large")
    ended = threading.Event()
    thread = threading.Thread(target=_change, args=(capturing, ended))
    with capturing.running(), _memory(capturing) as largest:
        thread.start()
        try:
            until(lambda: _end(capturing, topic) > 0, 60)
            began, before = time.monotonic(), _end(capturing, topic)
            until(lambda: any("large is complete" in remark for remark in capturing.remarks), 240)
            took = time.monotonic() - began
        finally:
            ended.set()
            thread.join()
    return (SNAPSHOT_ROWS - before) / took, largest[0] / 1e6


def _change(capturing: Capturing, ended: threading.Event) -> None:
    number = 0
    while not ended.wait(0.02):
        number += 1
        capturing.sql(f"UPDATE single SET total = total + 1 WHERE id = {number % 100}")


def _end(capturing: Capturing, topic: str) -> int:
    try:
        return _watching(capturing).get_watermark_offsets(TopicPartition(topic, 0), timeout=10)[1]
    except KafkaException:
        return 0  # the topic does not exist yet


_consumers: dict[str, Consumer] = {}


def _watching(capturing: Capturing) -> Consumer:
    if capturing.kafka not in _consumers:
        settings = {"bootstrap.servers": capturing.kafka, "group.id": "watching"}
        _consumers[capturing.kafka] = Consumer(settings)
    return _consumers[capturing.kafka]


def _consumer(capturing: Capturing, topic: str) -> Consumer:
    consumer = Consumer(
        {
            "bootstrap.servers": capturing.kafka,
            "group.id": "latency",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 500,
        }
    )
    consumer.assign([TopicPartition(topic, 0, OFFSET_END)])
    consumer.poll(1.0)
    return consumer


@contextmanager
def _memory(capturing: Capturing) -> Iterator[list[int]]:
    """The largest resident set of the capture's process."""
    largest, ended = [0], threading.Event()

    def watch() -> None:
        while not ended.wait(0.05):
            pid = capturing.status.pid
            if pid is not None and psutil.pid_exists(pid):
                largest[0] = max(largest[0], psutil.Process(pid).memory_info().rss)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield largest
    finally:
        ended.set()
        thread.join()
