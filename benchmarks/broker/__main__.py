"""`python -m benchmarks.broker [--quick] [scenario ...]`: the broker beside Apache Kafka, same machine and disk."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from benchmarks import report
from benchmarks.broker import consume, latency, memory, produce, startup
from benchmarks.broker.bench import Bench, Options, progress

Scenario = Callable[[Bench], report.Section]
SCENARIOS: dict[str, Scenario] = {
    "produce-java": partial(produce.run, client="java"),
    "produce-librdkafka": partial(produce.run, client="librdkafka"),
    "consume-java": partial(consume.run, client="java"),
    "consume-librdkafka": partial(consume.run, client="librdkafka"),
    "latency": latency.run,
    "startup": startup.run,
    "memory": memory.run,
}
VOLATILE = {"tmpfs", "ramfs", "devtmpfs"}


def main(package: str, scenarios: Mapping[str, Scenario]) -> None:
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{package}", description=__doc__)
    parser.add_argument("scenario", nargs="*", choices=[[], *scenarios], help="all of them unless named")
    parser.add_argument("--quick", action="store_true", help="a smoke run: short rounds, few cases, nothing written")
    parser.add_argument("--rounds", type=int, help="rounds of each side, after its warm-up (5; quick: 2)")
    parser.add_argument("--seconds", type=float, help="length of a round (3; quick: 1)")
    parser.add_argument("--gigabytes", type=float, help="stored for the start after kill -9 (10; quick: 0.1)")
    parser.add_argument("--dir", type=Path, default=Path(".build/bench"), help="where the data goes: a real disk")
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the brokers are sessions of their own: end them, too

    chosen.dir.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=chosen.dir.resolve()))
    _, kind = report.filesystem(folder)
    if kind in VOLATILE:
        parser.error(f"{chosen.dir} is on a {kind}: name a folder on a disk with --dir")
    quick = chosen.quick
    options = Options(
        folder=folder,
        quick=quick,
        rounds=chosen.rounds or (2 if quick else 5),
        seconds=chosen.seconds or (1.0 if quick else 3.0),
        gigabytes=chosen.gigabytes or (0.1 if quick else 10.0),
    )
    stand_in = os.environ.get("HEADRACE_TEST_BROKER")
    facts = report.machine_facts(folder)
    try:
        for name in chosen.scenario or scenarios:
            progress(f"== {name}")
            bench = Bench(options)
            try:
                section = scenarios[name](bench)
            finally:
                bench.close()
            command = f"python -m benchmarks.{package} {_options(chosen)}{name}"
            print(section.markdown(command, facts), flush=True)
            if not quick and not stand_in:
                report.write(section, command, facts)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _options(chosen: argparse.Namespace) -> str:
    """The options that shape the figures, as they were typed."""
    given = {name: getattr(chosen, name) for name in ("rounds", "seconds", "gigabytes")}
    return ("--quick " if chosen.quick else "") + "".join(
        f"--{name} {value:g} " for name, value in given.items() if value is not None
    )


if __name__ == "__main__":
    main("broker", SCENARIOS)
