"""Fetch: whole batches from the log's files to the socket, at once or as soon as enough is there."""

import asyncio
import logging
import struct
from types import SimpleNamespace
from typing import TYPE_CHECKING

from headrace.broker.errors import ApiError, ErrorCode
from headrace.broker.storage.aborted import Aborted
from headrace.broker.storage.partition import Partition
from headrace.broker.storage.reading import NotReady, Slice, read
from headrace.broker.wire.codec import RequestHeader
from headrace.broker.wire.writers import compact_length

if TYPE_CHECKING:
    from headrace.broker.wire.connection import Connection, Parts

logger = logging.getLogger(__name__)

_INT32 = struct.Struct(">i")
_INT16 = struct.Struct(">h")
_PLACE = struct.Struct(">ihqq")  # partition, error, high watermark, last stable offset
_ABORTED = struct.Struct(">qq")
_DIVERGING = struct.Struct(">iq")
_INT64 = struct.Struct(">q")
_FLEXIBLE_FROM = 12
_TOPIC_IDS_FROM = 13
_READ_COMMITTED = 1
_NO_PREFERRED_REPLICA = _INT32.pack(-1)


class Found:
    """What is answered for one partition."""

    __slots__ = ("aborted", "diverging", "error", "high_watermark", "index", "log_start", "slice", "stable")

    def __init__(self, index: int) -> None:
        self.index = index
        self.error = 0
        self.high_watermark = self.stable = self.log_start = -1
        self.aborted: list[Aborted] | None = None
        self.diverging: tuple[int, int] | None = None
        self.slice: Slice | None = None


class Fetch:
    def __init__(self, connection: "Connection", header: RequestHeader, request: SimpleNamespace) -> None:
        self._connection = connection
        self._broker = connection.broker
        self._header = header
        self._request = request
        self._answer = connection.promise()
        self._committed = request.isolation_level == _READ_COMMITTED
        self._waiting_on: list[Partition] = []
        self._timer: asyncio.TimerHandle | None = None
        self._preparing: asyncio.Task[None] | None = None
        self._finished = False

    def begin(self) -> None:
        request = self._request
        if request.session_id or request.session_epoch > 0:
            # Sessions are never handed out, so nobody can be in one.
            code = ErrorCode.FETCH_SESSION_ID_NOT_FOUND if request.session_id else ErrorCode.INVALID_FETCH_SESSION_EPOCH
            self._respond([], code)
            return
        if self._try():
            return
        self._timer = asyncio.get_running_loop().call_later(request.max_wait / 1000, self.finish)
        for topic in request.topics:
            for wanted in topic.partitions:
                partition = self._partition(topic, wanted.partition)
                if partition is not None:
                    partition.waiters[self] = None
                    self._waiting_on.append(partition)

    def wake(self) -> None:
        """A partition changed: answer if there are enough bytes now."""
        if not self._finished and self._preparing is None:
            self._try_or_close()

    def finish(self) -> None:
        """The wait is over: answer with the records there are."""
        if not self._finished and self._preparing is None:
            self._try_or_close(at_once=True)

    def abandon(self) -> None:
        """The connection is gone."""
        self._finished = True
        if self._preparing is not None:
            self._preparing.cancel()
        self._stop_waiting()

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for partition in self._waiting_on:
            partition.waiters.pop(self, None)
        self._waiting_on.clear()

    def _try_or_close(self, at_once: bool = False) -> None:
        """Called from a commit or a timer, which must continue if one reader fails."""
        try:
            self._try(at_once)
        except Exception:
            logger.exception("a fetch could not be answered: closing its connection")
            self._connection.close()

    def _try(self, at_once: bool = False) -> bool:
        """Answer if there are enough bytes; True also while they are being read from the disk."""
        try:
            topics, size, urgent = self._collect()
        except NotReady as missing:
            self._preparing = asyncio.create_task(self._prepare(missing))
            return True
        request = self._request
        if at_once or urgent or size >= request.min_bytes or request.max_wait <= 0:
            self._respond(topics)
            return True
        return False

    async def _prepare(self, missing: NotReady) -> None:
        try:
            await missing.prepare()
        except (ApiError, OSError) as error:
            logger.warning("a fetch could not read the log: %s", error)
        self._preparing = None
        if not self._finished:
            # Whatever was missing is there now or its partition is offline: answer rather than wait for more.
            self._try_or_close(at_once=True)

    def _partition(self, topic: SimpleNamespace, index: int) -> Partition | None:
        topics = self._broker.topics
        by_id = self._header.api_version >= _TOPIC_IDS_FROM
        found = topics.by_id(topic.topic_id) if by_id else topics.get(topic.topic)
        if found is None or not 0 <= index < len(found.partitions):
            return None
        return found.partitions[index]

    def _collect(self) -> tuple[list[tuple[SimpleNamespace, list[Found]]], int, bool]:
        """What each partition has; how many bytes; and whether the response must be sent at once."""
        left = min(self._request.max_bytes, self._broker.settings.fetch_max_bytes)
        size = 0
        urgent = not self._request.topics
        answer = []
        missing = []
        for topic in self._request.topics:
            places = []
            for wanted in topic.partitions:
                found = Found(wanted.partition)
                places.append(found)
                try:
                    self._look(topic, wanted, found, left, at_least_one=size == 0)
                except NotReady as not_ready:
                    missing.append(not_ready)
                    left -= wanted.partition_max_bytes
                except ApiError as error:
                    found.error = error.code
                except OSError as error:
                    logger.error("%s-%s could not be read: %s", topic.topic, wanted.partition, error)
                    found.error = ErrorCode.KAFKA_STORAGE_ERROR
                if found.slice is not None:
                    size += found.slice.length
                    left -= found.slice.length
                urgent = urgent or bool(found.error) or found.diverging is not None
            answer.append((topic, places))
        if missing:
            raise NotReady(lambda: prepare_all(missing))
        return answer, size, urgent

    def _look(
        self, topic: SimpleNamespace, wanted: SimpleNamespace, found: Found, left: int, at_least_one: bool
    ) -> None:
        partition = self._partition(topic, wanted.partition)
        if partition is None:
            by_id = self._header.api_version >= _TOPIC_IDS_FROM and self._broker.topics.by_id(topic.topic_id) is None
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        partition.check_online()
        partition.check_epoch(wanted.current_leader_epoch)
        offset = wanted.fetch_offset
        found.high_watermark = partition.high_watermark
        found.stable = partition.last_stable_offset
        found.log_start = partition.log_start
        if wanted.last_fetched_epoch >= 0:
            epoch, end = partition.epoch_end(wanted.last_fetched_epoch)
            if epoch < wanted.last_fetched_epoch or end < offset:
                found.diverging = (epoch, end)
                return
        if not partition.log_start <= offset <= partition.log_end:
            raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE)
        limit = found.stable if self._committed else found.high_watermark
        if left > 0 or at_least_one:
            max_bytes = min(wanted.partition_max_bytes, max(left, 0))
            found.slice = read(partition, offset, limit, max_bytes, at_least_one)
        if self._committed:
            found.aborted = partition.aborted_between(offset, limit) if found.slice is not None else []

    def _respond(self, topics: list[tuple[SimpleNamespace, list[Found]]], error: int = 0) -> None:
        self._finished = True
        self._stop_waiting()
        self._answer.send(response(self._header, topics, error))
        self._connection.done()


