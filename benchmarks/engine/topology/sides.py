"""An app in processes of its own, with its own broker and PostgreSQL: by `headrace run`, or by hand in PySpark."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pyspark

from benchmarks.engine.topology import by_hand
from benchmarks.engine.topology.batches import Batches
from benchmarks.engine.topology.processes import Cpu
from benchmarks.engine.topology.traffic import make_topics
from headrace.engine.jars import connector_jars

__all__ = ["BY_HAND", "HEADRACE", "Job", "Side", "running"]

HEADRACE, BY_HAND = "Headrace", "by hand"
LIMIT = 900.0
"""Two hundred partitions of state, times three queries, take long to be ready on a busy machine."""
STOP_LIMIT = 120.0
HERE = Path(__file__).parent


@dataclass(frozen=True)
class Job:
    """A file of an app, and the nodes that run of it."""

    file: str
    app: str
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class Side:
    kafka: str
    postgres: str
    ready: float
    """Seconds from its start until every node had finished a batch."""
    batches: Batches
    cpu: Cpu
    process: "subprocess.Popen[bytes]"
    log: Path

    def wait(self, seconds: float, until: Callable[[], bool] = lambda: False, pause: float = 0.5) -> None:
        """For so long, with an eye on the app."""
        end = time.monotonic() + seconds
        while not until() and (left := end - time.monotonic()) > 0:
            check(self.process, self.log)
            self.batches.look()
            self.cpu.sample()
            time.sleep(min(pause, left))


@contextmanager
def running(way: str, job: Job, folder: Path, peer_settings: Sequence[str] = ()) -> Iterator[Side]:
    """An app that is ready, alone in a new folder, which is gone afterwards."""
    home = (folder / "home").resolve()
    home.mkdir(parents=True)
    log = folder / "log"
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        command = _by_headrace(job, home) if way == HEADRACE else _by_hand(job, home, peer_settings, stack)
        began = time.monotonic()
        process = stack.enter_context(_child(command, log))
        batches = Batches(home, job.nodes)
        while not batches.is_ready():
            check(process, log)
            if time.monotonic() - began > LIMIT:
                raise RuntimeError(f"{way}: not ready within {LIMIT:.0f} s: {_tail(log)}")
            time.sleep(0.05)
        ready = time.monotonic() - began
        kafka, postgres = _addresses(home)
        cpu = Cpu(process.pid, home)
        cpu.sample()
        yield Side(kafka, postgres, ready, batches, cpu, process, log)


def _by_headrace(job: Job, home: Path) -> list[str]:
    return [*_headrace("run", home), str(HERE / job.file), "--app", job.app]


def _by_hand(job: Job, home: Path, settings: Sequence[str], stack: ExitStack) -> list[str]:
    """Kafka and PostgreSQL are up, and have the topics and tables, before a PySpark program starts."""
    subprocess.run(_headrace("up", home), check=True, stdout=subprocess.DEVNULL)
    stack.callback(subprocess.run, _headrace("down", home), check=True, stdout=subprocess.DEVNULL)
    kafka, postgres = _addresses(home)
    make_topics(kafka, by_hand.TOPICS)
    with psycopg.connect(postgres, autocommit=True) as connection:
        for statement in by_hand.TABLES:
            connection.execute(statement)
    jars = ",".join(map(str, connector_jars(pyspark.__version__)))
    options = {"--kafka": kafka, "--postgres": postgres, "--checkpoints": str(home / "checkpoints"), "--jars": jars}
    words = [word for option in (*options.items(), *(("--set", setting) for setting in settings)) for word in option]
    return [sys.executable, "-m", by_hand.__name__, *words, *job.nodes]


def _headrace(command: str, home: Path) -> list[str]:
    return [sys.executable, "-m", "headrace", command, "--home", str(home)]


def _addresses(home: Path) -> tuple[str, str]:
    told = subprocess.run([*_headrace("status", home), "--json"], check=True, capture_output=True, text=True).stdout
    addresses = {service["service"]: service["address"] or "" for service in json.loads(told)}
    return addresses["broker"], addresses["postgres"]


@contextmanager
def _child(command: Sequence[str], log: Path) -> Iterator["subprocess.Popen[bytes]"]:
    # By hand: what Headrace sets for itself is not the user's, and the repository is where the module is found.
    environment = {**os.environ, "COLUMNS": "200"}
    paths = [str(HERE.parents[2]), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    environment["PYSPARK_PYTHON"] = sys.executable
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=log.parent, stdout=output, stderr=output, env=environment, start_new_session=True
        )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        _await_end(process)


def _await_end(process: "subprocess.Popen[bytes]") -> None:
    """Of its Java too, which ends by itself a while after Python: the next run is to have the machine alone."""
    end = time.monotonic() + STOP_LIMIT
    while time.monotonic() < end:
        process.poll()
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def check(process: "subprocess.Popen[bytes]", log: Path) -> None:
    if process.poll() is not None:
        raise RuntimeError(f"the app ended with exit code {process.returncode}: {_tail(log)}")


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-3000:]
