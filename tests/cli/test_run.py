"""`headrace run` from start to stop: on a terminal with Ctrl-C, and in a log with a node that fails."""

import json
import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import IO, Self

import psutil
import psycopg
import pytest
from confluent_kafka import Producer

from headrace.cli.driver import _stopping_after
from headrace.services import Addresses, Services
from tests.conftest import COMMAND, Headrace
from tests.ending import down, end

PATIENCE = 300.0

APP = """
import os

import headrace as hr
from pyspark.sql import functions as F
from pyspark.sql.types import StringType

app = hr.App("fraud")
payments = app.topic("payments", "card STRING, amount DECIMAL(12,2)", key="card")


@F.udf(StringType())
def checked(card):
    if card in os.environ.get("POISON", "").split():
        raise ValueError(f"card {card} is poisoned")
    return card


@app.stream(key="card")
def large(payments):
    return payments.filter("amount > 100").withColumn("card", checked("card"))


@app.view(key="card")
def last(payments):
    return payments
"""


class Terminal:
    """The command on a terminal of its own."""

    def __init__(self, folder: Path, *words: str, **settings: str) -> None:
        self.said = ""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
        self._master, slave = pty.openpty()
        self.process = subprocess.Popen(
            [COMMAND, *words],
            cwd=folder,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            # Ctrl-C reaches a process whose terminal it is.
            preexec_fn=lambda: os.close(os.open(os.ttyname(0), os.O_RDWR)),
            env={**environment, "COLUMNS": "200", "TERM": "xterm", **settings},
        )
        os.close(slave)

    def wait_for(self, text: str) -> None:
        limit = time.monotonic() + PATIENCE
        while text not in self.said:
            assert time.monotonic() < limit, self.said
            assert self._read() or self.process.poll() is None, self.said

    def read(self) -> bool:
        """Take in what it has printed: it would wait for that."""
        while self._read():
            pass
        return True

    def press(self, key: bytes) -> None:
        os.write(self._master, key)

    def wait(self) -> int:
        limit = time.monotonic() + PATIENCE
        while self.process.poll() is None:
            assert time.monotonic() < limit, self.said
            self._read()
        while self._read():
            pass
        return self.process.wait()

    def close(self) -> None:
        end(self.process)
        os.close(self._master)

    def _read(self) -> bool:
        if not select.select([self._master], [], [], 0.1)[0]:
            return False
        try:
            self.said += os.read(self._master, 65536).decode(errors="replace")
        except OSError:  # the other end is closed
            return False
        return True


@pytest.fixture
def folder(headrace_alone: Headrace) -> Iterator[Path]:
    (headrace_alone.folder / "fraud.py").write_text(APP)
    yield headrace_alone.folder
    down(headrace_alone.folder)


def wait_until(condition: object) -> None:
    limit = time.monotonic() + PATIENCE
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < limit
        time.sleep(0.5)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_an_app_runs_stops_and_goes_on_where_it_was(folder: Path, headrace_alone: Headrace) -> None:
    terminal = Terminal(folder, "run", "fraud.py")
    try:
        terminal.wait_for("Spark's log")
        terminal.wait_for("rows/s")
        kafka = re.findall(r"--kafka (\S+)", terminal.said)[0]
        dsn = re.findall(r"psql '([^']+)'", terminal.said)[0]
        assert "fraud runs: large, last; Ctrl-C stops it" in terminal.said
        send(headrace_alone, kafka, a=50, b=150)
        headrace_alone.ok("produce", "payments", "--kafka", kafka, stdin="nonsense\n")
        wait_until(lambda: view(dsn) == {"a": 50, "b": 150})
        wait_until(lambda: topic(headrace_alone, kafka, "large") == ["b"])
        wait_until(
            lambda: headrace_alone("consume", "payments.rejected", *READ, "--kafka", kafka).stdout == "nonsense\n"
        )
        terminal.press(b"\x03")
        assert terminal.wait() == 0, terminal.said
        assert "fraud stopped" in terminal.said
        assert "Traceback" not in terminal.said
    finally:
        terminal.close()
    assert [one["running"] for one in json.loads(headrace_alone.ok("status", "--json"))] == [False, False]

    # Again, with a reset and a record that a node cannot bear: it says so, and the exit code does too.
    up = headrace_alone.ok("up")
    try:
        kafka, dsn = (line.split(maxsplit=1)[1] for line in up.splitlines())
        send(headrace_alone, kafka, c=250)
        refused = plain(folder, "run", "fraud.py", "--reset", "last")
        assert refused.returncode == 1
        assert "add --yes" in refused.stderr
        done = plain(folder, "run", "fraud.py", "--reset", "last", "--yes", POISON="c", HEADRACE_ATTEMPTS="2")
        assert done.returncode == 1, (done.stdout, done.stderr)
        assert "last empties the table fraud.last and writes it again" in done.stdout
        assert "the old checkpoint of last is kept in" in done.stdout
        last_line = done.stderr.splitlines()[-1]
        # A ValueError comes again whenever the record is read: the node is not restarted.
        assert re.match(r"headrace: node 'large' failed in batch \d+: .*card c is poisoned", last_line)
        # Nothing is lost: without the poison it goes on where it was, and large holds each once.
        replay = ("--replay", "last:payments=2026-01-01T00:00", "--yes")
        with logged(folder, "run", "fraud.py", *replay) as run:
            wait_until(lambda: topic(headrace_alone, kafka, "large") == ["b", "c"])
            wait_until(lambda: view(dsn) == {"a": 50, "b": 150, "c": 250})
            run.terminate()
            out, err = run.communicate(timeout=PATIENCE)
            assert run.returncode == 0, (out, err)
        assert "last reads payments again from 2026-01-01T00:00:00+00:00: 4 records" in out
        assert "fraud stopped" in out
        assert topic(headrace_alone, kafka, "large") == ["b", "c"]
        assert headrace_alone.ok("up") == up, "what was up stays up"
    finally:
        headrace_alone.ok("down")


