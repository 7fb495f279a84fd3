"""Committed offsets, plain and transactional, against a simple model and over restarts."""

import asyncio
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from headrace.broker.errors import ApiError
from headrace.broker.groups import OffsetEntry
from headrace.broker.groups.offsets import PartitionKey, Settlement
from headrace.broker.store import StoreError
from tests.broker.groups_harness import House, SteppedLoop, run

GROUPS, TOPICS, PARTITIONS, PRODUCERS = ("g", "h", ""), ("t", "ü"), (0, 1), (1, 1 << 62)
entries = st.lists(
    st.builds(
        OffsetEntry,
        st.sampled_from(TOPICS),
        st.sampled_from(PARTITIONS),
        st.integers(-1, (1 << 63) - 1),
        st.integers(-1, (1 << 31) - 1),
        st.text(max_size=8),
    ),
    min_size=1,
    max_size=5,
)


async def settle(house: House, settlement: Settlement) -> None:
    """As the owner of the surrounding write does it."""
    try:
        await house.store.write(settlement.write)
    except StoreError:
        settlement.abandon()
        raise
    settlement.apply()


class OffsetsMachine(RuleBasedStateMachine):
    """Commits, transactions, deletions and crashes in any order; the model is a few dictionaries."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.loop = SteppedLoop()
        self.house = self.do(self.build())
        self.committed: dict[tuple[str, str, int], tuple[int, OffsetEntry]] = {}
        self.pending: dict[int, dict[tuple[str, str, int], tuple[int, OffsetEntry]]] = {}
        self.number = 0

    async def build(self) -> House:
        return House(Path(self.folder.name))

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(work)

    def teardown(self) -> None:
        self.house.stop()
        self.loop.close()
        self.folder.cleanup()

    def note(self, into: dict[tuple[str, str, int], tuple[int, OffsetEntry]], group: str, entry: OffsetEntry) -> None:
        self.number += 1
        into[group, entry.topic, entry.partition] = (self.number, entry)

    @rule(group=st.sampled_from(GROUPS), entries=entries)
    def commit(self, group: str, entries: list[OffsetEntry]) -> None:
        self.do(self.house.offsets.commit(group, entries))
        for entry in entries:
            self.note(self.committed, group, entry)

    @rule(group=st.sampled_from(GROUPS), entries=entries)
    def commit_on_a_full_disk(self, group: str, entries: list[OffsetEntry]) -> None:
        self.house.store.full = True
        with pytest.raises(StoreError):
            self.do(self.house.offsets.commit(group, entries))
        with pytest.raises(StoreError):
            self.do(settle(self.house, self.house.offsets.forget_topic(entries[0].topic)))
        self.house.store.full = False

    @rule(group=st.sampled_from(GROUPS), producer=st.sampled_from(PRODUCERS), entries=entries)
    def stage(self, group: str, producer: int, entries: list[OffsetEntry]) -> None:
        self.do(self.house.offsets.stage(group, producer, entries))
        for entry in entries:
            self.note(self.pending.setdefault(producer, {}), group, entry)

    @rule(producer=st.sampled_from(PRODUCERS), commit=st.booleans())
    def end(self, producer: int, commit: bool) -> None:
        self.do(settle(self.house, self.house.offsets.settle(producer, commit)))
        for key, staged in self.pending.pop(producer, {}).items():
            if commit and self.committed.get(key, (0,))[0] < staged[0]:
                self.committed[key] = staged

    def forget(self, goes: Callable[[tuple[str, str, int]], bool]) -> None:
        for kept in (self.committed, *self.pending.values()):
            for key in [key for key in kept if goes(key)]:
                del kept[key]

    @rule(topic=st.sampled_from(TOPICS))
    def delete_topic(self, topic: str) -> None:
        self.do(settle(self.house, self.house.offsets.forget_topic(topic)))
        self.forget(lambda key: key[1] == topic)

    @rule(group=st.sampled_from(GROUPS))
    def delete_group(self, group: str) -> None:
        self.do(self.house.groups.delete([group]))
        self.forget(lambda key: key[0] == group)

    @rule(group=st.sampled_from(GROUPS), topic=st.sampled_from(TOPICS), partition=st.sampled_from(PARTITIONS))
    def delete_offset(self, group: str, topic: str, partition: int) -> None:
        self.do(self.house.offsets.delete(group, {PartitionKey(topic, partition)}))
        self.forget(lambda key: key == (group, topic, partition))

    @rule()
    def crash(self) -> None:
        self.do(self.house.restart())

    @invariant()
    def agrees(self) -> None:
        offsets = self.house.offsets
        seen = {
            (group, *key): OffsetEntry(*key, found.offset, found.leader_epoch, found.metadata)
            for group in GROUPS
            for key, found in offsets.of_group(group).items()
        }
        assert seen == {key: entry for key, (_, entry) in self.committed.items()}
        for group in GROUPS:
            for topic in TOPICS:
                for partition in PARTITIONS:
                    key = (group, topic, partition)
                    assert offsets.pending(*key) == any(key in staged for staged in self.pending.values())
            held = {*self.committed, *(key for staged in self.pending.values() for key in staged)}
            assert offsets.has_group(group) == any(key[0] == group for key in held)


OffsetsMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
test_offsets_agree_with_the_model = OffsetsMachine.TestCase


@run
async def test_a_commit_is_visible_only_when_it_is_durable(house: House) -> None:
    commit = asyncio.ensure_future(house.offsets.commit("g", [OffsetEntry("t", 0, 5)]))
    await asyncio.sleep(0)
    assert house.offsets.fetch("g", "t", 0) is None
    await house.offsets.caught_up("g")
    found = house.offsets.fetch("g", "t", 0)
    assert found is not None
    assert found.offset == 5
    await commit
    await house.offsets.caught_up("g")


@run
async def test_a_commit_whose_client_went_away_counts_in_memory_as_on_disk(house: House) -> None:
    commit = asyncio.ensure_future(house.offsets.commit("g", [OffsetEntry("t", 0, 5)]))
    await asyncio.sleep(0)
    commit.cancel()
    await house.settle()
    assert house.offsets.fetch("g", "t", 0) is not None
    await house.restart()
    assert house.offsets.fetch("g", "t", 0) is not None


@run
async def test_a_topic_that_is_being_deleted_takes_no_commits(house: House) -> None:
    forgetting = house.offsets.forget_topic("t")
    deletion = house.store.write(forgetting.write)
    assert house.offsets.topic_is_going("t")
    with pytest.raises(ApiError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        await house.offsets.commit("g", [OffsetEntry("t", 0, 5)])
    with pytest.raises(ApiError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        await house.offsets.stage("g", 1, [OffsetEntry("t", 0, 5)])
    await deletion
    forgetting.apply()
    await house.offsets.commit("g", [OffsetEntry("t", 0, 6)])
    abandoned = house.offsets.forget_topic("t")
    abandoned.abandon()
    await house.offsets.commit("g", [OffsetEntry("t", 0, 7)])
    await house.restart()
    found = house.offsets.fetch("g", "t", 0)
    assert found is not None
    assert found.offset == 7


@run
async def test_the_length_of_metadata_is_bounded(house: House) -> None:
    await house.restart(offset_metadata_max_bytes="3")
    assert not house.offsets.metadata_too_large(None)
    assert not house.offsets.metadata_too_large("üüü")
    assert house.offsets.metadata_too_large("abcd")


@run
async def test_a_plain_commit_made_after_staging_outlives_the_transaction(house: House) -> None:
    await house.offsets.stage("g", 1, [OffsetEntry("t", 0, 5), OffsetEntry("t", 1, 5)])
    await house.offsets.commit("g", [OffsetEntry("t", 0, 6)])
    await settle(house, house.offsets.settle(1, commit=True))
    for _ in range(2):
        assert {key.partition: found.offset for key, found in house.offsets.of_group("g").items()} == {0: 6, 1: 5}
        await house.restart()


@run
async def test_no_cursor_leaves_the_stores_thread(house: House) -> None:
    """One that ended its life on the loop reset a statement that the store was just running."""
    assert await house.store.write(lambda connection: connection.execute("SELECT 1")) is None
    assert await house.store.write(lambda connection: connection.execute("SELECT 1").fetchone()) == (1,)
