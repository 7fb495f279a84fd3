"""Batches that were accepted by their headers and whose records cannot be read: they spoil their own place alone."""

import time
from collections.abc import Iterator
from types import SimpleNamespace

import cramjam
import pytest
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from headrace.broker.storage import batch as batches
from headrace.broker.wire.errors import ErrorCode
from tests.broker.faults.batches import encode
from tests.broker.faults.client import Client, Refused
from tests.broker.faults.harness import Running, serving
from tests.broker.rawclient import RawClient

LIST_OFFSETS = 2
MAX_TIMESTAMP = -3
NOW = int(time.time() * 1000)
GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4


def claiming(codec: int, payload: bytes, count: int = 1) -> bytes:
    return bytes(batches.build(payload, attributes=codec, count=count, base_timestamp=NOW, max_timestamp=NOW))


UNREADABLE = {
    "gzip": claiming(GZIP, b"these bytes are no gzip"),
    "snappy": claiming(SNAPPY, b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01\xff\xff\xff\xfc"),
    "snappy that announces 4 GiB": claiming(SNAPPY, b"\xff\xff\xff\xff\x0f"),
    "lz4": claiming(LZ4, b"these bytes are no lz4"),
    "zstd": claiming(ZSTD, b"these bytes are no zstd"),
    "zstd of 256 MiB": claiming(ZSTD, bytes(cramjam.zstd.compress(bytes(1 << 28)))),
    "a record longer than its batch": claiming(0, b"\x7e\x00\x00\x00\x01\x01\x00"),
    "a record of negative length": claiming(0, b"\x03\x00\x00\x00\x01\x01\x00"),
}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with serving(tmp_path_factory.mktemp("unreadable")) as server:
        yield server


def asked(client: RawClient, topic: str, timestamp: int) -> dict[int, SimpleNamespace]:
    partitions = [{"partition_index": n, "current_leader_epoch": -1, "timestamp": timestamp} for n in (0, 1)]
    body = {"replica_id": -1, "isolation_level": 0, "topics": [{"name": topic, "partitions": partitions}]}
    found = client.call(LIST_OFFSETS, 7, body).topics[0].partitions
    return {answer.partition_index: answer for answer in found}


@pytest.mark.parametrize("kind", UNREADABLE)
def test_a_time_asked_for_fails_where_the_batch_is_and_nowhere_else(running: Running, kind: str) -> None:
    topic = "t-" + kind.replace(" ", "-")
    with Client(running.address) as client, RawClient(*running.address) as raw:
        client.create_topic(topic, 2)
        client.produce(topic, 0, encode([b"before"], timestamp=NOW - 1000))
        client.produce(topic, 0, UNREADABLE[kind])
        client.produce(topic, 1, encode([b"a", b"b"], timestamp=NOW))
        for timestamp in (NOW, MAX_TIMESTAMP):
            found = asked(raw, topic, timestamp)
            assert found[0].error_code == ErrorCode.CORRUPT_MESSAGE
            assert (found[1].error_code, found[1].offset) == (0, 0)
        assert asked(raw, topic, NOW - 1000)[0].offset == 0


def test_librdkafka_learns_of_one_partition(running: Running) -> None:
    with Client(running.address) as client:
        client.create_topic("seen", 2)
        client.produce("seen", 0, UNREADABLE["gzip"])
        client.produce("seen", 1, encode([b"a"], timestamp=NOW))
    admin = AdminClient({"bootstrap.servers": "{}:{}".format(*running.address)})
    asked = {TopicPartition("seen", n): OffsetSpec.for_timestamp(NOW) for n in (0, 1)}
    futures = {key.partition: found for key, found in admin.list_offsets(asked, request_timeout=20).items()}
    assert futures[1].result(20).offset == 0
    with pytest.raises(KafkaException) as refused:
        futures[0].result(20)
    assert refused.value.args[0].code() == ErrorCode.CORRUPT_MESSAGE


def test_what_cannot_be_recompressed_is_refused(running: Running) -> None:
    with Client(running.address) as client:
        client.create_topic("recompressed", 1, {"compression.type": "lz4"})
        for kind in ("gzip", "snappy", "zstd", "zstd of 256 MiB"):
            with pytest.raises(Refused) as refused:
                client.produce("recompressed", 0, UNREADABLE[kind])
            assert refused.value.code == ErrorCode.CORRUPT_MESSAGE


def test_a_batch_that_claims_more_records_than_fit_is_refused(running: Running) -> None:
    with Client(running.address) as client:
        client.create_topic("claims", 1)
        batch = claiming(0, b"x", count=2**31 - 1)
        assert len(batch) == 62
        with pytest.raises(Refused) as refused:
            client.produce("claims", 0, batch)
        assert refused.value.code == ErrorCode.INVALID_RECORD
