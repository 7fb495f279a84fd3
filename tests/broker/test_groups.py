"""The classic group protocol, state by state, on a clock that the test moves."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from headrace.broker.errors import ApiError, ErrorCode
from headrace.broker.groups.classic.messages import LeavingMember, Protocol, SyncAnswer, SyncRequest
from headrace.broker.groups.classic.rebalance import NEW_MEMBER_JOIN_TIMEOUT_MS
from headrace.broker.groups.timers import Timer
from tests.broker.groups_harness import (
    DELAY_MS,
    GROUP,
    REBALANCE_MS,
    SESSION_MS,
    House,
    keep_alive,
    run,
    subscription,
)


@run
async def test_a_new_member_is_sent_back_with_an_id_first(house: House) -> None:
    member = house.member()
    answer = await member.ask_join()
    assert answer.error is ErrorCode.MEMBER_ID_REQUIRED
    assert answer.member_id.startswith("c-")
    assert house.state() == "Empty"
    member.member_id = answer.member_id
    await member.begin_join()
    assert house.state() == "PreparingRebalance"
    await house.advance(DELAY_MS)
    joined = await member.joined()
    assert (joined.generation, joined.leader, joined.protocol_name) == (1, member.member_id, "range")
    assert [m.member_id for m in joined.members] == [member.member_id]
    assert house.state() == "CompletingRebalance"
    await member.begin_sync({member.member_id: b"all"})
    assert (await member.synced()).assignment == b"all"
    assert house.state() == "Stable"


@run
async def test_old_clients_join_without_an_id(house: House) -> None:
    member = house.member(known_id=False)
    await member.begin_join()
    await house.advance(DELAY_MS)
    assert (await member.joined()).generation == 1


@run
async def test_an_id_that_was_never_given_out_is_unknown(house: House) -> None:
    stranger = house.member()
    stranger.member_id = "made-up"
    assert (await stranger.ask_join()).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert house.groups.list_groups() == []
    await house.member_in("a")
    assert (await stranger.ask_join()).error is ErrorCode.UNKNOWN_MEMBER_ID


@run
async def test_the_first_rebalance_waits_longer_while_members_keep_coming(house: House) -> None:
    members = [house.member(name, rebalance_ms=8_000) for name in "abcd"]
    await members[0].begin_join()
    await house.advance(2_000)
    await members[1].begin_join()
    await house.advance(2_000)  # at 4 s: put off to 6 s, as b came
    await members[2].begin_join()
    assert house.state() == "PreparingRebalance"
    await house.advance(2_500)  # at 6.5 s: put off to 8 s, the patience of the members
    await members[3].begin_join()
    assert house.state() == "PreparingRebalance"
    await house.advance(1_500)
    for member in members:
        await member.joined()
    assert [m.leads for m in members] == [True, False, False, False]


@run
async def test_without_newcomers_the_first_rebalance_ends_after_its_delay(house: House) -> None:
    member = house.member()
    await member.begin_join()
    await house.advance(DELAY_MS - 1)
    assert member.waits
    await house.advance(1)
    await member.joined()


@run
async def test_only_the_leader_hears_of_the_others_and_all_get_its_assignment(house: House) -> None:
    a, b = house.member("a"), house.member("b")
    await a.begin_join()
    await b.begin_join()
    await house.advance(2 * DELAY_MS)
    assert {m.member_id for m in (await a.joined()).members} == {a.member_id, b.member_id}
    assert (await b.joined()).members == ()
    await b.begin_sync()
    assert b.waits
    await a.begin_sync({b.member_id: b"for b"})
    assert (await b.synced()).assignment == b"for b"
    # Whom the leader forgot gets nothing.
    assert (await a.synced()).assignment == b""


@run
async def test_a_late_sync_of_a_stable_group_is_answered_at_once(house: House) -> None:
    a, b = await house.member_in("a", "b")
    await b.begin_sync()
    answer = await b.synced()
    assert (answer.assignment, answer.protocol_type, answer.protocol_name) == (b"b", "consumer", "range")
    assert a.heartbeat() is ErrorCode.NONE


@run
async def test_a_newcomer_makes_the_others_rejoin(house: House) -> None:
    (a,) = await house.member_in("a")
    b = house.member("b")
    await b.begin_join()
    assert a.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    assert b.waits
    await a.begin_sync()
    assert (await a.synced()).error is ErrorCode.REBALANCE_IN_PROGRESS
    await a.begin_join()
    assert (await a.joined()).generation == (await b.joined()).generation == 2
    assert a.leads
    a.generation = 1
    assert a.heartbeat() is ErrorCode.ILLEGAL_GENERATION
    await a.begin_sync()
    assert (await a.synced()).error is ErrorCode.ILLEGAL_GENERATION


@run
async def test_who_does_not_rejoin_in_time_is_out_and_the_lead_passes_on(house: House) -> None:
    a, b = await house.member_in("a", "b")
    c = house.member("c")
    await c.begin_join()
    await b.begin_join()
    # a only sends heartbeats.
    await keep_alive(house, REBALANCE_MS, a)
    assert (await b.joined()).leader == b.member_id
    await c.joined()
    assert a.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID


@run
async def test_a_silent_member_is_out_after_its_session_timeout(house: House) -> None:
    a, b = await house.member_in("a", "b")
    await keep_alive(house, SESSION_MS - 1_000, a)
    assert house.state() == "Stable"
    await keep_alive(house, 1_000, a)
    assert a.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    assert b.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID
    await a.begin_join()
    assert len((await a.joined()).members) == 1


@run
async def test_commits_keep_a_member_alive(house: House) -> None:
    (a,) = await house.member_in("a")
    for _ in range(5):
        await house.advance(SESSION_MS - 1_000)
        assert a.commit_code() is ErrorCode.NONE
    assert a.heartbeat() is ErrorCode.NONE


@run
async def test_a_member_that_waits_needs_no_heartbeat(house: House) -> None:
    a, b = await house.member_in("a", "b")
    c = house.member("c")
    await c.begin_join()
    await a.begin_join()
    await keep_alive(house, 3 * SESSION_MS, b)
    assert a.waits
    await b.begin_join()
    for member in (a, b, c):
        await member.joined()


@run
async def test_a_newcomer_whose_rebalance_takes_for_ever_is_let_go(house: House) -> None:
    (a,) = await house.member_in("a", rebalance_ms=10 * NEW_MEMBER_JOIN_TIMEOUT_MS)
    b = house.member("b")
    await b.begin_join()
    await keep_alive(house, NEW_MEMBER_JOIN_TIMEOUT_MS, a)
    assert (await b.join_answer()).error is ErrorCode.UNKNOWN_MEMBER_ID


@run
async def test_an_id_given_out_holds_a_rebalance_up_until_its_session_timeout(house: House) -> None:
    (a,) = await house.member_in("a")
    ghost = house.member("ghost")
    assert (await ghost.ask_join()).error is ErrorCode.MEMBER_ID_REQUIRED
    await a.begin_join()  # the leader rejoins: a rebalance
    await keep_alive(house, SESSION_MS - 1_000)
    assert a.waits
    await house.advance(1_000)
    assert len((await a.joined()).members) == 1


@run
async def test_a_pending_id_can_leave(house: House) -> None:
    await house.member_in("a")
    ghost = house.member("ghost")
    ghost.member_id = (await ghost.ask_join()).member_id
    assert await ghost.leave() is ErrorCode.NONE
    assert house.state() == "Stable"
    assert (await ghost.ask_join()).error is ErrorCode.UNKNOWN_MEMBER_ID


@run
async def test_who_does_not_sync_is_out_after_the_rebalance_timeout(house: House) -> None:
    a, b = house.member("a"), house.member("b")
    await a.begin_join()
    await b.begin_join()
    await house.advance(2 * DELAY_MS)
    await a.joined()
    await b.joined()
    await a.begin_sync({a.member_id: b"a", b.member_id: b"b"})
    assert house.state() == "Stable"
    await keep_alive(house, REBALANCE_MS, a, b)
    assert a.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    assert b.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID


@run
async def test_a_leader_that_never_syncs_is_replaced(house: House) -> None:
    a, b = house.member("a"), house.member("b")
    await a.begin_join()
    await b.begin_join()
    await house.advance(2 * DELAY_MS)
    await a.joined()
    await b.joined()
    await b.begin_sync()
    await keep_alive(house, REBALANCE_MS, a)
    assert (await b.synced()).error is ErrorCode.REBALANCE_IN_PROGRESS
    await b.begin_join()
    assert (await b.joined()).leader == b.member_id
    await house.share([b])


@run
async def test_the_protocol_with_most_votes_among_what_all_know_wins(house: House) -> None:
    def protocols(*names: str) -> tuple[Protocol, ...]:
        return tuple(Protocol(name, name.encode()) for name in names)

    a = house.member("a", protocols=protocols("sticky", "range", "roundrobin"))
    b = house.member("b", protocols=protocols("roundrobin", "range"))
    c = house.member("c", protocols=protocols("range", "roundrobin"))
    for member in (a, b, c):
        await member.begin_join()
    await house.advance(3 * DELAY_MS)
    answer = await a.joined()
    assert answer.protocol_name == "range"
    assert {m.metadata for m in answer.members} == {b"range"}
    stranger = house.member("d", protocols=protocols("sticky"))
    assert (await stranger.ask_join()).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    other_type = house.member("e", protocol_type="connect")
    assert (await other_type.ask_join()).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


@run
async def test_nothing_to_agree_on_is_refused_and_leaves_no_group(house: House) -> None:
    nameless = house.member(protocol_type="")
    assert (await nameless.ask_join()).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert house.groups.list_groups() == []


@run
async def test_requests_out_of_bounds(house: House) -> None:
    hasty = house.member(session_ms=house.settings.group_min_session_timeout_ms - 1)
    assert (await hasty.ask_join()).error is ErrorCode.INVALID_SESSION_TIMEOUT
    patient = house.member(session_ms=house.settings.group_max_session_timeout_ms + 1)
    assert (await patient.ask_join()).error is ErrorCode.INVALID_SESSION_TIMEOUT
    nameless = house.member(group_id="")
    assert (await nameless.ask_join()).error is ErrorCode.INVALID_GROUP_ID
    assert nameless.heartbeat() is ErrorCode.INVALID_GROUP_ID
    with pytest.raises(ApiError, match="INVALID_GROUP_ID"):
        await nameless.leave()


@run
async def test_a_follower_that_rejoins_without_need_stays_where_it_is(house: House) -> None:
    a, b = await house.member_in("a", "b")
    await b.begin_join()
    assert (await b.joined()).generation == 1
    assert house.state() == "Stable"
    await b.begin_sync()
    assert (await b.synced()).assignment == b"b"
    assert a.heartbeat() is ErrorCode.NONE


@run
async def test_a_changed_subscription_or_a_leader_that_rejoins_makes_a_rebalance(house: House) -> None:
    a, b = await house.member_in("a", "b")
    b.protocols = (Protocol("range", subscription("t", "u")),)
    await b.begin_join()
    assert a.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    await a.begin_join()
    await a.joined()
    await b.joined()
    await house.share([a, b])
    await a.begin_join()
    assert b.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS


@run
async def test_a_join_repeated_before_the_sync_hears_the_same_generation(house: House) -> None:
    (a,) = await house.member_in("a")
    await a.begin_join()
    first = await a.joined()
    await a.begin_join()
    assert await a.joined() == first
    assert house.state() == "CompletingRebalance"
    a.protocols = (Protocol("range", subscription("u")),)
    await a.begin_join()
    assert (await a.joined()).generation == first.generation + 1


@run
async def test_leaving(house: House) -> None:
    a, b = await house.member_in("a", "b")
    assert await b.leave() is ErrorCode.NONE
    assert await b.leave() is ErrorCode.UNKNOWN_MEMBER_ID
    assert a.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    await a.begin_join()
    assert (await a.joined()).generation == 2
    assert await a.leave() is ErrorCode.NONE
    assert house.state() == "Empty"
    assert house.groups.classic.describe(GROUP).protocol_type == "consumer"
    assert await house.groups.classic.leave("nowhere", [LeavingMember("x")]) == [ErrorCode.UNKNOWN_MEMBER_ID]


@run
async def test_whoever_waits_and_is_removed_hears_that_it_is_no_member(house: House) -> None:
    (a,) = await house.member_in("a")
    b = house.member("b")
    await b.begin_join()
    assert await b.leave() is ErrorCode.NONE
    assert (await b.join_answer()).error is ErrorCode.UNKNOWN_MEMBER_ID
    await a.begin_join()
    await a.joined()
    await house.share([a])


@run
async def test_an_emptied_group_begins_again_with_a_higher_generation(house: House) -> None:
    (a,) = await house.member_in("a")
    await a.leave()
    (b,) = await house.member_in("b", protocol_type="connect")
    assert b.generation == 3


@run
async def test_a_group_has_room_for_so_many(house: House) -> None:
    await house.restart(group_max_size="2")
    a, b = await house.member_in("a", "b")
    c = house.member("c")
    assert (await c.ask_join()).error is ErrorCode.GROUP_MAX_SIZE_REACHED
    await a.begin_join()
    await b.begin_join()
    await a.joined()
    await b.joined()
    await house.share([a, b])


@run
async def test_a_group_that_became_too_big_loses_the_last_to_rejoin(house: House) -> None:
    a, b, c = await house.member_in("a", "b", "c")
    await house.restart(group_max_size="2")
    assert a.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    await c.begin_join()
    await b.begin_join()
    assert (await a.ask_join()).error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert (await c.joined()).leader == (await b.joined()).leader
    await house.share([b, c])


@run
async def test_a_join_whose_connection_broke_is_taken_over_by_the_next(house: House) -> None:
    (a,) = await house.member_in("a")
    b = house.member("b")
    await b.begin_join()
    b.hang_up()
    await b.begin_join()
    await a.begin_join()
    await a.joined()
    await b.joined()
    await house.share([a, b])


@run
async def test_a_second_join_over_another_connection_frees_the_first(house: House) -> None:
    await house.member_in("a")
    b = house.member("b")
    await b.begin_join()
    first = b._joining
    assert first is not None
    await b.begin_join()
    assert first.result().error is ErrorCode.REBALANCE_IN_PROGRESS


@run
async def test_commits_by_state_and_generation(house: House) -> None:
    check = house.groups.classic.check_commit
    check(GROUP, "", -1, None, False)  # a group that is not there yet
    with pytest.raises(ApiError, match="ILLEGAL_GENERATION"):
        check(GROUP, "m", 1, None, False)
    with pytest.raises(ApiError, match="GROUP_ID_NOT_FOUND"):
        check(GROUP, "m", 1, None, False, unknown_group=ErrorCode.GROUP_ID_NOT_FOUND)
    a, b = await house.member_in("a", "b")
    assert a.commit_code() is ErrorCode.NONE
    with pytest.raises(ApiError, match="UNKNOWN_MEMBER_ID"):
        check(GROUP, "", -1, None, False)
    check(GROUP, "", -1, None, True)
    with pytest.raises(ApiError, match="UNKNOWN_MEMBER_ID"):
        check(GROUP, "made-up", 1, None, True)
    with pytest.raises(ApiError, match="ILLEGAL_GENERATION"):
        check(GROUP, a.member_id, 7, None, False)
    with pytest.raises(ApiError, match="ILLEGAL_GENERATION"):
        check(GROUP, a.member_id, -1, None, False)
    await a.begin_join()
    # While others are awaited, what was read before may still be committed.
    assert a.commit_code() is ErrorCode.NONE
    await b.begin_join()
    await a.joined()
    await b.joined()
    assert a.commit_code() is ErrorCode.REBALANCE_IN_PROGRESS
    assert a.commit_code(transactional=True) is ErrorCode.NONE
    await house.share([a, b])
    await a.leave()
    await b.leave()
    check(GROUP, "", -1, None, False)
    with pytest.raises(ApiError, match="UNKNOWN_MEMBER_ID"):
        check(GROUP, a.member_id, a.generation, None, False)


@run
async def test_a_stop_sends_those_who_wait_to_look_again_and_forgets_nobody(house: House) -> None:
    (a,) = await house.member_in("a")
    b = house.member("b")
    await b.begin_join()
    house.groups.close()
    answer = await b.join_answer()
    assert (answer.error, answer.member_id) == (ErrorCode.NOT_COORDINATOR, b.member_id)
    assert a.heartbeat() is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert (await a.ask_join()).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert a.commit_code() is ErrorCode.COORDINATOR_NOT_AVAILABLE
    await house.restart()
    assert a.heartbeat() is ErrorCode.NONE


@run
async def test_on_a_full_disk_joins_and_syncs_fail_and_go_on_when_there_is_room(house: House) -> None:
    a = house.member("a")
    await a.begin_join()
    house.store.full = True
    await house.advance(DELAY_MS)
    assert (await a.join_answer()).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    house.store.full = False
    await a.begin_join()
    await a.joined()
    house.store.full = True
    await a.begin_sync(a.shares())
    assert (await a.synced()).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    house.store.full = False
    await a.begin_join()
    await a.joined()
    await house.share([a])
    house.store.full = True
    assert await a.leave() is ErrorCode.NONE


@run
async def test_two_syncs_of_the_leader_store_one_assignment(house: House) -> None:
    (a,) = await house.member_in("a")
    await a.begin_join()
    await a.joined()

    def sync(assignment: bytes) -> Coroutine[Any, Any, SyncAnswer]:
        shares = ((a.member_id, assignment),)
        request = SyncRequest(group_id=GROUP, member_id=a.member_id, generation=a.generation, assignments=shares)
        return house.groups.classic.sync(request)

    first, second = await asyncio.gather(sync(b"first"), sync(b"second"))
    assert first.error is ErrorCode.REBALANCE_IN_PROGRESS
    assert (second.error, second.assignment) == (ErrorCode.NONE, b"first")
    await house.restart()
    assert house.groups.classic.describe(GROUP).members[0].assignment == b"first"


@run
async def test_who_joins_while_the_assignment_is_being_stored_makes_it_void(house: House) -> None:
    (a,) = await house.member_in("a")
    b = house.member("b")
    b.member_id = (await b.ask_join()).member_id
    await a.begin_join()
    await house.advance(SESSION_MS)  # b does not come in time
    b.member_id = ""
    await a.joined()
    b.member_id = (await b.ask_join()).member_id
    shares = tuple(a.shares().items())
    sync = SyncRequest(group_id=GROUP, member_id=a.member_id, generation=a.generation, assignments=shares)
    syncing = asyncio.ensure_future(house.groups.classic.sync(sync))
    b._joining = b._task(b.ask_join())
    assert (await syncing).error is ErrorCode.REBALANCE_IN_PROGRESS
    await house.settle()
    assert house.state() == "PreparingRebalance"
    assert b.waits
    await a.begin_join()
    await a.joined()
    await b.joined()
    await house.share([a, b])


@run
async def test_a_timer_is_moved_either_way_and_taken_back(house: House) -> None:
    rung: list[float] = []
    timer = Timer(house.loop, lambda: rung.append(house.loop.time()))
    began = house.loop.time()
    timer.set(5_000)
    timer.set(9_000)
    timer.set(2_000)
    await house.advance(3_000)
    assert rung == [began + 2]
    assert not timer.active
    timer.set(1_000)
    timer.set(4_000)
    await house.advance(3_000)
    assert timer.active
    timer.cancel()
    await house.advance(9_000)
    timer.set(-1)
    await house.settle()
    assert rung == [began + 2, began + 15]


@run
async def test_while_the_broker_itself_stood_still_nobody_is_given_up(house: House) -> None:
    a, b = await house.member_in("a", "b")
    house.loop.now += 3_600  # as a process that was stopped and goes on
    await house.settle()
    assert a.heartbeat() is ErrorCode.NONE
    await house.advance(2_000)
    assert b.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID
    assert a.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
