"""Where a share group stands in each partition: told, moved, forgotten."""

import asyncio
import sqlite3
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from headrace.broker.errors import ApiError, ErrorCode
from headrace.broker.groups.share import records
from headrace.broker.groups.share.coordinator import ShareGroups
from headrace.broker.groups.share.group import ShareGroup
from headrace.broker.groups.share.window import Stored
from headrace.broker.storage.partition import Partition

if TYPE_CHECKING:
    from headrace.broker.topics import Topic

UNKNOWN = -1


class ShareOffset(NamedTuple):
    partition: int
    start: int = UNKNOWN
    leader_epoch: int = 0
    lag: int = UNKNOWN
    """How many records are yet to be acknowledged or archived."""


def describe(group: ShareGroup | None, topic: "Topic | None", partitions: Sequence[int]) -> list[ShareOffset]:
    found = []
    for index in partitions:
        known = None if topic is None or group is None else group.partitions.get((topic.id, index))
        if known is None:
            found.append(ShareOffset(index))
        else:
            start, window = max(known.window.start, known.log.log_start), known.window
            lag = max(known.log.high_watermark - start - window.final, 0)
            found.append(ShareOffset(index, start, known.log.leader_epoch, lag))
    return found


async def alter(share: ShareGroups, group_id: str, wanted: Mapping[Partition, int]) -> dict[Partition, ErrorCode]:
    """Let a group without members go on from other offsets; it need not exist yet.

    What was known of the records is forgotten. Late acknowledgements of those who had them fail: the windows are new.
    """
    group = share.known(group_id) or await share.create(group_id)
    _check_empty(group)
    codes: dict[Partition, ErrorCode] = {}
    written = []
    for log, start in wanted.items():
        if start < 0:
            codes[log] = ErrorCode.OFFSET_OUT_OF_RANGE
            continue
        codes[log] = ErrorCode.NONE
        before = group.partitions.get((log.topic_id, log.index))
        state_epoch = 0 if before is None else before.state_epoch + 1
        if before is not None:
            before.close()
        written.append(share.restart(group, log, Stored(start, b"", b""), state_epoch))
    if written:
        await asyncio.gather(*map(asyncio.shield, written))
    return codes


async def delete(share: ShareGroups, group_id: str, topics: "Sequence[Topic]") -> set[UUID]:
    """Let a group without members forget topics: it begins with them anew when a member subscribes to them again.

    The ids of those that it knew are returned.
    """
    group = share.group(group_id)
    _check_empty(group)
    asked = {topic.id for topic in topics}
    topic_ids = {place[0] for place in group.partitions} & asked
    for place in [place for place in group.partitions if place[0] in topic_ids]:
        group.partitions.pop(place).close()

    def write(connection: sqlite3.Connection) -> None:
        for topic_id in topic_ids:
            records.delete_partitions(connection, group_id, topic_id)

    if topic_ids:
        await asyncio.shield(share.write(write))
    return topic_ids


def _check_empty(group: ShareGroup) -> None:
    if group.members:
        raise ApiError(ErrorCode.NON_EMPTY_GROUP)
