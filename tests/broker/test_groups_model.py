"""Groups under joins, leaves, silence, lost connections, full disks and crashes in any order.

The machine plays the clients. What each of them was told is kept, and held against what a group must never do.
"""

import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.broker.errors import ErrorCode
from headrace.broker.groups.classic.messages import JoinAnswer, Protocol, SyncAnswer
from tests.broker.groups_harness import GROUP, House, SteppedLoop, TestMember, subscription

CLIENTS = ("a", "b", "c", "s1", "s2")
REBALANCE_MS, SESSION_MS = 12_000, 6_000
clients = st.sampled_from(CLIENTS)
REJOIN = {ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR}
FORGET = {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.FENCED_INSTANCE_ID}


class GroupMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.loop = SteppedLoop()
        self.house: House = self.do(self.build())
        self.members = {name: self.new_member(name) for name in CLIENTS}
        self.leaders: dict[int, str] = {}
        """Who was told to lead each generation."""
        self.rosters: dict[int, set[str]] = {}
        """Whom the leader of each generation was told of."""
        self.told: dict[int, set[str]] = {}
        """Who was told to be in each generation."""
        self.assigned: dict[int, dict[str, bytes]] = {}
        """What was assigned in each generation, and delivered."""
        self.sent: dict[int, list[dict[str, bytes]]] = {}
        self.newest = 0
        self.round = 0

    async def build(self) -> House:
        return House(Path(self.folder.name), {"group.initial.rebalance.delay.ms": "1000"})

    def new_member(self, name: str) -> TestMember:
        instance = name if name.startswith("s") else None
        return self.house.member(name, instance=instance, session_ms=SESSION_MS, rebalance_ms=REBALANCE_MS)

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(work)

    def teardown(self) -> None:
        self.house.stop()
        self.loop.run_until_complete(self.house_is_quiet())
        self.loop.close()
        self.folder.cleanup()

    async def house_is_quiet(self) -> None:
        for task in self.house.tasks:
            task.cancel()

    # What clients do

    @rule(name=clients)
    def join(self, name: str) -> None:
        member = self.members[name]
        if member.waits:
            return
        self.do(self.ask_to_join(member))

    async def ask_to_join(self, member: TestMember) -> None:
        if member.member_id == "" and member.instance is None:
            answer = await member.ask_join()
            assert answer.error is ErrorCode.MEMBER_ID_REQUIRED
            member.member_id = answer.member_id
        member._joining = member._task(member.ask_join())
        await self.house.settle()

    @rule(name=clients, topic=st.sampled_from(["t", "u"]))
    def join_with_another_subscription(self, name: str, topic: str) -> None:
        member = self.members[name]
        if not member.waits:
            member.protocols = (Protocol("range", subscription(topic)),)
            self.join(name)

    @rule(name=clients)
    def sync(self, name: str) -> None:
        member = self.members[name]
        if member.waits or member.generation < 0:
            return
        assignments: dict[str, bytes] = {}
        if member.leads and member.answer is not None and not member.answer.skip_assignment:
            self.round += 1
            assignments = {m.member_id: f"{m.member_id}#{self.round}".encode() for m in member.answer.members}
            self.sent.setdefault(member.generation, []).append(assignments)
        self.do(member.begin_sync(assignments))

    @rule(name=clients)
    def heartbeat(self, name: str) -> None:
        member = self.members[name]
        if member.generation < 0 or member.waits:
            return
        code = member.heartbeat()
        if code is ErrorCode.NONE:
            self.is_current(member)
        elif code in FORGET:
            self.forget(member, code)
        else:
            assert code in REJOIN

    @rule(name=clients, transactional=st.booleans())
    def commit(self, name: str, transactional: bool) -> None:
        member = self.members[name]
        if member.generation >= 0 and member.commit_code(transactional=transactional) is ErrorCode.NONE:
            self.is_current(member)

    @rule(name=clients)
    def leave(self, name: str) -> None:
        member = self.members[name]
        if not member.waits and member.member_id:
            self.do(member.leave())
            self.members[name] = self.new_member(name)

    @rule(name=clients)
    def lose_the_connection(self, name: str) -> None:
        self.members[name].hang_up()
        self.do(self.house.settle())

    @rule(name=clients)
    def start_as_a_new_process(self, name: str) -> None:
        self.members[name].hang_up()
        self.do(self.house.settle())
        self.members[name] = self.new_member(name)

    # What the world does

    @rule(ms=st.sampled_from([500, 1_000, 3_000, 6_000, 12_000]), alive=st.sets(clients))
    def time_passes(self, ms: int, alive: set[str]) -> None:
        for _ in range(max(ms // 1_000, 1)):
            self.do(self.house.advance(min(ms, 1_000)))
            self.collect()
            for name in alive:
                self.heartbeat(name)

    @rule()
    def crash(self) -> None:
        for member in self.members.values():
            member.hang_up()
        self.do(self.house.restart(group_initial_rebalance_delay_ms="1000"))

    @rule(full=st.booleans())
    def disk(self, full: bool) -> None:
        self.house.store.full = full

    @precondition(lambda self: any(not member.waits for member in self.members.values()))
    @rule()
    def everybody_does_what_it_should(self) -> None:
        """Healthy clients on a healthy broker always end in one stable generation."""
        self.house.store.full = False
        for _ in range(40):
            for name in CLIENTS:
                self.collect()
                member = self.members[name]
                if member.waits:
                    continue
                if member.generation < 0 or member.heartbeat() is not ErrorCode.NONE:
                    self.heartbeat(name)
                    self.join(name)
                elif not self.has_its_share(member):
                    self.sync(name)
            self.do(self.house.advance(1_000))
            self.collect()
            if self.house.state() == "Stable" and all(map(self.has_its_share, self.members.values())):
                break
        else:
            raise AssertionError(f"no stable group: {self.house.groups.classic.describe(GROUP)}")
        generations = {member.generation for member in self.members.values()}
        assert len(generations) == 1
        described = self.house.groups.classic.describe(GROUP)
        # Besides, there may be processes that are gone and not missed yet.
        assert {m.member_id for m in described.members} >= {m.member_id for m in self.members.values()}

    def has_its_share(self, member: TestMember) -> bool:
        share = self.assigned.get(member.generation, {})
        return member.member_id in share and member.heartbeat() is ErrorCode.NONE

    # What must hold

    def forget(self, member: TestMember, code: ErrorCode) -> None:
        """What clients do when they are told that they are not what they thought."""
        member.generation = -1
        if code is not ErrorCode.ILLEGAL_GENERATION:
            member.member_id = ""

    def is_current(self, member: TestMember) -> None:
        """Only who is in the newest generation anybody heard of is taken for a member of it."""
        assert member.generation == self.newest, (member.generation, self.newest)
        assert member.member_id in self.told[member.generation]

    def heard_join(self, member: TestMember, answer: JoinAnswer) -> None:
        if answer.error is not ErrorCode.NONE:
            if answer.error in FORGET:
                self.forget(member, answer.error)
            return
        assert answer.generation >= self.newest, "a generation came back"
        self.newest = max(self.newest, answer.generation)
        member.answer, member.member_id, member.generation = answer, answer.member_id, answer.generation
        self.told.setdefault(answer.generation, set()).add(answer.member_id)
        leader = self.leaders.setdefault(answer.generation, answer.leader)
        if not answer.skip_assignment:
            # A static leader that came back leads under a new id; nobody else does.
            same_place = leader.rsplit("-", 5)[0] == answer.leader.rsplit("-", 5)[0]
            assert leader == answer.leader or (same_place and leader.startswith("s")), "two leaders"
        if answer.members:
            assert answer.leader == answer.member_id, "only the leader hears of the others"
            roster = {m.member_id for m in answer.members}
            assert answer.member_id in roster
            self.rosters.setdefault(answer.generation, set()).update(roster)

    def heard_sync(self, member: TestMember, answer: SyncAnswer) -> None:
        if answer.error is not ErrorCode.NONE:
            if answer.error in FORGET:
                self.forget(member, answer.error)
            return
        generation = member.generation
        assert generation == self.newest
        given = self.assigned.setdefault(generation, {})
        assert given.get(member.member_id, answer.assignment) == answer.assignment, "a share changed"
        given[member.member_id] = answer.assignment
        if answer.assignment:
            owner = answer.assignment.decode().rsplit("#", 1)[0]
            same_place = member.instance is not None and owner.startswith(f"{member.name}-")
            assert owner == member.member_id or same_place, "somebody else's share"
            rounds = {share.decode().rsplit("#", 1)[1] for share in given.values() if share}
            assert len(rounds) == 1, "shares of two assignments in one generation"
            assert any(answer.assignment in sent.values() for sent in self.sent.get(generation, [])), "a stale share"

    @invariant()
    def collect(self) -> None:
        """Take what was answered meanwhile, as it was told: joins before the syncs that follow them."""
        for member in self.members.values():
            if member._joining is not None and member._joining.done():
                answer, member._joining = member._joining.result(), None
                self.heard_join(member, answer)
        for member in self.members.values():
            if member._syncing is not None and member._syncing.done():
                shared, member._syncing = member._syncing.result(), None
                self.heard_sync(member, shared)

    @invariant()
    def is_whole(self) -> None:
        group = self.house.groups._groups.get(GROUP)
        if group is None:
            return
        assert (group.leader in group.members) if group.members else group.leader is None
        assert set(group.static_members.values()) <= set(group.members)
        assert group.unsynced <= set(group.members)
        assert all(id_ == m.member_id for id_, m in group.members.items())
        assert not set(group.pending_members) & set(group.members)
        if group.state.value == "Empty":
            assert not group.members
        if group.members:
            # Nobody stays for ever: each has a session that runs, or waits for something that a timer ends.
            for member in group.members.values():
                waits = member.joining is not None or member.syncing is not None
                timed = group.join_timer.active or group.sync_timer.active or group.state.value == "Stable"
                assert member.session.active or (waits and timed) or group.last_save is not None


GroupMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
test_groups_keep_their_promises = GroupMachine.TestCase
