"""An app with a sink of every kind, as a process that can be struck at named places.

It is the product's own code; where it passes one of the places, it looks whether a file names that place, and kills
whom the file says: itself with Spark, the Python worker it runs in, the broker or PostgreSQL.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
from confluent_kafka import Producer
from pyspark.sql import functions as F
from pyspark.sql.types import LongType

import headrace as hr
from headrace.config.run import RunConfig
from headrace.delivery import LedgeredWriter
from headrace.delivery.producers import RecordProducer, TransactionalProducer
from headrace.engine.run.node_run import NodeRun
from headrace.engine.run.runner import Runner
from headrace.engine.write.batch import Batch
from headrace.tables import ViewWriter
from headrace.topology import Duration

STRIKE, JOURNAL = "HEADRACE_TEST_STRIKE", "HEADRACE_TEST_JOURNAL"
RUN, SELF = "run", "self"
LARGEST_BATCH = 2000
BEGINNING = datetime(2026, 1, 1, tzinfo=UTC)
STEP = timedelta(milliseconds=20)
WINDOW = timedelta(seconds=5)
MARKER = -2
"""The number that closes all windows; even, so that it does not reach the second hop."""


def at(n: int) -> datetime:
    return BEGINNING + n * STEP


def key(n: int) -> str:
    return f"k{n % 11}"


def event(n: int, when: datetime) -> dict[str, Any]:
    return {"n": n, "k": key(n), "at": when.isoformat()}


def strike_at(place: str, node: str) -> None:
    """Kill whom the file says, if it names this place. It is gone then, so that this happens once."""
    file = Path(os.environ[STRIKE])
    try:
        words = file.read_text().split()
        if words[:2] != [place, node]:
            return
        file.unlink()
    except FileNotFoundError:  # nothing is asked for, or another worker was quicker
        return
    for victim in words[2:]:
        if victim == RUN:
            for child in psutil.Process().children(recursive=True):
                with suppress(psutil.NoSuchProcess):  # workers end with their Spark
                    child.kill()
        os.kill(os.getpid() if victim in (RUN, SELF) else int(victim), signal.SIGKILL)


def work(n: Any) -> Any:
    time.sleep(0.0005)  # so that a worker is met at work
    strike_at("working", "exact")
    return n


app = hr.App("numbers")
numbers = app.topic("numbers", "n BIGINT, k STRING, at TIMESTAMP", key="k", event_time="at", lateness="1 minute")


@app.stream(key="k", channels=["odd", "even"])
def exact(numbers: Any) -> Any:
    rows = numbers.withColumn("n", F.udf(lambda n: work(n), LongType())("n"))
    return {"odd": rows.filter("n % 2 = 1"), "even": rows.filter("n % 2 = 0")}


@app.stream(key="k", guarantee="at-least-once")
def least(numbers: Any) -> Any:
    return numbers


@app.stream(key="k", guarantee="at-most-once")
def most(numbers: Any) -> Any:
    return numbers


@app.stream(key="k")
def second(rows: Any = exact.odd) -> Any:
    """A second hop, so that a transaction upstream is cut while it is being read."""
    return rows


@app.stream(key="k")
def windows(numbers: Any) -> Any:
    return hr.windowed(numbers, hr.tumbling("5 seconds")).agg(count=hr.count(), total=hr.sum("n"))


@app.view(key="n")
def seen(numbers: Any) -> Any:
    return numbers


NODES = ("exact", "least", "most", "second", "windows", "seen")


def put_places_in() -> None:
    """Around what is sent, committed and handed back to Spark; and note which batches are begun."""
    send, commit, transaction = RecordProducer.send, TransactionalProducer.commit, LedgeredWriter.transaction
    store, write_view = ViewWriter._store, ViewWriter.write
    write, drain = NodeRun._write, Batch.drain

    def sent(self: Any, rows: Any) -> int:
        count = send(self, rows)
        self._producer.poll(0)
        strike_at("rows-sent", _last_word(getattr(self, "_id", "")))
        return count

    def committed(self: Any) -> None:
        self._producer.flush(30)
        strike_at("before-commit", _last_word(self._id))
        commit(self)
        strike_at("committed", _last_word(self._id))

    @contextmanager
    def entered(self: Any, batch: int) -> Any:
        with transaction(self, batch) as producer:
            yield producer
        strike_at("ledger-entered", _last_word(self._id))

    def stored(self: Any, *arguments: Any) -> None:
        store(self, *arguments)
        strike_at("before-commit", _last_word(self._view))

    def view_written(self: Any, *arguments: Any, **named: Any) -> bool:
        wrote = write_view(self, *arguments, **named)
        strike_at("committed", _last_word(self._view))
        return wrote

    def written(self: Any, frame: Any, number: int) -> None:
        ranges = [[source.start, source.end] for source in self.checkpoint.sources(number)]
        _note(node=self.node.name, batch=number, ranges=ranges)
        write(self, frame, number)
        strike_at("before-spark-commit", self.node.name)

    def drained(self: Any) -> None:
        _note(node=self.checkpoint.node, batch=self.number, drained=True)
        drain(self)

    _replace(RecordProducer, send=sent)
    _replace(TransactionalProducer, commit=committed)
    _replace(LedgeredWriter, transaction=entered)
    _replace(ViewWriter, _store=stored, write=view_written)
    _replace(NodeRun, _write=written)
    _replace(Batch, drain=drained)


def _replace(owner: type, **functions: Callable[..., Any]) -> None:
    for name, function in functions.items():
        setattr(owner, name, function)


def _last_word(name: str) -> str:
    return name.rpartition(".")[2]


def _note(**said: Any) -> None:
    with open(os.environ[JOURNAL], "a") as journal:
        journal.write(json.dumps(said) + "\n")


def close_windows(address: str) -> None:
    producer = Producer({"bootstrap.servers": address})
    producer.produce("numbers", json.dumps(event(MARKER, BEGINNING + timedelta(days=1))), key(MARKER))
    assert producer.flush(30) == 0


def main(app: hr.App) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--home", required=True)
    parser.add_argument("--kafka", required=True)
    parser.add_argument("--postgres", required=True)
    parser.add_argument("--patience", default="10 minutes")
    parser.add_argument("--settle", action="store_true", help="process what is there, close all windows, and stop")
    words = parser.parse_args()
    os.environ.setdefault(STRIKE, str(Path(words.home, "strike")))
    os.environ.setdefault(JOURNAL, str(Path(words.home, "journal")))
    put_places_in()
    config = RunConfig(
        home=Path(words.home),
        kafka=words.kafka,
        postgres=words.postgres,
        create_inputs=True,
        max_records_per_batch=LARGEST_BATCH,
        patience=Duration.of(words.patience),
    )
    runner = Runner(app, config)
    runner.start()
    print("running", flush=True)
    if words.settle:
        runner.process_all_available()
        close_windows(words.kafka)
        runner.process_all_available()
        runner.stop()
        return 0
    code = runner.wait()
    print(runner.failure or "stopped", flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main(app))