async def prepare_all(missing: list[NotReady]) -> None:
    """Read several partitions from the disk concurrently."""
    await asyncio.gather(*(one.prepare() for one in missing), return_exceptions=True)


def response(header: RequestHeader, topics: list[tuple[SimpleNamespace, list[Found]]], error: int) -> "Parts":
    """The frame of the answer: its own bytes, and slices of files."""
    version = header.api_version
    flexible = version >= _FLEXIBLE_FROM
    out = bytearray(4)  # the size comes last
    parts: Parts = []
    sliced = 0
    out += _INT32.pack(header.correlation_id)
    if flexible:
        out.append(0)
    out += b"\x00\x00\x00\x00"  # no throttling
    if version >= 7:
        out += _INT16.pack(error) + b"\x00\x00\x00\x00"  # no session
    out += _length(len(topics), flexible)
    for topic, places in topics:
        if version >= _TOPIC_IDS_FROM:
            out += topic.topic_id.bytes
        else:
            name = topic.topic.encode()
            out += _length(len(name), True) if flexible else _INT16.pack(len(name))
            out += name
        out += _length(len(places), flexible)
        for found in places:
            out += _PLACE.pack(found.index, found.error, found.high_watermark, found.stable)
            if version >= 5:
                out += _INT64.pack(found.log_start)
            if found.aborted is None:
                out += b"\x00" if flexible else b"\xff\xff\xff\xff"
            else:
                out += _length(len(found.aborted), flexible)
                for entry in found.aborted:
                    out += _ABORTED.pack(entry.producer_id, entry.first_offset)
                    if flexible:
                        out.append(0)
            if version >= 11:
                out += _NO_PREFERRED_REPLICA
            size = found.slice.length if found.slice is not None else 0
            out += _length(size, flexible)
            if found.slice is not None:
                parts += (bytes(out), found.slice)
                sliced += size
                out.clear()
            if flexible:
                out += _diverging(found.diverging)
        if flexible:
            out.append(0)
    if flexible:
        out.append(0)
    if out:
        parts.append(bytes(out))
    first = parts[0]
    assert isinstance(first, bytes)
    written = sum(len(part) for part in parts if isinstance(part, bytes))
    parts[0] = _INT32.pack(written + sliced - 4) + first[4:]
    return parts


def _diverging(epoch: tuple[int, int] | None) -> bytes:
    """The tagged fields of a partition: where the reader's log and this one diverge, if they do."""
    if epoch is None:
        return b"\x00"
    body = _DIVERGING.pack(*epoch) + b"\x00"
    return b"\x01\x00" + bytes([len(body)]) + body


def _length(count: int, flexible: bool) -> bytes:
    return compact_length(count) if flexible else _INT32.pack(count)
