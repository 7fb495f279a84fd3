"""One classic group: its members, its generation, its state. What is true here; when it changes is `rebalance`'s."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum

from headrace.broker.errors import ApiError, ErrorCode
from headrace.broker.groups.classic.messages import JoinAnswer, JoinedMember, Protocol, SyncAnswer
from headrace.broker.groups.classic.subscription import CONSUMER_PROTOCOL_TYPE, subscribed_topics
from headrace.broker.groups.registry import Group
from headrace.broker.groups.timers import Timer


class GroupState(Enum):
    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(slots=True, eq=False)
class Member:
    """A member, and the request of it that waits for the others."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: tuple[Protocol, ...]
    assignment: bytes = b""
    is_new: bool = False
    """Joined for the first time in a rebalance that is not over: it cannot send heartbeats yet."""
    joining: asyncio.Future[JoinAnswer] | None = None
    syncing: asyncio.Future[SyncAnswer] | None = None
    session: Timer = field(init=False)

    @property
    def is_static(self) -> bool:
        return self.group_instance_id is not None

    @property
    def shows_life(self) -> bool:
        """A known member whose request is parked here sends no heartbeats, and need not."""
        return not self.is_new and (self.joining is not None or self.syncing is not None)

    def metadata(self, protocol_name: str | None) -> bytes:
        return next((metadata for name, metadata in self.protocols if name == protocol_name), b"")

    def wait_for_join(self, joining: asyncio.Future[JoinAnswer]) -> None:
        self.answer_join(JoinAnswer(error=ErrorCode.REBALANCE_IN_PROGRESS, member_id=self.member_id))
        self.joining = joining

    def wait_for_sync(self, syncing: asyncio.Future[SyncAnswer]) -> None:
        self.answer_sync(SyncAnswer(error=ErrorCode.REBALANCE_IN_PROGRESS))
        self.syncing = syncing

    def answer_join(self, answer: JoinAnswer) -> None:
        joining, self.joining = self.joining, None
        # A closed connection cancels what it waited for.
        if joining is not None and not joining.done():
            joining.set_result(answer)

    def answer_sync(self, answer: SyncAnswer) -> bool:
        """Whether a request waited for it."""
        syncing, self.syncing = self.syncing, None
        if syncing is not None and not syncing.done():
            syncing.set_result(answer)
        return syncing is not None


