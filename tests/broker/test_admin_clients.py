"""The admin clients people use, against a broker in a process of its own."""

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import aiokafka
import kafka
import pytest
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from aiokafka.admin import NewPartitions as AioNewPartitions
from aiokafka.admin import NewTopic as AioNewTopic
from aiokafka.admin.config_resource import ConfigResource as AioConfigResource
from aiokafka.admin.config_resource import ConfigResourceType as AioConfigResourceType
from confluent_kafka import (
    Consumer,
    ElectionType,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)
from kafka.admin import ConfigResource as PyConfigResource
from kafka.admin import ConfigResourceType as PyConfigResourceType
from kafka.admin import KafkaAdminClient
from kafka.admin import NewTopic as PyNewTopic
from kafka.errors import TopicAlreadyExistsError, UnknownTopicOrPartitionError

T = TypeVar("T")


def first(futures: dict[Any, Any]) -> Any:
    """The one result of an admin call of confluent-kafka."""
    (future,) = futures.values()
    return future.result(timeout=30)


def error_of(futures: dict[Any, Any]) -> int:
    with pytest.raises(KafkaException) as caught:
        first(futures)
    error: KafkaError = caught.value.args[0]
    return error.code()


def eventually(check: Callable[[], T], limit: float = 10) -> T:
    """What `check` returns once it neither fails nor raises: Apache Kafka answers before it has done everything."""
    deadline = time.monotonic() + limit
    while True:
        try:
            return check()
        except (AssertionError, KafkaException):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def produce(address: str, topic: str, *timestamps: int, partition: int = 0) -> None:
    producer = Producer({"bootstrap.servers": address, "linger.ms": 0})
    for timestamp in timestamps:
        producer.produce(topic, b"x", partition=partition, timestamp=timestamp)
        producer.flush(30)


@pytest.fixture
def admin(broker_address: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker_address})


@pytest.fixture
def python_admin(broker_address: str) -> Iterator[KafkaAdminClient]:
    client = KafkaAdminClient(bootstrap_servers=broker_address)
    yield client
    client.close()


