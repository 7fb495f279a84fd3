"""The transactional writer by itself: any position, no Spark and no checkpoint."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import pytest

import headrace
from headrace.config.cluster import Cluster
from headrace.config.run import RunConfig
from headrace.delivery import Entry, LedgeredWriter, RecordProducer, TopicLedger
from tests.engine.topics import messages


@pytest.fixture
def config(broker_address: str, tmp_path: Path) -> RunConfig:
    return RunConfig(kafka=broker_address, home=tmp_path)


@pytest.fixture
def name() -> str:
    return f"capture.{uuid.uuid4().hex[:8]}"


def own(writer: str):  # type: ignore[no-untyped-def]
    def agree(entry: Entry | None) -> Entry | None:
        if entry is not None and entry.writer != writer:
            raise headrace.CheckpointError(f"the ledger belongs to {entry.writer}")
        return entry

    return agree


@pytest.mark.parametrize("position", [[23_456_789, 4], {"queue": ["a", "b"]}, "0/16B3748", 7])
def test_a_position_of_any_kind_is_committed_with_the_records(
    config: RunConfig, name: str, topic: str, position: object
) -> None:
    writer = LedgeredWriter(name, config, Cluster(config))
    writer.open("slot-1", own("slot-1"), None)
    assert writer.position is None
    with writer.transaction(position) as producer:
        producer.send_record(topic, b"k", b"v")
    writer.close()
    again = LedgeredWriter(name, config, Cluster(config))
    again.open("slot-1", own("slot-1"), None)
    assert again.position == position
    again.close()
    assert [message.value() for message in messages(config.kafka_address, topic)] == [b"v"]


def test_records_of_a_transaction_that_fails_are_not_visible_and_the_position_stays(
    config: RunConfig, name: str, topic: str
) -> None:
    writer = LedgeredWriter(name, config, Cluster(config))
    writer.open("slot-1", own("slot-1"), [0, 0])

    def fail(producer: RecordProducer) -> None:
        producer.send_record(topic, b"k", b"lost")
        producer.flush()
        raise ValueError("in the middle")

    with pytest.raises(ValueError, match="in the middle"), writer.transaction([1, 0]) as producer:
        fail(producer)
    writer.open("slot-1", own("slot-1"), [0, 0])
    assert writer.position == [0, 0]
    with writer.transaction([1, 0]) as producer:
        producer.send_record(topic, b"k", b"kept")
    writer.close()
    assert [message.value() for message in messages(config.kafka_address, topic)] == [b"kept"]


def test_another_writer_is_refused_before_it_writes(config: RunConfig, name: str) -> None:
    cluster = Cluster(config)
    first = LedgeredWriter(name, config, cluster)
    first.open("slot-1", own("slot-1"), 0)
    first.close()
    with pytest.raises(headrace.CheckpointError, match="belongs to slot-1"):
        LedgeredWriter(name, config, cluster).open("slot-2", own("slot-2"), 0)
    assert TopicLedger(config, cluster, name).last() == Entry("slot-1", 0)


def test_an_entry_written_by_version_0_1_0_is_read(config: RunConfig, name: str) -> None:
    cluster = Cluster(config)
    ledger = TopicLedger(config, cluster, name)
    ledger.prepare()
    producer = RecordProducer(config)
    producer.send_record(ledger.topic, b"query-1", json.dumps({"batch": 41}).encode())
    producer.flush()
    producer.close()
    assert ledger.last() == Entry("query-1", 41)
