"""Produce and Fetch on the wire: every version, every refusal, limits and long polls."""

import time
import uuid
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.broker.errors import ErrorCode
from tests.broker.faults.batches import decode, encode
from tests.broker.faults.harness import Running, serving
from tests.broker.rawclient import RawClient

PRODUCE, FETCH, CREATE, METADATA, LIST_OFFSETS = 0, 1, 19, 3, 2
NO_ID = uuid.UUID(int=0)
KAFKA_STORAGE_ERROR = 56


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    settings = {"group.initial.rebalance.delay.ms": "0", "socket.request.max.bytes": "3000000"}
    with serving(tmp_path_factory.mktemp("wire"), settings=settings) as server:
        yield server


@pytest.fixture
def client(running: Running) -> Iterator[RawClient]:
    with RawClient(*running.address) as raw:
        yield raw


def create(client: RawClient, configs: dict[str, str] | None = None, partitions: int = 1) -> SimpleNamespace:
    """A new topic: its name and its id."""
    name = f"t-{uuid.uuid4().hex[:10]}"
    entries = [{"name": key, "value": value} for key, value in (configs or {}).items()]
    body = {"topics": [{"name": name, "num_partitions": partitions, "replication_factor": 1, "configs": entries}]}
    made = client.call(CREATE, 7, body | {"timeout": 10_000}).topics[0]
    assert made.error_code == 0, made
    return SimpleNamespace(name=name, id=made.topic_id)


def produce(
    client: RawClient, topic: SimpleNamespace, data: bytes, *, version: int = 9, acks: int = -1, partition: int = 0
) -> SimpleNamespace:
    return client.call(PRODUCE, version, produce_body(topic, data, acks, partition)).responses[0].partition_responses[0]


def produce_body(topic: SimpleNamespace, data: bytes, acks: int = -1, partition: int = 0) -> dict[str, Any]:
    records = {"index": partition, "records": data}
    return {
        "transactional_id": None,
        "acks": acks,
        "timeout": 5000,
        "topic_data": [{"name": topic.name, "topic_id": topic.id, "partition_data": [records]}],
    }


def fetch_body(topic: SimpleNamespace, offset: int, **how: Any) -> dict[str, Any]:
    wanted = {
        "partition": how.pop("partition", 0),
        "fetch_offset": offset,
        "partition_max_bytes": how.pop("partition_max_bytes", 1 << 20),
        "current_leader_epoch": how.pop("current_leader_epoch", -1),
        "last_fetched_epoch": how.pop("last_fetched_epoch", -1),
    }
    return {
        "max_wait": 0,
        "min_bytes": 1,
        "max_bytes": 1 << 20,
        "isolation_level": 0,
        "topics": [{"topic": topic.name, "topic_id": topic.id, "partitions": [wanted]}],
    } | how


def fetch(client: RawClient, topic: SimpleNamespace, offset: int, *, version: int = 12, **how: Any) -> SimpleNamespace:
    return client.call(FETCH, version, fetch_body(topic, offset, **how)).responses[0].partitions[0]


def values(found: SimpleNamespace) -> list[bytes]:
    return [value for batch in decode(found.records or b"") for value in batch.values]


@pytest.mark.parametrize("version", range(3, 14))
def test_every_version_of_produce(client: RawClient, version: int) -> None:
    topic = create(client)
    first = produce(client, topic, encode([b"a", b"b"]), version=version)
    second = produce(client, topic, encode([b"c"]), version=version, acks=1)
    assert (first.error_code, first.base_offset) == (0, 0)
    assert (second.error_code, second.base_offset, second.log_append_time) == (0, 2, -1)
    if version >= 5:
        assert second.log_start_offset == 0
    assert values(fetch(client, topic, 0)) == [b"a", b"b", b"c"]


@pytest.mark.parametrize("version", range(4, 19))
def test_every_version_of_fetch(client: RawClient, version: int) -> None:
    topic = create(client, partitions=2)
    produce(client, topic, encode([b"a", b"b"]))
    produce(client, topic, encode([b"z"]), partition=1)
    found = fetch(client, topic, 0, version=version)
    assert (found.error_code, found.high_watermark, found.last_stable_offset) == (0, 2, 2)
    assert values(found) == [b"a", b"b"]
    assert found.aborted_transactions is None
    assert values(fetch(client, topic, 0, version=version, partition=1)) == [b"z"]
    committed = fetch(client, topic, 0, version=version, isolation_level=1)
    assert committed.aborted_transactions == []
    body = fetch_body(topic, 0)
    both = [{"partition": index, "fetch_offset": 0, "partition_max_bytes": 1 << 20} for index in (0, 1)]
    body["topics"][0]["partitions"] = [{**one, "current_leader_epoch": -1, "last_fetched_epoch": -1} for one in both]
    places = client.call(FETCH, version, body).responses[0].partitions
    assert [values(place) for place in places] == [[b"a", b"b"], [b"z"]]


