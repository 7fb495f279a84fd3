"""How far a writer's records have reached, stored on the cluster that has the records.

An entry is (writer, position). It is a record in a topic of the writer's own, written in the same transaction as the
records. The position is whatever the writer counts by, as JSON: the batch of a Spark query, the LSN of a database, the
last message ids of a queue. Why an entry is not stored elsewhere:
- Offsets of a consumer group can be part of a transaction too, but a cluster deletes those of a stopped group (after
  seven days by default): records that were committed, but are not yet known to the writer, would be written twice.
- A topic shared by writers hides a committed entry behind another writer's open transaction, and a reader that cannot
  see it writes the records twice.
- A compacted topic needs a compactor, which not every broker has. So this one keeps everything for ever, and the
  writer itself deletes what came before the last entry.
"""

import json
import time
from dataclasses import dataclass
from typing import Any, TypeAlias

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition
from confluent_kafka import KafkaError as ClientError

from headrace.config.cluster import Cluster
from headrace.config.kafka_errors import explained
from headrace.config.run import RunConfig
from headrace.errors import CheckpointError, KafkaError, Unreachable

__all__ = ["Entry", "Position", "TopicLedger"]

Position: TypeAlias = Any
"""A JSON value: what the writer counts by."""
SETTINGS = {
    "partitions": "1",
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "segment.bytes": str(1 << 20),  # whole segments are deleted
}
LIMIT = 30.0
LOOK_BACK = 64
TRIM_EVERY = 1000
ENTRY_AND_MARKER = 2


@dataclass(frozen=True, slots=True)
class Entry:
    """A writer, and the position that its committed records have reached."""

    writer: str
    position: Position


class TopicLedger:
    """The ledger in the topic `<prefix>headrace.ledger.<name>`."""

    def __init__(self, config: RunConfig, cluster: Cluster, name: str, prefix: str = "") -> None:
        self.topic = f"{prefix}headrace.ledger.{name}"
        self._settings = config.client_settings()
        self._replication = {
            name: value for name, value in config.topic_settings.items() if name == "replication.factor"
        }
        self._cluster = cluster
        self._entries = 0

    def __str__(self) -> str:
        return f"the ledger {self.topic!r} at {self._cluster.address}"

    def prepare(self) -> None:
        """Create its topic if it does not exist."""
        if self.topic not in self._cluster.partitions([self.topic]):
            self._cluster.create(self.topic, 1, SETTINGS | self._replication)

    def record(self, entry: Entry) -> tuple[str, bytes, bytes]:
        """The topic, key and value of an entry."""
        return self.topic, entry.writer.encode(), json.dumps({"position": entry.position}).encode()

    def last(self) -> Entry | None:
        """The last entry that was committed. Call it only after the previous writer was fenced."""
        settings = {
            "group.id": self.topic,
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,  # the end is told by an answer without records
            "auto.offset.reset": "error",
        }
        consumer = Consumer({**self._settings, **settings})
        try:
            low, high = consumer.get_watermark_offsets(TopicPartition(self.topic, 0), timeout=LIMIT)
            # Transactions that were given up leave room between entries: look back until there is one.
            back = LOOK_BACK
            while True:
                start = max(low, high - back)
                found = self._last_from(consumer, OFFSET_BEGINNING if start == low else start)
                if found is not None or start == low:
                    return found
                back *= 8
        except KafkaException as error:
            raise explained(error.args[0], f"read {self}") from error
        finally:
            consumer.close()

    def trim(self) -> None:
        """From time to time delete the entries before the last one. Call it only right after a commit."""
        self._entries += 1
        if self._entries % TRIM_EVERY:
            return
        try:
            end = self._cluster.ends([self.topic])[self.topic][0]
            self._cluster.delete_before({self.topic: {0: end - ENTRY_AND_MARKER}})
        except KafkaError:
            pass  # it may not be allowed; the ledger then grows by some 200 bytes a batch, and works as well

    def _last_from(self, consumer: Consumer, start: int) -> Entry | None:
        consumer.assign([TopicPartition(self.topic, 0, start)])
        deadline = time.monotonic() + LIMIT
        last = None
        while time.monotonic() < deadline:
            message = consumer.poll(1.0)
            if message is None:
                continue
            error = message.error()
            if error is None:
                last = message
            elif error.code() == ClientError._PARTITION_EOF:
                return None if last is None else _entry(last.key(), last.value())
            elif not error.retriable() and error.code() != ClientError._TRANSPORT:
                raise KafkaException(error)
        raise Unreachable(f"could not read {self}: no answer within {LIMIT:.0f} s")


def _entry(key: bytes | None, value: bytes | None) -> Entry:
    try:
        read = json.loads(value or b"")
        # Version 0.1.0 wrote {"batch": N}.
        return Entry((key or b"").decode(), read["position"] if "position" in read else read["batch"])
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"the ledger has an entry that is not Headrace's: {key!r} {value!r}") from error
