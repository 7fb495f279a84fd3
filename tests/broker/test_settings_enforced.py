"""Settings change what the broker does, those of topics at once: seen from outside, through clients."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import (
    TIMESTAMP_CREATE_TIME,
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    KafkaError,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from headrace.broker import Broker
from tests.broker.rawclient import RawClient

API_VERSIONS, FETCH = 18, 1


def with_broker(folder: Path, settings: dict[str, str], use: Callable[[Broker], None]) -> None:
    """Run `use` in a thread beside a broker with these settings."""

    async def main() -> None:
        broker = Broker(folder, settings=settings)
        await broker.start()
        try:
            await asyncio.to_thread(use, broker)
        finally:
            await broker.stop()

    asyncio.run(main())


def produce(address: str, topic: str, value: bytes = b"x", timestamp: int = 0) -> Message | KafkaError:
    """The message as it was acknowledged, or why it was not."""
    results: list[Message | KafkaError] = []
    producer = Producer({"bootstrap.servers": address, "linger.ms": 0, "message.max.bytes": 10_000_000})
    producer.produce(topic, value, timestamp=timestamp, on_delivery=lambda error, sent: results.append(error or sent))
    producer.flush(30)
    return results[0]


def alter(admin: AdminClient, topic: str, **configs: str) -> None:
    entries = [
        ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
        for name, value in configs.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(30)


def last_timestamp(address: str, topic: str) -> tuple[int, int]:
    consumer = Consumer({"bootstrap.servers": address, "group.id": "reader", "enable.auto.commit": False})
    _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=30)
    consumer.assign([TopicPartition(topic, 0, end - 1)])
    message = consumer.poll(30)
    consumer.close()
    assert message is not None
    assert message.error() is None
    kind, timestamp = message.timestamp()
    return kind, timestamp


def wait_for(condition: Callable[[], bool], limit: float = 20) -> None:
    deadline = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.02)


def test_topics_obey_what_is_altered_at_once(tmp_path: Path) -> None:
    def use(broker: Broker) -> None:
        address = broker.address
        admin = AdminClient({"bootstrap.servers": address})
        for future in admin.create_topics([NewTopic("a", 1, 1)]).values():
            future.result(30)
        assert isinstance(produce(address, "a", timestamp=1000), Message)
        assert last_timestamp(address, "a") == (TIMESTAMP_CREATE_TIME, 1000)

        alter(admin, "a", message_timestamp_type="LogAppendTime")
        assert isinstance(produce(address, "a", timestamp=1000), Message)
        kind, stamp = last_timestamp(address, "a")
        assert kind == TIMESTAMP_LOG_APPEND_TIME
        assert abs(stamp - time.time() * 1000) < 60_000

        alter(admin, "a", message_timestamp_type="CreateTime", message_timestamp_before_max_ms="60000")
        refused = produce(address, "a", timestamp=1000)
        assert isinstance(refused, KafkaError)
        assert refused.code() == KafkaError.INVALID_TIMESTAMP

        alter(admin, "a", max_message_bytes="200")
        refused = produce(address, "a", b"x" * 500)
        assert isinstance(refused, KafkaError)
        assert refused.code() == KafkaError.MSG_SIZE_TOO_LARGE
        alter(admin, "a", max_message_bytes="2000")
        assert isinstance(produce(address, "a", b"x" * 500), Message)

    with_broker(tmp_path, {}, use)


def test_old_segments_go_on_their_own(tmp_path: Path) -> None:
    def use(broker: Broker) -> None:
        address = broker.address
        for _ in range(5):
            assert isinstance(produce(address, "a", b"x" * 100), Message)
        consumer = Consumer({"bootstrap.servers": address, "group.id": "reader"})
        partition = TopicPartition("a", 0)
        assert consumer.get_watermark_offsets(partition, timeout=30) == (0, 5)
        alter(AdminClient({"bootstrap.servers": address}), "a", retention_ms="1")
        wait_for(lambda: consumer.get_watermark_offsets(partition, timeout=30) == (5, 5))
        consumer.close()

    with_broker(tmp_path, {"log.retention.check.interval.ms": "50", "log.segment.bytes": "300"}, use)


def test_no_more_connections_than_allowed(tmp_path: Path) -> None:
    def use(broker: Broker) -> None:
        clients = [RawClient(broker.host, broker.port) for _ in range(2)]
        for client in clients:
            assert client.call(API_VERSIONS, 0).error_code == 0
        refused = RawClient(broker.host, broker.port)
        assert refused.closed_by_peer()
        clients.pop().close()

        def welcome() -> bool:
            try:
                with RawClient(broker.host, broker.port) as another:
                    return bool(another.call(API_VERSIONS, 0).error_code == 0)
            except ConnectionError:
                return False

        wait_for(welcome)
        clients.pop().close()

    with_broker(tmp_path, {"max.connections": "2"}, use)


def test_idle_connections_are_closed(tmp_path: Path) -> None:
    def use(broker: Broker) -> None:
        with RawClient(broker.host, broker.port, timeout=20) as client:
            assert client.call(API_VERSIONS, 0).error_code == 0
            assert client.closed_by_peer()

    with_broker(tmp_path, {"connections.max.idle.ms": "100"}, use)


@pytest.mark.parametrize(("limit", "least", "most"), [("1024", 1, 3), ("57671680", 20, 20)])
def test_a_fetch_is_bounded(tmp_path: Path, limit: str, least: int, most: int) -> None:
    def use(broker: Broker) -> None:
        for _ in range(20):
            sent = produce(broker.address, "a", b"x" * 400)
            assert isinstance(sent, Message)
        size = broker.topics.partition("a", 0).size_bytes // 20  # type: ignore[union-attr]
        asked = {"partition": 0, "current_leader_epoch": -1, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
        body = {
            "replica_id": -1,
            "max_bytes": 1 << 26,
            "min_bytes": 1,
            "max_wait": 0,
            "topics": [{"topic": "a", "partitions": [asked]}],
            "session_epoch": -1,
        }
        with RawClient(broker.host, broker.port) as client:
            answer = client.call(FETCH, 11, body)
        records = answer.responses[0].partitions[0].records
        assert least <= len(records) // size <= most

    with_broker(tmp_path, {"fetch.max.bytes": limit}, use)


def test_new_topics_have_the_default_number_of_partitions(tmp_path: Path) -> None:
    def use(broker: Broker) -> None:
        assert isinstance(produce(broker.address, "a"), Message)
        metadata = AdminClient({"bootstrap.servers": broker.address}).list_topics(timeout=30)
        assert len(metadata.topics["a"].partitions) == 7

    with_broker(tmp_path, {"num.partitions": "7"}, use)


def test_topics_are_not_made_where_that_is_off(tmp_path: Path) -> None:
    def use(broker: Broker) -> None:
        producer = Producer({"bootstrap.servers": broker.address, "message.timeout.ms": 2000})
        errors: list[KafkaError | None] = []
        producer.produce("a", b"x", on_delivery=lambda error, _: errors.append(error))
        producer.flush(30)
        # While the topic is unknown the client waits for it to appear, until the message is too old.
        assert [error and error.code() for error in errors] == [KafkaError._MSG_TIMED_OUT]
        assert broker.topics.get("a") is None

    with_broker(tmp_path, {"auto.create.topics.enable": "false"}, use)