def test_requests_sent_ahead_are_answered_in_their_order(client: RawClient) -> None:
    topic = create(client)
    numbers = [client.send(PRODUCE, 9, produce_body(topic, encode([b"%d" % n]))) for n in range(20)]
    numbers.append(client.send(FETCH, 12, fetch_body(topic, 0)))
    numbers.append(client.send(METADATA, 9, {"topics": []}))
    offsets = [client.receive(PRODUCE, 9, n).responses[0].partition_responses[0].base_offset for n in numbers[:20]]
    assert offsets == list(range(20))
    client.receive(FETCH, 12, numbers[20])
    client.receive(METADATA, 9, numbers[21])


def test_what_is_refused_leaves_nothing_behind(client: RawClient) -> None:
    topic = create(client, {"max.message.bytes": "1000"})
    large = produce(client, topic, encode([bytes(2000)], 77, 0, 0))
    assert large.error_code == ErrorCode.MESSAGE_TOO_LARGE
    torn = bytearray(encode([b"x"], 77, 0, 0))
    torn[-1] ^= 1
    assert produce(client, topic, bytes(torn)).error_code == ErrorCode.CORRUPT_MESSAGE
    assert produce(client, topic, encode([b"x"]), acks=2).error_code == ErrorCode.INVALID_REQUIRED_ACKS
    assert produce(client, topic, encode([b"x"]), partition=5).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    stranger = SimpleNamespace(name="no-such-topic", id=uuid.uuid4())
    assert produce(client, stranger, encode([b"x"])).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert produce(client, stranger, encode([b"x"]), version=13).error_code == ErrorCode.UNKNOWN_TOPIC_ID
    # No sequence was taken by what failed.
    good = produce(client, topic, encode([b"y"], 77, 0, 0))
    assert (good.error_code, good.base_offset) == (0, 0)


def test_acks_0_takes_the_same_path_and_an_error_closes_the_connection(client: RawClient, running: Running) -> None:
    topic = create(client)
    with RawClient(*running.address) as other:
        other.send(PRODUCE, 9, produce_body(topic, encode([b"quiet"]), acks=0))
        assert other.call(METADATA, 9, {"topics": []}).cluster_id
        other.send(PRODUCE, 9, produce_body(topic, encode([b"no"]), acks=0, partition=9))
        assert other.closed_by_peer()
    found = fetch(client, topic, 0, max_wait=5000)
    assert values(found) == [b"quiet"]


def test_a_retry_gets_its_offset_again(client: RawClient) -> None:
    topic = create(client)
    first = encode([b"one"], 5, 0, 0)
    assert [produce(client, topic, first).base_offset for _ in range(3)] == [0, 0, 0]
    assert produce(client, topic, encode([b"three"], 5, 0, 2)).error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert values(fetch(client, topic, 0)) == [b"one"]


def test_log_append_time(client: RawClient) -> None:
    topic = create(client, {"message.timestamp.type": "LogAppendTime"})
    before = int(time.time() * 1000)
    done = produce(client, topic, encode([b"x"], timestamp=5))
    assert before <= done.log_append_time <= int(time.time() * 1000)
    again = produce(client, topic, encode([b"x"], 9, 0, 0, timestamp=5))
    retried = produce(client, topic, encode([b"x"], 9, 0, 0, timestamp=5))
    assert (retried.base_offset, retried.log_append_time) == (again.base_offset, again.log_append_time)


def test_timestamps_outside_the_topics_bounds(client: RawClient) -> None:
    topic = create(client, {"message.timestamp.before.max.ms": "60000", "message.timestamp.after.max.ms": "60000"})
    now = int(time.time() * 1000)
    for stamp, code in ((now, 0), (now - 120_000, 32), (now + 120_000, 32)):
        assert produce(client, topic, encode([b"x"], timestamp=stamp)).error_code == code


