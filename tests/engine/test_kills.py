"""kill -9 of everything an app stands on, while numbered events flow into sinks of every kind: each guarantee holds."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest
from confluent_kafka import Message, Producer

from headrace.config.cluster import Cluster
from headrace.config.run import RunConfig
from headrace.delivery.ledger import TopicLedger
from headrace.engine.run.checkpoints import Checkpoints
from headrace.tables import EmbeddedPostgres
from tests import peers
from tests.engine.numbers_run import JOURNAL, NODES, RUN, SELF, STRIKE, WINDOW, at, event, key
from tests.engine.topics import messages
from tests.engine.writer_run import stream_named

ROOT = Path(__file__).parents[2]
PATIENCE = 240.0
BAD = b'{"bad": '

DRIVER_PLACES = (
    "before-commit exact",  # rows sent, nothing committed: the transaction must be given up
    "before-spark-commit seen",
    "committed exact",  # committed, and Spark does not know: the batch must not be written again
    "ledger-entered most",  # at-most-once: this batch is lost
    "before-spark-commit least",  # at-least-once: this batch comes twice
    "committed windows",
    "before-commit seen",
    "before-spark-commit exact",
    "rows-sent exact",
    "committed seen",
    "before-spark-commit most",
    "before-commit windows",
    "committed second",
    "rows-sent second",
    "before-spark-commit windows",
)
BROKER_PLACES = ("rows-sent exact", "committed exact", "ledger-entered most", "before-commit windows")
POSTGRES_PLACES = ("before-commit seen", "committed seen")


class Numbers(threading.Thread):
    """Sends 0, 1, 2, ... until it is told to stop, and now and then what nobody can read."""

    def __init__(self, address: str) -> None:
        super().__init__(daemon=True)
        self.done = threading.Event()
        self.sent = self.bad = 0
        self._producer = Producer(
            {"bootstrap.servers": address, "enable.idempotence": True, "linger.ms": 5, "log_level": 0}
        )

    def run(self) -> None:
        while not self.done.wait(0.05):
            for _ in range(2):
                self._producer.produce("numbers", json.dumps(event(self.sent, at(self.sent))), key(self.sent))
                self.sent += 1
            if self.sent % 100 == 0:
                self._producer.produce("numbers", BAD + str(self.bad).encode(), key(self.bad))
                self.bad += 1
            self._producer.poll(0)

    def stop(self) -> None:
        self.done.set()
        self.join()
        assert self._producer.flush(PATIENCE) == 0


class World:
    """A broker, a PostgreSQL and a run of the app on them."""

    def __init__(self, folder: Path, app: str = "numbers") -> None:
        self.app = app
        self.home = folder / "home"
        self.broker = peers.broker_for_tests(folder / "broker", {"num.partitions": "2"})
        self.postgres = EmbeddedPostgres(folder / "postgres")
        self.checkpoints = Checkpoints(self.home, app)
        self.process: subprocess.Popen[bytes] | None = None
        self.strike = self.home / "strike"
        self.journal = self.home / "journal"
        self.home.mkdir(parents=True)
        self._said = folder / "said.log"

    def __enter__(self) -> World:
        self.broker.start()
        self.postgres.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.process is not None and self.process.poll() is None:
            kill_family(self.process.pid)
            self.process.wait(60)
        self.broker.kill()
        self.postgres.stop()

    @property
    def said(self) -> str:
        return self._said.read_text(errors="replace")

    def start(self, *words: str) -> None:
        """Start the app, and wait until its queries run."""
        given = ("--home", str(self.home), "--kafka", self.broker.address, "--postgres", self.postgres.dsn)
        command = [sys.executable, "-m", f"tests.engine.{self.app}_run", *given, *words]
        places = {STRIKE: str(self.strike), JOURNAL: str(self.journal)}
        with self._said.open("wb") as out:
            self.process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, **places}, stdout=out, stderr=out)
        self.until(lambda: "running" in self.said)

    def until(self, condition: Callable[[], bool], *, ends: bool = False) -> None:
        """Wait for something that must come while the app runs, unless it is its end."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            ended = self.process is not None and self.process.poll() is not None
            assert ends or not ended, f"the run ended with {self.process and self.process.returncode}:\n{self.said}"
            assert time.monotonic() < deadline, f"it did not come to that:\n{self.said[-4000:]}"
            time.sleep(0.02)

    def wait(self) -> int:
        assert self.process is not None
        self.until(lambda: self.process is not None and self.process.poll() is not None, ends=True)
        return self.process.returncode

    def committed(self, node: str) -> int:
        batch = self.checkpoints.of(node).committed_batch()
        return -1 if batch is None else batch

    def goes_on(self, *nodes: str, batches: int = 1) -> None:
        """Wait until the nodes have finished some more batches."""
        targets = {node: self.committed(node) + batches for node in nodes}
        self.until(lambda: all(self.committed(node) >= target for node, target in targets.items()))

    def arm(self, place: str, *victims: str | int) -> None:
        part = self.strike.with_suffix(".part")
        part.write_text(" ".join([place, *map(str, victims)]))
        part.rename(self.strike)

    def has_struck(self) -> bool:
        return not self.strike.exists()

    def settle(self) -> None:
        """Process all there is, close all windows, and stop."""
        self.start("--settle")
        assert self.wait() == 0, self.said

    # ---- the kills

    def kill_worker(self, dice: random.Random, at_a_place: bool) -> None:
        if at_a_place:
            self.arm("working exact", SELF)
            self.until(self.has_struck)
        else:
            self.until(lambda: bool(self._workers()))
            try:
                dice.choice(self._workers()).kill()
            except (psutil.NoSuchProcess, IndexError):
                self.kill_worker(dice, at_a_place)

    def kill_broker(self, place: str | None, away: float) -> None:
        if place is not None:
            self.arm(place, *(member.pid for member in self.broker.processes()))
            self.until(self.has_struck)
        self.broker.kill()
        time.sleep(away)
        self.broker.start()

    def kill_postgres(self, place: str | None, away: float) -> None:
        server = self.postgres.process
        assert server is not None
        if place is None:
            server.kill()
        else:
            self.arm(place, server.pid)
        self.until(lambda: self.postgres.process is None)
        time.sleep(away)
        self.postgres.start()

    def kill_driver(self, dice: random.Random, place: str | None) -> None:
        assert self.process is not None
        if place is not None:
            self.arm(place, RUN)
            assert self.wait() == -signal.SIGKILL, self.said
            return
        time.sleep(dice.uniform(0, 1))
        match dice.choice(["all", "python", "java"]):
            case "all":
                kill_family(self.process.pid)
            case "python":  # Spark is left behind, and sees its Python gone
                self.process.kill()
            case _:
                self._java().kill()
                assert self.wait() == 1, self.said
                assert "the Java process of Spark was killed by SIGKILL; restart the app" in self.said
                return
        assert self.wait() == -signal.SIGKILL

    def _java(self) -> psutil.Process:
        assert self.process is not None
        (java,) = (child for child in psutil.Process(self.process.pid).children() if "java" in child.name())
        return java

    def _workers(self) -> list[psutil.Process]:
        """Spark's Python processes, and the one that makes them."""
        return [child for child in self._java().children(recursive=True) if "python" in child.name()]


