"""kill -9 of a run at named places, while numbered events flow: each guarantee holds."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from headrace.engine.checkpoints import Checkpoints
from headrace.engine.cluster import Cluster
from headrace.engine.config import RunConfig
from headrace.engine.sinks.ledger import TopicLedger
from tests import peers
from tests.engine.writer_run import stream_named

pytestmark = [pytest.mark.long, pytest.mark.timeout(3000)]

DEATHS = (
    "before-commit:exact:2",  # rows sent, nothing committed: the transaction must be given up
    "committed:exact:3",  # committed, and Spark does not know: the batch must not be written again
    "before-spark-commit:exact:3",
    "ledger-entered:most:3",  # at-most-once: this batch is lost
    "before-spark-commit:most:3",
    "before-spark-commit:least:3",  # at-least-once: this batch comes twice
    "committed:second:3",
)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[peers.Server]:
    with peers.broker_for_tests(tmp_path_factory.mktemp("kills"), {"num.partitions": "2"}) as server:
        yield server


class Numbers(threading.Thread):
    """Sends 0, 1, 2, ... until it is told to stop."""

    def __init__(self, address: str) -> None:
        super().__init__(daemon=True)
        self.done = threading.Event()
        self.sent = 0
        self._producer = Producer({"bootstrap.servers": address, "enable.idempotence": True, "linger.ms": 5})

    def run(self) -> None:
        while not self.done.wait(0.05):
            for _ in range(5):
                event = {"n": self.sent, "k": f"k{self.sent % 11}", "at": f"2026-01-01T00:00:{self.sent % 60:02d}Z"}
                self._producer.produce("numbers", json.dumps(event), key=event["k"])
                self.sent += 1
            self._producer.flush(30)


def numbers_in(address: str, topic: str) -> Counter[int]:
    settings = {"bootstrap.servers": address, "group.id": "check", "isolation.level": "read_committed"}
    consumer = Consumer({**settings, "enable.partition.eof": True, "auto.offset.reset": "earliest"})
    partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
    consumer.assign([TopicPartition(topic, index, 0) for index in partitions])
    found: Counter[int] = Counter()
    ended: set[int] = set()
    while len(ended) < len(partitions):
        message = consumer.poll(30)
        assert message is not None
        if message.error() is None:
            found[json.loads(message.value())["n"]] += 1
        else:
            ended.add(message.partition())
    consumer.close()
    return found


def run(broker: peers.Server, home: Path, *words: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "tests.engine.numbers_run", "--home", str(home), "--kafka", broker.address]
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [*command, *words], capture_output=True, text=True, cwd=root, env={**os.environ}, timeout=600, check=False
    )
    return done.returncode, done.stdout + done.stderr[-4000:]


def test_guarantees_hold_wherever_the_run_is_killed(broker: peers.Server, tmp_path: Path) -> None:
    assert run(broker, tmp_path, "--settle")[0] == 0
    flow = Numbers(broker.address)
    flow.start()
    for death in DEATHS:
        code, said = run(broker, tmp_path, "--die", death)
        assert code == -signal.SIGKILL, said
        assert "dying" in said
    flow.done.set()
    flow.join()
    code, said = run(broker, tmp_path, "--settle")
    assert code == 0, said

    sent = set(range(flow.sent))
    for topic in ("exact", "second"):
        found = numbers_in(broker.address, topic)
        assert set(found) == sent
        assert max(found.values()) == 1
    least = numbers_in(broker.address, "least")
    assert set(least) == sent
    assert max(least.values()) > 1  # else nothing was replayed, and this test shows nothing
    most = numbers_in(broker.address, "most")
    assert max(most.values()) == 1
    lost = sent - set(most)
    assert 0 < len(lost) <= 500 * len(DEATHS)  # a batch is 500 records at most


def test_sigterm_finishes_the_batch_and_stops(broker: peers.Server, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.engine.numbers_run", "--home", str(tmp_path), "--kafka", broker.address]
    process = subprocess.Popen(command, cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if "running" in line:
            break
    flow = Numbers(broker.address)
    flow.start()
    checkpoints = Checkpoints(tmp_path, "numbers")
    deadline = time.monotonic() + 120
    while (checkpoints.of("exact").committed_batch() or 0) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    assert process.wait(120) == 0
    assert "stopped" in process.stdout.read()
    flow.done.set()
    flow.join()
    # Nothing was cut short: at most a batch that had begun and written nothing is left over.
    most = checkpoints.of("most")
    committed = most.committed_batch()
    ledger = TopicLedger(
        config := RunConfig(kafka=broker.address), Cluster(config), stream_named("numbers", "most")
    ).last()
    assert ledger is not None
    assert ledger.batch == committed


def test_a_run_outlives_a_broker_that_is_away_for_a_while(tmp_path: Path) -> None:
    with peers.broker_for_tests(tmp_path / "broker", {"num.partitions": "1"}) as server:
        command = [sys.executable, "-m", "tests.engine.numbers_run", "--home", str(tmp_path / "home")]
        process = subprocess.Popen(
            [*command, "--kafka", server.address], cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        for line in process.stdout:
            if "running" in line:
                break
        flow = Numbers(server.address)
        flow.start()
        checkpoints = Checkpoints(tmp_path / "home", "numbers")
        for _ in range(2):
            before = checkpoints.of("exact").committed_batch() or 0
            server.kill()
            time.sleep(20)
            server.start()
            deadline = time.monotonic() + 300
            while (checkpoints.of("exact").committed_batch() or 0) < before + 3:
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.2)
        flow.done.set()
        flow.join()
        process.send_signal(signal.SIGTERM)
        assert process.wait(300) == 0
        code, said = run(server, tmp_path / "home", "--settle")
        assert code == 0, said
        sent = set(range(flow.sent))
        for topic in ("exact", "second"):
            found = numbers_in(server.address, topic)
            assert max(found.values()) == 1
            assert set(found) == sent
        assert set(numbers_in(server.address, "least")) == sent
        assert max(numbers_in(server.address, "most").values()) == 1
