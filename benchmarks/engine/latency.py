"""Latency: from the moment a record is handed to a producer until what came of it can be read from the sink."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import Consumer, Producer, TopicPartition
from pyspark.sql import DataFrame

import headrace as hr
from benchmarks.bench import Bench, progress
from benchmarks.engine.job import make_topic
from benchmarks.measure import Figures
from benchmarks.report import Section
from headrace.config.run import RunConfig
from headrace.engine.run.runner import Runner

WARM_UP = 5.0
WAYS = {  # how a node runs, and the limits in milliseconds of its p50 and p99
    "at-least-once": ({"guarantee": "at-least-once"}, 200.0, None),
    "exactly-once": ({"guarantee": "exactly-once"}, 250.0, None),
    "real-time": ({"guarantee": "at-least-once", "latency": "real-time"}, 15.0, 60.0),
}


def run(bench: Bench) -> Section:
    section = Section(
        "engine-latency",
        "The engine: latency of a stateless node",
        [
            "Milliseconds from a producer's send to the receipt by a consumer that reads committed records, one node "
            "in between, embedded broker. One round each, after as long in which nothing is measured: a node that has "
            "run for a while is meant, not Java's first minute."
        ],
        peer="",
    )
    with running(bench, "warming-up", {}) as topics:
        measured(bench, topics, rate=1_000)
    for name, (options, median_limit, tail_limit) in WAYS.items():
        with running(bench, name, options) as topics:
            for rate in (1, 1_000):
                taken = measured(bench, topics, rate)
                progress(f"{name} at {rate}/s: p50 {taken[len(taken) // 2]:.1f} ms of {len(taken)}")
                case = f"{name}, {rate:,} events/s"
                section.hold(case, "p50", _at(taken, 0.5), at_most=median_limit, digits=1, unit=" ms")
                section.hold(case, "p99", _at(taken, 0.99), at_most=tail_limit, digits=1, unit=" ms")
    return section


@contextmanager
def running(bench: Bench, name: str, options: dict[str, str]) -> Iterator[tuple[str, str]]:
    address = bench.broker().address
    source = f"numbers-{name}"
    make_topic(address, source, partitions=1)  # in real-time mode each takes a core for itself
    app = hr.App(f"latency-{name}", prefix=f"latency-{name}.")
    numbers = app.topic("numbers", "id BIGINT, sent DOUBLE", topic=source)

    @app.stream(**options)  # type: ignore[arg-type]
    def passed(rows: DataFrame = numbers) -> DataFrame:  # type: ignore[assignment]
        return rows.filter("id >= 0")

    config = RunConfig(home=bench.options.folder / name, kafka=address, topic_settings={"partitions": "1"})
    runner = Runner(app, config)  # a session of its own: real-time nodes hold on to their tasks
    runner.start()
    try:
        yield source, passed.topic_name
    finally:
        runner.stop()


def measured(bench: Bench, topics: tuple[str, str], rate: int) -> list[float]:
    """Sorted milliseconds, those of the warm-up left out."""
    source, target = topics
    address = bench.broker().address
    seconds = WARM_UP + bench.options.seconds
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "latency",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 10,
        }
    )
    end = consumer.get_watermark_offsets(TopicPartition(target, 0), 30, cached=False)[1]
    consumer.assign([TopicPartition(target, 0, end)])
    expected = int(seconds * rate)
    sender = threading.Thread(target=_send, args=(address, source, rate, expected))
    sender.start()
    took: list[float] = []
    seen, deadline = 0, time.monotonic() + seconds + 60
    while seen < expected and time.monotonic() < deadline:
        message = consumer.poll(0.05)  # of many at once, `consume` would wait for the last
        if message is None:
            continue
        now = time.time()
        value = json.loads(message.value())
        seen += 1
        if value["id"] >= WARM_UP * rate:
            took.append((now - value["sent"]) * 1000)
    sender.join()
    consumer.close()
    if seen < expected:
        raise RuntimeError(f"only {seen} of {expected} came through {source}")
    return sorted(took)


def _send(address: str, topic: str, rate: int, count: int) -> None:
    producer = Producer({"bootstrap.servers": address, "linger.ms": 0})
    began = time.perf_counter()
    for number in range(count):
        pause = began + number / rate - time.perf_counter()
        if pause > 0:
            producer.poll(0)
            time.sleep(pause)
        producer.produce(topic, json.dumps({"id": number, "sent": time.time()}), partition=0)
    producer.flush(60)


def _at(taken: list[float], share: float) -> Figures:
    return Figures((taken[min(len(taken) - 1, int(len(taken) * share))],))
