"""Records into topics and out of them, for the engine's tests."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from confluent_kafka import Consumer, Message, Producer, TopicPartition


def send(
    address: str, topic: str, values: Iterable[Mapping[str, Any] | bytes], key: str | None = None, sent_at: int = 0
) -> None:
    """Rows as JSON, or bytes as they are; keyed by a column. `sent_at` is in milliseconds, 0 is now."""
    producer = Producer({"bootstrap.servers": address, "partitioner": "murmur2_random"})
    for value in values:
        if isinstance(value, bytes):
            producer.produce(topic, value, timestamp=sent_at)
        else:
            producer.produce(topic, json.dumps(value), None if key is None else str(value[key]), timestamp=sent_at)
    assert producer.flush(30) == 0


def messages(address: str, topic: str) -> list[Message]:
    """All that a reader of committed records finds, partition by partition."""
    settings = {"bootstrap.servers": address, "group.id": "check", "isolation.level": "read_committed"}
    # The end is told by an answer without records, and that would be waited for.
    to_end = {"enable.partition.eof": True, "auto.offset.reset": "earliest", "fetch.wait.max.ms": 10}
    consumer = Consumer({**settings, **to_end})
    partitions = sorted(consumer.list_topics(topic, timeout=30).topics[topic].partitions)
    found = []
    for partition in partitions:
        consumer.assign([TopicPartition(topic, partition, 0)])
        while True:
            message = consumer.poll(30)
            assert message is not None, f"nothing more of {topic}[{partition}]"
            if message.error() is not None:
                break
            found.append(message)
    consumer.close()
    return found


def rows(address: str, topic: str) -> list[dict[str, Any]]:
    return [json.loads(message.value() or b"null") for message in messages(address, topic)]
