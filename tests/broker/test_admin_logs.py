"""ListOffsets, OffsetForLeaderEpoch, DeleteRecords, DescribeLogDirs, DescribeProducers."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.broker.errors import ErrorCode
from headrace.broker.storage.batch import build, parse_header
from tests.broker.node import RECORD, Node, on_node

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = -1, -2, -3, -4, -5, -6
READ_COMMITTED = 1
TRANSACTIONAL = 0x10


async def look_up(
    node: Node,
    timestamp: int,
    *,
    version: int = 11,
    topic: str = "a",
    index: int = 0,
    epoch: int = -1,
    isolation: int = 0,
) -> SimpleNamespace:
    asked = {"partition_index": index, "current_leader_epoch": epoch, "timestamp": timestamp}
    body = {"replica_id": -1, "isolation_level": isolation, "topics": [{"name": topic, "partitions": [asked]}]}
    (found,) = (await node.call("list_offsets", version, body)).topics[0].partitions
    assert found.partition_index == index
    return found  # type: ignore[no-any-return]


def triple(found: SimpleNamespace) -> tuple[int, int, int]:
    assert found.error_code == 0, found
    return found.offset, found.timestamp, found.leader_epoch


async def open_transaction(node: Node, producer_id: int, timestamp: int) -> None:
    batch = build(
        RECORD,
        attributes=TRANSACTIONAL,
        count=1,
        base_timestamp=timestamp,
        max_timestamp=timestamp,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0,
    )
    node.partition("a").append(memoryview(batch), parse_header(batch))
    await node.partition("a").synced()


@on_node()
async def test_first_and_last_in_every_version(node: Node) -> None:
    await node.topics.create("a", 1)
    for version in range(1, 12):
        epoch = 0 if version >= 4 else -1
        assert triple(await look_up(node, EARLIEST, version=version)) == (0, -1, epoch)
        assert triple(await look_up(node, LATEST, version=version)) == (0, -1, epoch)
    await node.write("a", 1000, 2000, 3000)
    for version in range(1, 12):
        epoch = 0 if version >= 4 else -1
        assert triple(await look_up(node, EARLIEST, version=version)) == (0, -1, epoch)
        assert triple(await look_up(node, LATEST, version=version)) == (3, -1, epoch)
        assert triple(await look_up(node, 1500, version=version)) == (1, 2000, epoch)


@on_node()
async def test_by_time(node: Node) -> None:
    await node.topics.create("a", 1, {"segment.bytes": "200"})
    await node.write("a", 1000, 3000, 2000, 4000, 4000)
    assert len(node.partition("a").segments) > 1
    expected = {0: (0, 1000), 1000: (0, 1000), 1001: (1, 3000), 3000: (1, 3000), 3001: (3, 4000), 4000: (3, 4000)}
    for timestamp, (offset, stamp) in expected.items():
        assert triple(await look_up(node, timestamp)) == (offset, stamp, 0), timestamp
    assert triple(await look_up(node, 4001)) == (-1, -1, -1)
    assert triple(await look_up(node, MAX_TIMESTAMP)) == (3, 4000, 0)


@on_node()
async def test_times_with_a_meaning_of_their_own(node: Node) -> None:
    await node.topics.create("a", 1)
    assert triple(await look_up(node, MAX_TIMESTAMP)) == (-1, -1, -1)
    await node.write("a", 1000)
    assert triple(await look_up(node, EARLIEST_LOCAL)) == (0, -1, 0)
    assert triple(await look_up(node, LATEST_TIERED)) == (-1, -1, -1)
    assert triple(await look_up(node, EARLIEST_PENDING_UPLOAD)) == (-1, -1, -1)
    first_known = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11}
    for timestamp, version in first_known.items():
        assert (await look_up(node, timestamp, version=version - 1)).error_code == ErrorCode.UNSUPPORTED_VERSION
        assert (await look_up(node, timestamp, version=version)).error_code == 0
    assert (await look_up(node, -7)).error_code == ErrorCode.UNSUPPORTED_VERSION


@on_node()
async def test_readers_of_committed_records_see_less(node: Node) -> None:
    await node.topics.create("a", 1)
    await node.write("a", 1000)
    await open_transaction(node, 7, 5000)
    await node.write("a", 2000)
    assert triple(await look_up(node, LATEST)) == (3, -1, 0)
    assert triple(await look_up(node, LATEST, isolation=READ_COMMITTED)) == (1, -1, 0)
    assert triple(await look_up(node, 1500)) == (1, 5000, 0)
    assert triple(await look_up(node, 1500, isolation=READ_COMMITTED)) == (-1, -1, -1)
    assert triple(await look_up(node, MAX_TIMESTAMP, isolation=READ_COMMITTED)) == (-1, -1, -1)
    await node.partition("a").append_marker(7, 0, True)
    assert triple(await look_up(node, LATEST, isolation=READ_COMMITTED)) == (4, -1, 0)
    assert triple(await look_up(node, 1500, isolation=READ_COMMITTED)) == (1, 5000, 0)


@on_node()
async def test_what_is_not_synced_is_not_listed(node: Node) -> None:
    await node.topics.create("a", 1)
    await node.write("a", 1000)
    partition = node.partition("a")
    batch = build(RECORD, attributes=0, count=1, base_timestamp=9000, max_timestamp=9000)
    partition.append(memoryview(batch), parse_header(batch))
    # Nothing was awaited since, so nothing can have been synced.
    assert partition.log_end == 2
    assert triple(await look_up(node, LATEST)) == (1, -1, 0)
    await partition.synced()
    assert triple(await look_up(node, LATEST)) == (2, -1, 0)


@on_node()
async def test_lookups_that_fail(node: Node) -> None:
    await node.topics.create("a", 2)
    node.partition("a", 1).fail("for the test")
    assert (await look_up(node, LATEST, topic="none")).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert (await look_up(node, LATEST, index=2)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert (await look_up(node, LATEST, index=1)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert (await look_up(node, LATEST, epoch=0)).error_code == 0
    assert (await look_up(node, LATEST, epoch=1)).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
    asked = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": LATEST}
    body = {"replica_id": -1, "topics": [{"name": "a", "partitions": [asked, asked]}]}
    twice = (await node.call("list_offsets", 5, body)).topics[0].partitions
    assert [found.error_code for found in twice] == [ErrorCode.INVALID_REQUEST] * 2


async def epoch_end(node: Node, epoch: int, *, current: int = -1, version: int = 4, **where: Any) -> SimpleNamespace:
    asked = {"partition": where.get("index", 0), "current_leader_epoch": current, "leader_epoch": epoch}
    body = {"replica_id": -1, "topics": [{"topic": where.get("topic", "a"), "partitions": [asked]}]}
    (found,) = (await node.call("offset_for_leader_epoch", version, body)).topics[0].partitions
    return found  # type: ignore[no-any-return]


def test_leader_epochs_rise_at_an_unclean_start_and_fence(tmp_path: Path) -> None:
    async def first() -> None:
        node = Node(tmp_path, {})
        await node.topics.create("a", 1)
        await node.write("a", 1000, 2000)
        for version in (2, 3, 4):
            found = await epoch_end(node, 0, version=version)
            assert (found.error_code, found.leader_epoch, found.end_offset) == (0, 0, 2)
        await node.close()

    async def second() -> None:
        node = Node(tmp_path, {}, unclean=True)
        await node.write("a", 3000)
        assert node.partition("a").leader_epoch == 1
        ends = [await epoch_end(node, epoch) for epoch in (0, 1, 2)]
        assert [(end.leader_epoch, end.end_offset) for end in ends] == [(0, 2), (1, 3), (-1, -1)]
        assert (await epoch_end(node, 0, current=0)).error_code == ErrorCode.FENCED_LEADER_EPOCH
        assert (await epoch_end(node, 0, current=1)).error_code == 0
        assert (await epoch_end(node, 0, current=2)).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
        assert (await epoch_end(node, 0, index=1)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert (await look_up(node, LATEST, epoch=0)).error_code == ErrorCode.FENCED_LEADER_EPOCH
        assert triple(await look_up(node, EARLIEST)) == (0, -1, 0)
        assert triple(await look_up(node, LATEST)) == (3, -1, 1)
        assert triple(await look_up(node, 2500)) == (2, 3000, 1)
        answer = await node.call("metadata", 9, {"topics": None})
        assert answer.topics[0].partitions[0].leader_epoch == 1
        await node.close()

    asyncio.run(first())
    asyncio.run(second())


async def delete_before(
    node: Node, offset: int, *, version: int = 2, topic: str = "a", index: int = 0
) -> SimpleNamespace:
    partitions = [{"partition_index": index, "offset": offset}]
    body = {"topics": [{"name": topic, "partitions": partitions}], "timeout": 10_000}
    (deleted,) = (await node.call("delete_records", version, body)).topics[0].partitions
    return deleted  # type: ignore[no-any-return]


@on_node()
async def test_records_are_deleted(node: Node) -> None:
    await node.topics.create("a", 1)
    await node.write("a", *range(1000, 1010))
    for version, offset in ((0, 2), (1, 4), (2, 6)):
        deleted = await delete_before(node, offset, version=version)
        assert (deleted.error_code, deleted.low_watermark) == (0, offset)
        assert triple(await look_up(node, EARLIEST)) == (offset, -1, 0)
        assert triple(await look_up(node, 0)) == (offset, 1000 + offset, 0)
    deleted = await delete_before(node, 3)
    assert (deleted.error_code, deleted.low_watermark) == (0, 6)
    deleted = await delete_before(node, -1)
    assert (deleted.error_code, deleted.low_watermark) == (0, 10)
    assert triple(await look_up(node, LATEST)) == (10, -1, 0)
    for offset in (11, -2):
        deleted = await delete_before(node, offset)
        assert (deleted.error_code, deleted.low_watermark) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
    assert (await delete_before(node, 0, topic="none")).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    node.partition("a").fail("for the test")
    assert (await delete_before(node, 10)).error_code == ErrorCode.KAFKA_STORAGE_ERROR


@on_node()
async def test_log_dirs(node: Node) -> None:
    await node.topics.create("a", 2)
    await node.topics.create("b", 1)
    await node.write("a", 1000, index=1)
    size = node.partition("a", 1).size_bytes
    for version in range(1, 6):
        (folder,) = (await node.call("describe_log_dirs", version, {"topics": None})).results
        assert (folder.error_code, folder.log_dir) == (0, str(node.data))
        sizes = {(t.name, p.partition_index): p.partition_size for t in folder.topics for p in t.partitions}
        assert sizes == {("a", 0): 0, ("a", 1): size, ("b", 0): 0}
        assert all(p.offset_lag == 0 and not p.is_future_key for t in folder.topics for p in t.partitions)
        if version >= 4:
            assert folder.total_bytes >= folder.usable_bytes > 0
    asked = [{"topic": "a", "partitions": [1, 9]}, {"topic": "none", "partitions": [0]}]
    (folder,) = (await node.call("describe_log_dirs", 4, {"topics": asked})).results
    assert [(t.name, [p.partition_index for p in t.partitions]) for t in folder.topics] == [("a", [1])]
    (folder,) = (await node.call("describe_log_dirs", 4, {"topics": []})).results
    assert folder.topics == []


@on_node()
async def test_replicas_stay_in_their_log_dir(node: Node) -> None:
    await node.topics.create("a", 2)
    node.partition("a", 1).fail("for the test")
    for version in (1, 2):
        dirs = [
            {"path": str(node.data), "topics": [{"name": "a", "partitions": [0, 1, 2]}]},
            {"path": "/elsewhere", "topics": [{"name": "a", "partitions": [0]}]},
        ]
        answer = await node.call("alter_replica_log_dirs", version, {"dirs": dirs})
        assert [[p.error_code for p in result.partitions] for result in answer.results] == [
            [ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION],
            [ErrorCode.LOG_DIR_NOT_FOUND],
        ]


@on_node()
async def test_producers_are_described(node: Node) -> None:
    await node.topics.create("a", 1)
    await open_transaction(node, 7, 5000)
    topics = [{"name": "a", "partition_indexes": [0, 1]}, {"name": "b b", "partition_indexes": [0]}]
    answer = await node.call("describe_producers", 0, {"topics": topics})
    found, unknown = answer.topics[0].partitions
    (producer,) = found.active_producers
    assert (producer.producer_id, producer.producer_epoch, producer.last_sequence) == (7, 0, 0)
    assert (producer.last_timestamp, producer.current_txn_start_offset) == (5000, 0)
    assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert answer.topics[1].partitions[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    await node.partition("a").append_marker(7, 0, True)
    answer = await node.call("describe_producers", 0, {"topics": topics})
    assert answer.topics[0].partitions[0].active_producers[0].current_txn_start_offset == -1


@pytest.mark.parametrize("version", [0, 1, 2])
def test_timeouts_do_not_stop_a_deletion(tmp_path: Path, version: int) -> None:
    async def main() -> None:
        node = Node(tmp_path, {})
        await node.topics.create("a", 1)
        await node.write("a", 1000, 2000)
        release = asyncio.Event()
        works = node.logs.delete_records

        async def slow(partition: Any, before: int) -> int:
            await release.wait()
            return await works(partition, before)

        node.logs.delete_records = slow  # type: ignore[method-assign]
        body = {"topics": [{"name": "a", "partitions": [{"partition_index": 0, "offset": 2}]}], "timeout": 20}
        answer = await node.call("delete_records", version, body)
        assert answer.topics[0].partitions[0].error_code == ErrorCode.REQUEST_TIMED_OUT
        release.set()
        async with asyncio.timeout(10):
            while node.partition("a").log_start != 2:
                await asyncio.sleep(0.005)
        await node.close()

    asyncio.run(main())
