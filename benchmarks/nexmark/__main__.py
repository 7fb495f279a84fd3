"""`python -m benchmarks.nexmark [query ...]`: Nexmark's queries, checked and timed beside PySpark written by hand."""

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from benchmarks import report
from benchmarks.bench import Bench, Options, progress
from benchmarks.nexmark.queries import QUERIES
from benchmarks.nexmark.rates import run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.nexmark", description=__doc__)
    parser.add_argument("query", nargs="*", choices=[[], *QUERIES], help="all of them unless named; then none is kept")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each way, after one that is checked")
    parser.add_argument("--events", type=int, default=500_000)
    parser.add_argument("--dir", type=Path, default=Path(".build/bench"), help="where the data goes: a real disk")
    parser.add_argument("--dry", action="store_true", help="write no results")
    chosen = parser.parse_args()
    chosen.dir.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=chosen.dir.resolve()))
    facts = report.machine_facts(folder)
    bench = Bench(Options(folder / "nexmark", chosen.rounds, chosen.events, seconds=0))
    try:
        section, wrong = run(bench, [QUERIES[name] for name in chosen.query or QUERIES])
    finally:
        bench.close()
        shutil.rmtree(folder, ignore_errors=True)
    command = f"python -m benchmarks.nexmark --rounds {chosen.rounds} --events {chosen.events}"
    print(section.markdown(command, facts), flush=True)
    for difference in wrong:
        progress(f"WRONG: {difference}")
    if not chosen.dry and not chosen.query:
        report.write(section, command, facts)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
