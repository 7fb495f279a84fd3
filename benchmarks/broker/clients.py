"""The processes that put load on a broker: the Java clients and librdkafka, commanded alike."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import psutil
from tests import peers

from benchmarks.measure import busiest_thread, thread_seconds

JAVA_SOURCES = Path(__file__).parents[1] / "java"
CLIENTS = ("java", "librdkafka")

# Both clients, same promises: every in-sync replica, no duplicates, no compression. The rest are their defaults.
PRODUCER = {"acks": "all", "enable.idempotence": "true", "compression.type": "none"}
CONSUMER = {
    "java": {"enable.auto.commit": "false"},
    # With its defaults librdkafka stops fetching for a second whenever 100,000 messages wait to be polled, and the
    # rate becomes a matter of when that happened. A queue that holds a whole round leaves the broker as the limit.
    "librdkafka": {"queued.min.messages": "10000000", "queued.max.messages.kbytes": "2097151"},
}


class LoadClient:
    """A load process; `ask` runs one command in it."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.busy = 0.0  # share of a core that the busiest thread used during the last command
        self._process = subprocess.Popen(
            self._command(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def _command(self) -> list[str]:
        if self.kind == "librdkafka":
            return [sys.executable, "-m", "benchmarks.broker.rdkafka_load"]
        libraries = peers.jars("clients-4.3")
        classes = peers.compiled(JAVA_SOURCES, libraries)
        return [peers.java(), "-Xms512m", "-Xmx2g", "-cp", peers.classpath(classes, libraries), "Load"]

    def ask(self, verb: str, **arguments: object) -> dict[str, float]:
        process = psutil.Process(self._process.pid)
        before, started = thread_seconds(process), time.perf_counter()
        command = self.begin(verb, **arguments)
        assert self._process.stdout is not None
        answer = self._process.stdout.readline().split(" ", 1)
        if answer[0] != "ok":
            raise RuntimeError(f"the {self.kind} client failed at {command}: {answer[-1].strip() or 'it ended'}")
        self.busy = busiest_thread(process, before) / (time.perf_counter() - started)
        pairs = (pair.split("=") for pair in answer[1].split())
        return {name: float(value) for name, value in pairs}

    def begin(self, verb: str, **arguments: object) -> str:
        """Give a command without waiting for its answer."""
        assert self._process.stdin is not None
        pairs = [f"{name}={value}" for name, value in arguments.items() if value is not None]
        command = " ".join([verb, *pairs])
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()
        return command

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def producer_settings(**more: object) -> dict[str, object]:
    return {f"p.{name}": value for name, value in {**PRODUCER, **more}.items()}


def consumer_settings(kind: str, **more: object) -> dict[str, object]:
    return {f"c.{name}": value for name, value in {**CONSUMER[kind], **more}.items()}
