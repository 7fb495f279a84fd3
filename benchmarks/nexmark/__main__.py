"""`python -m benchmarks.nexmark [query ...]`: Nexmark's queries, checked and timed beside PySpark written by hand."""

import sys
from contextlib import closing

from benchmarks import report
from benchmarks.bench import Bench, Options, progress
from benchmarks.nexmark.queries import QUERIES
from benchmarks.nexmark.rates import run
from benchmarks.scenarios import options, workplace


def main() -> int:
    chosen = options("benchmarks.nexmark", __doc__, QUERIES, rounds=3, events=500_000).parse_args()
    with workplace(chosen.dir) as folder:
        facts = report.machine_facts(folder)
        bench = Bench(Options(folder / "nexmark", chosen.rounds, chosen.events, seconds=0))
        with closing(bench):
            section, wrong = run(bench, [QUERIES[name] for name in chosen.names or QUERIES])
    command = f"python -m benchmarks.nexmark --rounds {chosen.rounds} --events {chosen.events}"
    print(section.markdown(command, facts), flush=True)
    for difference in wrong:
        progress(f"WRONG: {difference}")
    if not chosen.dry and not chosen.names:  # some of them are no results of the whole
        report.write(section, command, facts)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
