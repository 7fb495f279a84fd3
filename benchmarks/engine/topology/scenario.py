"""The scenarios: six nodes together, in the first minute and in the last; and one node alone."""

import resource
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial

from benchmarks.bench import Bench, progress
from benchmarks.engine.topology.batches import Batch
from benchmarks.engine.topology.processes import PARTS, memory_of
from benchmarks.engine.topology.sides import BY_HAND, HEADRACE, Job, Side, running
from benchmarks.engine.topology.traffic import HOPS, RATE, Burst, Eyes, Sender, delays, percentile
from benchmarks.measure import Figures
from benchmarks.report import Section

MINUTE = 60.0
LONGEST_WAIT = 120.0
ROWS = 50
SIX = Job("fraud.py", "fraud", ("accepted", "known", "bursts", "alarms", "spend", "tardy"))
ALONE = {
    "stateless": (Job("alone.py", "stateless", ("large",)), 0.15),
    "dedup": (Job("alone.py", "dedup", ("once",)), 0.4),
    "sliding": (Job("alone.py", "sliding", ("recent",)), 0.4),
}
WANTED = {  # in the last minute: seconds of p50 and p99
    "accepted": (1.2, 2.5),
    "spend": (2.0, None),
    "bursts": (3.0, 5.0),
}
WANTED_BATCH, WANTED_READY = 0.28, 10.0
Found = dict[tuple[str, str], float]
"""Every figure of a round, by its case and measure."""


@dataclass(frozen=True)
class Shown:
    """How a figure is told."""

    digits: int = 2
    unit: str = " s"
    at_most: float | None = None


def run(bench: Bench) -> Section:
    """Six nodes."""
    minutes = bench.options.minutes
    found = in_turn(_ways(bench), bench.options.rounds, partial(_six, bench))
    section = Section(
        "topology",
        "A topology of six nodes",
        [
            f"{RATE} payments a second through the app in `engine/topology/fraud.py` (six queries, exactly-once, "
            f"embedded broker and PostgreSQL), {minutes} min. Latency: seconds from the sending of a payment to "
            "the moment when another process can read it at the place named. CPU: of all processes of the app, its "
            "broker and its PostgreSQL, not of the load, divided by the batches that had rows. By hand: the same six "
            f"queries in PySpark with {_settings(bench)}, as far as it can express them "
            "(`engine/topology/by_hand.py` says what differs): at-least-once, malformed records dropped. Ready: "
            "seconds from the start until every node has finished a batch; by hand, the broker and PostgreSQL were "
            "already running."
        ],
        peer=BY_HAND,
    )
    _fill(section, found, _shown_of_six)
    return section


def run_alone(bench: Bench) -> Section:
    """One node."""
    found = in_turn(_ways(bench), bench.options.rounds, partial(_each_alone, bench))
    seconds = bench.options.seconds
    section = Section(
        "topology-alone",
        "One node alone",
        [
            f"{ROWS} payments sent at once, every second or when the batch before them is finished, through one node "
            f"to a topic of one partition: {seconds:g} s of warm-up, then {seconds / 2:g} s measured. CPU: of all "
            "processes of the app and its broker, divided by the batches that had rows. The empty batches after them "
            f"and the idle time until the next second are included. By hand: PySpark with {_settings(bench)}."
        ],
        peer=BY_HAND,
    )
    _fill(section, found, _shown_of_one)
    return section


def in_turn(ways: Sequence[str], rounds: int, measured: Callable[[str, str], Found]) -> dict[str, list[Found]]:
    """What was measured of each way, round by round; the order is reversed every round."""
    found: dict[str, list[Found]] = {way: [] for way in ways}
    for number in range(rounds):
        for way in ways if number % 2 == 0 else reversed(ways):
            progress(f"round {number + 1} of {rounds}: {way}")
            found[way].append(measured(way, f"{way.replace(' ', '-')}-{number}"))
    return found


def _settings(bench: Bench) -> str:
    own = bench.options.peer_settings
    return (
        f"its default settings but for {', '.join(f'`{setting}`' for setting in own)}"
        if own
        else "its default settings"
    )


def _ways(bench: Bench) -> list[str]:
    return [HEADRACE] if bench.options.without_peer else [HEADRACE, BY_HAND]


def _six(bench: Bench, way: str, name: str) -> Found:
    found: Found = {}
    with running(way, SIX, bench.options.folder / name, bench.options.peer_settings) as side:
        progress(f"{way}: ready after {side.ready:.1f} s")
        found["six nodes", "ready"] = side.ready
        sender, eyes = Sender(side.kafka), Eyes(side.kafka, side.postgres)
        try:
            sender.send_cards()
            sender.start()
            costs, spans = {}, {}
            for minute in range(1, bench.options.minutes + 1):
                case, begin, before, load = f"minute {minute}", time.time(), side.cpu.sample(), _own_cpu()
                side.wait(MINUTE)
                end, after = time.time(), side.cpu.sample()
                spans[case] = (begin, end)
                costs[case] = _costs(case, before, after, end - begin, side.batches.between(begin, end))
                costs[case][case, "CPU of the load: cores"] = (_own_cpu() - load) / (end - begin)
            _await_all(side, sender, eyes, begin, end)
            for case in dict.fromkeys(("minute 1", f"minute {bench.options.minutes}")):
                found |= _latencies(case, sender, eyes, *spans[case]) | costs[case]
        finally:
            sender.stop()
            eyes.stop()
        side.cpu.sample()
        memory = memory_of(side.cpu)
        for what, megabytes in vars(memory).items():
            found["at the end", f"{MEMORY[what]}, MB"] = megabytes
    for (case, measure), value in found.items():
        progress(f"  {case}: {measure} {value:.2f}")
    return found


