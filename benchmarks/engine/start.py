"""The time from typing `headrace run` in an empty folder to the first result."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.bench import Bench, progress
from benchmarks.measure import Figures
from benchmarks.report import Section

APP = """\
import headrace as hr

app = hr.App("first")
ticks = app.rate("ticks", rows_per_second=10)


@app.stream
def results(ticks):
    return ticks
"""
LIMIT = 120.0


def run(bench: Bench) -> Section:
    took = Figures(tuple(_once(bench.options.folder / f"start-{number}") for number in range(bench.options.rounds)))
    section = Section(
        "engine-start",
        "The engine: from `headrace run` to the first result",
        ["In an empty folder, nothing up, the connector's jars in the cache: broker, Spark and query all start."],
        peer="",
    )
    section.hold("a stream", "seconds to the first record in its topic", took, at_most=25, digits=1, unit=" s")
    return section


def _once(folder: Path) -> float:
    folder.mkdir(parents=True)
    (folder / "first.py").write_text(APP)
    began = time.perf_counter()
    with (folder / "log").open("wb") as log:
        command = [sys.executable, "-m", "headrace", "run", "first.py"]
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, env={**os.environ, "COLUMNS": "200"})
    try:
        while not _has_result(folder):
            if process.poll() is not None or time.perf_counter() - began > LIMIT:
                raise RuntimeError((folder / "log").read_text()[-2000:])
            time.sleep(0.05)
        took = time.perf_counter() - began
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
    progress(f"first result after {took:.1f} s")
    return took


def _has_result(folder: Path) -> bool:
    """Whether the broker's folder holds a record of the stream: nothing to connect to until it does."""
    return any(path.stat().st_size for path in folder.glob(".headrace/**/topics/results/*/*/*.log"))
