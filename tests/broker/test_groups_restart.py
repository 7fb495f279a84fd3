"""What groups know after the broker is gone and back."""

from headrace.broker.errors import ErrorCode
from headrace.broker.groups.classic.messages import Protocol
from tests.broker.groups_harness import DELAY_MS, GROUP, REBALANCE_MS, SESSION_MS, House, keep_alive, run, subscription


@run
async def test_members_go_on_as_if_nothing_had_happened(house: House) -> None:
    protocols = (Protocol("range", subscription("t")), Protocol("sticky", b"\x00\x01not readable"))
    a, b = house.member("a", protocols=protocols), house.member("b", instance="b", protocols=protocols)
    await house.form([a, b])
    before = house.groups.classic.describe(GROUP)
    await house.restart()
    assert house.groups.classic.describe(GROUP) == before
    assert a.heartbeat() is b.heartbeat() is ErrorCode.NONE
    assert a.commit_code() is ErrorCode.NONE
    await b.begin_sync()
    assert (await b.synced()).assignment == b"b"
    await keep_alive(house, 3 * SESSION_MS, a, b)
    assert house.state() == "Stable"
    # A follower that rejoins as it was changes nothing; what it knew besides the chosen protocol is not forgotten.
    await b.begin_join()
    assert (await b.joined()).generation == 1


@run
async def test_who_does_not_come_back_in_time_is_out(house: House) -> None:
    a, b = await house.member_in("a", "b")
    await house.restart()
    await keep_alive(house, SESSION_MS, a)
    assert b.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID
    assert a.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    await a.begin_join()
    assert (await a.joined()).generation == 2


@run
async def test_a_generation_that_members_heard_of_is_not_given_out_again(house: House) -> None:
    a, b = await house.member_in("a", "b")
    await a.begin_join()
    await b.begin_join()
    await a.joined()
    await b.joined()  # generation 2, not assigned yet
    await house.restart()
    assert a.heartbeat() is b.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    await b.begin_sync()
    assert (await b.synced()).error is ErrorCode.REBALANCE_IN_PROGRESS
    await a.begin_join()
    await b.begin_join()
    assert (await a.joined()).generation == (await b.joined()).generation == 3
    await house.share([a, b])


@run
async def test_a_member_that_left_stays_away(house: House) -> None:
    a, b = await house.member_in("a", "b")
    await b.leave()
    await house.restart()
    assert b.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID
    assert a.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    await a.begin_join()
    assert len((await a.joined()).members) == 1


@run
async def test_a_rebalance_broken_off_is_finished_by_time_if_nobody_comes(house: House) -> None:
    a, b = await house.member_in("a", "b")
    await b.leave()
    await house.restart()
    await keep_alive(house, REBALANCE_MS, a)  # alive, but does not rejoin
    assert house.state() == "Empty"


@run
async def test_a_newcomer_that_was_not_in_yet_begins_again(house: House) -> None:
    a, _b = await house.member_in("a", "b")
    c = house.member("c")
    await c.begin_join()
    await house.restart()
    assert a.heartbeat() is ErrorCode.NONE
    assert (await c.ask_join()).error is ErrorCode.UNKNOWN_MEMBER_ID


@run
async def test_empty_and_deleted_groups(house: House) -> None:
    (a,) = await house.member_in("a")
    await a.leave()
    await house.restart()
    assert house.state() == "Empty"
    assert house.groups.classic.describe(GROUP).protocol_type == "consumer"
    (b,) = await house.member_in("b")
    assert b.generation == 3
    await b.leave()
    assert await house.groups.delete([GROUP]) == [ErrorCode.NONE]
    await house.restart()
    assert house.groups.list_groups() == []


@run
async def test_a_generation_that_nobody_heard_of_may_be_lost(house: House) -> None:
    a = house.member("a")
    await a.begin_join()
    house.store.full = True
    await house.advance(DELAY_MS)
    assert (await a.join_answer()).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    await house.restart()
    assert house.groups.list_groups() == []
