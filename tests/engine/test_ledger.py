"""The ledger and the writer that keeps it: exactly once through aborts, fences and kill -9, and no foreign ledger."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, TopicPartition

import headrace
from headrace.config.cluster import Cluster
from headrace.config.run import RunConfig
from headrace.delivery import Entry, RecordProducer, TopicLedger, TransactionalProducer
from headrace.delivery import ledger as ledger_module
from headrace.engine.run.checkpoints import Checkpoint, Checkpoints
from headrace.engine.write.agreement import BEGUN, BatchWriter
from headrace.topology import Duration, Stream
from tests.engine.topics import messages
from tests.engine.writer_run import record_rows, stream_named

FINGERPRINT = {"kind": "stream", "sources": {}}


@pytest.fixture
def node() -> Stream:
    return stream_named(f"app{uuid.uuid4().hex[:8]}")


@pytest.fixture
def checkpoint(node: Stream, config: RunConfig) -> Checkpoint:
    found = Checkpoints(config.home, node.app_name).of(node.name)
    found.open(FINGERPRINT)
    return found


@pytest.fixture
def cluster(config: RunConfig) -> Cluster:
    return Cluster(config)


def begin_batch(checkpoint: Checkpoint, batch: int) -> None:
    """As Spark does before it hands a batch over."""
    path = checkpoint.spark / "offsets" / str(batch)
    path.parent.mkdir(exist_ok=True)
    path.write_text("v1\n{}\n")


def written(address: str, topic: str) -> list[int]:
    """The numbers in a topic, as a reader of committed records finds them."""
    return [int(message.value() or b"") for message in messages(address, topic)]


def write(writer: BatchWriter, batch: int, topic: str, numbers: Iterable[int]) -> None:
    with writer.transaction(batch) as producer:
        producer.send(record_rows(topic, numbers))


def test_a_batch_and_its_entry_come_together(
    node: Stream, config: RunConfig, cluster: Cluster, checkpoint: Checkpoint, topic: str
) -> None:
    writer = BatchWriter(node, config, cluster, checkpoint)
    writer.open()
    assert not writer.has(0)
    for batch in range(3):
        begin_batch(checkpoint, batch)
        write(writer, batch, topic, [batch * 10, batch * 10 + 1])
    assert writer.has(2)
    assert not writer.has(3)
    writer.close()
    ledger = TopicLedger(config, cluster, f"{node.app_name}.{node.name}")
    assert ledger.last() == Entry(checkpoint.query_id, 2)
    again = BatchWriter(node, config, cluster, checkpoint)
    again.open()
    assert again.has(2)
    again.close()
    assert written(config.kafka_address, topic) == [0, 1, 10, 11, 20, 21]


def test_a_batch_that_fails_in_the_middle_leaves_nothing(
    node: Stream, config: RunConfig, cluster: Cluster, checkpoint: Checkpoint, topic: str
) -> None:
    writer = BatchWriter(node, config, cluster, checkpoint)
    writer.open()
    begin_batch(checkpoint, 0)

    def fail(producer: RecordProducer) -> None:
        producer.send(record_rows(topic, range(5)))
        producer.flush()
        raise ValueError("in the middle")

    with pytest.raises(ValueError, match="in the middle"), writer.transaction(0) as producer:
        fail(producer)
    assert not writer.has(0)
    writer.open()
    assert not writer.has(0)
    write(writer, 0, topic, range(5))
    writer.close()
    assert written(config.kafka_address, topic) == list(range(5))


def test_a_writer_is_fenced_by_the_next_and_cannot_commit(
    node: Stream, config: RunConfig, cluster: Cluster, checkpoint: Checkpoint, topic: str
) -> None:
    zombie, successor = (BatchWriter(node, config, cluster, checkpoint) for _ in range(2))
    zombie.open()
    begin_batch(checkpoint, 0)

    def overtaken(producer: RecordProducer) -> None:
        producer.send(record_rows(topic, [1, 2]))
        producer.flush()
        successor.open()
        write(successor, 0, topic, [1, 2])

    with pytest.raises(headrace.KafkaError) as raised, zombie.transaction(0) as producer:
        overtaken(producer)
    assert raised.value.code in ("_FENCED", "INVALID_PRODUCER_EPOCH", "PRODUCER_FENCED")
    assert written(config.kafka_address, topic) == [1, 2]
    zombie.close()
    successor.close()


def test_a_checkpoint_that_was_deleted_is_missed_unless_it_was_reset(
    node: Stream, config: RunConfig, cluster: Cluster, checkpoint: Checkpoint, topic: str
) -> None:
    writer = BatchWriter(node, config, cluster, checkpoint)
    writer.open()
    begin_batch(checkpoint, 0)
    write(writer, 0, topic, [1])
    writer.close()
    elsewhere = Checkpoints(config.home / "other", node.app_name)
    other = elsewhere.of(node.name)
    other.open(FINGERPRINT)
    foreign = BatchWriter(node, config, cluster, other)
    with pytest.raises(headrace.CheckpointError, match=r"another checkpoint of 'numbers'.*--reset numbers"):
        foreign.open()
    elsewhere.reset(node.name)
    other.open(FINGERPRINT)
    foreign.open()
    assert not foreign.has(0)
    foreign.close()
    assert TopicLedger(config, cluster, f"{node.app_name}.{node.name}").last() == Entry(other.query_id, BEGUN)


def test_a_ledger_that_is_gone_and_a_checkpoint_that_is_old_are_refused(
    node: Stream, config: RunConfig, cluster: Cluster, checkpoint: Checkpoint, topic: str
) -> None:
    checkpoint.take_note(registered=("kafka",))
    writer = BatchWriter(node, config, cluster, checkpoint)
    with pytest.raises(headrace.CheckpointError, match="has none of them"):
        writer.open()
    checkpoint.take_note(registered=())
    writer.open()
    begin_batch(checkpoint, 0)
    begin_batch(checkpoint, 1)
    write(writer, 0, topic, [0])
    write(writer, 1, topic, [1])
    (checkpoint.spark / "offsets" / "1").unlink()
    with pytest.raises(headrace.CheckpointError, match=r"has batch 1 .* no batch after 0: it is an old copy"):
        writer.open()
    writer.close()


def test_the_last_entry_is_found_behind_many_transactions_that_were_given_up(
    node: Stream, config: RunConfig, cluster: Cluster, checkpoint: Checkpoint
) -> None:
    writer = BatchWriter(node, config, cluster, checkpoint)
    writer.open()
    producer = writer._writer._producer
    assert producer is not None
    ledger = TopicLedger(config, cluster, f"{node.app_name}.{node.name}")
    for _ in range(ledger_module.LOOK_BACK):
        producer._producer.begin_transaction()
        producer.send_record(*ledger.record(Entry("never", 99)))
        producer._producer.flush(30)
        producer._producer.abort_transaction(30)
    assert ledger.last() == Entry(checkpoint.query_id, BEGUN)
    writer.close()


def test_old_entries_are_deleted_and_the_last_one_is_not(
    node: Stream, config: RunConfig, cluster: Cluster, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_module, "TRIM_EVERY", 4)
    writer = BatchWriter(node, config, cluster, checkpoint)
    writer.open()
    for batch in range(6):
        begin_batch(checkpoint, batch)
        with writer.transaction(batch):
            pass
        ledger = TopicLedger(config, cluster, f"{node.app_name}.{node.name}")
        assert ledger.last() == Entry(checkpoint.query_id, batch)
    assert cluster.beginnings([ledger.topic])[ledger.topic][0] > 0
    writer.close()


def test_a_broker_that_is_away_is_an_error_and_no_wait_for_ever(config: RunConfig) -> None:
    nowhere = replace(config, kafka="127.0.0.1:1", transaction_timeout=Duration.of("2 seconds"))
    with pytest.raises(headrace.Unreachable):
        TransactionalProducer(nowhere, "nobody")
    producer = RecordProducer(nowhere)
    producer.send(record_rows("any", range(3)))
    began = time.monotonic()
    with pytest.raises(headrace.KafkaError):
        producer.flush()
    producer.close()
    assert time.monotonic() - began < 20


def test_rows_keep_keys_headers_times_and_nulls(config: RunConfig, topic: str) -> None:
    headers = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    rows = pa.record_batch(
        {
            "topic": [topic] * 3,
            "key": pa.array([b"a", None, b""], pa.binary()),
            "value": pa.array([b"1", b"2", None], pa.binary()),
            "headers": pa.array([[{"key": "h", "value": b"x"}, {"key": "n", "value": None}], None, []], headers),
            "timestamp": pa.array([1_700_000_000_123_456, None, -5], pa.timestamp("us", "UTC")),
        }
    )
    producer = RecordProducer(config)
    assert producer.send([rows]) == 3
    producer.flush()
    consumer = Consumer({"bootstrap.servers": config.kafka_address, "group.id": "check"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = [consumer.poll(30) for _ in range(3)]
    consumer.close()
    by_key = {message.key(): message for message in found}
    assert {key: message.value() for key, message in by_key.items()} == {b"a": b"1", None: b"2", b"": None}
    assert by_key[b"a"].headers() == [("h", b"x"), ("n", None)]
    assert by_key[b"a"].timestamp()[1] == 1_700_000_000_123
    assert abs(by_key[None].timestamp()[1] - time.time() * 1000) < 60_000


def test_kill_9_and_zombies_leave_every_number_once(
    node: Stream, config: RunConfig, checkpoint: Checkpoint, topic: str
) -> None:
    """Without Spark: a process that writes batches as Spark would ask for them, killed again and again."""
    chance = random.Random(20_260_101)
    command = [sys.executable, "-m", "tests.engine.writer_run", config.kafka_address, str(config.home), node.app_name]

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*command, topic], cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, env={**os.environ}
        )

    zombies: list[subprocess.Popen[bytes]] = []
    for life in range(12):
        process = start()
        assert process.stdout is not None
        for _ in range(chance.randrange(1, 6)):
            assert process.stdout.readline()  # a batch was done
        time.sleep(chance.random() * 0.05)
        if life % 3 == 2:
            process.send_signal(signal.SIGSTOP)
            zombies.append(process)
        else:
            process.kill()
            process.wait()
    for zombie in zombies:
        zombie.send_signal(signal.SIGCONT)
    time.sleep(1)
    for zombie in zombies:
        zombie.kill()
        zombie.wait()
    last = start()
    assert last.stdout is not None
    for _ in range(3):
        assert last.stdout.readline()
    last.kill()
    last.wait()
    batches = checkpoint.committed_batch()
    assert batches is not None
    found = Counter(written(config.kafka_address, topic))
    sure = {number for batch in range(batches + 1) for number in range(batch * 10, batch * 10 + 10)}
    assert sure <= set(found)
    assert max(found.values()) == 1
    assert len(set(found) - sure) <= 10
    assert json.loads((checkpoint.folder / "sink.json").read_text())["registered"] == ["kafka"]