@pytest.mark.timeout(400)
def test_a_java_process_that_is_killed_is_restarted_while_the_services_stay_up(
    folder: Path, headrace_alone: Headrace
) -> None:
    (folder / ".headrace").mkdir()
    # Another port than the usual one, which others may want.
    (folder / ".headrace" / "services.json").write_text(json.dumps({"broker": {"address": "127.0.0.1:0"}}))
    terminal = Terminal(folder, "run", "fraud.py", HEADRACE_ATTEMPTS="2")

    def java() -> psutil.Process:
        children = psutil.Process(terminal.process.pid).children(recursive=True)
        return next(child for child in children if "java" in child.name())

    def services() -> list[int]:
        noted = json.loads((folder / ".headrace" / "services.json").read_text())
        return [noted["broker"]["pid"], psutil.Process(noted["broker"]["pid"]).pid]

    try:
        terminal.wait_for("rows/s")
        kafka = re.findall(r"--kafka (\S+)", terminal.said)[0]
        dsn = re.findall(r"psql '([^']+)'", terminal.said)[0]
        before = services()
        with Sender(kafka) as sender:
            wait_until(lambda: len(topic(headrace_alone, kafka, "large")) > 10)
            java().kill()
            terminal.wait_for("restarting Spark in 0.5 s (attempt 2 of 2)")
            sent = sender.sent
            wait_until(lambda: terminal.read() and len(topic(headrace_alone, kafka, "large")) > sent)
        wait_until(lambda: terminal.read() and len(view(dsn)) == sender.sent)
        wait_until(lambda: terminal.read() and len(topic(headrace_alone, kafka, "large")) >= sender.sent)
        assert topic(headrace_alone, kafka, "large") == sorted(f"c{n}" for n in range(sender.sent)), "each exactly once"
        assert services() == before, "the broker stayed up"
        java().kill()
        assert terminal.wait() == 1
    finally:
        terminal.close()
    assert "Traceback" not in terminal.said
    assert "keeps failing" not in terminal.said
    told = [line for line in terminal.said.splitlines() if "Java process" in line]
    assert len(told) == 2
    assert "the Java process of Spark was killed by SIGKILL; restarting Spark" in told[0]
    assert "headrace: the Java process of Spark was killed by SIGKILL, 2 times in a row; see " in told[1]
    assert Services(folder / ".headrace").addresses() == Addresses(None, None), "what the run started ends with it"


@pytest.mark.timeout(300)
def test_the_driver_ends_if_its_supervisor_is_killed(folder: Path, broker_address: str, tmp_path: Path) -> None:
    (folder / "small.py").write_text(SMALL)
    said = tmp_path / "said"
    with said.open("w") as out, logged(folder, "run", "small.py", "--kafka", broker_address, out=out) as run:
        wait_until(lambda: "small runs" in said.read_text())
        children = psutil.Process(run.pid).children(recursive=True)
        assert len(children) >= 2
        run.kill()
        gone, alive = psutil.wait_procs(children, 60)
    assert not alive
    assert len(gone) == len(children)