def kill_family(pid: int) -> None:
    parent = psutil.Process(pid)
    for member in [*parent.children(recursive=True), parent]:
        try:
            member.kill()
        except psutil.NoSuchProcess:
            pass


@contextmanager
def flowing(world: World) -> Iterator[Numbers]:
    flow = Numbers(world.broker.address)
    flow.start()
    try:
        yield flow
    finally:
        flow.stop()


def watch_view(world: World) -> None:
    """Let PostgreSQL itself note every row that is written to the view, in the same transaction."""
    with psycopg.connect(world.postgres.dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE public.written (n BIGINT)")
        connection.execute(
            "CREATE FUNCTION public.note() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN INSERT INTO public.written VALUES (NEW.n); RETURN NULL; END $$"
        )
        connection.execute(
            "CREATE TRIGGER noted AFTER INSERT OR UPDATE ON numbers.seen FOR EACH ROW EXECUTE FUNCTION public.note()"
        )


@pytest.mark.parametrize(
    "kills",
    [
        pytest.param(2, marks=pytest.mark.timeout(900)),
        pytest.param(30, marks=[pytest.mark.long, pytest.mark.timeout(5400)]),
    ],
    ids=["few", "many"],
)
def test_every_guarantee_holds_whatever_is_killed(tmp_path: Path, kills: int) -> None:
    dice = random.Random(kills)
    with World(tmp_path) as world:
        world.start()
        watch_view(world)
        with flowing(world) as flow:
            for kill in range(kills):
                if world.process is None or world.process.poll() is not None:
                    world.start()
                named = kill % 2 == 0
                world.goes_on("exact")
                world.kill_worker(dice, at_a_place=named)
                world.goes_on("exact")
                # Now and then for longer than the clients' patience with a single request.
                away = 20.0 if kill % 10 == 9 else dice.uniform(0, 2)
                world.kill_broker(BROKER_PLACES[kill // 2 % len(BROKER_PLACES)] if named else None, away)
                world.goes_on("exact", "seen")
                world.kill_postgres(POSTGRES_PLACES[kill // 2 % len(POSTGRES_PLACES)] if named else None, away)
                world.goes_on("seen", "most", "least")
                world.kill_driver(dice, DRIVER_PLACES[kill // 2 % len(DRIVER_PLACES)] if named else None)
        world.settle()
        replayed = account(world, flow)
        assert replayed >= min(10, kills), "too little was replayed to show anything"


def account(world: World, flow: Numbers) -> int:
    """Hold what came out against what went in; returns how many batches were begun more than once."""
    address = world.broker.address
    sent = [(message, n) for message in messages(address, "numbers") if (n := number_in(message)) is None or n >= 0]
    numbers = {n for _, n in sent if n is not None}
    assert numbers == set(range(flow.sent))
    assert len(sent) == flow.sent + flow.bad

    found = {topic: counted(address, topic) for topic in ("exact.odd", "exact.even", "second", "least", "most")}
    for topic, expected in (
        ("exact.odd", {n for n in numbers if n % 2}),
        ("exact.even", {n for n in numbers if n % 2 == 0}),
        ("second", {n for n in numbers if n % 2}),
    ):
        assert set(found[topic]) == expected, f"{topic} lacks {expected - set(found[topic])}"
        assert max(found[topic].values()) == 1
        assert is_in_order(address, topic)
    assert set(found["least"]) == numbers
    assert set(found["most"]) <= numbers
    assert max(found["most"].values()) == 1

    with psycopg.connect(world.postgres.dsn) as connection:
        written = Counter(n for (n,) in connection.execute("SELECT n FROM public.written WHERE n >= 0").fetchall())
        assert {n for (n,) in connection.execute("SELECT n FROM numbers.seen WHERE n >= 0").fetchall()} == numbers
    assert set(written) == numbers
    assert max(written.values()) == 1

    assert windows_in(address) == windows_of(numbers)
    rejected = Counter(message.value() for message in messages(address, "numbers.rejected"))
    assert rejected == Counter(BAD + str(n).encode() for n in range(flow.bad))

    batches = [json.loads(line) for line in world.journal.read_text().splitlines()]
    begun = Counter((batch["node"], batch["batch"]) for batch in batches if "ranges" in batch)
    replayed = {batch for batch, times in begun.items() if times > 1}
    in_flight = [batch for batch in batches if batch["node"] == "most" and ("most", batch["batch"]) in replayed]
    ranges = [limits for batch in in_flight for limits in batch.get("ranges", ())]
    lost = {n: message for message, n in sent if n is not None and n not in found["most"]}
    for n, message in lost.items():
        assert any(lies_in(message, *limits) for limits in ranges), f"most has lost {n}, which no kill explains"
    there = sum("drained" in batch for batch in batches)
    nodes = {node: sum(name == node for name, _ in replayed) for node in NODES}
    doubled = sum(times > 1 for times in found["least"].values())
    print(
        f"{flow.sent} numbers; {len(replayed)} batches were replayed, {nodes}, {there} times one that was written "
        f"already; at-least-once has {doubled} twice, at-most-once has lost {len(lost)}"
    )
    return len(replayed)


def number_in(message: Message) -> int | None:
    value = message.value() or b""
    return None if value.startswith(BAD) else int(json.loads(value)["n"])


def counted(address: str, topic: str) -> Counter[int]:
    found = Counter(number_in(message) for message in messages(address, topic))
    return Counter({n: times for n, times in found.items() if n is not None and n >= 0})


def is_in_order(address: str, topic: str) -> bool:
    """Whether the numbers of every key ascend."""
    last: dict[bytes | None, int] = {}
    for message in messages(address, topic):
        n = number_in(message)
        if n is not None and n >= 0:
            if last.get(message.key(), -1) >= n:
                return False
            last[message.key()] = n
    return True


def windows_in(address: str) -> Counter[tuple[str, datetime, int, int]]:
    rows = [json.loads(message.value() or b"") for message in messages(address, "windows")]
    return Counter((row["k"], datetime.fromisoformat(row["window_start"]), row["count"], row["total"]) for row in rows)


def windows_of(numbers: set[int]) -> Counter[tuple[str, datetime, int, int]]:
    found: dict[tuple[str, datetime], list[int]] = {}
    for n in numbers:
        start = at(0) + (at(n) - at(0)) // WINDOW * WINDOW
        found.setdefault((key(n), start), []).append(n)
    return Counter((k, start, len(inside), sum(inside)) for (k, start), inside in found.items())


def lies_in(message: Message, start: dict[str, Any] | None, end: dict[str, Any]) -> bool:
    """Whether a record is between two offsets of Spark's."""
    partition, offset = str(message.partition()), message.offset()
    since = 0 if start is None else start["numbers"].get(partition, 0)
    assert offset is not None
    return bool(since <= offset < end.get("numbers", {}).get(partition, 0))


@pytest.mark.long
@pytest.mark.timeout(400)
def test_sigterm_finishes_the_batch_and_stops(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        world.start()
        with flowing(world):
            world.goes_on("exact", "most", batches=3)
            assert world.process is not None
            world.process.send_signal(signal.SIGTERM)
            assert world.wait() == 0
            assert "stopped" in world.said
        # Nothing was cut short: at most a batch that had begun and written nothing is left over.
        config = RunConfig(kafka=world.broker.address)
        ledger = TopicLedger(config, Cluster(config), stream_named("numbers", "most")).last()
        assert ledger is not None
        assert ledger.batch == world.committed("most")