def test_min_insync_replicas_above_one(client: RawClient) -> None:
    topic = create(client, {"min.insync.replicas": "2"})
    assert produce(client, topic, encode([b"x"])).error_code == ErrorCode.NOT_ENOUGH_REPLICAS
    assert produce(client, topic, encode([b"x"]), acks=1).error_code == 0


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd", "uncompressed"])
def test_a_topics_own_compression(client: RawClient, codec: str) -> None:
    topic = create(client, {"compression.type": codec})
    payload = b"squeeze me " * 500
    for number in range(3):
        assert produce(client, topic, encode([payload], 3, 0, number)).base_offset == number
    assert produce(client, topic, encode([payload], 3, 0, 2)).base_offset == 2
    found = fetch(client, topic, 0)
    assert (len(found.records) < len(payload)) == (codec != "uncompressed")


def test_a_long_poll_is_answered_when_enough_is_there(client: RawClient, running: Running) -> None:
    topic = create(client)
    waiting = client.send(FETCH, 12, fetch_body(topic, 0, max_wait=20_000, min_bytes=1))
    with RawClient(*running.address) as other:
        produce(other, topic, encode([b"now"]))
        began = time.monotonic()
        assert values(client.receive(FETCH, 12, waiting).responses[0].partitions[0]) == [b"now"]
        assert time.monotonic() - began < 5
        waiting = client.send(FETCH, 12, fetch_body(topic, 1, max_wait=1_000, min_bytes=100_000))
        produce(other, topic, encode([b"too little"]))
        began = time.monotonic()
        assert values(client.receive(FETCH, 12, waiting).responses[0].partitions[0]) == [b"too little"]
        assert time.monotonic() - began > 0.5


def test_a_poll_that_timed_out_leaves_nothing_waiting(client: RawClient, running: Running) -> None:
    topic = create(client)
    for _ in range(3):
        assert values(fetch(client, topic, 0, max_wait=10)) == []
    with RawClient(*running.address) as other:
        other.send(FETCH, 12, fetch_body(topic, 0, max_wait=60_000))
        partition = running.broker.topics.get(topic.name).partitions[0]
        _until(lambda: running.call(lambda: len(partition.waiters)) == 1)
    _until(lambda: running.call(lambda: len(partition.waiters)) == 0)


def test_where_a_reader_stands_wrong(client: RawClient) -> None:
    topic = create(client)
    produce(client, topic, encode([b"a", b"b"]))
    assert fetch(client, topic, 3).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert fetch(client, topic, -1).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert fetch(client, topic, 0, current_leader_epoch=7).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
    assert fetch(client, topic, 0, partition=4).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    stranger = SimpleNamespace(name="no-such-topic", id=uuid.uuid4())
    assert fetch(client, stranger, 0).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert fetch(client, stranger, 0, version=13).error_code == ErrorCode.UNKNOWN_TOPIC_ID
    diverged = fetch(client, topic, 2, last_fetched_epoch=0)
    assert diverged.diverging_epoch.end_offset == -1
    assert fetch(client, topic, 2, last_fetched_epoch=3).diverging_epoch.epoch == -1


def test_nobody_is_in_a_fetch_session(client: RawClient) -> None:
    topic = create(client)
    body = fetch_body(topic, 0)
    assert client.call(FETCH, 12, body | {"session_id": 5, "session_epoch": 1}).error_code == 70
    assert client.call(FETCH, 12, body | {"session_id": 0, "session_epoch": 4}).error_code == 71
    assert client.call(FETCH, 12, body | {"session_id": 0, "session_epoch": 0}).session_id == 0


def test_limits_hold_over_all_partitions_but_never_stop_a_reader(client: RawClient) -> None:
    topic = create(client, partitions=3)
    for index in range(3):
        for _ in range(3):
            produce(client, topic, encode([bytes(1000)]), partition=index)
    body = fetch_body(topic, 0, max_bytes=2500)
    body["topics"][0]["partitions"] = [
        {
            "partition": n,
            "fetch_offset": 0,
            "partition_max_bytes": 1 << 20,
            "current_leader_epoch": -1,
            "last_fetched_epoch": -1,
        }
        for n in range(3)
    ]
    places = client.call(FETCH, 12, body).responses[0].partitions
    assert [len(values(place)) for place in places] == [2, 0, 0]
    body["max_bytes"] = 1
    assert [len(values(p)) for p in client.call(FETCH, 12, body).responses[0].partitions] == [1, 0, 0]


def _until(holds: Any, seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)
