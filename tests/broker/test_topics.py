"""The registry of topics: names, durability, races, and what goes with a deleted topic."""

import asyncio
import sqlite3
from pathlib import Path
from types import SimpleNamespace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.broker import Broker
from headrace.broker.errors import ApiError, ErrorCode
from headrace.broker.groups.offsets import OffsetEntry
from headrace.broker.store import StoreError
from headrace.broker.topic_names import check_name, collision_key
from headrace.errors import BrokerError
from tests.broker.node import Node, on_node


def code_of(result: object) -> ErrorCode | None:
    return result.code if isinstance(result, ApiError) else None


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "...", "x" * 249])
def test_legal_names(name: str) -> None:
    check_name(name)


@pytest.mark.parametrize("name", ["", ".", "..", "x" * 250, "a b", "ä", "a/b", "a\n", "a:b", "\x00"])
def test_illegal_names(name: str) -> None:
    with pytest.raises(ApiError, match="Topic name is invalid") as caught:
        check_name(name)
    assert caught.value.code is ErrorCode.INVALID_TOPIC_EXCEPTION


@given(st.text(max_size=260))
def test_a_legal_name_is_safe_as_a_folder(name: str) -> None:
    try:
        check_name(name)
    except ApiError:
        return
    assert name == Path(name).name
    assert len(name.encode()) <= 255
    assert collision_key(collision_key(name)) == collision_key(name)


@on_node(num_partitions="3")
async def test_create_uses_the_default_number_of_partitions(node: Node) -> None:
    before = node.topics.version
    topic = await node.topics.create("a")
    assert [partition.index for partition in topic.partitions] == [0, 1, 2]
    assert node.topics.get("a") is topic
    assert node.topics.by_id(topic.id) is topic
    assert list(node.topics.all()) == [topic]
    assert node.topics.partition("a", 2) is topic.partitions[2]
    assert node.topics.partition("a", 3) is None
    assert node.topics.partition("a", -1) is None
    assert node.topics.partition("b", 0) is None
    assert node.topics.version > before


def test_topics_come_back_as_they_were(tmp_path: Path) -> None:
    async def first() -> tuple[UUID, UUID]:
        node = Node(tmp_path, {})
        one = await node.topics.create("one", 2, {"retention.ms": "5"})
        two = await node.topics.create("two", 1)
        await node.topics.add_partitions(two, 4)
        await node.topics.alter_config(one, lambda current: {**current, "segment.bytes": "2048"})
        gone = await node.topics.create("gone", 1)
        await node.topics.delete(gone)
        await node.close()
        return one.id, two.id

    async def second() -> None:
        node = Node(tmp_path, {"log.retention.ms": "77"})
        one, two = node.topics.get("one"), node.topics.get("two")
        assert one is not None
        assert two is not None
        assert (one.id, two.id) == ids
        assert len(one.partitions) == 2
        assert len(two.partitions) == 4
        assert one.overrides == {"retention.ms": "5", "segment.bytes": "2048"}
        assert one.partitions[1].config.retention_ms == 5
        assert two.config.retention_ms == 77
        assert node.topics.get("gone") is None
        await node.close()

    ids = asyncio.run(first())
    asyncio.run(second())


@on_node()
async def test_refusals_of_creation(node: Node) -> None:
    await node.topics.create("a.b", 1)
    cases = {
        ("a.b", 1): ErrorCode.TOPIC_ALREADY_EXISTS,
        ("a_b", 1): ErrorCode.INVALID_TOPIC_EXCEPTION,
        ("bad name", 1): ErrorCode.INVALID_TOPIC_EXCEPTION,
        ("__consumer_offsets", 1): ErrorCode.INVALID_REQUEST,
        ("none", 0): ErrorCode.INVALID_PARTITIONS,
        ("few", -2): ErrorCode.INVALID_PARTITIONS,
        ("many", 10_001): ErrorCode.POLICY_VIOLATION,
    }
    for (name, count), code in cases.items():
        with pytest.raises(ApiError) as caught:
            await node.topics.create(name, count)
        assert caught.value.code is code
    with pytest.raises(ApiError, match="INVALID_CONFIG: Unknown topic config name"):
        await node.topics.create("c", 1, {"flush.ms": "1"})
    assert [topic.name for topic in node.topics.all()] == ["a.b"]


