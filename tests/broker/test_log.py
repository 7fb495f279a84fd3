"""The log of a partition: rolling, retention, its start and epochs, checks at the first read, times in every codec."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.broker.errors import ApiError, ErrorCode
from headrace.broker.storage import reading
from headrace.broker.storage.batch import HEADER_SIZE, parse_header, with_records
from headrace.broker.storage.codecs import CODECS, compress
from headrace.broker.storage.partition import Partition
from headrace.broker.storage.reading import NotReady, Slice
from tests.broker.faults.batches import decode, encode
from tests.broker.node import Node, on_node

NOW = 1_700_000_000_000


def append(partition: Partition, *values: bytes, timestamp: int = NOW, producer: int = -1, sequence: int = -1) -> int:
    data = memoryview(
        bytearray(encode(list(values), producer, 0 if producer >= 0 else -1, sequence, timestamp=timestamp))
    )
    offset = partition.log_end
    written = partition.append(data, parse_header(data))
    return offset if written is None else written.base_offset


def bytes_of(piece: Slice) -> bytes:
    return os.pread(piece.file.fd, piece.length, piece.byte)


async def read(partition: Partition, offset: int, max_bytes: int = 1 << 20, limit: int | None = None) -> list[bytes]:
    while True:
        try:
            end = partition.high_watermark if limit is None else limit
            piece = reading.read(partition, offset, end, max_bytes, True)
        except NotReady as missing:
            await missing.prepare()
        else:
            found = decode(bytes_of(piece)) if piece else iter(())
            return [value for batch in found for value in batch.values]


async def read_all(partition: Partition) -> list[tuple[int, bytes]]:
    records: list[tuple[int, bytes]] = []
    offset = partition.log_start
    while offset < partition.high_watermark:
        try:
            piece = reading.read(partition, offset, partition.high_watermark, 1000, True)
        except NotReady as missing:
            await missing.prepare()
            continue
        assert piece is not None
        for batch in decode(bytes_of(piece)):
            records += [(batch.base_offset + number, value) for number, value in enumerate(batch.values)]
            offset = batch.next_offset
    return [record for record in records if record[0] >= partition.log_start]


def segment_files(partition: Partition) -> list[int]:
    return sorted(int(path.stem) for path in partition.folder.glob("*.log"))


@on_node()
async def test_nothing_is_seen_before_it_is_synced(node: Node) -> None:
    topic = await node.topics.create("t", 1, {})
    partition = topic.partitions[0]
    append(partition, b"a", b"b")
    assert (partition.log_end, partition.high_watermark) == (2, 0)
    await partition.synced()
    assert partition.high_watermark == 2
    assert await read(partition, 0) == [b"a", b"b"]
    assert await read(partition, 2) == []


@on_node()
async def test_what_left_the_page_cache_is_brought_in_once_and_is_the_same(node: Node) -> None:
    topic = await node.topics.create("t", 1, {})
    partition = topic.partitions[0]
    values = [os.urandom(100_000) for _ in range(40)]
    for value in values:
        append(partition, value)
    await partition.synced()
    (path,) = partition.folder.glob("*.log")
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    found: list[bytes] = []
    waits = 0
    while len(found) < len(values):
        try:
            piece = reading.read(partition, len(found), partition.high_watermark, 3_000_000, True)
        except NotReady as missing:
            waits += 1
            assert waits <= 2, "each of the two reads waits for the disk once"
            await missing.prepare()
        else:
            assert piece is not None
            found += [value for batch in decode(bytes_of(piece)) for value in batch.values]
    assert found == values


@on_node()
async def test_segments_roll_by_size_and_age_and_are_read_across(node: Node) -> None:
    topic = await node.topics.create("t", 1, {"segment.bytes": "2000", "segment.ms": "60000"})
    partition = topic.partitions[0]
    for number in range(40):
        append(partition, b"%03d" % number * 20)
    append(partition, b"later", timestamp=NOW + 60_001)
    await partition.synced()
    assert len(segment_files(partition)) > 3
    assert [offset for offset, _ in await read_all(partition)] == list(range(41))
    assert segment_files(partition)[-1] == 40


@on_node()
async def test_a_batch_above_the_segment_size_is_refused(node: Node) -> None:
    topic = await node.topics.create("t", 1, {"segment.bytes": "1000"})
    with pytest.raises(ApiError) as refused:
        append(topic.partitions[0], bytes(2000))
    assert refused.value.code == ErrorCode.RECORD_LIST_TOO_LARGE


@on_node()
async def test_limits_cut_between_batches_and_give_at_least_one(node: Node) -> None:
    topic = await node.topics.create("t", 1, {})
    partition = topic.partitions[0]
    for number in range(50):
        append(partition, b"%03d" % number * 100)
    await partition.synced()
    assert await read(partition, 7, max_bytes=1) == [b"007" * 100]
    assert await read(partition, 7, max_bytes=800) == [b"007" * 100, b"008" * 100]
    assert reading.read(partition, 7, 50, 1, False) is None
    assert await read(partition, 7, limit=9) == [b"007" * 100, b"008" * 100]


@on_node()
async def test_old_segments_go_and_the_start_is_never_past_the_high_watermark(node: Node) -> None:
    topic = await node.topics.create("t", 1, {"segment.bytes": "500", "retention.ms": "1000"})
    partition = topic.partitions[0]
    for number in range(20):
        append(partition, b"%03d" % number * 30, timestamp=NOW)
    await node.logs.enforce_retention()
    await partition.synced()
    await node.logs.enforce_retention()
    await partition.synced()
    assert partition.log_start == partition.log_end == 20  # the active one was rolled for it
    assert segment_files(partition) == [20]
    append(partition, b"new", timestamp=node.clock.wall_ms())
    await partition.synced()
    assert await read_all(partition) == [(20, b"new")]


@on_node()
async def test_retention_by_size_keeps_the_newest(node: Node) -> None:
    topic = await node.topics.create("t", 1, {"segment.bytes": "500", "retention.bytes": "1200", "retention.ms": "-1"})
    partition = topic.partitions[0]
    for number in range(40):
        append(partition, b"%03d" % number * 30)
    await partition.synced()
    await node.logs.enforce_retention()
    assert 1200 - 500 < partition.size_bytes <= 1200 + 500
    assert [offset for offset, _ in await read_all(partition)] == list(range(partition.log_start, 40))


def test_the_log_start_survives_and_a_retry_is_known_though_its_segment_is_gone(tmp_path: Path) -> None:
    async def first() -> None:
        node = Node(tmp_path, {})
        topic = await node.topics.create("t", 1, {"segment.bytes": "300"})
        partition = topic.partitions[0]
        for number in range(10):
            append(partition, b"%03d" % number * 30, producer=5, sequence=number)
        await partition.synced()
        assert await node.logs.delete_records(partition, 10) == 10
        await node.close()

    async def second() -> None:
        node = Node(tmp_path, {})
        partition = node.partition("t")
        assert (partition.log_start, partition.log_end) == (10, 10)
        assert append(partition, b"009" * 30, producer=5, sequence=9) == 9
        assert append(partition, b"010" * 30, producer=5, sequence=10) == 10
        with pytest.raises(ApiError) as refused:
            await node.logs.delete_records(partition, 12)
        assert refused.value.code == ErrorCode.OFFSET_OUT_OF_RANGE
        await node.close()

    asyncio.run(first())
    asyncio.run(second())


@pytest.mark.parametrize("unclean", [True, False])
def test_the_leader_epoch_rises_at_each_unclean_start(tmp_path: Path, unclean: bool) -> None:
    async def run(values: list[bytes], epoch: int) -> Partition:
        node = Node(tmp_path, {}, unclean=unclean)
        topic = node.topics.get("t") or await node.topics.create("t", 1, {})
        partition = topic.partitions[0]
        assert partition.leader_epoch == epoch
        for value in values:
            append(partition, value)
        await partition.synced()
        await node.close()
        return partition

    step = 1 if unclean else 0
    asyncio.run(run([b"a", b"b"], 0))
    asyncio.run(run([], step))
    asyncio.run(run([b"c"], 2 * step))
    last = asyncio.run(run([], 3 * step))
    if unclean:
        assert last.epoch_end(0) == (0, 2)
        assert last.epoch_end(1) == (0, 2)  # it wrote nothing
        assert last.epoch_end(2) == (2, 3)
        assert last.epoch_end(9) == (-1, -1)
        assert [last.epoch_at(offset) for offset in range(3)] == [0, 0, 2]
    with pytest.raises(ApiError):
        last.check_epoch(99)


def damaged_bytes(size: int) -> Iterator[int]:
    yield from (0, 3, 11, 13, 16, 18, 25, 58, HEADER_SIZE + 1, size // 2, size - 1)


def test_damage_before_the_synced_point_is_found_at_the_first_read_and_stays_in_its_partition(tmp_path: Path) -> None:
    async def write() -> Path:
        node = Node(tmp_path, {})
        topic = await node.topics.create("t", 2, {})
        for partition in topic.partitions:
            for number in range(30):
                append(partition, b"%03d" % number * 10)
            await partition.synced()
        await node.close()
        return topic.partitions[0].segments[0].path

    async def check(at: int) -> None:
        node = Node(tmp_path, {})
        broken, whole = node.partition("t", 0), node.partition("t", 1)
        assert not broken.offline
        with pytest.raises(ApiError) as refused:
            await read(broken, 29)
        assert refused.value.code == ErrorCode.KAFKA_STORAGE_ERROR, at
        assert broken.offline
        with pytest.raises(ApiError):
            append(broken, b"more")
        assert len(await read_all(whole)) == 30
        await node.close()

    path = asyncio.run(write())
    sound = path.read_bytes()
    for at in damaged_bytes(len(sound)):
        path.write_bytes(sound[:at] + bytes([sound[at] ^ 0x41]) + sound[at + 1 :])
        asyncio.run(check(at))
    path.write_bytes(sound)


def test_a_segment_that_is_short_or_gone_takes_its_partition_offline_at_the_start(tmp_path: Path) -> None:
    async def write() -> list[Path]:
        node = Node(tmp_path, {})
        topic = await node.topics.create("t", 1, {"segment.bytes": "300"})
        for number in range(10):
            append(topic.partitions[0], b"%03d" % number * 30)
        await topic.partitions[0].synced()
        await node.close()
        return [segment.path for segment in topic.partitions[0].segments]

    async def offline() -> bool:
        node = Node(tmp_path, {})
        found = node.partition("t").offline
        await node.close()
        return found

    paths = asyncio.run(write())
    for path in (paths[0], paths[3], paths[-1]):
        sound = path.read_bytes()
        path.write_bytes(sound[:-1])
        assert asyncio.run(offline()), path
        path.unlink()
        assert asyncio.run(offline()), path
        path.write_bytes(sound)
    assert not asyncio.run(offline())


@on_node()
async def test_times_are_found_to_the_record_in_every_codec(node: Node) -> None:
    topic = await node.topics.create("t", 1, {"segment.bytes": "4000"})
    partition = topic.partitions[0]
    expected = []
    for number in range(60):
        stamp = NOW + number * 10
        plain = memoryview(bytearray(encode([b"x" * 50, b"y" * 50], timestamp=stamp)))
        codec = sorted(CODECS.values())[number % 5]
        batch = parse_header(plain)
        data = memoryview(with_records(batch, compress(codec, bytes(plain[HEADER_SIZE:])), codec))
        expected.append((partition.log_end, stamp))
        partition.append(data, parse_header(data))
    await partition.synced()
    for offset, stamp in expected:
        for asked in (stamp - 9, stamp):
            found = await reading.offset_for_timestamp(partition, asked)
            assert found is not None
            assert found[:2] == (offset, stamp)
    assert await reading.offset_for_timestamp(partition, NOW + 10_000) is None
    highest = await reading.offset_of_max_timestamp(partition)
    assert highest is not None
    assert highest[:2] == expected[-1]


def test_times_are_found_after_a_restart_and_not_before_the_log_start(tmp_path: Path) -> None:
    async def run(fill: bool) -> None:
        node = Node(tmp_path, {})
        topic = node.topics.get("t") or await node.topics.create("t", 1, {"segment.bytes": "400"})
        partition = topic.partitions[0]
        if fill:
            for number in range(20):
                append(partition, b"%03d" % number * 30, timestamp=NOW + number)
            await partition.synced()
            await node.logs.delete_records(partition, 5)
        else:
            first = await reading.offset_for_timestamp(partition, 0)
            assert first is not None
            assert first[:2] == (5, NOW + 5)
            later = await reading.offset_for_timestamp(partition, NOW + 17)
            assert later is not None
            assert later[0] == 17
        await node.close()

    asyncio.run(run(True))
    asyncio.run(run(False))