class ClassicGroup(Group):
    """The state of one group. Its methods keep it consistent; none of them waits, writes or sends."""

    kind = "classic"

    def __init__(
        self,
        group_id: str,
        *,
        now_ms: Callable[[], int],
        join_timer: Timer,
        sync_timer: Timer,
    ) -> None:
        super().__init__(group_id)
        self.state = GroupState.EMPTY
        self.previous_state = GroupState.DEAD
        self.state_since_ms = now_ms()
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.leader: str | None = None
        self.members: dict[str, Member] = {}
        self.static_members: dict[str, str] = {}
        self.pending_members: dict[str, Timer] = {}
        """Ids given out to those who shall join with them, each until its session timeout."""
        self.unsynced: set[str] = set()
        self.subscribed: frozenset[str] | None = None
        """The topics its consumers subscribe to, if that is known."""
        self.new_member_added = False
        self.extra_delay_ms = 0
        """How much longer the first rebalance may yet be put off while new members keep coming."""
        self.stored_generation: int | None = None
        """The generation whose assignment is on its way to the store, or there."""
        self.last_save: asyncio.Future[None] | None = None
        self.join_timer = join_timer
        self.sync_timer = sync_timer
        self._now_ms = now_ms
        self._supporters: Counter[str] = Counter()

    # Life

    @property
    def protocol(self) -> str:
        return self.protocol_type or ""

    @property
    def state_name(self) -> str:
        return self.state.value

    @property
    def is_empty(self) -> bool:
        return self.state is GroupState.EMPTY

    @property
    def is_dead(self) -> bool:
        return self.state is GroupState.DEAD

    def die(self) -> None:
        self.state = GroupState.DEAD

    def revive(self) -> None:
        self.state = GroupState.EMPTY

    def transition(self, state: GroupState) -> None:
        self.previous_state, self.state = self.state, state
        self.state_since_ms = self._now_ms()

    # Members

    def add(self, member: Member, protocol_type: str) -> None:
        if not self.members:
            self.protocol_type = protocol_type
        if member.group_instance_id is not None:
            self.static_members[member.group_instance_id] = member.member_id
        if self.leader is None:
            self.leader = member.member_id
        self.members[member.member_id] = member
        self._supporters.update(name for name, _ in member.protocols)
        self.forget_pending(member.member_id)

    def remove(self, member_id: str) -> None:
        """Remove a member or a pending member. If a request of it waits, it is answered UNKNOWN_MEMBER_ID."""
        member = self.members.pop(member_id, None)
        if member is not None:
            member.session.cancel()
            member.answer_join(JoinAnswer(error=ErrorCode.UNKNOWN_MEMBER_ID))
            member.answer_sync(SyncAnswer(error=ErrorCode.UNKNOWN_MEMBER_ID))
            self._supporters.subtract(name for name, _ in member.protocols)
            instance_id = member.group_instance_id
            if instance_id is not None and self.static_members.get(instance_id) == member_id:
                del self.static_members[instance_id]
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        self.forget_pending(member_id)
        self.unsynced.discard(member_id)

    def forget_pending(self, member_id: str) -> None:
        timer = self.pending_members.pop(member_id, None)
        if timer is not None:
            timer.cancel()

    def update(
        self, member: Member, protocols: tuple[Protocol, ...], rebalance_timeout_ms: int, session_timeout_ms: int
    ) -> None:
        self._supporters.subtract(name for name, _ in member.protocols)
        member.protocols = protocols
        self._supporters.update(name for name, _ in protocols)
        member.rebalance_timeout_ms = rebalance_timeout_ms
        member.session_timeout_ms = session_timeout_ms

    def rename(self, member: Member, new_member_id: str) -> None:
        """Give a static member a new id and keep everything else. A client with the old id is fenced from now on."""
        old_member_id = member.member_id
        fenced = ErrorCode.FENCED_INSTANCE_ID
        member.answer_join(JoinAnswer(error=fenced, member_id=old_member_id))
        member.answer_sync(SyncAnswer(error=fenced))
        member.member_id = new_member_id
        # In its old place: the order of members is the order of succession.
        self.members = {m.member_id: m for m in self.members.values()}
        assert member.group_instance_id is not None
        self.static_members[member.group_instance_id] = new_member_id
        if self.leader == old_member_id:
            self.leader = new_member_id
        if old_member_id in self.unsynced:
            self.unsynced.remove(old_member_id)
            self.unsynced.add(new_member_id)

    def require(self, member_id: str, group_instance_id: str | None) -> Member:
        """The member with this id; raises ApiError if there is none."""
        if group_instance_id is not None:
            current = self.static_members.get(group_instance_id)
            if current is None:
                raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
            if current != member_id:
                raise ApiError(ErrorCode.FENCED_INSTANCE_ID)
        member = self.members.get(member_id)
        if member is None:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
        return member

    @property
    def awaiting_join(self) -> int:
        return sum(member.joining is not None for member in self.members.values())

    @property
    def all_joined(self) -> bool:
        return not self.pending_members and all(m.joining is not None for m in self.members.values())

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest rebalance timeout of the members."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    # Protocols

    @property
    def is_consumer_group(self) -> bool:
        return self.protocol_type == CONSUMER_PROTOCOL_TYPE

    def supports(self, protocol_type: str, names: Iterable[str]) -> bool:
        """Whether one of these protocols is supported by all members."""
        if self.state is GroupState.EMPTY:
            return bool(protocol_type) and any(True for _ in names)
        return self.protocol_type == protocol_type and any(
            self._supporters[name] == len(self.members) for name in names
        )

    def select_protocol(self) -> str:
        """Each member votes for its first choice among the protocols of all; the most votes win, at a tie the first."""
        candidates = {name for name, supporters in self._supporters.items() if supporters == len(self.members)}
        votes = Counter(
            next(name for name, _ in member.protocols if name in candidates) for member in self.members.values()
        )
        return votes.most_common(1)[0][0]

    def find_subscriptions(self) -> frozenset[str] | None:
        """The subscribed topics of this generation; None if unreadable, or of no consumers."""
        if not self.is_consumer_group:
            return None
        topics: set[str] = set()
        for member in self.members.values():
            of_member = subscribed_topics(member.metadata(self.protocol_name))
            if of_member is None:
                return None
            topics |= of_member
        return frozenset(topics)

    def is_subscribed_to(self, topic: str) -> bool:
        """In doubt a consumer group is taken to be subscribed, so that nothing it may need is deleted."""
        return self.is_consumer_group if self.subscribed is None else topic in self.subscribed

    # Generations

    def elect_leader(self) -> bool:
        """Keep the leader if it joined, else take the first who did. False if nobody did."""
        if self.leader is None:
            return False
        if self.members[self.leader].joining is None:
            joined = next((m.member_id for m in self.members.values() if m.joining is not None), None)
            if joined is None:
                return False
            self.leader = joined
        return True

    def begin_generation(self) -> None:
        self.generation += 1
        self.unsynced.clear()
        self.stored_generation = None
        self.protocol_name = self.select_protocol() if self.members else None
        self.subscribed = self.find_subscriptions()
        self.transition(GroupState.COMPLETING_REBALANCE if self.members else GroupState.EMPTY)

    def join_answer(self, member_id: str, *, skip_assignment: bool = False) -> JoinAnswer:
        """The response for a member of the current generation; only the leader's lists the members."""
        return JoinAnswer(
            member_id=member_id,
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            leader=self.leader or "",
            skip_assignment=skip_assignment,
            members=self.joined_members() if member_id == self.leader else (),
        )

    def joined_members(self) -> tuple[JoinedMember, ...]:
        return tuple(
            JoinedMember(m.member_id, m.group_instance_id, m.metadata(self.protocol_name))
            for m in self.members.values()
        )

    def cancel_timers(self) -> None:
        self.join_timer.cancel()
        self.sync_timer.cancel()
        for member in self.members.values():
            member.session.cancel()
        for timer in self.pending_members.values():
            timer.cancel()