class TestConfluent:
    def test_a_topic_through_its_life(self, admin: AdminClient, topic: str) -> None:
        new = NewTopic(topic, 3, 1, config={"retention.ms": "60000"})
        first(admin.create_topics([new]))
        assert error_of(admin.create_topics([new])) == KafkaError.TOPIC_ALREADY_EXISTS
        described = first(admin.describe_topics(TopicCollection([topic]), include_authorized_operations=True))
        assert described.name == topic
        assert [partition.id for partition in described.partitions] == [0, 1, 2]
        node = described.partitions[0].leader
        for partition in described.partitions:
            assert [replica.id for replica in partition.replicas] == [node.id]
            assert [replica.id for replica in partition.isr] == [node.id]
        assert len(described.authorized_operations) == 8
        listed = admin.list_topics(topic, timeout=30).topics[topic]
        assert {index: partition.leader for index, partition in listed.partitions.items()} == dict.fromkeys(
            (0, 1, 2), node.id
        )
        first(admin.create_partitions([NewPartitions(topic, 5)]))
        assert error_of(admin.create_partitions([NewPartitions(topic, 5)])) == KafkaError.INVALID_PARTITIONS
        assert len(admin.list_topics(topic, timeout=30).topics[topic].partitions) == 5
        first(admin.delete_topics([topic]))
        assert error_of(admin.describe_topics(TopicCollection([topic]))) == KafkaError.UNKNOWN_TOPIC_OR_PART
        assert error_of(admin.delete_topics([topic])) == KafkaError.UNKNOWN_TOPIC_OR_PART

    def test_creations_that_are_refused(self, admin: AdminClient, topic: str) -> None:
        cases = [
            (NewTopic(topic, 1, 3), KafkaError.INVALID_REPLICATION_FACTOR),
            (NewTopic(topic, 0, 1), KafkaError.INVALID_PARTITIONS),
            (NewTopic("bad name", 1, 1), KafkaError.TOPIC_EXCEPTION),
            (NewTopic(topic, 1, 1, config={"retention.ms": "soon"}), KafkaError.INVALID_CONFIG),
            (NewTopic(topic, 1, 1, config={"no.such.setting": "1"}), KafkaError.INVALID_CONFIG),
            (NewTopic(topic, 1, replica_assignment=[[99]]), KafkaError.INVALID_REPLICA_ASSIGNMENT),
        ]
        for new, code in cases:
            assert error_of(admin.create_topics([new])) == code
        first(admin.create_topics([NewTopic(topic, 2, 1)], validate_only=True))
        assert topic not in admin.list_topics(timeout=30).topics

    def test_configs_of_a_topic(self, admin: AdminClient, topic: str) -> None:
        first(admin.create_topics([NewTopic(topic, 1, 1, config={"retention.ms": "60000"})]))

        def entries() -> dict[str, ConfigEntry]:
            described: dict[str, ConfigEntry] = first(
                admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)])
            )
            return described

        def change(*entries: ConfigEntry) -> Any:
            return admin.incremental_alter_configs(
                [ConfigResource(ResourceType.TOPIC, topic, incremental_configs=list(entries))]
            )

        described = entries()
        assert described["retention.ms"].value == "60000"
        assert ConfigSource(described["retention.ms"].source) is ConfigSource.DYNAMIC_TOPIC_CONFIG
        assert not described["retention.ms"].is_read_only
        assert described["segment.bytes"].is_default
        assert ConfigSource(described["max.message.bytes"].source) is ConfigSource.DEFAULT_CONFIG
        assert list(described["max.message.bytes"].synonyms) == ["message.max.bytes"]
        first(
            change(
                ConfigEntry("retention.ms", "70000", incremental_operation=AlterConfigOpType.SET),
                ConfigEntry("cleanup.policy", "delete", incremental_operation=AlterConfigOpType.APPEND),
                ConfigEntry("segment.ms", "90000", incremental_operation=AlterConfigOpType.SET),
            )
        )

        def is_changed() -> None:
            changed = {"retention.ms": "70000", "cleanup.policy": "delete", "segment.ms": "90000"}
            assert {name: entries()[name].value for name in changed} == changed

        def is_default() -> None:
            assert entries()["retention.ms"].is_default

        eventually(is_changed)
        first(change(ConfigEntry("retention.ms", None, incremental_operation=AlterConfigOpType.DELETE)))
        eventually(is_default)
        refused = change(ConfigEntry("retention.ms", "1", incremental_operation=AlterConfigOpType.APPEND))
        assert error_of(refused) == KafkaError.INVALID_CONFIG
        unknown = ConfigResource(ResourceType.TOPIC, topic + "-none")
        assert error_of(admin.describe_configs([unknown])) == KafkaError.UNKNOWN_TOPIC_OR_PART

    def test_configs_of_the_broker(self, admin: AdminClient) -> None:
        node_id = str(first({"all": admin.describe_cluster()}).controller.id)
        entries = first(admin.describe_configs([ConfigResource(ResourceType.BROKER, node_id)]))
        assert ConfigSource(entries["group.initial.rebalance.delay.ms"].source) is ConfigSource.STATIC_BROKER_CONFIG
        assert entries["group.initial.rebalance.delay.ms"].value == "0"
        assert entries["group.initial.rebalance.delay.ms"].is_read_only
        assert entries["auto.create.topics.enable"].value == "true"
        change = ConfigEntry("auto.create.topics.enable", "false", incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.BROKER, node_id, incremental_configs=[change])
        assert error_of(admin.incremental_alter_configs([resource])) == KafkaError.INVALID_REQUEST

    def test_offsets(self, admin: AdminClient, broker_address: str, topic: str) -> None:
        first(admin.create_topics([NewTopic(topic, 2, 1)]))
        produce(broker_address, topic, 1000, 3000, 2000, partition=1)
        partition = TopicPartition(topic, 1)

        def offset(spec: OffsetSpec, **options: Any) -> tuple[int, int]:
            found = first(admin.list_offsets({partition: spec}, **options))
            return found.offset, found.timestamp

        assert offset(OffsetSpec.earliest()) == (0, -1)
        assert offset(OffsetSpec.latest()) == (3, -1)
        assert offset(OffsetSpec.latest(), isolation_level=IsolationLevel.READ_COMMITTED) == (3, -1)
        assert offset(OffsetSpec.max_timestamp()) == (1, 3000)
        assert offset(OffsetSpec.for_timestamp(1500)) == (1, 3000)
        assert offset(OffsetSpec.for_timestamp(3001)) == (-1, -1)
        deleted = first(admin.delete_records([TopicPartition(topic, 1, 2)]))
        assert deleted.low_watermark == 2
        assert offset(OffsetSpec.earliest()) == (2, -1)
        assert offset(OffsetSpec.for_timestamp(0)) == (2, 2000)
        assert error_of(admin.delete_records([TopicPartition(topic, 1, 9)])) == KafkaError.OFFSET_OUT_OF_RANGE
        consumer = Consumer({"bootstrap.servers": broker_address, "group.id": topic})
        assert consumer.get_watermark_offsets(partition, timeout=30) == (2, 3)
        consumer.close()

    def test_the_cluster(self, admin: AdminClient, topic: str) -> None:
        cluster = admin.describe_cluster(include_authorized_operations=True).result(timeout=30)
        assert [node.id for node in cluster.nodes] == [cluster.controller.id]
        assert cluster.cluster_id == admin.list_topics(timeout=30).cluster_id
        assert cluster.authorized_operations
        first(admin.create_topics([NewTopic(topic, 1, 1)]))
        elected = admin.elect_leaders(ElectionType.PREFERRED, [TopicPartition(topic, 0)]).result(timeout=30)
        (error,) = elected.values()
        assert error.code() == KafkaError.ELECTION_NOT_NEEDED

    def test_a_topic_made_again_starts_at_zero(self, admin: AdminClient, broker_address: str, topic: str) -> None:
        ids = set()
        for _ in range(3):
            first(admin.create_topics([NewTopic(topic, 1, 1)]))
            described = eventually(lambda: first(admin.describe_topics(TopicCollection([topic]))))
            ids.add(str(described.topic_id))
            latest = {TopicPartition(topic, 0): OffsetSpec.latest()}
            assert first(admin.list_offsets(latest)).offset == 0
            produce(broker_address, topic, 1000)
            assert first(admin.list_offsets(latest)).offset == 1
            first(admin.delete_topics([topic]))
        assert len(ids) == 3


