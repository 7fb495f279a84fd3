"""ListOffsets: the first, the last, or the first at or after a time; never past what a reader may see."""

import logging
from collections import Counter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from headrace.broker.storage.partition import Partition
from headrace.broker.storage.reading import FoundTime, offset_for_timestamp, offset_of_max_timestamp
from headrace.broker.wire.errors import ApiError, ErrorCode
from headrace.broker.wire.handlers import RequestContext

if TYPE_CHECKING:
    from headrace.broker.server import Broker

logger = logging.getLogger(__name__)

LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3
EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = -4, -5, -6
# Since which version each of the times with a meaning of their own may be asked for.
_KNOWN_FROM = {
    LATEST: 1,
    EARLIEST: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
READ_COMMITTED = 1
NOTHING = FoundTime(-1, -1, -1)


async def handle(broker: "Broker", request: SimpleNamespace, context: RequestContext) -> dict[str, Any]:
    times = Counter((topic.name, asked.partition_index) for topic in request.topics for asked in topic.partitions)
    committed_only = request.isolation_level == READ_COMMITTED
    topics = []
    for topic in request.topics:
        answers = []
        for asked in topic.partitions:
            try:
                if times[topic.name, asked.partition_index] > 1:
                    raise ApiError(ErrorCode.INVALID_REQUEST)
                if asked.timestamp < 0 and context.version < _KNOWN_FROM.get(asked.timestamp, 1 << 15):
                    raise ApiError(ErrorCode.UNSUPPORTED_VERSION)
                partition = broker.topics.partition(topic.name, asked.partition_index)
                if partition is None:
                    raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                partition.check_online()
                partition.check_epoch(asked.current_leader_epoch)
                found = await _look_up(partition, asked.timestamp, committed_only)
                answers.append({"partition_index": asked.partition_index, **found._asdict()})
            except ApiError as error:
                answers.append({"partition_index": asked.partition_index, "error_code": error.code})
            except OSError as error:
                logger.error("%s-%d could not be read: %s", topic.name, asked.partition_index, error)
                answers.append({"partition_index": asked.partition_index, "error_code": ErrorCode.KAFKA_STORAGE_ERROR})
        topics.append({"name": topic.name, "partitions": answers})
    return {"topics": topics}


async def _look_up(partition: Partition, timestamp: int, committed_only: bool) -> FoundTime:
    if timestamp == LATEST:
        end = partition.last_stable_offset if committed_only else partition.high_watermark
        return FoundTime(end, -1, partition.leader_epoch)
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return FoundTime(partition.log_start, -1, partition.epoch_at(partition.log_start))
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return NOTHING
    if timestamp == MAX_TIMESTAMP:
        found = await offset_of_max_timestamp(partition)
    else:
        found = await offset_for_timestamp(partition, timestamp)
    # Asked for after the search, whose reading took its time: a marker may have come in between.
    limit = partition.last_stable_offset if committed_only else partition.high_watermark
    return found if found is not None and found.offset < limit else NOTHING
