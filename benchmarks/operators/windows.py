"""Windows: rows a second of each, beside Spark's own and beside Python for each key."""

import itertools

from benchmarks.bench import Bench, progress
from benchmarks.measure import Figures
from benchmarks.operators import contenders
from benchmarks.operators.rows import BATCH, KEYS, TABLE_SCHEMA, events, stream, write_batches, write_table
from benchmarks.operators.runs import Contender, Taken, measured, run
from benchmarks.report import Section

WARM_UP = 3
BY_KEY_BATCH = 10_000
LONG, EARLY = 115, slice(6, 16)
CONTENDERS: dict[str, Contender] = {
    "tumbling": contenders.tumbling,
    "native tumbling": contenders.native_tumbling,
    "sliding": contenders.sliding,
    "sliding changes": contenders.sliding_changes,
    "sessions": contenders.sessions,
    "native sessions": contenders.native_sessions,
}


def rates(bench: Bench) -> Section:
    options = bench.options
    batches = WARM_UP + max(2, options.events // BATCH)
    folder, few = options.folder / "events", options.folder / "few"
    write_batches(folder, [BATCH] * batches)
    write_batches(few, [BY_KEY_BATCH] * 3)
    spark = bench.session()
    numbers = itertools.count()
    taken: dict[str, list[Taken]] = {name: [] for name in CONTENDERS}
    names = list(CONTENDERS)
    for number in range(options.rounds):
        shift = number % len(names)
        for name in (*names[shift:], *names[:shift]):
            taken[name].append(run(spark, folder, CONTENDERS[name], options.folder / f"run{next(numbers)}"))
            progress(f"round {number + 1} of {options.rounds}: {name} {taken[name][-1].rate(WARM_UP):,.0f} rows/s")
    by_key = {
        "tumbling": contenders.TumblingByKey(),
        "sliding": contenders.SlidingByKey(),
    }
    slow: dict[str, Figures] = {}
    for name, processor in by_key.items():
        once = run(
            spark,
            few,
            lambda rows, processor=processor: contenders.pandas_by_key(rows, processor),  # type: ignore[misc]
            options.folder / f"run{next(numbers)}",
        )
        slow[name] = Figures((once.rate(1),))
        progress(f"{name} key by key {once.rate(1):,.0f} rows/s")
    section = Section(
        "operators-windows",
        "The operators: windows",
        [
            f"{KEYS:,} keys, batches of {BATCH:,} rows that span a minute, so a key has 2 events in a minute's window, "
            "10 in a sliding one of five minutes, some 55 in a session; count and sum; late rows diverted; rows from "
            f"files into nowhere; 8 buckets. The first {WARM_UP} batches warm up. Key by key: "
            f"transformWithStateInPandas, batches of {BY_KEY_BATCH:,} rows."
        ],
        peer="beside",
    )
    wanted = {"tumbling": 100_000, "sliding": 80_000, "sliding changes": 80_000, "sessions": 80_000}
    for name, least in wanted.items():
        rate = Figures(tuple(each.rate(WARM_UP) for each in taken[name]))
        section.reach(name, "rate", rate, least, unit=" rows/s")
        if (native := f"native {name}") in taken:
            peer = Figures(tuple(each.rate(WARM_UP) for each in taken[native]))
            section.compare(name, "rate, beside Spark's own", rate, peer, at_least=1.0, unit=" rows/s")
        if name in slow:
            section.compare(name, "rate, beside key by key", rate, slow[name], at_least=15, unit=" rows/s")
        last = taken[name][-1]
        section.hold(name, "state in memory, a key", Figures((last.memory / KEYS,)), digits=0, unit=" B")
        section.hold(name, "state on disk, a key", Figures((last.disk / KEYS,)), digits=0, unit=" B")
    return section


def enrichment(bench: Bench) -> Section:
    options = bench.options
    folder, table = options.folder / "events", options.folder / "table"
    write_batches(folder, [BATCH] * (WARM_UP + max(2, options.events // BATCH)))
    write_table(table)
    spark = bench.session()
    taken = []
    for number in range(options.rounds):
        frame = contenders.enriched(events(spark, folder), stream(spark, table, TABLE_SCHEMA))
        taken.append(measured(frame, options.folder / f"run{number}").rate(WARM_UP))
        progress(f"round {number + 1} of {options.rounds}: {taken[-1]:,.0f} rows/s")
    section = Section(
        "operators-joins",
        "The operators: enrichment as of the event's time",
        [f"Batches of {BATCH:,} events against a table of {KEYS:,} rows, read before the first; 8 buckets."],
        peer="beside",
    )
    section.reach("enrichment", "rate", Figures(tuple(taken)), 80_000, unit=" rows/s")
    return section


def small(bench: Bench) -> Section:
    """Small batches on a large state, and a long history: neither may cost more."""
    options = bench.options
    spark = bench.session()
    folder, long = options.folder / "small", options.folder / "long"
    write_batches(folder, [BATCH] * 6 + [1_000] * 12)
    write_batches(long, [BATCH] * LONG)
    section = Section(
        "operators-small",
        "The operators: small batches and long histories",
        [
            f"Batches of 1,000 rows after 6 of {BATCH:,} ({KEYS:,} keys): seconds of a batch, the first two left out. "
            f"And {LONG} batches of {BATCH:,} rows: the rate of the last ten beside that of the 7th to 16th, when the "
            "sliding window has just become full: ten times the events have gone by."
        ],
        peer="beside",
    )
    ours: dict[str, Contender] = {
        "tumbling": contenders.tumbling,
        "sliding": contenders.sliding,
        "sessions": contenders.sessions,
    }
    for name, contender in ours.items():
        taken = run(spark, folder, contender, options.folder / f"small-{name}")
        times = [seconds for rows, seconds in zip(taken.rows, taken.seconds, strict=True) if rows == 1_000][2:]
        section.hold(name, "batch of 1,000 rows", Figures(tuple(times)), at_most=1, digits=2, unit=" s")
        progress(f"{name}: small batches {times}")
    for name, contender in ours.items():
        taken = run(spark, long, contender, options.folder / f"long-{name}")
        early = Figures((10 * BATCH / sum(taken.seconds[EARLY]),))
        late = Figures((10 * BATCH / sum(taken.seconds[-10:]),))
        section.compare(name, "rate late in history, beside early", late, early, at_least=0.9, unit=" rows/s")
        progress(f"{name}: early {early.median:,.0f}, late {late.median:,.0f}")
    return section
