"""`python -m benchmarks.engine [scenario ...]`: Headrace beside PySpark written by hand, on the same machine."""

import argparse
import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks import report
from benchmarks.engine import latency, rates, start
from benchmarks.engine.bench import Bench, Options, progress

SCENARIOS: dict[str, Callable[[Bench], report.Section]] = {
    "engine-stateless": partial(rates.run, windowed=False),
    "engine-windowed": partial(rates.run, windowed=True),
    "engine-latency": latency.run,
    "engine-start": start.run,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine", description=__doc__)
    parser.add_argument("scenario", nargs="*", choices=[[], *SCENARIOS], help="all of them unless named")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each way, after its warm-up")
    parser.add_argument("--events", type=int, default=2_000_000)
    parser.add_argument("--seconds", type=float, default=30.0, help="of a measurement of latency")
    parser.add_argument("--dir", type=Path, default=Path(".build/bench"), help="where the data goes: a real disk")
    parser.add_argument("--dry", action="store_true", help="write no results")
    chosen = parser.parse_args()
    chosen.dir.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=chosen.dir.resolve()))
    facts = report.machine_facts(folder)
    try:
        for name in chosen.scenario or SCENARIOS:
            progress(f"== {name}")
            bench = Bench(Options(folder / name, chosen.rounds, chosen.events, chosen.seconds))
            bench.options.folder.mkdir()
            try:
                section = SCENARIOS[name](bench)
            finally:
                bench.close()
            command = (
                f"python -m benchmarks.engine --rounds {chosen.rounds} --events {chosen.events} "
                f"--seconds {chosen.seconds:g} {name}"
            )
            print(section.markdown(command, facts), flush=True)
            if not chosen.dry:
                report.write(section, command, facts)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
