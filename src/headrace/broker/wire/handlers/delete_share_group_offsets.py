"""DeleteShareGroupOffsets: let a share group without members forget topics."""

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from headrace.broker.errors import ApiError
from headrace.broker.groups.share.offsets import delete
from headrace.broker.wire.handlers import RequestContext
from headrace.broker.wire.requests import failure, unknown_topic

if TYPE_CHECKING:
    from headrace.broker.server import Broker


async def handle(broker: "Broker", request: SimpleNamespace, context: RequestContext) -> dict[str, Any]:
    found = {topic.topic_name: broker.topics.get(topic.topic_name) for topic in request.topics}
    try:
        topics = [topic for topic in found.values() if topic is not None]
        forgotten = await delete(broker.groups.share, request.group_id, topics)
    except ApiError as error:
        return failure(error)
    return {
        "responses": [
            {
                "topic_name": name,
                **({} if topic is None else {"topic_id": topic.id}),
                **({} if topic is not None and topic.id in forgotten else failure(unknown_topic(name))),
            }
            for name, topic in found.items()
        ]
    }
