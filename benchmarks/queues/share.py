"""Share consumers: records acknowledged one by one by many consumers of one group."""

from __future__ import annotations

import itertools

from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from benchmarks.broker.bench import KAFKA, OURS, Bench, Measured, Side, figures, make_topic, progress, topic_name
from benchmarks.broker.produce import SATURATED
from benchmarks.report import Section

CONSUMERS = 16
LEAST = 20_000
PARTITIONS = (1, 4)
SIZE = 100


def run(bench: Bench) -> Section:
    section = Section(
        "share-consumers",
        f"Share consumers, {CONSUMERS} in one group",
        [
            f"{SIZE} B, stored in batches of 16 KB. Each of {CONSUMERS} Java share consumers acknowledges every "
            "record by itself; the client sends what was acknowledged with its next fetch. Counted is what the broker "
            "confirmed. Headrace confirms once that is synced; Kafka writes it to a topic of its own, unsynced."
        ],
    )
    sides = bench.sides(synced=False)
    records = bench.options.pick(3_000_000, 1_000_000)
    for partitions in bench.options.pick(PARTITIONS, (4,)):
        for side in sides:
            topic = topic_name(side, f"share-{partitions}")
            make_topic(side, topic, partitions)
            bench.fill(side, topic, SIZE, records)
        progress(f"{partitions} partitions are filled")
        _compare(bench, partitions, sides, section)
    return section


def _compare(bench: Bench, partitions: int, sides: list[Side], section: Section) -> None:
    numbers = itertools.count()

    def one(side: Side, warming: bool) -> Measured:
        group = f"share-{partitions}-{next(numbers)}"
        _from_the_beginning(side, group)
        return bench.measured(
            side,
            bench.client("java"),
            "share",
            topic=topic_name(side, f"share-{partitions}"),
            group=group,
            consumers=CONSUMERS,
            warmup=0.5 if warming else 1,
            seconds=1 if warming else bench.options.seconds,
        )

    taken = bench.in_turn(f"share consumers, {partitions} partitions", sides, one)
    ours, theirs = taken[OURS], taken[KAFKA]
    label = f"{partitions} partition{'s' if partitions > 1 else ''}"
    rates = figures(ours, lambda each: each.rate)
    busy = figures(ours, lambda each: each.client_busy).median
    remark = f", client {busy:.0%} busy" if busy >= SATURATED else ""
    section.reach(label, "acknowledged", rates, LEAST, unit="/s")
    section.compare(
        label, "acknowledged", rates, figures(theirs, lambda each: each.rate), at_least=1.0, unit="/s", remark=remark
    )
    section.compare(
        label,
        "broker CPU per record",
        figures(ours, lambda each: each.cpu_microseconds),
        figures(theirs, lambda each: each.cpu_microseconds),
        digits=2,
        unit=" µs",
    )


def _from_the_beginning(side: Side, group: str) -> None:
    entry = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.GROUP, group, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": side.address, "log_level": 3})
    admin.incremental_alter_configs([resource])[resource].result(30)
