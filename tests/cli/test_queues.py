"""`headrace run` with workers, `headrace queues` and `headrace delays`, as users type them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.conftest import Headrace
from tests.queues.test_delays import until

FILE = """
import headrace as hr

app = hr.App("shop")
results = app.topic("shop_results", "n BIGINT")
jobs = app.queue("shop_jobs", "n BIGINT", retries=1, backoff="50ms")


@app.worker(jobs, concurrency=2, into=results)
def pack(row):
    if row["n"] < 0:
        raise ValueError(f"{row['n']} is negative")
    return row
"""


def send(headrace: Headrace, *numbers: str) -> None:
    words = [sys.executable, "send.py", *numbers]
    subprocess.run(words, cwd=headrace.folder, env=headrace.environment(), check=True, timeout=60)


def test_an_app_of_workers_runs_without_spark_and_its_queues_are_shown(headrace: Headrace, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(FILE)
    (tmp_path / "send.py").write_text(
        "import sys; from shop import jobs\n"
        "for n in map(int, sys.argv[1:]): jobs.send({'n': n})\n"
        "jobs.send({'n': 100}, delay='1 hour')\n"
    )
    assert "no queues" in headrace("queues", "list").stderr
    run = headrace.start("run", "shop.py")
    try:
        until(lambda: "shop_jobs.retry.shop.pack" in headrace.ok("topics", "list"), "the topics of the queue")
        send(headrace, "1", "2", "-1", "3")

        def figures() -> dict[str, object]:
            (found,) = json.loads(headrace.ok("queues", "list", "--json"))
            return dict(found)

        until(lambda: (figures()["dead"], figures()["waiting"]) == (1, 0), "one dead, the others done")
        assert figures()["delayed"] == 1
        (dead,) = json.loads(headrace.ok("queues", "peek", "shop_jobs", "--dead", "--json"))
        assert dead["reason"] == "ValueError: -1 is negative"
        assert (dead["group"], dead["attempts"]) == ("shop.pack", 2)
        assert "nothing was changed" in headrace.fails("queues", "retry-dead", "shop_jobs")
        assert headrace.ok("queues", "retry-dead", "shop_jobs", "--yes") == "sent 1 dead letters of shop_jobs again\n"
        until(lambda: figures()["dead"] == 1, "it is dead again")
        assert "shop.pack" in headrace.ok("queues", "describe", "shop_jobs")
        assert "does not exist" in headrace.fails("queues", "describe", "shop_job")
    finally:
        run.send_signal(signal.SIGTERM)
        out, _ = run.communicate(timeout=60)
    assert run.returncode == 0, out
    assert "shop runs: pack; Ctrl-C stops it" in out
    send(headrace, "7", "8")
    time.sleep(0.2)
    peeked = json.loads(headrace.ok("queues", "peek", "shop_jobs", "--json"))
    assert sorted(json.loads(one["value"])["n"] for one in peeked) == [7, 8]
    assert headrace.ok("queues", "purge", "shop_jobs", "--yes") == "purged shop_jobs\n"
    assert "empty" in headrace("queues", "peek", "shop_jobs").stderr


def test_workers_that_do_not_exist_are_refused(headrace: Headrace, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(FILE)
    (tmp_path / "none.py").write_text("import headrace as hr\napp = hr.App('none')\n")
    assert "has no worker 'pakc'; did you mean 'pack'?" in headrace.fails("work", "shop.py", "--worker", "pakc")
    assert "has no workers" in headrace.fails("work", "none.py")
