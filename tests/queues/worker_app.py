"""An app whose workers do what their messages say, and note each call in a file; for processes that are killed."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import headrace as hr

JOURNAL = Path(os.environ.get("HEADRACE_TEST_JOURNAL", "/dev/null"))

app = hr.App("shop")
results = app.topic("results", "n BIGINT, message_id STRING")
jobs = app.queue("jobs", "n BIGINT, does STRING", key="n", retries=2, backoff="50ms..200ms")


def note(word: str, n: int) -> None:
    with JOURNAL.open("a", buffering=1) as file:
        file.write(f"{word} {n} {os.getpid()} {time.time()}\n")


def do(row: dict[str, Any]) -> dict[str, Any]:
    note("begin", row["n"])
    does, _, how_long = (row["does"] or "").partition(" ")
    if does == "raise":
        raise ValueError(f"number {row['n']} is bad")
    if does == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if does in ("sleep", "hang"):
        time.sleep(float(how_long or 3600))
    note("end", row["n"])
    return {"n": row["n"]}


@app.worker(jobs, concurrency=4, timeout="5s", into=results)
def work(row: dict[str, Any]) -> dict[str, Any]:
    return do(row)