class TestKafkaPython:
    def test_a_topic_through_its_life(self, python_admin: KafkaAdminClient, topic: str) -> None:
        admin = python_admin
        admin.create_topics([PyNewTopic(topic, 2, 1, topic_configs={"segment.ms": "90000"})])
        with pytest.raises(TopicAlreadyExistsError):
            admin.create_topics([PyNewTopic(topic, 2, 1)])
        assert topic in admin.list_topics()
        (described,) = admin.describe_topics([topic])
        assert [partition["partition_index"] for partition in described["partitions"]] == [0, 1]
        admin.create_partitions({topic: 3})
        (described,) = admin.describe_topic_partitions([topic])["topics"]
        assert [partition["partition_index"] for partition in described["partitions"]] == [0, 1, 2]
        assert described["partitions"][0]["eligible_leader_replicas"] in ([], None)
        admin.delete_topics([topic])
        with pytest.raises(UnknownTopicOrPartitionError):
            admin.delete_topics([topic])

    def test_configs(self, python_admin: KafkaAdminClient, topic: str) -> None:
        admin = python_admin
        admin.create_topics([PyNewTopic(topic, 1, 1)])

        def modified() -> dict[str, str]:
            resource = PyConfigResource(PyConfigResourceType.TOPIC, topic)
            entries = admin.describe_configs([resource])["topic"][topic]
            return {name: entry["value"] for name, entry in entries.items()}

        assert modified() == {}
        for incremental in (True, False):
            resource = PyConfigResource(PyConfigResourceType.TOPIC, topic, configs={"retention.ms": "61000"})
            admin.alter_configs([resource], incremental=incremental)
            assert modified() == {"retention.ms": "61000"}
            reset = PyConfigResource(PyConfigResourceType.TOPIC, topic, configs=["retention.ms"])
            admin.reset_configs([reset], incremental=incremental)
            assert modified() == {}
        assert topic in admin.list_config_resources()["topic"]

    def test_logs_and_the_cluster(self, python_admin: KafkaAdminClient, broker_address: str, topic: str) -> None:
        admin = python_admin
        admin.create_topics([PyNewTopic(topic, 1, 1)])
        produce(broker_address, topic, 1000, 2000)
        partition = kafka.TopicPartition(topic, 0)
        offsets = admin.list_partition_offsets({partition: -1})
        assert offsets[partition].offset == 2
        deleted = admin.delete_records({partition: 1})
        assert deleted[partition]["low_watermark"] == 1
        ((log_dir,),) = [broker["log_dirs"] for broker in admin.describe_log_dirs({topic: [0]})]
        assert log_dir["topics"][0]["partitions"][0]["partition_size"] > 0
        assert log_dir["total_bytes"] >= log_dir["usable_bytes"] > 0
        assert admin.describe_producers([partition])[partition]
        (quorum,) = admin.describe_metadata_quorum()["topics"]
        assert quorum["partitions"][0]["leader_id"] == admin.describe_cluster()["brokers"][0]["broker_id"]
        assert admin.list_partition_reassignments() == {}


