"""How a group goes from one generation to the next.

    Empty ──join──▶ PreparingRebalance ──all joined, or time is up──▶ CompletingRebalance ──leader's sync──▶ Stable
                          ▲  │                                              │                                 │
                          │  └──nobody left──▶ Empty                        │                                 │
                          └───a member joins anew, leaves or falls silent───┴─────────────────────────────────┘

A generation is in the store before any member hears of it, and its assignment before any member gets it. So
after a crash no generation is given out twice, and no member is known by an id that the broker has forgotten.
"""

import asyncio
import logging
from collections.abc import Sequence
from functools import partial

from headrace.broker.clock import Clock
from headrace.broker.errors import ErrorCode
from headrace.broker.groups.classic import records
from headrace.broker.groups.classic.group import ClassicGroup, GroupState, Member
from headrace.broker.groups.classic.messages import JoinAnswer, JoinRequest, SyncAnswer
from headrace.broker.groups.classic.records import GroupRecord, MemberRecord
from headrace.broker.groups.timers import Timer
from headrace.broker.settings import BrokerSettings
from headrace.broker.store import Store

log = logging.getLogger(__name__)

# A new member cannot send heartbeats, and whether its connection still lives cannot be seen. If it is still
# there when this is over, it joins again.
NEW_MEMBER_JOIN_TIMEOUT_MS = 5 * 60 * 1000

Joining = asyncio.Future[JoinAnswer]