@pytest.mark.timeout(300)
def test_with_keep_going_the_others_run_on_and_the_exit_code_tells(
    folder: Path, headrace: Headrace, broker_address: str
) -> None:
    (folder / "small.py").write_text(SMALL.replace('"small"', '"lasting", prefix="lasting."') + BROKEN)
    words = ("run", "small.py", "--keep-going", "--seconds", "8", "--kafka", broker_address)
    done = plain(folder, *words, HEADRACE_ATTEMPTS="1")
    assert done.returncode == 1, (done.stdout, done.stderr)
    assert re.search(r"broken: failed, .* 1 errors, the last: .*unlucky number", done.stdout)
    assert re.match(r"headrace: node 'broken' failed in batch \d+: .*unlucky number", done.stderr.splitlines()[-1])
    values = [json.loads(line)["value"] for line in headrace.ok("consume", "lasting.same", *READ).splitlines()]
    assert max(values) > 3, "it ran on"


@pytest.mark.timeout(300)
def test_a_running_app_raises_if_java_is_killed(folder: Path, broker_address: str) -> None:
    (folder / "small.py").write_text(SMALL.replace("small", "little") + PROGRAM)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
    environment = kept | {"HEADRACE_KAFKA": broker_address}
    words = [sys.executable, "small.py"]
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=PATIENCE)
    said = "the Java process of Spark was killed by SIGKILL; restart the app"
    assert done.stdout.splitlines() == [f"{place}: EngineError: {said}" for place in ("progress", "block")], done.stderr


SMALL = """
import headrace as hr

app = hr.App("small")
app.rate("ticks", rows_per_second=5)


@app.stream
def same(ticks):
    return ticks
"""

BROKEN = """

from pyspark.sql import functions as F


@app.stream
def broken(ticks):
    return ticks.withColumn("value", F.when(F.col("value") > 3, F.raise_error("unlucky number")).otherwise(1))
"""

PROGRAM = """

def told(place, error):
    print(f"{place}: {type(error).__mro__[1].__name__}: {str(error).partition('; processing')[0]}", flush=True)


import time, psutil
try:
    with app.running(home="home") as running:
        next(child for child in psutil.Process().children() if "java" in child.name()).kill()
        try:
            while True:
                running.progress()
                time.sleep(0.1)
        except hr.EngineError as error:
            told("progress", error)
except hr.EngineError as error:
    told("block", error)
"""


class Sender:
    """Sends payments all the time, from a thread."""

    def __init__(self, kafka: str) -> None:
        self.sent = 0
        self._producer = Producer({"bootstrap.servers": kafka, "enable.idempotence": True})
        self._ended = Event()
        self._thread = Thread(target=self._send)

    def _send(self) -> None:
        while not self._ended.wait(0.05):
            self._producer.produce("payments", json.dumps({"card": f"c{self.sent}", "amount": 150}), f"c{self.sent}")
            assert self._producer.flush(10) == 0, "the broker is not there"
            self.sent += 1

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()


READ = ("--from", "beginning", "--exit-at-end", "--kafka-set", "isolation.level=read_committed")


def send(headrace: Headrace, kafka: str, **amounts: int) -> None:
    lines = "".join(json.dumps({"card": card, "amount": amount}) + "\n" for card, amount in amounts.items())
    headrace.ok("produce", "payments", "--kafka", kafka, stdin=lines)


def topic(headrace: Headrace, kafka: str, name: str) -> list[str]:
    lines = headrace("consume", name, *READ, "--kafka", kafka).stdout.splitlines()
    return sorted(json.loads(line)["card"] for line in lines)


def view(dsn: str) -> dict[str, int]:
    with psycopg.connect(dsn) as connection:
        found = connection.execute("SELECT card, amount FROM fraud.last").fetchall()
    return {card: int(amount) for card, amount in found}


def plain(folder: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    with logged(folder, *words, environment=environment) as process:
        out, err = process.communicate(timeout=PATIENCE)
    return subprocess.CompletedProcess(words, process.returncode, out, err)


@contextmanager
def logged(
    folder: Path, *words: str, environment: Mapping[str, str] | None = None, out: IO[str] | int = subprocess.PIPE
) -> Iterator[subprocess.Popen[str]]:
    """The command without a terminal."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
    process = subprocess.Popen(
        [COMMAND, *words],
        cwd=folder,
        env=kept | dict(environment or {}),
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=subprocess.PIPE if out == subprocess.PIPE else subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        end(process)


def test_a_run_can_stop_by_itself() -> None:
    stopped = Event()
    with _stopping_after(0.05, stopped.set):
        assert stopped.wait(10)
    with _stopping_after(None, stopped.clear), _stopping_after(0.05, stopped.clear):
        pass
    time.sleep(0.2)
    assert stopped.is_set(), "what ended sooner is not stopped later"
