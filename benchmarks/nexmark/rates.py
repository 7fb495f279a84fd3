"""Events a second of each query, and whether what it wrote is right."""

import itertools
from dataclasses import replace

from benchmarks.bench import Bench, progress
from benchmarks.measure import Figures
from benchmarks.nexmark.by_hand import BY_HAND
from benchmarks.nexmark.events import AUCTION, BID, PERSON, Story, fill
from benchmarks.nexmark.expected import differences
from benchmarks.nexmark.queries import Query
from benchmarks.nexmark.runs import Setting
from benchmarks.report import Section

BATCH = 200_000
OURS, PEER = "Headrace", "by hand"
SHARES = {PERSON: 1 / 50, AUCTION: 3 / 50, BID: 46 / 50}


def run(bench: Bench, queries: list[Query]) -> tuple[Section, list[str]]:
    """The section of the results, and what was wrong with them."""
    options = bench.options
    story, address = Story(options.events), bench.broker().address
    progress(f"filling the topics with {options.events:,} events")
    fill(address, story, options.folder)
    setting = Setting(bench.session(), address, options.folder, BATCH)
    section = Section(
        "nexmark",
        "Nexmark's queries",
        [
            f"{options.events:,} persons, auctions and bids (1 : 3 : 46) of five minutes, from and to the embedded "
            f"broker, exactly once, batches of at most {BATCH:,} of a topic. The rate counts the events of the topics "
            "that a query reads, from its first batch to the end of its last. By hand: one query in PySpark with the "
            "same settings, parsing and state store, and Spark's own Kafka sink, which is at-least-once; it cannot say "
            "q4. SQL's result: what either wrote is exactly what SQL gives over all events at once (of q12, whose "
            "windows go by the clock, the sum of a bidder's bids).",
        ],
        peer=PEER,
    )
    wrong: list[str] = []
    for query in queries:
        rates, differing = _measured(setting, query, story, options.rounds)
        wrong += differing
        case = f"{query.name}: {query.says}"
        if PEER in rates:
            section.compare(case, "rate", rates[OURS], rates[PEER], unit="/s")
        else:
            section.hold(case, "rate", rates[OURS], digits=0, unit="/s")
        verdict = "**fail**" if differing else "pass"
        section.rows[-1] = replace(section.rows[-1], wanted="SQL's result", verdict=verdict)
    return section, wrong


def _measured(setting: Setting, query: Query, story: Story, rounds: int) -> tuple[dict[str, Figures], list[str]]:
    """Rates by way; the first round warms up, and what it wrote is checked."""
    ways = {OURS: setting.by_headrace} | ({PEER: setting.by_hand} if query.name in BY_HAND else {})
    rates: dict[str, list[float]] = {way: [] for way in ways}
    wrong: list[str] = []
    events = story.events * sum(SHARES[topic] for topic in query.reads)
    numbers = itertools.count(1)
    for number in range(-1, rounds):
        for way in ways if number % 2 else reversed(ways):
            with ways[way](query, f"{query.name}-{next(numbers)}") as ran:
                if number >= 0:
                    rates[way].append(events / ran.seconds)
                else:
                    told = differences(setting.spark, query, ran.found, setting.folder, story.end)
                    wrong += [f"{query.name}, {way}: {difference}" for difference in told]
        shown = ", ".join(f"{way} {taken[-1]:,.0f}/s" for way, taken in rates.items() if taken)
        progress(f"{query.name}: {shown or ('wrong' if wrong else 'right')}")
    return {way: Figures(tuple(taken)) for way, taken in rates.items()}, wrong
