"""Static members: a process comes back under its instance id and takes the place it had."""

import pytest

from headrace.broker.errors import ApiError, ErrorCode
from headrace.broker.groups.classic.messages import LeavingMember, Protocol
from tests.broker.groups_harness import (
    DELAY_MS,
    GROUP,
    REBALANCE_MS,
    SESSION_MS,
    House,
    TestMember,
    keep_alive,
    run,
    subscription,
)


async def two(house: House, **settings: bool) -> tuple[TestMember, TestMember]:
    """Two static members in a stable group; the first leads."""
    a, b = house.member("a", instance="a", **settings), house.member("b", instance="b", **settings)
    await house.form([a, b])
    return a, b


def again(member: TestMember) -> TestMember:
    """The same member, in a new process."""
    return member.house.member(member.name, instance=member.instance, protocols=member.protocols, skip=member.skip)


@run
async def test_a_static_member_joins_without_fetching_an_id_first(house: House) -> None:
    a = house.member("a", instance="one")
    await a.begin_join()
    await house.advance(DELAY_MS)
    answer = await a.joined()
    assert answer.member_id.startswith("one-")
    assert answer.members[0].group_instance_id == "one"


@run
async def test_a_follower_comes_back_without_a_rebalance(house: House) -> None:
    a, b = await two(house)
    back = again(b)
    await back.begin_join()
    answer = await back.joined()
    assert (answer.generation, answer.leader, answer.members) == (1, a.member_id, ())
    assert not answer.skip_assignment
    assert back.member_id != b.member_id
    await back.begin_sync()
    assert (await back.synced()).assignment == b"b"
    assert a.heartbeat() is back.heartbeat() is ErrorCode.NONE
    assert house.state() == "Stable"


@run
async def test_a_leader_comes_back_as_leader_and_skips_the_assignment(house: House) -> None:
    a, b = await two(house)
    back = again(a)
    await back.begin_join()
    answer = await back.joined()
    assert answer.skip_assignment
    assert answer.leader == back.member_id
    assert {m.member_id for m in answer.members} == {back.member_id, b.member_id}
    await back.begin_sync()
    assert (await back.synced()).assignment == b"a"
    assert b.heartbeat() is ErrorCode.NONE


@run
async def test_an_older_leader_is_not_told_that_it_leads(house: House) -> None:
    """It would assign anew, and a stable group would not hear it."""
    a, _b = await two(house, skip=False)
    back = again(a)
    await back.begin_join()
    answer = await back.joined()
    assert (answer.leader, answer.members, answer.skip_assignment) == (a.member_id, (), False)


@run
async def test_the_old_process_is_fenced(house: House) -> None:
    a, _b = await two(house)
    back = again(a)
    await back.begin_join()
    await back.joined()
    fenced = ErrorCode.FENCED_INSTANCE_ID
    assert a.heartbeat() is fenced
    assert a.commit_code() is fenced
    assert a.commit_code(transactional=True) is fenced
    assert (await a.ask_join()).error is fenced
    await a.begin_sync()
    assert (await a.synced()).error is fenced
    assert await a.leave() is fenced
    assert back.heartbeat() is ErrorCode.NONE
    # Without its instance id the old member id says nothing at all.
    with pytest.raises(ApiError, match="UNKNOWN_MEMBER_ID"):
        house.groups.classic.heartbeat(GROUP, a.member_id, 1)


@run
async def test_a_process_that_waits_is_fenced_when_another_takes_its_place(house: House) -> None:
    a, b = await two(house)
    c = house.member("c", instance="c")
    await c.begin_join()
    await b.begin_join()
    back = again(b)
    await back.begin_join()
    assert (await b.join_answer()).error is ErrorCode.FENCED_INSTANCE_ID
    await a.begin_join()
    for member in (a, back, c):
        await member.joined()
    await a.begin_sync(a.shares())
    await back.begin_sync()
    another = again(b)
    await another.begin_join()  # in CompletingRebalance or Stable, whichever it is by now
    assert back.heartbeat() is ErrorCode.FENCED_INSTANCE_ID