def test_aiokafka(broker_address: str, topic: str) -> None:
    async def main() -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=broker_address)
        await admin.start()
        try:
            created = await admin.create_topics([AioNewTopic(topic, 2, 1, topic_configs={"retention.ms": "60000"})])
            assert [error for _, error, _ in created.topic_errors] == [0]
            created = await admin.create_topics([AioNewTopic(topic, 2, 1)])
            assert [error for _, error, _ in created.topic_errors] == [36]
            assert topic in await admin.list_topics()
            (described,) = await admin.describe_topics([topic])
            assert len(described["partitions"]) == 2
            await admin.create_partitions({topic: AioNewPartitions(4)})
            async with asyncio.timeout(10):
                while len((await admin.describe_topics([topic]))[0]["partitions"]) != 4:
                    await asyncio.sleep(0.1)
            resource = AioConfigResource(AioConfigResourceType.TOPIC, topic, configs={"segment.ms": "77000"})
            (altered,) = await admin.alter_configs([resource])
            assert altered.resources[0][0] == 0
            (configs,) = await admin.describe_configs([AioConfigResource(AioConfigResourceType.TOPIC, topic)])
            values = {entry[0]: entry[1] for entry in configs.resources[0][4]}
            assert values["segment.ms"] == "77000"
            assert values["retention.ms"] == "604800000"
            producer = aiokafka.AIOKafkaProducer(bootstrap_servers=broker_address)
            await producer.start()
            for _ in range(3):
                await producer.send_and_wait(topic, b"x", partition=0)
            await producer.stop()
            partition = aiokafka.TopicPartition(topic, 0)
            assert await admin.delete_records({partition: RecordsToDelete(before_offset=2)}) == {partition: 2}
            cluster = await admin.describe_cluster()
            assert len(cluster["brokers"]) == 1
            deleted = await admin.delete_topics([topic])
            assert [error for _, error in deleted.topic_error_codes] == [0]
        finally:
            await admin.close()

    asyncio.run(main())


def test_fifty_producers_ask_for_a_new_topic_at_once(broker_address: str, topic: str) -> None:
    producers = [Producer({"bootstrap.servers": broker_address, "linger.ms": 0}) for _ in range(50)]
    failures: list[object] = []
    for producer in producers:
        producer.produce(topic, b"x", on_delivery=lambda error, _: failures.append(error) if error else None)
    for producer in producers:
        assert producer.flush(30) == 0
    assert failures == []
    admin = AdminClient({"bootstrap.servers": broker_address})
    assert first(admin.list_offsets({TopicPartition(topic, 0): OffsetSpec.latest()})).offset == 50


def test_a_consumer_does_not_make_topics(broker_address: str, topic: str) -> None:
    consumer = Consumer({"bootstrap.servers": broker_address, "group.id": topic, "allow.auto.create.topics": False})
    consumer.subscribe([topic])
    message = consumer.poll(5)
    consumer.close()
    assert message is not None
    assert message.error().code() == KafkaError.UNKNOWN_TOPIC_OR_PART
    assert topic not in AdminClient({"bootstrap.servers": broker_address}).list_topics(timeout=30).topics
