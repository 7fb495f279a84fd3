"""Rates: all events of a topic through one query, from its first batch to the end of its last."""

import itertools
import random
from collections.abc import Mapping

from benchmarks.bench import Bench, progress
from benchmarks.engine.job import Setting, Way, fill
from benchmarks.measure import Figures
from benchmarks.report import Section

BY_HAND, PLAIN = "by hand", "by hand, from_json alone"
AT_LEAST, EXACTLY, AT_MOST = "at-least-once", "exactly-once", "at-most-once"


def in_turn(ways: Mapping[str, Way], rounds: int, events: int) -> dict[str, Figures]:
    """Events a second of each way, all of them in every round."""
    numbers = itertools.count(1)
    rates: dict[str, list[float]] = {name: [] for name in ways}
    names, dice = list(ways), random.Random(rounds)
    for taken in range(-1, rounds):  # the first warms up
        dice.shuffle(names)  # none always has the same before it, whose leavings it would clear away
        for name in names:
            seconds = ways[name](next(numbers))
            if taken >= 0:
                rates[name].append(events / seconds)
        progress(f"round {taken + 1} of {rounds}: " + ", ".join(f"{name} {some[-1:]}" for name, some in rates.items()))
    return {name: Figures(tuple(values)) for name, values in rates.items()}


def run(bench: Bench, *, windowed: bool) -> Section:
    options = bench.options
    address = bench.broker().address
    source = "payments"
    progress(f"filling the topic with {options.events:,} events")
    fill(address, source, options.events)
    setting = Setting(bench.session(), address, options.folder, source, windowed)
    ways: dict[str, Way] = {
        BY_HAND: lambda number: setting.by_hand(number, strict=True),
        PLAIN: lambda number: setting.by_hand(number, strict=False),
        AT_LEAST: lambda number: setting.by_headrace(number, AT_LEAST),
        EXACTLY: lambda number: setting.by_headrace(number, EXACTLY),
        AT_MOST: lambda number: setting.by_headrace(number, AT_MOST),
    }
    found = in_turn(ways, options.rounds, options.events)
    what = "Windowed: one-minute windows, count and sum by card" if windowed else "Stateless: filter and a new column"
    section = Section(
        "engine-windowed" if windowed else "engine-stateless",
        f"The engine: {what.split(':')[0].lower()}",
        [
            f"{what}. {options.events:,} JSON events of 100-120 bytes, from and to the embedded broker, batches of at "
            "most 500,000. By hand: PySpark with the same settings, parsing and state store, and Spark's own Kafka "
            "sink, which is at-least-once; with `from_json` alone it lets unusable records pass, or makes nulls of "
            "them. The same session runs all, in turn."
        ],
        peer="by hand",
    )
    for name in (AT_LEAST, EXACTLY):
        section.compare(name, "rate", found[name], found[BY_HAND], at_least=0.95, unit="/s")
    section.compare(AT_MOST, "rate", found[AT_MOST], found[BY_HAND], unit="/s")
    section.compare(EXACTLY, "rate, beside from_json alone", found[EXACTLY], found[PLAIN], unit="/s")
    return section