@on_node()
async def test_of_many_who_create_at_once_one_wins(node: Node) -> None:
    tries = [node.topics.create("same") for _ in range(50)]
    results = await asyncio.gather(*tries, return_exceptions=True)
    assert sum(code_of(result) is None for result in results) == 1
    assert sum(code_of(result) is ErrorCode.TOPIC_ALREADY_EXISTS for result in results) == 49


@on_node()
async def test_of_names_that_collide_created_at_once_one_wins(node: Node) -> None:
    results = await asyncio.gather(
        *(node.topics.create(name) for name in ("a.b.c", "a_b.c", "a.b_c")), return_exceptions=True
    )
    codes = [code_of(result) for result in results]
    assert codes == [None, ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.INVALID_TOPIC_EXCEPTION]


@on_node()
async def test_creations_of_different_topics_share_commits(node: Node) -> None:
    await asyncio.gather(*(node.topics.create(f"t{number}", 1) for number in range(300)))
    assert len(list(node.topics.all())) == 300


@on_node()
async def test_validating_makes_nothing(node: Node) -> None:
    version = node.topics.version
    await node.topics.create("a", 3, {"retention.ms": "1"}, validate_only=True)
    assert node.topics.get("a") is None
    topic = await node.topics.create("a", 1)
    await node.topics.add_partitions(topic, 2, validate_only=True)
    await node.topics.alter_config(topic, lambda current: {"retention.ms": "1"}, validate_only=True)
    assert len(topic.partitions) == 1
    assert topic.overrides == {}
    assert node.topics.version == version + 1


