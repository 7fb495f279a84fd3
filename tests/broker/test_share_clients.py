"""Share groups of real clients: each record to one of them, acknowledged one by one."""

import time
from collections import Counter
from collections.abc import Iterator

import pytest
from confluent_kafka import AcknowledgeType, ShareConsumer

from tests.broker.share_clients import LIMIT, configure, make_topic, polled, send, share_consumer
from tests.peers import ApacheKafka


@pytest.fixture
def consumers() -> Iterator[list[ShareConsumer]]:
    started: list[ShareConsumer] = []
    yield started
    for consumer in started:
        consumer.close()


@pytest.fixture(scope="module", params=["headrace", pytest.param("kafka", marks=pytest.mark.long)])
def address(
    request: pytest.FixtureRequest, broker_address: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """Also Apache Kafka's, to prove the tests right."""
    if request.param == "headrace":
        yield broker_address
        return
    with ApacheKafka(tmp_path_factory.mktemp("kafka"), heap="512M") as kafka:
        yield kafka.address


@pytest.fixture
def jobs(address: str, topic: str) -> str:
    make_topic(address, topic, partitions=2)
    configure(address, topic, share_auto_offset_reset="earliest")
    return topic


def test_each_record_goes_to_one_of_several_consumers(address: str, jobs: str, consumers: list[ShareConsumer]) -> None:
    for partition in range(2):
        send(address, jobs, [f"{partition}-{number}" for number in range(500)], partition=partition)
    consumers += [share_consumer(address, jobs, [jobs], max_poll_records=10) for _ in range(3)]
    seen: Counter[bytes | None] = Counter()
    by: Counter[int] = Counter()
    deadline = time.monotonic() + LIMIT
    while len(seen) < 1000:
        assert time.monotonic() < deadline, f"only {len(seen)} came"
        for number, consumer in enumerate(consumers):
            for message in consumer.poll(0.05):
                assert message.error() is None
                consumer.acknowledge(message)
                seen[message.value()] += 1
                by[number] += 1
    assert set(seen.values()) == {1}
    assert len(by) > 1, "more than one consumer had some"
    for consumer in consumers:
        assert not any(consumer.commit_sync(LIMIT).values())


def test_a_released_record_comes_again_and_a_rejected_one_does_not(
    address: str, jobs: str, consumers: list[ShareConsumer]
) -> None:
    send(address, jobs, ["good", "later", "bad"])
    consumers.append(consumer := share_consumer(address, jobs, [jobs]))
    kinds = {b"good": AcknowledgeType.ACCEPT, b"later": AcknowledgeType.RELEASE, b"bad": AcknowledgeType.REJECT}
    first: list[tuple[bytes | None, int]] = []
    deadline = time.monotonic() + LIMIT
    while len(first) < 3:
        assert time.monotonic() < deadline
        for message in consumer.poll(0.2):
            value = message.value()
            assert value is not None
            first.append((value, message.delivery_count()))
            consumer.acknowledge(message, kinds[value])
    assert first == [(b"good", 1), (b"later", 1), (b"bad", 1)]
    (again,) = polled(consumer, lambda found: len(found) >= 1)
    assert (again.value(), again.delivery_count()) == (b"later", 2)


def test_without_acknowledgements_of_its_own_a_poll_accepts_what_came_before(
    address: str, jobs: str, consumers: list[ShareConsumer]
) -> None:
    send(address, jobs, ["a", "b"])
    consumers.append(consumer := share_consumer(address, jobs, [jobs], share_acknowledgement_mode="implicit"))
    found: list[bytes | None] = []
    deadline = time.monotonic() + LIMIT
    while len(found) < 2:
        assert time.monotonic() < deadline
        found += [message.value() for message in consumer.poll(0.2)]
    assert not any(consumer.commit_sync(LIMIT).values())
    assert found == [b"a", b"b"]


def test_what_a_closed_consumer_held_goes_to_another_at_once(
    address: str, jobs: str, consumers: list[ShareConsumer]
) -> None:
    send(address, jobs, ["a"])
    first = share_consumer(address, jobs, [jobs])
    deadline = time.monotonic() + LIMIT
    while not first.poll(0.2):
        assert time.monotonic() < deadline
    first.close()
    began = time.monotonic()
    consumers.append(second := share_consumer(address, jobs, [jobs]))
    (message,) = polled(second, lambda found: len(found) >= 1)
    assert message.delivery_count() == 2
    assert time.monotonic() - began < 15, "before the lock was over"
