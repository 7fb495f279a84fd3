"""ShareGroupDescribe: a share group's state, its members and what each of them reads."""

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from headrace.broker.errors import ApiError
from headrace.broker.groups.share.assignor import by_topic
from headrace.broker.groups.share.group import ShareMember
from headrace.broker.wire.handlers import RequestContext
from headrace.broker.wire.operations import NOT_REQUESTED, ON_GROUP
from headrace.broker.wire.requests import failure

if TYPE_CHECKING:
    from headrace.broker.server import Broker


async def handle(broker: "Broker", request: SimpleNamespace, context: RequestContext) -> dict[str, Any]:
    operations = ON_GROUP if request.include_authorized_operations else NOT_REQUESTED
    return {"groups": [_group(broker, group_id, operations) for group_id in request.group_ids]}


def _group(broker: "Broker", group_id: str, operations: int) -> dict[str, Any]:
    try:
        group = broker.groups.share.group(group_id)
    except ApiError as error:
        return {"group_id": group_id, "group_state": "", "assignor_name": "", **failure(error)}
    return {
        "group_id": group_id,
        "group_state": group.state_name,
        "group_epoch": group.epoch,
        "assignment_epoch": group.epoch,
        "assignor_name": "simple",
        "members": [_member(broker, member) for member in group.members.values()],
        "authorized_operations": operations,
    }


def _member(broker: "Broker", member: ShareMember) -> dict[str, Any]:
    assigned = []
    for topic_id, partitions in by_topic(member.assigned).items():
        topic = broker.topics.by_id(topic_id)
        if topic is not None:
            assigned.append({"topic_id": topic_id, "topic_name": topic.name, "partitions": partitions})
    return {
        "member_id": member.member_id,
        "rack_id": member.rack_id,
        "member_epoch": member.epoch,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "subscribed_topic_names": sorted(member.topics),
        "assignment": {"topic_partitions": assigned},
    }