@on_node()
async def test_a_topic_made_again_is_a_new_one(node: Node) -> None:
    old = await node.topics.create("a", 1)
    await node.write("a", 1000, 1001)
    await node.offsets.commit("group", [OffsetEntry("a", 0, 2)])
    assert node.partition("a").high_watermark == 2
    assert node.offsets.fetch("group", "a", 0) is not None
    folder = node.partition("a").folder
    assert folder.exists()
    await node.topics.delete(old)
    assert not folder.exists()
    assert node.topics.by_id(old.id) is None
    new = await node.topics.create("a", 1)
    assert new.id != old.id
    assert node.partition("a").high_watermark == 0
    assert node.offsets.fetch("group", "a", 0) is None
    with pytest.raises(ApiError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        old.partitions[0].check_online()
    with pytest.raises(ApiError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        await node.topics.delete(old)
    assert node.topics.get("a") is new


def test_nothing_is_left_of_a_deletion_that_was_cut_short(tmp_path: Path) -> None:
    """The rows are gone but the files are not: what a kill -9 between the two leaves."""

    async def first() -> None:
        node = Node(tmp_path, {})
        topic = await node.topics.create("a", 2)
        await node.write("a", 1000, index=1)
        folders.append(node.partition("a", 1).folder)

        async def killed(partitions: object) -> None:
            """The files stay."""

        node.logs.delete = killed  # type: ignore[method-assign]
        await node.topics.delete(topic)
        await node.close()

    async def second() -> None:
        node = Node(tmp_path, {}, unclean=True)
        assert node.topics.get("a") is None
        assert not folders[0].exists()
        await node.topics.create("a", 2)
        assert node.partition("a", 1).log_end == 0
        await node.close()

    folders: list[Path] = []
    asyncio.run(first())
    assert folders[0].exists()
    asyncio.run(second())


@on_node()
async def test_adding_partitions(node: Node) -> None:
    topic = await node.topics.create("a", 2)
    kept = list(topic.partitions)
    await node.topics.add_partitions(topic, 5)
    assert topic.partitions[:2] == kept
    assert [partition.index for partition in topic.partitions] == [0, 1, 2, 3, 4]
    for total, message in ((5, "Topic already has 5"), (4, "would not be an increase"), (-1, "would not be")):
        with pytest.raises(ApiError, match=message) as caught:
            await node.topics.add_partitions(topic, total)
        assert caught.value.code is ErrorCode.INVALID_PARTITIONS


@on_node()
async def test_a_config_is_in_force_at_once(node: Node) -> None:
    topic = await node.topics.create("a", 2)
    await node.topics.alter_config(topic, lambda current: {"message.timestamp.type": "LogAppendTime"})
    assert topic.config.message_timestamp_type == "LogAppendTime"
    assert all(partition.config is topic.config for partition in topic.partitions)
    await node.topics.add_partitions(topic, 3)
    assert node.partition("a", 2).config is topic.config


@on_node()
async def test_changes_of_one_config_at_once_are_all_kept(node: Node) -> None:
    topic = await node.topics.create("a", 1)
    names = ["retention.ms", "segment.ms", "segment.bytes", "retention.bytes"]
    await asyncio.gather(
        *(node.topics.alter_config(topic, lambda current, name=name: {**current, name: "1000"}) for name in names)
    )
    assert topic.overrides == dict.fromkeys(names, "1000")


@on_node()
async def test_a_change_whose_client_went_away_is_finished(node: Node) -> None:
    asking = asyncio.ensure_future(node.topics.create("a", 1))
    await asyncio.sleep(0)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    await node.topics.settle()
    assert node.topics.get("a") is not None


@on_node()
async def test_what_the_store_refuses_did_not_happen(node: Node) -> None:
    topic = await node.topics.create("a", 1)
    version = node.topics.version
    works = node.store.write
    node.store.write = _refuse  # type: ignore[method-assign, assignment]
    changes = (
        node.topics.create("b", 1),
        node.topics.add_partitions(topic, 3),
        node.topics.alter_config(topic, lambda current: {"retention.ms": "1"}),
        node.topics.delete(topic),
    )
    for change in changes:
        with pytest.raises(ApiError, match="KAFKA_STORAGE_ERROR: the disk is full"):
            await change
    assert node.topics.version == version
    assert node.topics.get("a") is topic
    assert len(topic.partitions) == 1
    assert topic.overrides == {}
    assert not node.offsets.topic_is_going("a")
    node.store.write = works  # type: ignore[method-assign]
    await node.topics.create("b", 1)
    await node.topics.delete(topic)


async def _refuse(change: object) -> SimpleNamespace:
    raise StoreError("the disk is full")


def test_a_broker_told_to_stop_finishes_a_creation(tmp_path: Path) -> None:
    async def first() -> None:
        broker = Broker(tmp_path)
        await broker.start()
        asking = asyncio.ensure_future(broker.topics.create("a", 3))
        await asyncio.sleep(0)
        await broker.stop()
        await asking

    async def second() -> None:
        broker = Broker(tmp_path)
        await broker.start()
        assert broker.topics.partition("a", 2) is not None
        await broker.stop()

    asyncio.run(first())
    asyncio.run(second())


def test_a_broker_refuses_a_folder_whose_topics_it_cannot_serve(tmp_path: Path) -> None:
    async def first() -> None:
        broker = Broker(tmp_path)
        await broker.start()
        await broker.topics.create("odd", 1)
        await broker.stop()

    async def second() -> None:
        await Broker(tmp_path).start()

    asyncio.run(first())
    connection = sqlite3.connect(tmp_path / "metadata.db")
    connection.execute("""UPDATE topics SET overrides = '{"flush.ms": "1"}'""")
    connection.commit()
    connection.close()
    with pytest.raises(BrokerError, match=r"topic odd cannot be served: Unknown topic config name: flush\.ms"):
        asyncio.run(second())
