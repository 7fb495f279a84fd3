"""Consuming a stored topic from its beginning, out of the page cache and from the disk."""

from __future__ import annotations

from pathlib import Path

from benchmarks.broker.bench import (
    KAFKA,
    OURS,
    Bench,
    Measured,
    Side,
    drop_topic,
    figures,
    make_topic,
    progress,
    topic_name,
)
from benchmarks.broker.clients import consumer_settings
from benchmarks.broker.produce import SATURATED, Case
from benchmarks.measure import drop_from_page_cache
from benchmarks.report import Section

FULL = [Case(size, partitions) for size in (100, 1000) for partitions in (1, 12, 100)]
QUICK = [Case(100, 1), Case(1000, 12)]
STILL_COLD = 0.02  # the share of a topic that may stay in memory in a cold round


def run(bench: Bench, client: str) -> Section:
    section = Section(
        f"consume-{client}",
        f"Consume, {'Java client' if client == 'java' else 'librdkafka'}",
        [
            "One consumer reads the whole topic; both brokers hold the same batches of 16 KB. Hot: from the page "
            "cache. Cold: the topic's files were dropped from it before each round."
        ],
    )
    sides = bench.sides(synced=False)
    for case in bench.options.pick(FULL, QUICK):
        records = bench.options.pick(2_000_000, 400_000) if case.size == 100 else bench.options.pick(500_000, 100_000)
        for side in sides:
            make_topic(side, topic_name(side, case.name), case.partitions)
            bench.fill(side, topic_name(side, case.name), case.size, records)
            progress(f"{case.label}: {side.name} is filled")
        records += case.partitions  # the empty records of a new topic
        for cold in (False, True):
            _compare(bench, client, case, records, cold, sides, section)
        for side in sides:
            drop_topic(side, topic_name(side, case.name))
    return section


def _compare(
    bench: Bench, client: str, case: Case, records: int, cold: bool, sides: list[Side], section: Section
) -> None:
    label = f"{case.label}, {'cold' if cold else 'hot'}"

    def one(side: Side, warming: bool) -> Measured:
        topic = topic_name(side, case.name)
        if cold:
            _cool(side, topic, case.partitions)
        taken = bench.measured(
            side, bench.client(client), "consume", topic=topic, records=records, **consumer_settings(client)
        )
        if taken.told["all"] != records:
            raise RuntimeError(f"{side.name} gave {taken.told['all']:.0f} of {records} records")
        return taken

    taken = bench.in_turn(f"{client}, {label}", sides, one)
    ours, theirs = taken[OURS], taken[KAFKA]
    busy = figures(ours, lambda each: each.client_busy).median
    remark = f", client {busy:.0%} busy" if busy >= SATURATED else ""
    section.compare(
        label,
        "rate",
        figures(ours, lambda each: each.rate),
        figures(theirs, lambda each: each.rate),
        at_least=1.0,
        unit="/s",
        remark=remark,
    )
    section.compare(
        label,
        "broker CPU per record",
        figures(ours, lambda each: each.cpu_microseconds),
        figures(theirs, lambda each: each.cpu_microseconds),
        digits=3,
        unit=" µs",
    )


def _cool(side: Side, topic: str, partitions: int) -> None:
    files: list[Path] = []
    for partition in range(partitions):
        files += side.server.segments(topic, partition)
    if drop_from_page_cache(files) <= STILL_COLD:
        return
    # Pages that the broker has mapped stay in memory until it lets go of them.
    side.server.stop()
    left = drop_from_page_cache(files)
    if left > STILL_COLD:
        raise RuntimeError(f"{left:.0%} of {topic} cannot be dropped from the page cache")
    side.server.start()
    drop_from_page_cache(files)
