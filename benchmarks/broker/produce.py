"""Producing: rate and CPU per record beside Kafka at equal durability, both ways; what a sync costs; the disk alone."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.broker.bench import (
    KAFKA,
    OURS,
    SYNCED,
    UNSYNCED,
    Bench,
    Measured,
    Side,
    drop_topic,
    figures,
    make_topic,
    topic_name,
)
from benchmarks.broker.clients import producer_settings
from benchmarks.broker.disk import synced_rate
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
            "key the client fills one batch after another; keyed records go to all partitions at once.",
            "",
            "Neither synced: `headrace broker --durability os` beside Kafka with its defaults. Both synced: Headrace "
            "with its defaults beside Kafka with `flush.messages=1`. What a sync costs: Headrace with its defaults, "
            "which syncs, beside Kafka with its defaults, which does not. The disk alone: a program that writes "
            "as many bytes as the client can have unacknowledged, syncs the files, and repeats that.",
        ],
    )
    faster = 2.0 if client == "java" else 3.0
    sides = bench.sides(unsynced=True)
    compared = (
        ("neither synced", UNSYNCED, KAFKA, 1.0),
        ("both synced", OURS, SYNCED, faster),
        ("what a sync costs", OURS, KAFKA, 1.0),
    )
    for case in bench.options.pick(FULL, QUICK):
        taken = _rounds(bench, client, case, sides)
        for what, our, peer, at_least in compared:
            ours, theirs = taken[our], taken[peer]
            busy = figures(ours, lambda each: each.client_busy).median
            section.compare(
                case.label,
                f"rate, {what}",
                figures(ours, lambda each: each.rate),
                figures(theirs, lambda each: each.rate),
                at_least=at_least,
                unit="/s",
                remark=f", client {busy:.0%} busy" if busy >= SATURATED else "",
            )
            section.compare(
                case.label,
                f"broker CPU per record, {what}",
                figures(ours, lambda each: each.cpu_microseconds),
                figures(theirs, lambda each: each.cpu_microseconds),
                at_most=0.6,
                digits=2,
                unit=" µs",
            )
        options = bench.options
        disk = synced_rate(
            options.folder / "disk", client, case.partitions, case.size, options.rounds, options.seconds / 2
        )
        rate = figures(taken[OURS], lambda each: each.rate)
        section.compare(case.label, "rate, synced, beside the disk alone", rate, disk, unit="/s")
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
