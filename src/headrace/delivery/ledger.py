"""The last batch that was written to a node's topics, kept in the same cluster.

An entry is a record in a topic of the node's own, written in the same transaction as the rows. Why not elsewhere:
- Offsets of a consumer group can be part of a transaction too, but a cluster forgets those of a stopped query (after
  seven days, unless set otherwise): a batch that was committed, but not yet in Spark's log, would be written twice.
- A topic shared by nodes hides a committed entry behind another node's open transaction, and a reader that cannot
  see it writes the batch twice.
- A compacted topic needs a compactor, which not every broker has. So this one keeps everything for ever, and the
  writer itself deletes what came before the last entry.
"""

import json
import time
from dataclasses import dataclass

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition
from confluent_kafka import KafkaError as ClientError

from headrace.config.cluster import Cluster, explained
from headrace.config.run import RunConfig
from headrace.engine.run.checkpoints import Checkpoint
from headrace.errors import CheckpointError, KafkaError, Unreachable
from headrace.topology import QueryNode

__all__ = ["BEGUN", "Entry", "TopicLedger", "agreed"]

BEGUN = -1
"""The batch number of a checkpoint's first entry, before any batch."""
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
    """A checkpoint, and its last batch that was written."""

    query_id: str
    batch: int


def agreed(checkpoint: Checkpoint, entry: Entry | None, ledger: str, shown: str) -> Entry | None:
    """The ledger's entry, if it is this checkpoint's; None if the checkpoint has no entry yet.

    A ledger that is not the one this checkpoint wrote is refused: trusting it would lose or duplicate batches.
    `ledger` is the name it is noted by, `shown` what it is called in a message.
    """
    note, query_id = checkpoint.note, checkpoint.query_id
    reset = f"start over with --reset {checkpoint.node}: all is read and written again"
    if entry is None:
        if ledger in note.registered:
            raise CheckpointError(
                f"the checkpoint of {checkpoint.node!r} has written batches, but {shown} has none of them: it was "
                "deleted, or the batches were written elsewhere",
                next_step=f"name the right address, or {reset}",
            )
        return None
    if entry.query_id != query_id:
        if not note.starts_over:
            raise CheckpointError(
                f"{shown} has batches of another checkpoint of {checkpoint.node!r} "
                f"({entry.query_id}, not {query_id}): its folder was deleted, or it is that of another home folder",
                next_step=f"run it where that checkpoint is, or {reset}",
            )
        return None
    newest = checkpoint.last_batch()
    if entry.batch > (BEGUN if newest is None else newest):
        raise CheckpointError(
            f"{shown} has batch {entry.batch} of {checkpoint.node!r}, but its checkpoint has "
            f"{'no batch' if newest is None else f'no batch after {newest}'}: it is an old copy",
            next_step=f"restore the newer checkpoint, or {reset}",
        )
    return entry


class TopicLedger:
    """The ledger of a node, in the topic `<prefix>headrace.ledger.<app>.<node>`."""

    name = "kafka"

    def __init__(self, config: RunConfig, cluster: Cluster, node: QueryNode, prefix: str = "") -> None:
        self.topic = f"{prefix}headrace.ledger.{node.app_name}.{node.name}"
        self._settings = config.client_settings()
        self._replication = {
            name: value for name, value in config.topic_settings.items() if name == "replication.factor"
        }
        self._cluster = cluster
        self._entries = 0

    def __str__(self) -> str:
        return f"the ledger {self.topic!r} at {self._cluster.address}"

    def agreed(self, checkpoint: Checkpoint) -> Entry | None:
        """The last entry, if it is the checkpoint's; None if it has no entry yet."""
        return agreed(checkpoint, self.last(), self.name, str(self))

    def prepare(self) -> None:
        """Create its topic if it does not exist."""
        if self.topic not in self._cluster.partitions():
            self._cluster.create(self.topic, 1, SETTINGS | self._replication)

    def record(self, entry: Entry) -> tuple[str, bytes, bytes]:
        """The topic, key and value of an entry."""
        return self.topic, entry.query_id.encode(), json.dumps({"batch": entry.batch}).encode()

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
        return Entry((key or b"").decode(), int(json.loads(value or b"")["batch"]))
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"the ledger has an entry that is not Headrace's: {key!r} {value!r}") from error
