"""Kafka's own DumpLogSegments reads the segment files: plain, compressed and transactional batches, markers."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests import peers

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
BATCH = re.compile(
    r"^baseOffset: (?P<base>\d+) lastOffset: (?P<last>\d+) count: (?P<count>\d+) .*producerId: (?P<producer>-?\d+) "
    r".*isTransactional: (?P<transactional>\w+) isControl: (?P<control>\w+) .*compresscodec: (?P<codec>\w+) "
    r".*isvalid: (?P<valid>\w+)"
)
RECORD = re.compile(r"^\| offset: (?P<offset>\d+) .*payload: (?P<payload>.*)$")
MARKER = re.compile(r"^\| offset: (?P<offset>\d+) .*endTxnMarker: (?P<marker>\w+)")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[peers.Server]:
    with peers.broker_for_tests(tmp_path_factory.mktemp("dump")) as server:
        yield server


def make_topic(broker: peers.Server, name: str, config: dict[str, str] | None = None) -> None:
    admin = AdminClient({"bootstrap.servers": broker.address})
    for made in admin.create_topics([NewTopic(name, 1, 1, config=config or {})]).values():
        made.result(30)


def send(producer: Producer, topic: str, values: list[str]) -> None:
    failures: list[object] = []
    for value in values:
        producer.produce(
            topic, value, partition=0, on_delivery=lambda error, _: failures.append(error) if error else None
        )
    assert producer.flush(30) == 0
    assert failures == []


def dump(files: list[Path]) -> list[str]:
    libraries = peers.classpath(peers.jars("kafka-4.3"), peers.jars("kafka-tools-4.3"))
    words = ["--deep-iteration", "--print-data-log", "--files", ",".join(map(str, files))]
    done = subprocess.run(
        [peers.java(), "-Xmx256m", "-cp", libraries, "org.apache.kafka.tools.DumpLogSegments", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def matches(pattern: re.Pattern[str], lines: list[str]) -> list[dict[str, str]]:
    return [found.groupdict() for line in lines if (found := pattern.match(line))]


def test_every_codec(broker: peers.Server) -> None:
    make_topic(broker, "codecs")
    expected: list[str] = []
    for codec in CODECS:
        values = [f"{codec} {number} {'z' * 100}" for number in range(50)]
        settings = {"bootstrap.servers": broker.address, "compression.type": codec, "linger.ms": 50}
        send(Producer({**settings, "enable.idempotence": True}), "codecs", values)
        expected += values
    lines = dump(broker.segments("codecs", 0))
    batches, records = matches(BATCH, lines), matches(RECORD, lines)
    assert {found["codec"] for found in batches} == set(CODECS)
    assert all(found["valid"] == "true" and int(found["producer"]) >= 0 for found in batches)
    assert [found["payload"] for found in records] == expected
    assert [int(found["offset"]) for found in records] == list(range(len(expected)))


def test_several_segments(broker: peers.Server) -> None:
    make_topic(broker, "rolled", {"segment.bytes": "1048576"})
    producer = Producer({"bootstrap.servers": broker.address, "batch.size": 20_000})
    values = [f"{number:06d} {'r' * 1000}" for number in range(3000)]
    send(producer, "rolled", values)
    files = broker.segments("rolled", 0)
    assert len(files) >= 3
    lines = dump(files)
    batches = matches(BATCH, lines)
    assert [found["payload"] for found in matches(RECORD, lines)] == values
    assert all(found["valid"] == "true" for found in batches)
    followed = pairwise(batches)
    assert all(int(before["last"]) + 1 == int(after["base"]) for before, after in followed)
    # A segment is named after the first offset in it.
    starts = [int(line.removeprefix("Log starting offset: ")) for line in lines if line.startswith("Log starting")]
    assert starts == [int(file.stem) for file in files]


def test_transactions_and_their_markers(broker: peers.Server) -> None:
    make_topic(broker, "marked")
    producer = Producer({"bootstrap.servers": broker.address, "transactional.id": "dumped", "linger.ms": 0})
    producer.init_transactions(30)
    for outcome in ("commit", "abort", "commit"):
        producer.begin_transaction()
        send(producer, "marked", [outcome])
        if outcome == "commit":
            producer.commit_transaction(30)
        else:
            producer.abort_transaction(30)
    lines = dump(broker.segments("marked", 0))
    batches = matches(BATCH, lines)
    assert all(found["valid"] == "true" and found["transactional"] == "true" for found in batches)
    assert [found["control"] for found in batches] == ["false", "true"] * 3
    assert [found["marker"] for found in matches(MARKER, lines)] == ["COMMIT", "ABORT", "COMMIT"]
    assert len({found["producer"] for found in batches}) == 1
