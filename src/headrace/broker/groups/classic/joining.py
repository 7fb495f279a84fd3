"""How a JoinGroup request is handled."""

import asyncio
import logging
import uuid

from headrace.broker.errors import ApiError, ErrorCode
from headrace.broker.groups.classic.group import ClassicGroup, GroupState, Member
from headrace.broker.groups.classic.messages import NO_MEMBER_ID, JoinAnswer, JoinRequest, Protocol
from headrace.broker.groups.classic.rebalance import NEW_MEMBER_JOIN_TIMEOUT_MS, Joining, Rebalancer
from headrace.broker.groups.classic.subscription import subscribed_topics

log = logging.getLogger(__name__)


def join(rebalancer: Rebalancer, group: ClassicGroup, request: JoinRequest, max_size: int, joining: Joining) -> None:
    """Let the member in, or keep it waiting in `joining`, or raise the ApiError it is to be answered with."""
    if not _has_room(group, request.member_id, max_size):
        group.remove(request.member_id)
        rebalancer.maybe_complete_join(group)
        raise ApiError(ErrorCode.GROUP_MAX_SIZE_REACHED)
    if group.state is GroupState.DEAD:
        raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    if not group.supports(request.protocol_type, (name for name, _ in request.protocols)):
        raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    if request.member_id == NO_MEMBER_ID:
        _join_new(rebalancer, group, request, joining)
    elif request.member_id in group.pending_members:
        if request.group_instance_id is not None:
            raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, "an id was given out to a dynamic member")
        _add(rebalancer, group, request.member_id, request, joining)
    else:
        member = group.require(request.member_id, request.group_instance_id)
        _rejoin(rebalancer, group, member, request, joining)


def _has_room(group: ClassicGroup, member_id: str, max_size: int) -> bool:
    member = group.members.get(member_id)
    if group.state is GroupState.PREPARING_REBALANCE:
        # Those who wait are counted, not all members: where the limit was lowered, the last to rejoin go.
        return (member is not None and member.joining is not None) or group.awaiting_join < max_size
    return not group.members or member is not None or len(group.members) < max_size


def _join_new(rebalancer: Rebalancer, group: ClassicGroup, request: JoinRequest, joining: Joining) -> None:
    new_id = f"{request.group_instance_id or request.client_id}-{uuid.uuid4()}"
    if request.group_instance_id is not None:
        current_id = group.static_members.get(request.group_instance_id)
        if current_id is None:
            _add(rebalancer, group, new_id, request, joining)
        else:
            _replace_static(rebalancer, group, group.members[current_id], new_id, request, joining)
    elif request.needs_known_id:
        rebalancer.add_pending(group, new_id, request.session_timeout_ms)
        joining.set_result(JoinAnswer(error=ErrorCode.MEMBER_ID_REQUIRED, member_id=new_id))
    else:
        _add(rebalancer, group, new_id, request, joining)


def _add(rebalancer: Rebalancer, group: ClassicGroup, member_id: str, request: JoinRequest, joining: Joining) -> None:
    member = rebalancer.new_member(group, member_id, request)
    if group.state is GroupState.PREPARING_REBALANCE and group.previous_state is GroupState.EMPTY:
        group.new_member_added = True
    group.add(member, request.protocol_type)
    member.wait_for_join(joining)
    member.session.set(NEW_MEMBER_JOIN_TIMEOUT_MS)
    rebalancer.prepare_or_complete(group, f"{member_id} joins: {request.reason or 'new'}")


def _rejoin(
    rebalancer: Rebalancer, group: ClassicGroup, member: Member, request: JoinRequest, joining: Joining
) -> None:
    changed = member.protocols != request.protocols
    leads = member.member_id == group.leader
    if (
        group.state is GroupState.PREPARING_REBALANCE
        or changed
        # The leader may have seen new topics or partitions, which its metadata does not show.
        or (group.state is GroupState.STABLE and leads)
    ):
        group.update(member, request.protocols, request.rebalance_timeout_ms, request.session_timeout_ms)
        member.wait_for_join(joining)
        rebalancer.prepare_or_complete(
            group, f"{member.member_id} rejoins: {request.reason or ('changed' if changed else 'leader')}"
        )
    else:
        # It did not hear the answer, or asks without need: it is told of the generation it is in.
        answer = group.join_answer(member.member_id)
        rebalancer.answer_joins_when_saved(group, [(joining, answer)])


def _replace_static(
    rebalancer: Rebalancer,
    group: ClassicGroup,
    member: Member,
    new_id: str,
    request: JoinRequest,
    joining: Joining,
) -> None:
    """A static member comes back as a new process: it takes the place of the old one."""
    old_id, old_leader = member.member_id, group.leader
    old_protocols = member.protocols
    old_timeouts = member.rebalance_timeout_ms, member.session_timeout_ms
    group.rename(member, new_id)
    group.update(member, request.protocols, request.rebalance_timeout_ms, request.session_timeout_ms)
    member.wait_for_join(joining)
    member.session.set(member.session_timeout_ms)
    log.info("group %s: static member %s is now %s", group.group_id, request.group_instance_id, new_id)

    if group.state is not GroupState.STABLE:
        # In CompletingRebalance the leader assigns to the old id, so there it has to begin anew.
        rebalancer.prepare_or_complete(group, f"static member {request.group_instance_id} is back")
        return
    if _assignment_may_change(group, member, old_protocols):
        rebalancer.prepare(group, f"static member {request.group_instance_id} is back with another subscription")
        return

    def answer(saved: asyncio.Future[None]) -> None:
        if member.joining is not joining or group.state is not GroupState.STABLE:
            return  # a rebalance has begun meanwhile, and will answer it
        if saved.exception() is not None:
            failed = JoinAnswer(error=ErrorCode.COORDINATOR_NOT_AVAILABLE)
            member.answer_join(failed)
            group.rename(member, old_id)
            group.update(member, old_protocols, *old_timeouts)
        elif request.may_skip_assignment:
            member.answer_join(group.join_answer(new_id, skip_assignment=group.leader == new_id))
        else:
            # An older client that reads its own id as the leader's would assign anew, and nobody would hear it.
            member.answer_join(
                JoinAnswer(
                    member_id=new_id,
                    generation=group.generation,
                    protocol_type=group.protocol_type,
                    protocol_name=group.protocol_name,
                    leader=old_leader or "",
                )
            )

    rebalancer.save(group).add_done_callback(answer)


def _assignment_may_change(group: ClassicGroup, member: Member, old_protocols: tuple[Protocol, ...]) -> bool:
    if group.select_protocol() != group.protocol_name:
        return True
    if not group.is_consumer_group:
        return False
    # The rest of the metadata says what it owns: nothing, as it has just started. That is no reason.
    old = next((metadata for name, metadata in old_protocols if name == group.protocol_name), b"")
    return subscribed_topics(old) != subscribed_topics(member.metadata(group.protocol_name))
