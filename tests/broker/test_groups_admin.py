"""Groups described, listed and deleted, and offsets that expire, on a clock that the test moves."""

import asyncio

import pytest

from headrace.broker.errors import ApiError, ErrorCode
from headrace.broker.groups import OffsetEntry
from headrace.broker.groups.classic.messages import Protocol
from headrace.broker.groups.offsets import PartitionKey
from tests.broker.groups_harness import GROUP, House, keep_alive, run, subscription

MINUTE_MS = 60 * 1000
RETENTION = {"offsets_retention_minutes": "10", "offsets_retention_check_interval_ms": "60000"}


@run
async def test_describe(house: House) -> None:
    missing = house.groups.classic.describe(GROUP)
    assert (missing.found, missing.state) == (False, "Dead")
    a, _b = await house.member_in("a", "b")
    described = house.groups.classic.describe(GROUP)
    assert (described.state, described.protocol_type, described.protocol_name) == ("Stable", "consumer", "range")
    first = described.members[0]
    assert (first.member_id, first.client_id, first.client_host) == (a.member_id, "a", "/127.0.0.1")
    assert (first.metadata, first.assignment) == (subscription("t"), b"a")
    await a.begin_join()
    rebalancing = house.groups.classic.describe(GROUP)
    assert (rebalancing.state, rebalancing.protocol_name) == ("PreparingRebalance", "")
    assert rebalancing.members[0].metadata == b""


@run
async def test_list(house: House) -> None:
    await house.member_in("a")
    await house.offsets.commit("simple", [OffsetEntry("t", 0, 1)])
    assert {(g.group_id, g.protocol_type, g.state, g.type) for g in house.groups.list_groups()} == {
        (GROUP, "consumer", "Stable", "classic"),
        ("simple", "", "Empty", "classic"),
    }
    assert [g.group_id for g in house.groups.list_groups(states=["stable "])] == [GROUP]
    assert [g.group_id for g in house.groups.list_groups(states=["Empty"], types=["Classic"])] == ["simple"]
    assert house.groups.list_groups(types=["consumer"]) == []
    assert house.groups.list_groups(types=["nonsense"]) == []
    assert house.groups.list_groups(states=["nonsense"]) == []


@run
async def test_delete(house: House) -> None:
    (a,) = await house.member_in("a")
    await house.offsets.commit("simple", [OffsetEntry("t", 0, 1)])
    await house.offsets.stage("staged", 7, [OffsetEntry("t", 0, 1)])
    codes = await house.groups.delete([GROUP, "simple", "staged", "missing"])
    assert codes == [ErrorCode.NON_EMPTY_GROUP, ErrorCode.NONE, ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND]
    assert house.offsets.group_ids() == set()
    assert [g.group_id for g in house.groups.list_groups()] == [GROUP]
    # A transaction that ends later brings nothing back.
    settlement = house.offsets.settle(7, commit=True)
    await house.store.write(settlement.write)
    settlement.apply()
    assert house.offsets.group_ids() == set()
    await a.leave()
    assert await house.groups.delete([GROUP]) == [ErrorCode.NONE]
    assert house.groups.list_groups() == []
    assert a.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID


@run
async def test_while_a_group_is_deleted_nobody_joins_or_commits(house: House) -> None:
    (a,) = await house.member_in("a")
    await a.leave()
    deletion = asyncio.ensure_future(house.groups.delete([GROUP]))
    await asyncio.sleep(0)
    newcomer = house.member("n")
    assert (await newcomer.ask_join()).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    with pytest.raises(ApiError, match="COORDINATOR_NOT_AVAILABLE"):
        house.groups.classic.check_commit(GROUP, "", -1, None, False)
    assert await deletion == [ErrorCode.NONE]
    (b,) = await house.member_in("b")
    assert b.generation == 1


@run
async def test_on_a_full_disk_nothing_is_deleted(house: House) -> None:
    await house.offsets.commit("simple", [OffsetEntry("t", 0, 1)])
    house.store.full = True
    assert await house.groups.delete(["simple"]) == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    assert house.offsets.fetch("simple", "t", 0) is not None
    await house.settle()
    assert house.state("simple") == "Empty"


@run
async def test_which_offsets_may_be_deleted(house: House) -> None:
    with pytest.raises(ApiError, match="GROUP_ID_NOT_FOUND"):
        house.groups.classic.check_offset_delete(GROUP)
    (a,) = await house.member_in("a")
    is_subscribed_to = house.groups.classic.check_offset_delete(GROUP)
    assert is_subscribed_to("t")
    assert not is_subscribed_to("u")
    await a.leave()
    assert not house.groups.classic.check_offset_delete(GROUP)("t")
    unreadable = house.member("u", group_id="unreadable", protocols=(Protocol("range", b"\x00"),))
    await house.form([unreadable])
    assert house.groups.classic.check_offset_delete("unreadable")("anything")
    connect = house.member("k", group_id="connect", protocol_type="connect")
    await house.form([connect])
    with pytest.raises(ApiError, match="NON_EMPTY_GROUP"):
        house.groups.classic.check_offset_delete("connect")


