"""Latency at a fixed rate while many other consumers wait for records that do not come."""

from __future__ import annotations

from benchmarks.broker.bench import KAFKA, OURS, Bench, Measured, Side, figures, make_topic, topic_name
from benchmarks.broker.clients import CLIENTS, LoadClient, consumer_settings, producer_settings
from benchmarks.report import Section

RATE = 1000
IDLE = 50
IDLE_PARTITIONS = 10


def run(bench: Bench) -> Section:
    section = Section(
        "latency",
        f"Latency at {RATE:,} messages/s, {IDLE} idle pollers",
        [
            "100 B, one partition, acks=all, idempotent, linger 0. Records are sent on schedule, whether or not the "
            f"broker keeps up; {IDLE} other consumers long-poll another topic. The wanted p99 is Kafka's by default."
        ],
    )
    sides = bench.sides()
    for side in sides:
        make_topic(side, topic_name(side, "latency"), 1)
        make_topic(side, topic_name(side, "idle"), IDLE_PARTITIONS)
    crowd = LoadClient("librdkafka")
    try:
        for client in CLIENTS:
            _compare(bench, client, crowd, sides, section)
    finally:
        crowd.close()
    return section


def _compare(bench: Bench, client: str, crowd: LoadClient, sides: list[Side], section: Section) -> None:
    def one(side: Side, warming: bool) -> Measured:
        crowd.ask(
            "pollers",
            bootstrap=side.address,
            topic=topic_name(side, "idle"),
            partitions=IDLE_PARTITIONS,
            count=IDLE,
        )
        try:
            return bench.measured(
                side,
                bench.client(client),
                "latency",
                topic=topic_name(side, "latency"),
                size=100,
                rate=RATE,
                warmup=1,
                seconds=1 if warming else bench.options.seconds,
                **producer_settings(**{"linger.ms": 0}),
                **consumer_settings(client),
            )
        finally:
            crowd.ask("release")

    taken = bench.in_turn(f"latency, {client}", sides, one)
    label = "Java client" if client == "java" else "librdkafka"
    for measure, name in (("send to acknowledgement", "ack"), ("send to receipt", "receipt")):
        medians, tails = (
            {side: figures(rounds, lambda each, key=key: each.told[key]) for side, rounds in taken.items()}  # type: ignore[misc]
            for key in (f"{name}_p50", f"{name}_p99")
        )
        section.hold(label, f"{measure}, p50", medians[OURS], at_most=1.5, peer=medians[KAFKA], unit=" ms")
        section.compare(label, f"{measure}, p99", tails[OURS], tails[KAFKA], at_most=1.0, digits=2, unit=" ms")
        for peer in [side for side in taken if side not in (OURS, KAFKA)]:
            section.hold(label, f"{measure}, p50, beside {peer}", medians[OURS], peer=medians[peer], unit=" ms")
            section.hold(label, f"{measure}, p99, beside {peer}", tails[OURS], peer=tails[peer], unit=" ms")
