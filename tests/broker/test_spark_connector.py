"""Spark's own Kafka connector against the broker: batch reads, a streaming read that resumes, writes."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests import peers

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[peers.Server]:
    with peers.broker_for_tests(tmp_path_factory.mktemp("spark-broker")) as server:
        yield server


def new_topic(broker: peers.Server, partitions: int = 2) -> str:
    name = f"spark-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": broker.address})
    for made in admin.create_topics([NewTopic(name, partitions, 1)]).values():
        made.result(30)
    return name


def send(broker: peers.Server, topic: str, values: range, **settings: str) -> None:
    producer = Producer({"bootstrap.servers": broker.address, **settings})
    for value in values:
        producer.produce(topic, str(value), key=f"k{value}", partition=value % 2)
    assert producer.flush(30) == 0


def kafka_rows(spark: SparkSession, broker: peers.Server, topic: str, **options: str) -> DataFrame:
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", broker.address)
    return reader.options(subscribe=topic, **options).load()


def stored(broker: peers.Server, topic: str, count: int) -> list[tuple[bytes | None, bytes]]:
    """What a client that is not Spark finds in the topic."""
    settings = {"bootstrap.servers": broker.address, "group.id": "check", "isolation.level": "read_committed"}
    consumer = Consumer({**settings, "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(topic, 0, 0), TopicPartition(topic, 1, 0)])
    found: list[tuple[bytes | None, bytes]] = []
    while len(found) < count:
        message = consumer.poll(20)
        assert message is not None, f"only {len(found)} of {count} records came"
        assert message.error() is None
        found.append((message.key(), message.value()))
    consumer.close()
    return sorted(found)


def test_batch_read(spark: SparkSession, broker: peers.Server) -> None:
    topic = new_topic(broker)
    send(broker, topic, range(1000), **{"compression.type": "lz4"})
    rows = kafka_rows(spark, broker, topic, includeHeaders="true").selectExpr(
        "CAST(key AS STRING) AS key", "CAST(CAST(value AS STRING) AS INT) AS value", "partition", "offset", "timestamp"
    )
    assert sorted((row.key, row.value, row.partition) for row in rows.collect()) == sorted(
        (f"k{value}", value, value % 2) for value in range(1000)
    )
    assert rows.filter("partition = 1").agg({"offset": "max"}).collect()[0][0] == 499


def test_batch_read_between_offsets_and_times(spark: SparkSession, broker: peers.Server) -> None:
    topic = new_topic(broker)
    send(broker, topic, range(100))
    part = kafka_rows(
        spark,
        broker,
        topic,
        startingOffsets=f'{{"{topic}": {{"0": 10, "1": -2}}}}',
        endingOffsets=f'{{"{topic}": {{"0": 20, "1": -1}}}}',
    )
    assert part.groupBy("partition").count().orderBy("partition").collect() == [(0, 10), (1, 50)]
    tomorrow = "4102444800000"
    none = kafka_rows(
        spark,
        broker,
        topic,
        startingTimestamp=tomorrow,
        startingOffsetsByTimestampStrategy="latest",
    )
    assert none.count() == 0


def test_batch_read_sees_committed_transactions_only(spark: SparkSession, broker: peers.Server) -> None:
    topic = new_topic(broker)
    producer = Producer({"bootstrap.servers": broker.address, "transactional.id": topic})
    producer.init_transactions(30)
    for value, commit in ((1, True), (2, False), (3, True)):
        producer.begin_transaction()
        producer.produce(topic, str(value), partition=0)
        producer.flush(30)
        producer.commit_transaction(30) if commit else producer.abort_transaction(30)
    rows = kafka_rows(spark, broker, topic, **{"kafka.isolation.level": "read_committed"})
    assert sorted(int(row.value) for row in rows.collect()) == [1, 3]


def test_streaming_read_resumes_from_its_checkpoint(spark: SparkSession, broker: peers.Server, tmp_path: Path) -> None:
    topic = new_topic(broker)
    output, checkpoint = str(tmp_path / "out"), str(tmp_path / "checkpoint")

    def run() -> None:
        stream = (
            spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", broker.address)
            .option("subscribe", topic)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", 40)
            .load()
            .selectExpr("CAST(CAST(value AS STRING) AS INT) AS value")
        )
        query = (
            stream.writeStream.format("parquet")
            .option("path", output)
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(90)

    def read() -> list[int]:
        return sorted(row.value for row in spark.read.parquet(output).collect())

    send(broker, topic, range(100))
    run()
    assert read() == list(range(100))
    send(broker, topic, range(100, 150))
    run()
    assert read() == list(range(150))


def test_batch_write(spark: SparkSession, broker: peers.Server) -> None:
    topic = new_topic(broker)
    rows = spark.range(500).selectExpr("CAST(id AS STRING) AS key", "CAST(id * 2 AS STRING) AS value")
    rows.write.format("kafka").option("kafka.bootstrap.servers", broker.address).option("topic", topic).save()
    assert stored(broker, topic, 500) == sorted((b"%d" % i, b"%d" % (i * 2)) for i in range(500))


def test_streaming_from_topic_to_topic(spark: SparkSession, broker: peers.Server, tmp_path: Path) -> None:
    source, target = new_topic(broker), new_topic(broker)
    send(broker, source, range(60))
    query = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", broker.address)
        .option("subscribePattern", source)
        .option("startingOffsets", "earliest")
        .load()
        .selectExpr("key", "CAST(CAST(CAST(value AS STRING) AS INT) + 1000 AS STRING) AS value")
        .writeStream.format("kafka")
        .option("kafka.bootstrap.servers", broker.address)
        .option("topic", target)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        expected = sorted((b"k%d" % i, b"%d" % (i + 1000)) for i in range(60))
        assert stored(broker, target, 60) == expected
        send(broker, source, range(60, 70))
        assert len(stored(broker, target, 70)) == 70
    finally:
        query.stop()