@run
async def test_taking_a_place_while_the_leader_assigns_begins_a_new_rebalance(house: House) -> None:
    a, b = await two(house)
    await a.begin_join()
    await b.begin_join()
    await a.joined()
    await b.joined()
    await b.begin_sync()
    back = again(b)
    await back.begin_join()
    assert (await b.synced()).error is ErrorCode.FENCED_INSTANCE_ID
    assert a.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    await a.begin_join()
    assert (await a.joined()).generation == (await back.joined()).generation == 3


@run
async def test_another_subscription_is_a_reason_to_rebalance(house: House) -> None:
    a, b = await two(house)
    back = again(b)
    back.protocols = (Protocol("range", subscription("t", extra=b"owns nothing")),)
    await back.begin_join()
    await back.joined()  # the same topics: none
    assert a.heartbeat() is ErrorCode.NONE
    back = again(b)
    back.protocols = (Protocol("range", subscription("t", "u")),)
    await back.begin_join()
    assert a.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    await a.begin_join()
    assert (await back.joined()).generation == 2


@run
async def test_another_protocol_is_a_reason_to_rebalance(house: House) -> None:
    both = (Protocol("range", subscription("t")), Protocol("sticky", subscription("t")))
    a, b = house.member("a", instance="a", protocols=both), house.member("b", instance="b", protocols=both)
    await house.form([a, b])
    back = again(b)
    back.protocols = (Protocol("sticky", subscription("t")),)
    await back.begin_join()
    await a.begin_join()
    assert (await a.joined()).protocol_name == (await back.joined()).protocol_name == "sticky"


@run
async def test_a_static_member_that_does_not_rejoin_stays_until_its_session_ends(house: House) -> None:
    a, b = await two(house)
    await a.begin_join()
    await keep_alive(house, REBALANCE_MS, b)
    answer = await a.joined()
    assert len(answer.members) == 2
    await a.begin_sync({a.member_id: b"a", b.member_id: b"b"})
    await keep_alive(house, SESSION_MS, a)
    assert b.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID
    assert a.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS


@run
async def test_a_rebalance_in_which_nobody_rejoins_waits_for_the_sessions(house: House) -> None:
    a, b = await two(house)
    c = house.member("c")
    await c.begin_join()
    assert await c.leave() is ErrorCode.NONE
    await keep_alive(house, REBALANCE_MS, a, b)
    assert house.state() == "PreparingRebalance"
    assert a.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    await house.advance(REBALANCE_MS)
    assert house.state() == "Empty"


@run
async def test_an_administrator_removes_static_members_by_instance_id(house: House) -> None:
    a, b = await two(house)
    codes = await house.groups.classic.leave(
        GROUP, [LeavingMember("", "a"), LeavingMember("", "nobody"), LeavingMember("", None), LeavingMember("x", "b")]
    )
    unknown, fenced = ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID
    assert codes == [ErrorCode.NONE, unknown, unknown, fenced]
    assert a.heartbeat() is unknown
    assert b.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS


@run
async def test_a_place_taken_over_is_remembered_after_a_restart(house: House) -> None:
    a, b = await two(house)
    back = again(a)
    await back.begin_join()
    await back.joined()
    await house.restart()
    assert a.heartbeat() is ErrorCode.FENCED_INSTANCE_ID
    assert back.heartbeat() is b.heartbeat() is ErrorCode.NONE
    assert house.state() == "Stable"


@run
async def test_on_a_full_disk_nobody_takes_over(house: House) -> None:
    _a, b = await two(house)
    house.store.full = True
    back = again(b)
    await back.begin_join()
    assert (await back.join_answer()).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert b.heartbeat() is ErrorCode.NONE
    house.store.full = False
    await back.begin_join()
    await back.joined()
    assert b.heartbeat() is ErrorCode.FENCED_INSTANCE_ID


@run
async def test_an_id_given_to_a_dynamic_member_is_of_no_use_to_a_static_one(house: House) -> None:
    a = house.member("a")
    a.member_id = (await a.ask_join()).member_id
    a.instance = "a"
    assert (await a.ask_join()).error is ErrorCode.UNKNOWN_SERVER_ERROR
