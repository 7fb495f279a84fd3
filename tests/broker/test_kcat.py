"""kcat, and with it an old librdkafka (Debian's, before 2.3), against the broker."""

from __future__ import annotations

import json
import subprocess
import uuid
from collections.abc import Callable, Iterator

import pytest

from tests import peers

pytestmark = pytest.mark.long

Kcat = Callable[..., str]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[peers.Server]:
    properties = {"group.initial.rebalance.delay.ms": "0", "num.partitions": "3"}
    with peers.broker_for_tests(tmp_path_factory.mktemp("kcat"), properties) as server:
        yield server


@pytest.fixture(scope="module")
def kcat(broker: peers.Server) -> Kcat:
    command = peers.kcat()

    def run(*words: str, text: str = "") -> str:
        done = subprocess.run(
            [*command, "-b", broker.address, *words],
            input=text,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def new_name() -> str:
    return f"kcat-{uuid.uuid4().hex[:8]}"


def produce(kcat: Kcat, topic: str, lines: list[str], *words: str) -> None:
    kcat("-P", "-t", topic, *words, text="".join(f"{line}\n" for line in lines))


def consume(kcat: Kcat, topic: str, *words: str) -> list[str]:
    return kcat("-C", "-t", topic, "-e", "-q", *words).splitlines()


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_what_is_sent_is_read(kcat: Kcat, codec: str) -> None:
    topic, lines = new_name(), [f"line {number} {'x' * number}" for number in range(300)]
    produce(kcat, topic, lines, "-z", codec, "-p", "0", "-X", "acks=all", "-X", "enable.idempotence=true")
    assert consume(kcat, topic, "-p", "0") == lines


def test_an_old_client_still_compresses(kcat: Kcat, broker: peers.Server) -> None:
    """Clients before librdkafka 2.3 send plain batches unless Produce is advertised from version 0."""
    topic = new_name()
    produce(kcat, topic, ["y" * 1000] * 500, "-z", "gzip", "-p", "0")
    assert 0 < sum(segment.stat().st_size for segment in broker.segments(topic, 0)) < 50_000


def test_keys_headers_and_places(kcat: Kcat) -> None:
    topic = new_name()
    produce(kcat, topic, ["a:1", "b:2"], "-K", ":", "-p", "2", "-H", "colour=blue", "-H", "shape=round")
    read = [json.loads(line) for line in consume(kcat, topic, "-J")]
    assert [(found["key"], found["payload"], found["partition"], found["offset"]) for found in read] == [
        ("a", "1", 2, 0),
        ("b", "2", 2, 1),
    ]
    assert read[0]["headers"] == ["colour", "blue", "shape", "round"]


def test_null_value_and_reading_from_an_offset(kcat: Kcat) -> None:
    topic = new_name()
    produce(kcat, topic, ["k:v", "k:", "k:w"], "-K", ":", "-Z", "-p", "0")
    read = [json.loads(line) for line in consume(kcat, topic, "-p", "0", "-o", "1", "-J")]
    assert [found["payload"] for found in read] == [None, "w"]
    assert consume(kcat, topic, "-p", "0", "-o", "-1") == ["w"]


def test_metadata(kcat: Kcat, broker: peers.Server) -> None:
    topic = new_name()
    produce(kcat, topic, ["made"])
    told = json.loads(kcat("-L", "-J"))
    assert [node["name"] for node in told["brokers"]] == [broker.address]
    (found,) = (entry for entry in told["topics"] if entry["topic"] == topic)
    node = told["brokers"][0]["id"]
    assert [(part["partition"], part["leader"]) for part in found["partitions"]] == [(n, node) for n in range(3)]


def test_offsets_by_time(kcat: Kcat) -> None:
    topic = new_name()
    produce(kcat, topic, ["early"], "-p", "0")
    produce(kcat, topic, ["late"], "-p", "0")
    late = json.loads(consume(kcat, topic, "-p", "0", "-o", "1", "-J")[0])["ts"]
    assert kcat("-Q", "-t", f"{topic}:0:{late}").strip() == f"{topic} [0] offset 1"
    assert kcat("-Q", "-t", f"{topic}:0:-2").strip() == f"{topic} [0] offset 0"
    assert kcat("-Q", "-t", f"{topic}:0:-1").strip() == f"{topic} [0] offset 2"


def test_a_group_reads_on_where_it_stopped(kcat: Kcat) -> None:
    topic, group = new_name(), new_name()
    words = ("-q", "-e", "-X", "auto.offset.reset=earliest", "-G", group, topic)
    produce(kcat, topic, [f"first {number}" for number in range(30)])
    assert sorted(kcat(*words).splitlines()) == sorted(f"first {number}" for number in range(30))
    produce(kcat, topic, ["second"])
    assert kcat(*words).splitlines() == ["second"]


def test_a_transaction(kcat: Kcat) -> None:
    topic = new_name()
    produce(kcat, topic, ["one", "two"], "-p", "0", "-X", f"transactional.id={new_name()}")
    assert consume(kcat, topic, "-p", "0", "-X", "isolation.level=read_committed") == ["one", "two"]
