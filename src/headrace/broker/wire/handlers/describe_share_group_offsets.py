"""DescribeShareGroupOffsets: where share groups stand, and from version 1 how many records are left."""

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from headrace.broker.errors import ApiError
from headrace.broker.groups.share.assignor import by_topic
from headrace.broker.groups.share.offsets import describe
from headrace.broker.topics import Topic
from headrace.broker.wire.handlers import RequestContext
from headrace.broker.wire.requests import failure

if TYPE_CHECKING:
    from headrace.broker.server import Broker


async def handle(broker: "Broker", request: SimpleNamespace, context: RequestContext) -> dict[str, Any]:
    return {"groups": [_group(broker, asked) for asked in request.groups]}


def _group(broker: "Broker", asked: SimpleNamespace) -> dict[str, Any]:
    answer: dict[str, Any] = {"group_id": asked.group_id}
    try:
        group = broker.groups.share.known(asked.group_id)
    except ApiError as error:
        return answer | failure(error)
    wanted: list[tuple[str, Topic | None, list[int]]] = []
    if asked.topics is None:
        for topic_id, partitions in by_topic(() if group is None else group.partitions).items():
            topic = broker.topics.by_id(topic_id)
            if topic is not None:
                wanted.append((topic.name, topic, partitions))
    else:
        wanted = [(t.topic_name, broker.topics.get(t.topic_name), t.partitions) for t in asked.topics]
    answer["topics"] = [
        {
            "topic_name": name,
            **({} if topic is None else {"topic_id": topic.id}),
            "partitions": [
                {
                    "partition_index": offset.partition,
                    "start_offset": offset.start,
                    "leader_epoch": offset.leader_epoch,
                    "lag": offset.lag,
                }
                for offset in describe(group, topic, partitions)
            ],
        }
        for name, topic, partitions in wanted
    ]
    return answer
