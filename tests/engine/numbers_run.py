"""A run of numbered events that can be told where to die: `python -m tests.engine.numbers_run --help`.

It is the product's own code but for the one place that is wrapped to end process and Spark with SIGKILL.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

import headrace as hr
from headrace.engine.config import RunConfig
from headrace.engine.runner import Runner
from headrace.engine.running import NodeRun
from headrace.engine.sinks.producing import RecordProducer, TransactionalProducer
from headrace.engine.sinks.topics import LedgeredWriter

POINTS = ("rows-sent", "before-commit", "committed", "before-spark-commit", "ledger-entered")

app = hr.App("numbers")
numbers = app.topic("numbers", "n BIGINT, k STRING, at TIMESTAMP", key="k", event_time="at", lateness="1 minute")


@app.stream(key="k")
def exact(numbers: Any) -> Any:
    return numbers


@app.stream(key="k", guarantee="at-least-once")
def least(numbers: Any) -> Any:
    return numbers


@app.stream(key="k", guarantee="at-most-once")
def most(numbers: Any) -> Any:
    return numbers


@app.stream(key="k")
def second(exact: Any) -> Any:
    """A second hop, so that a transaction upstream is cut while it is being read."""
    return exact


def die() -> None:
    """Process and Spark at once, as if the machine had stopped."""
    for child in psutil.Process().children(recursive=True):
        child.kill()
    os.kill(os.getpid(), signal.SIGKILL)


class Death:
    """Comes when a node gets to its place for the given time."""

    def __init__(self, point: str, node: str, times: int) -> None:
        self.point, self.node, self.left = point, node, times

    def at(self, point: str, node: str) -> None:
        if (point, node) == (self.point, self.node):
            self.left -= 1
            if self.left == 0:
                print(f"dying at {point} of {node}", flush=True)
                die()


def wrap(death: Death) -> None:
    """Put the places in: around what is sent, committed and handed back to Spark."""
    send, commit, write = RecordProducer.send, TransactionalProducer.commit, NodeRun._write
    transaction = LedgeredWriter.transaction

    def sent(self: Any, rows: Any) -> int:
        count = send(self, rows)
        self._producer.poll(0)
        death.at("rows-sent", node_of(self))
        return count

    def committed(self: Any) -> None:
        self._producer.flush(30)
        death.at("before-commit", node_of(self))
        commit(self)
        death.at("committed", node_of(self))

    def written(self: Any, frame: Any, number: int) -> None:
        write(self, frame, number)
        death.at("before-spark-commit", self.node.name)

    @contextmanager
    def entered(self: Any, batch: int) -> Any:
        with transaction(self, batch) as producer:
            yield producer
        death.at("ledger-entered", self._id.partition(".")[2])

    replace(RecordProducer, "send", sent)
    replace(TransactionalProducer, "commit", committed)
    replace(NodeRun, "_write", written)
    replace(LedgeredWriter, "transaction", entered)


def replace(owner: type, name: str, function: Callable[..., Any]) -> None:
    setattr(owner, name, function)


def node_of(producer: Any) -> str:
    return str(getattr(producer, "_id", "")).partition(".")[2]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--home", required=True)
    parser.add_argument("--kafka", required=True)
    parser.add_argument("--die", metavar="POINT:NODE:TIMES")
    parser.add_argument("--settle", action="store_true", help="process what is there, then stop")
    words = parser.parse_args()
    if words.die:
        point, node, times = words.die.split(":")
        wrap(Death(point, node, int(times)))
    config = RunConfig(home=Path(words.home), kafka=words.kafka, create_inputs=True, max_records_per_batch=500)
    runner = Runner(app, config)
    runner.start()
    print("running", flush=True)
    if words.settle:
        runner.process_all_available()
        runner.stop()
        return 0
    code = runner.wait()
    print(runner.failure or "stopped", flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
