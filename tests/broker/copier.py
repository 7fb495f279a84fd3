"""A process that copies a topic exactly once: one life of it, some transactions long.

A process of its own, because a client that is cut off from its coordinator may wait in `send_offsets_to_transaction`
past every timeout (librdkafka's issue 5456): who runs it kills it then, as one would.

    python -m tests.broker.copier ADDRESS SOURCE TARGET GROUP TRANSACTIONAL_ID SEED END
"""

import os
import random
import sys

from confluent_kafka import Consumer, KafkaException, TopicPartition

from tests.broker.transactions_clients import LIMIT, ConfluentWriter


def copy_some(address: str, source: str, target: str, group: str, name: str, seed: int, end: int) -> None:
    chance = random.Random(seed)
    writer = ConfluentWriter(address, name)
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": group,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": 6_000,
            "reconnect.backoff.max.ms": 200,
            "log_level": 0,
        }
    )
    consumer.subscribe([source])
    for _ in range(chance.randint(1, 6)):
        messages = [each for each in consumer.consume(chance.randint(1, 40), 1.0) if not each.error()]
        if not messages:
            continue
        writer.begin()
        for message in messages:
            value = message.value()
            assert isinstance(value, bytes)
            writer.send(target, value.decode())
        if chance.random() < 0.2:
            writer.flush()
            os._exit(0)  # dies with its transaction open
        positions = [
            # The marker at the source's end is behind the last record.
            each if each.offset < end - 1 else TopicPartition(each.topic, each.partition, end)
            for each in consumer.position(consumer.assignment())
            if each.offset >= 0
        ]
        writer.producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), LIMIT)
        writer.commit()
    consumer.close()
    writer.close()


if __name__ == "__main__":
    try:
        copy_some(*sys.argv[1:6], int(sys.argv[6]), int(sys.argv[7]))
    except (KafkaException, RuntimeError) as error:
        sys.exit(f"fenced, aborted or cut off: {error}")
