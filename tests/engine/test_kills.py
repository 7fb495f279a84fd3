"""kill -9 of a run at named places, while numbered events flow: each guarantee holds."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests import peers

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
        self._producer = Producer({"bootstrap.servers": address, "acks": "all", "linger.ms": 5})

    def run(self) -> None:
        while not self.done.wait(0.05):
            for _ in range(20):
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
