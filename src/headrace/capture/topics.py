"""The topics of a capture: created, and read for the keys that are in them."""

import time
from collections.abc import Iterable

from confluent_kafka import OFFSET_BEGINNING, KafkaException, TopicPartition
from confluent_kafka import KafkaError as ClientError

from headrace.config.cluster import Cluster
from headrace.config.run import RunConfig
from headrace.errors import Unreachable

__all__ = ["ensure_topics", "live_keys"]

# Not compacted: a truncate is a record without a key, which Kafka does not take in a compacted topic.
SETTINGS = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
READ_SECONDS = 60.0


def ensure_topics(cluster: Cluster, config: RunConfig, names: Iterable[str]) -> None:
    wanted = list(names)
    known = cluster.partitions(wanted)
    for name in wanted:
        if name not in known:
            cluster.create(name, None, {**SETTINGS, **config.topic_settings})


def live_keys(cluster: Cluster, topic: str) -> list[bytes]:
    """The keys whose last record in a topic is not a tombstone, in the order of their last records."""
    ends = {partition: end for partition, end in cluster.filled([topic]).get(topic, {}).items() if end > 0}
    if not ends:
        return []
    consumer = cluster.consumer(
        {
            "group.id": f"headrace.capture.{topic}",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
        }
    )
    keys: dict[bytes, None] = {}
    try:
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in ends])
        limit = time.monotonic() + READ_SECONDS
        while ends:
            if time.monotonic() > limit:
                raise Unreachable(f"could not read {topic!r} at {cluster.address} to its end: no answer")
            for message in consumer.consume(10_000, 1.0):
                error = message.error()
                if error is None:
                    key, value = message.key(), message.value()
                    if key is not None:
                        keys.pop(key, None)
                        if value is not None:
                            keys[key] = None
                    limit = time.monotonic() + READ_SECONDS
                elif error.code() == ClientError._PARTITION_EOF:
                    ends.pop(message.partition() or 0, None)
                elif not error.retriable() and error.code() != ClientError._TRANSPORT:
                    raise KafkaException(error)
    except KafkaException as error:
        raise cluster.explain(error, f"read topic {topic!r}") from error
    finally:
        consumer.close()
    return list(keys)
