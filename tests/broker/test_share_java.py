"""Java's share consumer and admin client, alone and in one group with confluent-kafka's."""

import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest

from tests import peers
from tests.broker.share_clients import LIMIT, RawMember, configure, make_topic, send, share_consumer

SOURCES = Path(__file__).with_name("java_share")

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def command() -> list[str]:
    libraries = peers.jars("clients-4.3")
    classes = peers.compiled(SOURCES, libraries)
    return [peers.java(), "-Xmx256m", "-cp", peers.classpath(classes, libraries), "ShareWorker"]


@pytest.fixture
def jobs(broker_address: str, topic: str) -> str:
    make_topic(broker_address, topic, partitions=2)
    configure(broker_address, topic, share_auto_offset_reset="earliest")
    return topic


def work(command: list[str], address: str, topic: str, mode: str, kind: str) -> list[tuple[str, int]]:
    """What a worker printed: values and their delivery counts."""
    run = subprocess.run(
        [*command, "work", address, topic, topic, mode, kind],
        capture_output=True,
        text=True,
        check=True,
        timeout=LIMIT * 2,
    )
    return records(run.stdout)


def records(output: str) -> list[tuple[str, int]]:
    lines = [line.split(" ", 1) for line in output.splitlines() if line != "ready"]
    assert not [line for line in lines if line[0] == "failed"], output
    return [(value, int(count)) for value, count in lines]


@pytest.mark.parametrize(("mode", "kind"), [("implicit", "accept"), ("explicit", "accept"), ("explicit", "renew")])
def test_the_share_consumer_accepts(command: list[str], broker_address: str, jobs: str, mode: str, kind: str) -> None:
    for partition in range(2):
        send(broker_address, jobs, [f"{partition}-{number}" for number in range(50)], partition=partition)
    found = work(command, broker_address, jobs, mode, kind)
    times = 2 if kind == "renew" else 1
    assert sorted(found) == sorted((f"{p}-{n}", 1) for p in range(2) for n in range(50) for _ in range(times))
    observer = RawMember(broker_address, jobs)
    assert [observer.start_offset(jobs, partition) for partition in range(2)] == [(50, 0), (50, 0)]
    observer.close()


def test_what_the_share_consumer_releases_comes_again_until_the_limit(
    command: list[str], broker_address: str, jobs: str
) -> None:
    configure(broker_address, jobs, share_delivery_count_limit="3")
    send(broker_address, jobs, ["a"])
    assert work(command, broker_address, jobs, "explicit", "release") == [("a", 1), ("a", 2), ("a", 3)]


def test_java_and_confluent_kafka_work_in_one_group(command: list[str], broker_address: str, jobs: str) -> None:
    consumer = share_consumer(broker_address, jobs, [jobs], max_poll_records=5)
    java = subprocess.Popen(
        [*command, "work", broker_address, jobs, jobs, "explicit", "accept"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert java.stdout is not None
        assert java.stdout.readline() == "ready\n"
        expected = [f"{p}-{n}" for p in range(2) for n in range(300)]
        mine: Counter[str] = Counter()
        deadline = time.monotonic() + LIMIT
        sent = 0
        while java.poll() is None:
            assert time.monotonic() < deadline
            if sent < 10:  # a little at a time, so that both have a part
                for partition in range(2):
                    values = [f"{partition}-{n}" for n in range(sent * 30, sent * 30 + 30)]
                    send(broker_address, jobs, values, partition=partition)
                sent += 1
            for message in consumer.poll(0.1):
                value = message.value()
                assert value is not None
                mine[value.decode()] += 1
                consumer.acknowledge(message)
        theirs = Counter(value for value, _ in records(java.stdout.read()))
    finally:
        java.kill()
        java.wait()
        consumer.close()
    assert sorted((mine + theirs).elements()) == sorted(expected), "each record to one of them, once"
    assert mine, "both had a part"
    assert theirs, "both had a part"


def test_the_admin_client_is_told_of_share_groups(command: list[str], broker_address: str, jobs: str) -> None:
    send(broker_address, jobs, map(str, range(5)))
    member = RawMember(broker_address, jobs).join(jobs)
    assert member.acquire(most=2) == [(0, 1, 1)]
    assert member.acknowledge((0, 1, [1])) == (0, 0)
    member.heartbeat(epoch=-1)
    member.close()
    run = subprocess.run(
        [*command, "admin", broker_address, jobs, jobs], capture_output=True, text=True, check=False, timeout=LIMIT
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines() == [
        "limit 7",
        "listed Share Empty",
        "described Empty 0",
        "offset 2 3",
        "altered 3 2",
        "deleted none",
        "there false",
    ]
