"""The coordinator of classic consumer groups: members, generations and assignments."""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial

from headrace.broker.clock import Clock
from headrace.broker.errors import ApiError, ErrorCode
from headrace.broker.groups.classic import joining, records
from headrace.broker.groups.classic.group import ClassicGroup, GroupState
from headrace.broker.groups.classic.messages import (
    NO_MEMBER_ID,
    DescribedGroup,
    DescribedMember,
    JoinAnswer,
    JoinRequest,
    LeavingMember,
    SyncAnswer,
    SyncRequest,
)
from headrace.broker.groups.classic.rebalance import Rebalancer
from headrace.broker.groups.offsets import CommittedOffset, Offsets, PartitionKey, Settlement, together
from headrace.broker.groups.registry import Expired, Group, Kind, Registry
from headrace.broker.settings import BrokerSettings
from headrace.broker.store import Store

log = logging.getLogger(__name__)


class ClassicGroups(Kind):
    """Every classic group. Its methods answer what Kafka's coordinator answers, version by version alike."""

    def __init__(
        self, registry: Registry, store: Store, settings: BrokerSettings, clock: Clock, offsets: Offsets
    ) -> None:
        self._registry = registry
        self._store = store
        self._settings = settings
        self._clock = clock
        self._offsets = offsets
        self._rebalancer = Rebalancer(asyncio.get_running_loop(), store, settings, clock)

    def load(self) -> list[ClassicGroup]:
        return [self._rebalancer.restore(record) for record in self._store.load(records.load)]

    def close(self) -> None:
        for group in self._registry.of_kind(ClassicGroup):
            for member in group.members.values():
                member.answer_join(JoinAnswer(error=ErrorCode.NOT_COORDINATOR, member_id=member.member_id))
                member.answer_sync(SyncAnswer(error=ErrorCode.NOT_COORDINATOR))

    # Membership

    async def join(self, request: JoinRequest) -> JoinAnswer:
        try:
            self._check_open(request.group_id)
            low, high = self._settings.group_min_session_timeout_ms, self._settings.group_max_session_timeout_ms
            if not low <= request.session_timeout_ms <= high:
                raise ApiError(ErrorCode.INVALID_SESSION_TIMEOUT)
            group = self._find(request.group_id, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
            if group is None:
                if request.member_id != NO_MEMBER_ID:
                    raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
                group = self._rebalancer.new_group(request.group_id)
            answer: asyncio.Future[JoinAnswer] = self._rebalancer.loop.create_future()
            joining.join(self._rebalancer, group, request, self._settings.group_max_size, answer)
        except ApiError as error:
            full = error.code is ErrorCode.GROUP_MAX_SIZE_REACHED
            return JoinAnswer(error=error.code, member_id=NO_MEMBER_ID if full else request.member_id)
        self._registry.put(group)
        return await answer

    async def sync(self, request: SyncRequest) -> SyncAnswer:
        try:
            self._check_open(request.group_id)
            group = self._require(request.group_id, ErrorCode.UNKNOWN_MEMBER_ID)
            member = group.require(request.member_id, request.group_instance_id)
            if request.generation != group.generation:
                raise ApiError(ErrorCode.ILLEGAL_GENERATION)
            if request.protocol_type not in (None, group.protocol_type) or (
                request.protocol_name not in (None, group.protocol_name)
            ):
                raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
            if group.state is GroupState.PREPARING_REBALANCE:
                raise ApiError(ErrorCode.REBALANCE_IN_PROGRESS)
        except ApiError as error:
            return SyncAnswer(error=error.code)
        self._rebalancer.synced(group, request.member_id)
        if group.state is GroupState.STABLE:
            return self._rebalancer.sync_answer(group, member)
        answer: asyncio.Future[SyncAnswer] = self._rebalancer.loop.create_future()
        member.wait_for_sync(answer)
        if group.leader == request.member_id:
            self._rebalancer.store_assignments(group, dict(request.assignments))
        return await answer

    def heartbeat(self, group_id: str, member_id: str, generation: int, group_instance_id: str | None = None) -> None:
        """Keep the member alive; raises ApiError if it was removed, or has to rejoin."""
        self._check_open(group_id)
        group = self._require(group_id, ErrorCode.UNKNOWN_MEMBER_ID)
        member = group.require(member_id, group_instance_id)
        if generation != group.generation:
            raise ApiError(ErrorCode.ILLEGAL_GENERATION)
        member.session.set(member.session_timeout_ms)
        if group.state is GroupState.PREPARING_REBALANCE:
            raise ApiError(ErrorCode.REBALANCE_IN_PROGRESS)

    async def leave(self, group_id: str, leaving: Sequence[LeavingMember]) -> list[ErrorCode]:
        """Take members out, by id or, for static ones, by instance id alone. One code for each."""
        self._check_open(group_id)
        group = self._find(group_id, ErrorCode.UNKNOWN_MEMBER_ID)
        if group is None:
            return [ErrorCode.UNKNOWN_MEMBER_ID for _ in leaving]
        if group.state is GroupState.DEAD:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        size = len(group.members)
        codes = [self._take_out(group, member) for member in leaving]
        if len(group.members) < size:
            self._rebalancer.member_removed(group, "members left")
            if group.last_save is not None:
                # That they left is known after a restart too. If it cannot be stored, they are out all the same.
                await asyncio.wait([group.last_save])
        else:
            self._rebalancer.maybe_complete_join(group)
        return codes

    @staticmethod
    def _take_out(group: ClassicGroup, leaving: LeavingMember) -> ErrorCode:
        member_id, instance_id, reason = leaving
        if member_id == NO_MEMBER_ID:
            current = None if instance_id is None else group.static_members.get(instance_id)
            if current is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            member_id = current
        elif member_id not in group.pending_members:
            try:
                group.require(member_id, instance_id)
            except ApiError as error:
                return error.code
        log.info("group %s: %s leaves (%s)", group.group_id, member_id, reason or "no reason given")
        group.remove(member_id)
        return ErrorCode.NONE

    def check_commit(
        self,
        group_id: str,
        member_id: str,
        generation: int,
        group_instance_id: str | None,
        transactional: bool,
        *,
        unknown_group: ErrorCode = ErrorCode.ILLEGAL_GENERATION,
    ) -> None:
        """Whether offsets may be committed so; raises ApiError if not. Nothing may be awaited before they are.

        A plain commit is also a sign of life. `unknown_group` is what a member of no group at all is told.
        """
        if self._registry.closed:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        group = self._find(group_id)
        if group is None:
            if generation >= 0:
                raise ApiError(unknown_group)
            return  # the group comes to be by this commit
        if group.state is GroupState.DEAD:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if generation < 0 and group.state is GroupState.EMPTY:
            return  # an administrator, or a consumer that assigns itself
        if generation >= 0 or member_id != NO_MEMBER_ID or group_instance_id is not None:
            member = group.require(member_id, group_instance_id)
            if generation != group.generation:
                raise ApiError(ErrorCode.ILLEGAL_GENERATION)
        elif not transactional:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
        else:
            return  # producers of before generations were sent along
        if transactional:
            return
        if group.state is GroupState.COMPLETING_REBALANCE:
            raise ApiError(ErrorCode.REBALANCE_IN_PROGRESS)
        member.session.set(member.session_timeout_ms)

    # Administration

    def describe(self, group_id: str) -> DescribedGroup:
        """A group of another kind is not found here."""
        try:
            group = self._find(group_id)
        except ApiError:
            group = None
        if group is None:
            return DescribedGroup(group_id=group_id, state=GroupState.DEAD.value, found=False)
        protocol_name = group.protocol_name if group.state is GroupState.STABLE else None
        return DescribedGroup(
            group_id=group_id,
            state=group.state.value,
            protocol_type=group.protocol_type or "",
            protocol_name=protocol_name or "",
            members=tuple(
                DescribedMember(
                    m.member_id,
                    m.group_instance_id,
                    m.client_id,
                    m.client_host,
                    m.metadata(protocol_name),
                    m.assignment,
                )
                for m in group.members.values()
            ),
        )

    def check_offset_delete(self, group_id: str) -> Callable[[str], bool]:
        """Whether offsets of the group may be deleted, raising ApiError if not at all; which topics are spared is
        told by what is returned: those it is subscribed to."""
        self._check_open(group_id)
        group = self._find(group_id)
        if group is None or group.state is GroupState.DEAD:
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND)
        if group.state is not GroupState.EMPTY and not group.is_consumer_group:
            raise ApiError(ErrorCode.NON_EMPTY_GROUP)
        return group.is_subscribed_to

    # Expiry

    def weight(self, group: Group) -> int:
        return 1 + len(self._offsets.of_group(group.group_id))

    def expire(self, group: Group) -> Expired | None:
        """Offsets whose time is over, and the group if nothing else is left of it."""
        assert isinstance(group, ClassicGroup)
        expired = dict(self._expired(group))
        nothing_left = (
            group.state is GroupState.EMPTY
            and not group.pending_members
            and len(expired) == len(self._offsets.of_group(group.group_id))
            and not self._offsets.has_pending(group.group_id)
        )
        if not expired and not nothing_left:
            return None
        settlement = self._offsets.expire(group.group_id, expired)
        return Expired(together(self._unstored(group), settlement) if nothing_left else settlement, nothing_left)

    def _expired(self, group: ClassicGroup) -> Iterator[tuple[PartitionKey, CommittedOffset]]:
        """Kafka's rules: by the time the group became empty; where it never had members, or has consumers that are
        not subscribed to the topic, by the time of the commit; and never while it is not settled who reads what."""
        if group.protocol_type is not None and group.state is not GroupState.EMPTY:
            known = group.state is GroupState.STABLE and group.subscribed is not None
            if not (known and group.is_consumer_group):
                return
        since_empty = group.protocol_type is not None and group.state is GroupState.EMPTY
        now_ms = self._clock.steady_ms()
        retention_ms = self._settings.offsets_retention_minutes * 60 * 1000
        for key, offset in self._offsets.of_group(group.group_id).items():
            base_ms = group.state_since_ms if since_empty else offset.committed_at_ms
            expires_at_ms = base_ms + retention_ms if offset.expires_at_ms is None else offset.expires_at_ms
            if (
                now_ms >= expires_at_ms
                and not group.is_subscribed_to(key.topic)
                and not self._offsets.pending(group.group_id, *key)
            ):
                yield key, offset

    def forget(self, group: Group) -> Settlement:
        return together(self._unstored(group), self._offsets.forget_group(group.group_id))

    @staticmethod
    def _unstored(group: Group) -> Settlement:
        return Settlement(partial(records.delete, group_id=group.group_id))

    # Inside

    def _check_open(self, group_id: str) -> None:
        if self._registry.closed:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if not group_id:
            raise ApiError(ErrorCode.INVALID_GROUP_ID)

    def find(self, group_id: str) -> ClassicGroup | None:
        """A group that only ever committed offsets has no record of its own."""
        return self._rebalancer.new_group(group_id) if self._offsets.has_group(group_id) else None

    def found(self) -> Collection[str]:
        return self._offsets.group_ids()

    def _find(self, group_id: str, otherwise: ErrorCode = ErrorCode.GROUP_ID_NOT_FOUND) -> ClassicGroup | None:
        return self._registry.find(group_id, ClassicGroup, otherwise)

    def _require(self, group_id: str, otherwise: ErrorCode) -> ClassicGroup:
        group = self._find(group_id, otherwise)
        if group is None:
            raise ApiError(otherwise)
        if group.state is GroupState.DEAD:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return group
