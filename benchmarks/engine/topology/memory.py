"""The scenario of memory: six nodes for long, and what their processes hold meanwhile."""

from benchmarks.bench import Bench, progress
from benchmarks.engine.topology.processes import memory_of
from benchmarks.engine.topology.scenario import MEMORY, MINUTE, SIX
from benchmarks.engine.topology.sides import HEADRACE, running
from benchmarks.engine.topology.traffic import RATE, Sender
from benchmarks.measure import Figures
from benchmarks.report import Section

__all__ = ["run"]

WARM_UP = 10
"""Minutes: until then classes are loaded and compiled."""
LOOKS = 5
MOST = 1.1
"""What a part may hold at the end, of what it held after the warm-up."""


def run(bench: Bench) -> Section:
    """Memory over an hour."""
    minutes = max(bench.options.minutes, 2 * WARM_UP)
    looks: dict[int, dict[str, float]] = {}
    with running(HEADRACE, SIX, bench.options.folder / "memory") as side:
        sender = Sender(side.kafka)
        try:
            sender.send_cards()
            sender.start()
            batches = 0
            for minute in range(1, minutes + 1):
                side.wait(MINUTE)
                since_warm_up = minute - WARM_UP
                if since_warm_up >= 0 and (since_warm_up * LOOKS) % (minutes - WARM_UP) < LOOKS:
                    looks[minute] = vars(memory_of(side.cpu))
                    batches = len(side.batches.between(0, float("inf")))
                    progress(f"minute {minute}, {batches} batches: {looks[minute]}")
        finally:
            sender.stop()
    section = Section(
        "topology-memory",
        "Memory of a topology over time",
        [
            f"{RATE} payments a second through the six nodes of `topology`, {minutes} min, {batches:,} batches: what "
            f"is held after each of these minutes, beside what was held after {WARM_UP}. The heap is measured after a "
            "full collection. Other work may run beside it."
        ],
        peer=f"after {WARM_UP} min",
    )
    first, *later = looks
    for minute in later:
        for part, title in MEMORY.items():
            section.hold(
                f"after {minute} min",
                f"{title}, MB",
                Figures((looks[minute][part],)),
                at_most=MOST * looks[first][part] if minute == later[-1] else None,
                peer=Figures((looks[first][part],)),
                digits=0,
                unit="",
            )
    return section