@run
async def test_offsets_of_simple_groups_expire_by_their_commit(house: House) -> None:
    await house.restart(**RETENTION)
    await house.offsets.commit("simple", [OffsetEntry("t", 0, 1)])
    await house.advance(5 * MINUTE_MS)
    await house.offsets.commit("simple", [OffsetEntry("t", 1, 1)])
    await house.advance(6 * MINUTE_MS)
    assert set(house.offsets.of_group("simple")) == {PartitionKey("t", 1)}
    assert house.state("simple") == "Empty"
    await house.advance(5 * MINUTE_MS)
    assert house.groups.list_groups() == []
    await house.restart()
    assert house.offsets.group_ids() == set()


@run
async def test_offsets_of_a_group_expire_by_when_it_became_empty(house: House) -> None:
    await house.restart(**RETENTION)
    (a,) = await house.member_in("a")
    await house.offsets.commit(GROUP, [OffsetEntry("t", 0, 1), OffsetEntry("unread", 0, 1)])
    await keep_alive(house, 9 * MINUTE_MS, a)
    await a.leave()
    await house.advance(5 * MINUTE_MS)
    await house.restart(**RETENTION)  # the time goes on
    await house.advance(4 * MINUTE_MS)
    assert len(house.offsets.of_group(GROUP)) == 2
    await house.advance(2 * MINUTE_MS)
    assert house.groups.list_groups() == []


@run
async def test_what_is_subscribed_never_expires_and_what_is_not_does(house: House) -> None:
    await house.restart(**RETENTION)
    (a,) = await house.member_in("a")
    await house.offsets.commit(GROUP, [OffsetEntry("t", 0, 1), OffsetEntry("unread", 0, 1)])
    await keep_alive(house, 12 * MINUTE_MS, a)
    assert set(house.offsets.of_group(GROUP)) == {PartitionKey("t", 0)}
    assert house.state() == "Stable"


@run
async def test_where_it_is_not_known_what_is_read_nothing_expires(house: House) -> None:
    await house.restart(**RETENTION)
    connect = house.member("k", protocol_type="connect")
    await house.form([connect])
    await house.offsets.commit(GROUP, [OffsetEntry("t", 0, 1)])
    await keep_alive(house, 12 * MINUTE_MS, connect)
    assert house.offsets.fetch(GROUP, "t", 0) is not None


@run
async def test_pending_offsets_keep_the_old_ones_and_their_group(house: House) -> None:
    await house.restart(**RETENTION)
    await house.offsets.commit("simple", [OffsetEntry("t", 0, 1), OffsetEntry("t", 1, 1)])
    await house.offsets.stage("simple", 7, [OffsetEntry("t", 0, 2)])
    await house.advance(12 * MINUTE_MS)
    assert set(house.offsets.of_group("simple")) == {PartitionKey("t", 0)}
    settlement = house.offsets.settle(7, commit=False)
    await house.store.write(settlement.write)
    settlement.apply()
    await house.advance(2 * MINUTE_MS)
    assert house.groups.list_groups() == []


@run
async def test_old_clients_may_ask_for_another_retention(house: House) -> None:
    await house.restart(**RETENTION)
    await house.offsets.commit("simple", [OffsetEntry("t", 0, 1)], retention_ms=2 * MINUTE_MS)
    await house.offsets.commit("simple", [OffsetEntry("t", 1, 1)], retention_ms=20 * MINUTE_MS)
    await house.advance(3 * MINUTE_MS)
    assert set(house.offsets.of_group("simple")) == {PartitionKey("t", 1)}
    await house.advance(12 * MINUTE_MS)
    assert set(house.offsets.of_group("simple")) == {PartitionKey("t", 1)}
    await house.advance(7 * MINUTE_MS)
    assert house.offsets.group_ids() == set()


@run
async def test_a_commit_made_while_its_elder_expires_stays(house: House) -> None:
    await house.restart(offsets_retention_minutes="10", offsets_retention_check_interval_ms="999999999")
    await house.offsets.commit("simple", [OffsetEntry("t", 0, 1), OffsetEntry("t", 1, 1)])
    await house.advance(11 * MINUTE_MS)
    await house.offsets.commit("simple", [OffsetEntry("t", 1, 5)])
    expiry = asyncio.ensure_future(house.groups.expire())
    await asyncio.sleep(0)
    renewed = asyncio.ensure_future(house.offsets.commit("simple", [OffsetEntry("t", 0, 2)]))
    await expiry
    await renewed
    await house.restart()
    offsets = house.offsets.of_group("simple")
    assert {key: offset.offset for key, offset in offsets.items()} == {
        PartitionKey("t", 0): 2,
        PartitionKey("t", 1): 5,
    }


@run
async def test_groups_that_came_to_nothing_are_cleared_away(house: House) -> None:
    await house.restart(**RETENTION)
    member = house.member(session_ms=30_000)
    await member.ask_join()
    assert [g.state for g in house.groups.list_groups()] == ["Empty"]
    await house.advance(3 * MINUTE_MS)
    assert house.groups.list_groups() == []
