"""Groups of real consumers: they share, take over from each other, and come through restarts without a rebalance."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.broker.wire.apis import APIS
from tests.broker.groups_clients import LIMIT, READERS, MakeReader, Reader, until
from tests.broker.rawclient import RawClient
from tests.peers import Server, broker_for_tests

KEYS = {api.name: api.key for api in APIS.values()}
PARTITIONS = 4

every_client = pytest.mark.parametrize("make", READERS.values(), ids=READERS)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Clients say much while a broker restarts, and some of it after the test."""
    loggers = [logging.getLogger(name) for name in ("kafka", "aiokafka")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    yield
    for logger, level in zip(loggers, before, strict=True):
        logger.setLevel(level)


@pytest.fixture
def readers() -> Iterator[list[Reader]]:
    started: list[Reader] = []
    yield started
    for reader in started:
        reader._stop.set()


@pytest.fixture
def shared(broker_address: str, topic: str) -> str:
    make_topic(broker_address, topic)
    return topic


def make_topic(address: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(LIMIT)


def send(address: str, topic: str, values: list[str]) -> None:
    """One after the other over the partitions."""
    producer = Producer({"bootstrap.servers": address, "acks": "all", "log_level": 0, "reconnect.backoff.max.ms": 200})
    for number, value in enumerate(values):
        producer.produce(topic, value.encode(), partition=number % PARTITIONS)
    assert producer.flush(LIMIT) == 0


def describe(address: str, group: str) -> tuple[str, dict[str, bytes]]:
    """The group's state, and what each of its members was assigned."""
    host, port = address.rsplit(":", 1)
    with RawClient(host, int(port), timeout=LIMIT) as client:
        (found,) = client.call(KEYS["describe_groups"], 5, {"groups": [group]}).groups
        return found.group_state, {member.member_id: member.member_assignment for member in found.members}


def share_all(*readers: Reader) -> bool:
    """Whether these readers have all partitions between them, each exactly one reader's, and none is idle."""
    parts = [reader.partitions for reader in readers]
    return all(parts) and sum(map(len, parts)) == PARTITIONS and frozenset().union(*parts) == set(range(PARTITIONS))


def read(*readers: Reader) -> set[str]:
    for reader in readers:
        if reader.failure is not None:
            raise reader.failure
    return {value for reader in readers for value in reader.values}


@every_client
def test_members_share_and_take_over(broker_address: str, shared: str, make: MakeReader, readers: list[Reader]) -> None:
    group = f"group-{shared}"
    readers += [make(broker_address, group, shared) for _ in range(2)]
    first, second = readers
    until(lambda: share_all(first, second), "two share")
    values = [f"early-{number}" for number in range(40)]
    send(broker_address, shared, values)
    until(lambda: read(first, second) >= set(values), "everything is read")
    assert not set(first.values) & set(second.values)
    third = make(broker_address, group, shared)
    readers.append(third)
    until(lambda: share_all(first, second, third), "three share")
    first.close()
    until(lambda: share_all(second, third), "the others take over")
    later = [f"late-{number}" for number in range(40)]
    send(broker_address, shared, later)
    until(lambda: read(second, third) >= set(later), "everything is read again")
    second.close()
    third.close()
    assert describe(broker_address, group) == ("Empty", {})
    # Where they stopped, another goes on.
    fourth = make(broker_address, group, shared)
    readers.append(fourth)
    send(broker_address, shared, ["last"])
    until(lambda: "last" in fourth.values, "the last is read")
    assert not read(fourth) & set(values)


def test_different_clients_share_one_group(broker_address: str, shared: str, readers: list[Reader]) -> None:
    """Two of them prefer another assignor than the one that all three know."""
    group = f"group-{shared}"
    readers += [make(broker_address, group, shared) for make in READERS.values()]
    until(lambda: share_all(*readers), "all share")
    values = [str(number) for number in range(40)]
    send(broker_address, shared, values)
    until(lambda: read(*readers) >= set(values), "everything is read")


@every_client
def test_a_static_member_restarts_without_a_rebalance(
    broker_address: str, shared: str, make: MakeReader, readers: list[Reader]
) -> None:
    group = f"group-{shared}"
    readers += [make(broker_address, group, shared, instance) for instance in ("one", "two")]
    first, second = readers
    until(lambda: share_all(first, second), "two share")
    until(lambda: describe(broker_address, group)[0] == "Stable", "stable")
    given = len(first.given)
    before = describe(broker_address, group)[1]
    second.close()
    assert describe(broker_address, group)[1] == before, "a static member does not leave"
    again = make(broker_address, group, shared, "two")
    readers.append(again)
    until(lambda: share_all(first, again), "it is back")
    assert again.partitions == second.partitions
    state, after = describe(broker_address, group)
    assert state == "Stable"
    assert sorted(after.values()) == sorted(before.values())
    assert len(set(after) & set(before)) == 1, "the other is the same, the one that is back has a new id"
    values = [str(number) for number in range(40)]
    send(broker_address, shared, values)
    until(lambda: read(first, again) >= set(values), "everything is read")
    assert len(first.given) == given, "no rebalance"


@every_client
@pytest.mark.parametrize("how", ["kill", "stop"])
def test_the_broker_restarts_without_a_rebalance(
    tmp_path: Path, topic: str, make: MakeReader, how: str, readers: list[Reader]
) -> None:
    settings = {"group.initial.rebalance.delay.ms": "0"}
    with broker_for_tests(tmp_path, settings) as server:
        make_topic(server.address, topic)
        readers += [make(server.address, "g", topic), make(server.address, "g", topic)]
        until(lambda: share_all(*readers), "two share")
        early = [f"early-{number}" for number in range(40)]
        send(server.address, topic, early)
        until(lambda: read(*readers) >= set(early), "everything is read")
        until(lambda: describe(server.address, "g")[0] == "Stable", "stable")
        before, given = describe(server.address, "g"), [len(reader.given) for reader in readers]
        restart(server, how)
        assert describe(server.address, "g") == before
        late = [f"late-{number}" for number in range(40)]
        send(server.address, topic, late)
        until(lambda: read(*readers) >= set(late), "everything is read after the restart")
        assert describe(server.address, "g") == before
        assert [len(reader.given) for reader in readers] == given, "no rebalance"
        for reader in readers:
            reader.close()
        assert describe(server.address, "g") == ("Empty", {})


def restart(server: Server, how: str) -> None:
    if how == "kill":
        server.kill()
    else:
        jvm_after_sigterm = 143
        assert server.stop() == (jvm_after_sigterm if server.kind == "kafka" else 0)
    server.start()
