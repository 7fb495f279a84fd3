"""What ShareFetch and ShareAcknowledge have in common: who asks, in which session, and what it acknowledges."""

from types import SimpleNamespace
from typing import TYPE_CHECKING

from headrace.broker.errors import ApiError, ErrorCode
from headrace.broker.groups.share.assignor import Place
from headrace.broker.groups.share.sessions import SessionKey
from headrace.broker.groups.share.window import REJECT, RENEW, Ack

if TYPE_CHECKING:
    from headrace.broker.server import Broker

_LONGEST_MEMBER_ID = 36


def session_key(request: SimpleNamespace) -> SessionKey:
    group_id, member_id = request.group_id or "", request.member_id or ""
    if not group_id or not 0 < len(member_id) <= _LONGEST_MEMBER_ID:
        raise ApiError(ErrorCode.INVALID_REQUEST, "a group id and a member id of up to 36 characters are needed")
    return group_id, member_id


def acknowledgements(request: SimpleNamespace) -> dict[Place, list[Ack]]:
    """By partition, in the order they stand; a topic may stand there more than once."""
    found: dict[Place, list[Ack]] = {}
    for topic in request.topics:
        for partition in topic.partitions:
            if partition.acknowledgement_batches:
                acks = found.setdefault((topic.topic_id, partition.partition_index), [])
                for batch in partition.acknowledgement_batches:
                    acks.append(Ack(batch.first_offset, batch.last_offset, batch.acknowledge_types))
    return found


def highest_type(broker: "Broker", group_id: str, request: SimpleNamespace, version: int) -> int:
    """The highest type of acknowledgement that the request may carry: renewing is asked for outright."""
    if version < 2 or not request.is_renew_ack:
        return REJECT
    if not broker.groups.configs.of(group_id).share_renew_acknowledge_enable:
        raise ApiError(ErrorCode.INVALID_REQUEST, "share.renew.acknowledge.enable is false for this group")
    return RENEW
