"""Producing: rate and CPU per record, against Kafka as it comes and against Kafka at equal durability."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.broker.bench import (
    KAFKA,
    OURS,
    SYNCED,
    Bench,
    Measured,
    Side,
    drop_topic,
    figures,
    make_topic,
    topic_name,
)
from benchmarks.broker.clients import producer_settings
from benchmarks.report import Section

SATURATED = 0.9  # a client thread this busy sets the rate, whatever the broker could do


@dataclass(frozen=True)
class Case:
    size: int
    partitions: int
    keyed: bool = False

    @property
    def label(self) -> str:
        size = "1 KB" if self.size == 1000 else f"{self.size} B"
        many = "partition" if self.partitions == 1 else "partitions"
        return f"{size}, {self.partitions} {many}{', keyed' if self.keyed else ''}"

    @property
    def name(self) -> str:
        return f"produce-{self.size}-{self.partitions}{'-keyed' if self.keyed else ''}"


FULL = [
    *(Case(size, partitions) for size in (100, 1000) for partitions in (1, 12, 100)),
    Case(100, 12, keyed=True),
]
QUICK = [Case(100, 1), Case(1000, 12)]


def run(bench: Bench, client: str) -> Section:
    section = Section(
        f"produce-{client}",
        f"Produce, {'Java client' if client == 'java' else 'librdkafka'}",
        [
            "acks=all, idempotent, no compression, random payload, the client's own batch size and linger. Without a "
            "key the client fills one batch after another; keyed records go to all partitions at once."
        ],
    )
    faster = 2.0 if client == "java" else 3.0
    sides = bench.sides()
    for case in bench.options.pick(FULL, QUICK):
        taken = _rounds(bench, client, case, sides)
        ours = taken[OURS]
        rate, cost = figures(ours, lambda each: each.rate), figures(ours, lambda each: each.cpu_microseconds)
        busy = figures(ours, lambda each: each.client_busy).median
        remark = f", client {busy:.0%} busy" if busy >= SATURATED else ""
        for peer, at_least in ((KAFKA, 1.0), (SYNCED, faster)):
            theirs = figures(taken[peer], lambda each: each.rate)
            section.compare(
                case.label, f"rate, beside {peer}", rate, theirs, at_least=at_least, unit="/s", remark=remark
            )
        for peer in (KAFKA, SYNCED):
            theirs = figures(taken[peer], lambda each: each.cpu_microseconds)
            measure = f"broker CPU per record, beside {peer}"
            section.compare(case.label, measure, cost, theirs, at_most=0.6, digits=2, unit=" µs")
    return section


def _rounds(bench: Bench, client: str, case: Case, sides: list[Side]) -> dict[str, list[Measured]]:
    for side in sides:
        make_topic(side, topic_name(side, case.name), case.partitions)

    def one(side: Side, warming: bool) -> Measured:
        return bench.measured(
            side,
            bench.client(client),
            "produce",
            topic=topic_name(side, case.name),
            size=case.size,
            seconds=bench.options.seconds / (2 if warming else 1),
            keyed=1 if case.keyed else None,
            **producer_settings(),
        )

    taken = bench.in_turn(f"{client}, {case.label}", sides, one)
    for side in sides:
        drop_topic(side, topic_name(side, case.name))
    return taken