MEMORY = {
    "heap": "heap after a full collection",
    "metaspace": "metaspace",
    "code_cache": "code cache",
    "workers": "Python workers",
}


def _latencies(case: str, sender: Sender, eyes: Eyes, begin: float, end: float) -> Found:
    found: Found = {}
    for node, hop in HOPS.items():
        if taken := delays(node, sender.sent, eyes, begin, end):
            found[case, f"{hop}: p50"] = percentile(taken, 0.5)
            found[case, f"{hop}: p99"] = percentile(taken, 0.99)
    return found


def _await_all(side: Side, sender: Sender, eyes: Eyes, begin: float, end: float) -> None:
    """Payments go on until those of the last span have come, so that it ends as it began."""

    def all_came() -> bool:
        now = time.time()
        return all(now - end > delays(node, sender.sent, eyes, begin, end)[-1] for node in ("known", "spend"))

    # Of bursts nobody knows beforehand which will be told: as long again as it took the others.
    side.wait(LONGEST_WAIT, all_came)
    side.wait(min(LONGEST_WAIT, 2 * (time.time() - end) + 5))


def _costs(
    case: str, before: Mapping[str, float], after: Mapping[str, float], seconds: float, batches: list[Batch]
) -> Found:
    with_rows = sum(1 for batch in batches if batch.rows)
    used = {part: after[part] - before[part] for part in PARTS}
    total = sum(used.values())
    found: Found = {
        (case, "batches with rows"): with_rows,
        (case, "batches without rows"): len(batches) - with_rows,
        (case, "CPU: cores"): total / seconds,
        (case, "CPU s a batch"): total / max(1, with_rows),
        (case, "CPU s a batch, those without rows counted too"): total / max(1, len(batches)),
    }
    return found | {(case, f"CPU s a batch: {part}"): seconds / max(1, with_rows) for part, seconds in used.items()}


def _each_alone(bench: Bench, way: str, name: str) -> Found:
    found: Found = {}
    for case, (job, _) in ALONE.items():
        folder = bench.options.folder / f"{name}-{case}"
        with running(way, job, folder, bench.options.peer_settings) as side:
            (node,) = job.nodes
            with closing(Burst(side.kafka, ROWS)) as burst:
                _bursts(side, burst, node, bench.options.seconds)  # to warm up
                begin, before = time.time(), side.cpu.sample()
                _bursts(side, burst, node, bench.options.seconds / 2)
                end, after = time.time(), side.cpu.sample()
            batches = side.batches.between(begin, end)
        costs = _costs(case, before, after, end - begin, batches)
        found |= costs
        progress(f"{way}, {case}: {costs[case, 'CPU s a batch']:.2f} CPU s a batch of {len(batches)}")
    return found


def _bursts(side: Side, burst: Burst, node: str, seconds: float) -> None:
    end = time.monotonic() + seconds
    while (began := time.monotonic()) < end:
        burst.send()
        wanted = burst.sent

        def is_done(wanted: int = wanted) -> bool:
            return side.batches.reached(node, "payments") >= wanted

        side.wait(LONGEST_WAIT, is_done, pause=0.02)
        side.wait(began + 1 - time.monotonic())


def _own_cpu() -> float:
    """Of the load: of this process alone."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _fill(section: Section, found: Mapping[str, list[Found]], shown: Callable[[str, str, int], Shown]) -> None:
    """A row for each figure, the peer's beside it."""
    ours, theirs = found[HEADRACE], found.get(BY_HAND, [])
    cases = list(dict.fromkeys(key for round in [*ours, *theirs] for key in round))
    last = max((int(case.split()[1]) for case, _ in cases if case.startswith("minute ")), default=0)
    for case, measure in cases:
        mine = Figures(tuple(round[case, measure] for round in ours if (case, measure) in round))
        peer = tuple(round[case, measure] for round in theirs if (case, measure) in round)
        if not mine.values:
            continue
        how = shown(case, measure, last)
        section.hold(
            case,
            measure,
            mine,
            at_most=how.at_most,
            peer=Figures(peer) if peer else None,
            digits=how.digits,
            unit=how.unit,
        )


def _shown_of_six(case: str, measure: str, last: int) -> Shown:
    if measure == "ready":
        return Shown(1, at_most=WANTED_READY)
    if measure.endswith(", MB"):
        return Shown(0, "")
    if measure.startswith("batches"):
        return Shown(0, "")
    is_last = last > 1 and case == f"minute {last}"
    if measure.startswith(("CPU", "load")):
        return Shown(2, "", WANTED_BATCH if is_last and measure == "CPU s a batch" else None)
    hop, _, share = measure.rpartition(": ")
    wanted = {HOPS[node]: limits for node, limits in WANTED.items()}.get(hop, (None, None))
    return Shown(2, " s", wanted[share == "p99"] if is_last else None)


def _shown_of_one(case: str, measure: str, _: int) -> Shown:
    digits = 0 if measure.startswith("batches") else 3
    return Shown(digits, "", ALONE[case][1] if measure == "CPU s a batch" else None)