class Rebalancer:
    """Moves groups through their states, driven by members' requests and by time."""

    def __init__(self, loop: asyncio.AbstractEventLoop, store: Store, settings: BrokerSettings, clock: Clock) -> None:
        self.loop = loop
        self._store = store
        self._settings = settings
        self._clock = clock

    # Making groups and members

    def new_group(self, group_id: str) -> ClassicGroup:
        join_timer = Timer(self.loop, lambda: self._join_time_over(group))
        sync_timer = Timer(self.loop, lambda: self._sync_time_over(group))
        group = ClassicGroup(group_id, now_ms=self._clock.steady_ms, join_timer=join_timer, sync_timer=sync_timer)
        return group

    def new_member(self, group: ClassicGroup, member_id: str, request: JoinRequest) -> Member:
        member = Member(
            member_id,
            request.group_instance_id,
            request.client_id,
            request.client_host,
            request.rebalance_timeout_ms,
            request.session_timeout_ms,
            request.protocols,
            is_new=True,
        )
        member.session = Timer(self.loop, partial(self._session_over, group, member))
        return member

    def add_pending(self, group: ClassicGroup, member_id: str, session_timeout_ms: int) -> None:
        timer = Timer(self.loop, partial(self._pending_over, group, member_id))
        group.pending_members[member_id] = timer
        timer.set(session_timeout_ms)

    def restore(self, record: GroupRecord) -> ClassicGroup:
        """A group as it was when the broker stopped; its members have their full session timeout to return."""
        group = self.new_group(record.group_id)
        for restored in record.members:
            group.add(self._restore_member(group, restored), record.protocol_type or "")
        group.last_save = self.loop.create_future()
        group.last_save.set_result(None)
        group.generation = record.generation
        group.protocol_type = record.protocol_type
        group.protocol_name = record.protocol_name
        group.leader = record.leader
        group.subscribed = group.find_subscriptions()
        if not group.members:
            group.state = GroupState.EMPTY
        elif record.state is GroupState.STABLE and len(group.members) <= self._settings.group_max_size:
            group.state = GroupState.STABLE
            group.stored_generation = record.generation
        else:
            # It was in the middle of a rebalance, or is too big now: its members hear it at their next heartbeat.
            group.previous_state, group.state = GroupState.STABLE, GroupState.PREPARING_REBALANCE
            group.join_timer.set(group.rebalance_timeout_ms)
        group.state_since_ms = record.state_since_ms
        return group

    def _restore_member(self, group: ClassicGroup, record: MemberRecord) -> Member:
        member = Member(
            record.member_id,
            record.group_instance_id,
            record.client_id,
            record.client_host,
            record.rebalance_timeout_ms,
            record.session_timeout_ms,
            record.protocols,
            record.assignment,
        )
        member.session = Timer(self.loop, partial(self._session_over, group, member))
        member.session.set(member.session_timeout_ms)
        return member

    # Writing

    def save(self, group: ClassicGroup, assignments: dict[str, bytes] | None = None) -> asyncio.Future[None]:
        """Put the group as it is now into the store. That it failed is logged here."""
        record = records.record_of(group, assignments)
        saved = self._store.write(lambda connection: records.save(connection, record))
        saved.add_done_callback(partial(_log_failure, group.group_id))
        group.last_save = saved
        return saved

    # Towards a new generation

    def prepare_or_complete(self, group: ClassicGroup, reason: str) -> None:
        """Something changed: begin a rebalance, or see whether that was what the running one waited for."""
        if group.state is GroupState.PREPARING_REBALANCE:
            self.maybe_complete_join(group)
        else:
            self.prepare(group, reason)

    def prepare(self, group: ClassicGroup, reason: str) -> None:
        log.info(
            "group %s: rebalance from %s, generation %d (%s)",
            group.group_id,
            group.state.value,
            group.generation,
            reason,
        )
        if group.state is GroupState.COMPLETING_REBALANCE:
            self._fail_syncs(group, ErrorCode.REBALANCE_IN_PROGRESS)
        group.unsynced.clear()
        group.sync_timer.cancel()
        is_first = group.state is GroupState.EMPTY
        group.transition(GroupState.PREPARING_REBALANCE)
        group.new_member_added = False
        group.extra_delay_ms = 0
        if is_first:
            # Where one consumer starts, more usually follow: one rebalance for all is cheaper than one for each.
            delay_ms = self._settings.group_initial_rebalance_delay_ms
            group.extra_delay_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
            group.join_timer.set(delay_ms)
        elif group.all_joined:
            self._complete_join(group)
        else:
            group.join_timer.set(group.rebalance_timeout_ms)

    def maybe_complete_join(self, group: ClassicGroup) -> None:
        """Continue if all members have joined; the first rebalance of a group always waits for its delay."""
        if (
            group.state is GroupState.PREPARING_REBALANCE
            and group.previous_state is not GroupState.EMPTY
            and group.all_joined
        ):
            self._complete_join(group)

    def member_removed(self, group: ClassicGroup, reason: str) -> None:
        """Members have left the group: the others rebalance."""
        if group.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            self.prepare(group, reason)
        else:
            self.maybe_complete_join(group)
        if group.state is GroupState.PREPARING_REBALANCE:
            self.save(group)

    def _join_time_over(self, group: ClassicGroup) -> None:
        if group.state is not GroupState.PREPARING_REBALANCE:
            return
        if group.new_member_added and group.extra_delay_ms > 0:
            group.new_member_added = False
            delay_ms = min(self._settings.group_initial_rebalance_delay_ms, group.extra_delay_ms)
            group.extra_delay_ms -= delay_ms
            if delay_ms > 0:
                group.join_timer.set(delay_ms)
                return
        self._complete_join(group)

    def _complete_join(self, group: ClassicGroup) -> None:
        group.join_timer.cancel()
        for member in [m for m in group.members.values() if m.joining is None and not m.is_static]:
            log.info("group %s: member %s did not rejoin in time", group.group_id, member.member_id)
            group.remove(member.member_id)
        if group.members and not group.elect_leader():
            # Only static members are left, and none of them is back: their session timeouts decide.
            group.join_timer.set(group.rebalance_timeout_ms)
            return
        group.begin_generation()
        log.info("group %s: generation %d with %d members", group.group_id, group.generation, len(group.members))
        waiting: list[tuple[Joining, JoinAnswer]] = []
        for member in group.members.values():
            if member.joining is not None:
                waiting.append((member.joining, group.join_answer(member.member_id)))
                member.joining = None
            member.is_new = False
            member.session.set(member.session_timeout_ms)
            group.unsynced.add(member.member_id)
        if group.members:
            group.sync_timer.set(group.rebalance_timeout_ms)
        self.save(group)
        self.answer_joins_when_saved(group, waiting)

    def answer_joins_when_saved(self, group: ClassicGroup, waiting: Sequence[tuple[Joining, JoinAnswer]]) -> None:
        """Tell members of the current generation, which may be on its way to the store."""
        assert group.last_save is not None
        group.last_save.add_done_callback(partial(self._answer_joins, group, group.generation, waiting))

    def _answer_joins(
        self,
        group: ClassicGroup,
        generation: int,
        waiting: Sequence[tuple[Joining, JoinAnswer]],
        saved: asyncio.Future[None],
    ) -> None:
        failed = saved.exception() is not None
        for joining, answer in waiting:
            if joining.done():
                continue
            if failed:
                answer = JoinAnswer(error=ErrorCode.COORDINATOR_NOT_AVAILABLE, member_id=answer.member_id)
            joining.set_result(answer)
        if failed and group.state is GroupState.COMPLETING_REBALANCE and group.generation == generation:
            self.prepare(group, "the generation could not be stored")

    # Towards stability

    def synced(self, group: ClassicGroup, member_id: str) -> None:
        group.unsynced.discard(member_id)
        if not group.unsynced:
            group.sync_timer.cancel()

    def store_assignments(self, group: ClassicGroup, assignments: dict[str, bytes]) -> None:
        """The leader has assigned: store it, then tell everyone."""
        if group.stored_generation == group.generation:
            return  # the leader repeats itself while the first is being written
        group.stored_generation = group.generation
        saved = self.save(group, assignments)
        saved.add_done_callback(partial(self._assignments_stored, group, group.generation, assignments))

    def _assignments_stored(
        self, group: ClassicGroup, generation: int, assignments: dict[str, bytes], saved: asyncio.Future[None]
    ) -> None:
        if group.state is not GroupState.COMPLETING_REBALANCE or group.generation != generation:
            return  # someone joined or left meanwhile: those who waited were sent to rejoin
        if saved.exception() is not None:
            self._fail_syncs(group, ErrorCode.COORDINATOR_NOT_AVAILABLE)
            self.prepare(group, "the assignment could not be stored")
            return
        group.transition(GroupState.STABLE)
        for member in group.members.values():
            member.assignment = assignments.get(member.member_id, b"")
            if member.answer_sync(self.sync_answer(group, member)):
                member.session.set(member.session_timeout_ms)

    @staticmethod
    def sync_answer(group: ClassicGroup, member: Member) -> SyncAnswer:
        return SyncAnswer(
            protocol_type=group.protocol_type, protocol_name=group.protocol_name, assignment=member.assignment
        )

    @staticmethod
    def _fail_syncs(group: ClassicGroup, error: ErrorCode) -> None:
        for member in group.members.values():
            member.assignment = b""
            if member.answer_sync(SyncAnswer(error=error)):
                member.session.set(member.session_timeout_ms)

    # Time

    def _session_over(self, group: ClassicGroup, member: Member) -> None:
        if group.members.get(member.member_id) is not member or member.shows_life:
            return
        log.info("group %s: member %s has fallen silent", group.group_id, member.member_id)
        group.remove(member.member_id)
        self.member_removed(group, f"the session of {member.member_id} timed out")

    def _pending_over(self, group: ClassicGroup, member_id: str) -> None:
        group.forget_pending(member_id)
        self.maybe_complete_join(group)

    def _sync_time_over(self, group: ClassicGroup) -> None:
        if group.state not in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE) or not group.unsynced:
            return
        late = sorted(group.unsynced)
        for member_id in late:
            group.remove(member_id)
        self.member_removed(group, f"no sync from {', '.join(late)}")


def _log_failure(group_id: str, saved: asyncio.Future[None]) -> None:
    if saved.exception() is not None:
        log.warning("group %s could not be stored: %s", group_id, saved.exception())
