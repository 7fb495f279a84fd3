"""Produce: batches from the socket's buffer into the log, their headers alone parsed, answered once synced."""

import asyncio
import logging
import struct
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from headrace.broker.settings import TopicConfig
from headrace.broker.storage.batch import (
    HEADER_SIZE,
    NO_TIMESTAMP,
    Batch,
    check_produced,
    parse_header,
    stamp_append_time,
    with_records,
)
from headrace.broker.storage.codecs import CODECS, UndecodableError, compress, decompress
from headrace.broker.storage.partition import Partition
from headrace.broker.topics import Topic
from headrace.broker.wire.codec import MalformedRequest, RequestHeader
from headrace.broker.wire.errors import ApiError, ErrorCode
from headrace.broker.wire.readers import read_nullable_string, read_varint, skip_tagged_fields
from headrace.broker.wire.writers import compact_length

if TYPE_CHECKING:
    from headrace.broker.wire.connection import Answer, Connection

logger = logging.getLogger(__name__)

_ACKS_AND_TIMEOUT = struct.Struct(">hi")
_INT32 = struct.Struct(">i")
_INT16 = struct.Struct(">h")
_RECORDS = struct.Struct(">ii")  # partition, length of the records
_RESULT = struct.Struct(">ihqq")  # partition, error, base offset, append time
_RESULT_WITH_START = struct.Struct(">ihqqq")
_FLEXIBLE_FROM = 9
_ABORTABLE_FROM = 11
_TOPIC_IDS_FROM = 13
_NO_OFFSET = -1


class Sent(NamedTuple):
    """What a request holds for one partition."""

    partition: int
    records: memoryview


class SentTopic(NamedTuple):
    key: bytes  # the topic's name or id as it stood in the request, to be echoed
    name: str | None
    id: UUID | None
    partitions: list[Sent]


class Result:
    """What is answered for one partition."""

    __slots__ = ("append_time", "base_offset", "error", "log_start", "message", "partition")

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.error = 0
        self.base_offset = _NO_OFFSET
        self.append_time = NO_TIMESTAMP
        self.log_start = _NO_OFFSET
        self.message: str | None = None

    def fail(self, error: ApiError) -> None:
        self.error = error.code
        self.message = error.message
        self.base_offset = _NO_OFFSET


class Produce:
    def __init__(self, connection: "Connection", header: RequestHeader, frame: memoryview) -> None:
        self._connection = connection
        self._broker = connection.broker
        self._header = header
        self._version = header.api_version
        self._transactional_id, self._acks, self._topics = parse(frame, header.body_offset, header.api_version)
        self._answer: Answer | None = connection.promise() if self._acks else None
        self._results: list[tuple[bytes, list[Result]]] = []
        self._unsynced = 1  # one for the request itself, so that nothing is answered before all is appended

    def begin(self) -> None:
        if any(self._must_recompress(topic) for topic in self._topics):
            # The buffer is the socket's: what outlives this call is copied.
            self._topics = [
                topic._replace(
                    partitions=[Sent(sent.partition, memoryview(bytearray(sent.records))) for sent in topic.partitions]
                )
                for topic in self._topics
            ]
            self._connection.serve_in_order(self._recompress_and_append())
        else:
            self._append_all({})

    def _must_recompress(self, topic: SentTopic) -> bool:
        found = self._find(topic)
        return found is not None and found.config.compression_type != "producer"

    def _find(self, topic: SentTopic) -> Topic | None:
        if topic.id is not None:
            return self._broker.topics.by_id(topic.id)
        assert topic.name is not None
        return self._broker.topics.get(topic.name)

    async def _recompress_and_append(self) -> None:
        recompressed: dict[tuple[bytes, int], memoryview | ApiError] = {}
        for topic in self._topics:
            found = self._find(topic)
            if found is None or found.config.compression_type == "producer":
                continue
            for sent in topic.partitions:
                try:
                    batch = check_produced(sent.records, self._version)
                    codec = CODECS[found.config.compression_type]
                    if batch.codec != codec:
                        recompressed[topic.key, sent.partition] = await asyncio.to_thread(
                            _recompress, sent.records, batch, codec
                        )
                except ApiError as error:
                    recompressed[topic.key, sent.partition] = error
        self._append_all(recompressed)

    def _append_all(self, recompressed: "dict[tuple[bytes, int], memoryview | ApiError]") -> None:
        for topic in self._topics:
            results = []
            for sent in topic.partitions:
                result = Result(sent.partition)
                results.append(result)
                try:
                    records = recompressed.get((topic.key, sent.partition), sent.records)
                    if isinstance(records, ApiError):
                        raise records
                    self._append(topic, sent.partition, records, result)
                except ApiError as error:
                    result.fail(error)
            self._results.append((topic.key, results))
        self._synced(None)

    def _append(self, topic: SentTopic, index: int, records: memoryview, result: Result) -> None:
        if self._acks not in (-1, 0, 1):
            raise ApiError(ErrorCode.INVALID_REQUIRED_ACKS, f"acks must be -1, 0 or 1, not {self._acks}")
        partition = self._partition(topic, index)
        config = partition.config
        batch = check_produced(records, self._version)
        if len(records) > config.max_message_bytes:
            raise ApiError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"the batch of {len(records)} bytes is larger than max.message.bytes ({config.max_message_bytes})",
            )
        if self._acks == -1 and config.min_insync_replicas > 1:
            raise ApiError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"min.insync.replicas is {config.min_insync_replicas}, and there is one replica",
            )
        if batch.transactional:
            self._check_transaction(batch, partition)
        now = self._broker.clock.wall_ms()
        if config.message_timestamp_type == "LogAppendTime":
            stamp_append_time(records, now)
            batch = parse_header(records)
            result.append_time = now
        else:
            _check_times(batch, config, now)
        base_offset = partition.log_end
        written = partition.append(records, batch)
        if written is None:
            end = partition.log_end
        else:
            base_offset, end = written.base_offset, written.next_offset
            if config.message_timestamp_type == "LogAppendTime":
                result.append_time = written.timestamp
        result.base_offset = base_offset
        result.log_start = partition.log_start
        self._unsynced += 1
        if end > partition.high_watermark:
            partition.when_synced(end, lambda error: self._partition_synced(result, error))
        else:
            self._unsynced -= 1

    def _check_transaction(self, batch: Batch, partition: Partition) -> None:
        try:
            self._broker.transactions.check_produce(
                self._transactional_id, batch.producer_id, batch.producer_epoch, partition.topic_name, partition.index
            )
        except ApiError as error:
            if error.code is ErrorCode.INVALID_TXN_STATE and self._version >= _ABORTABLE_FROM:
                raise ApiError(ErrorCode.TRANSACTION_ABORTABLE, error.message) from error
            raise

    def _partition(self, topic: SentTopic, index: int) -> Partition:
        found = self._find(topic)
        if found is None and topic.id is not None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID)
        if found is None or not 0 <= index < len(found.partitions):
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return found.partitions[index]

    def _partition_synced(self, result: Result, error: ApiError | None) -> None:
        if error is not None:
            result.fail(error)
        self._synced(error)

    def _synced(self, _: ApiError | None) -> None:
        self._unsynced -= 1
        if self._unsynced:
            return
        if self._answer is not None:
            self._answer.send([response(self._header, self._results)])
        elif any(result.error for _, results in self._results for result in results):
            # A producer that wants no answer learns of an error by losing its connection.
            self._connection.close()


def _check_times(batch: Batch, config: TopicConfig, now: int) -> None:
    earliest, latest = now - config.message_timestamp_before_max_ms, now + config.message_timestamp_after_max_ms
    for timestamp in (batch.base_timestamp, batch.max_timestamp):
        if timestamp != NO_TIMESTAMP and not earliest <= timestamp <= latest:
            raise ApiError(ErrorCode.INVALID_TIMESTAMP, f"timestamp {timestamp} is not between {earliest} and {latest}")


def _recompress(records: memoryview, batch: Batch, codec: int) -> memoryview:
    try:
        plain = decompress(batch.codec, records[HEADER_SIZE:])
    except UndecodableError as error:
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, f"the batch cannot be decompressed: {error}") from error
    return memoryview(with_records(batch, compress(codec, plain), codec))


def parse(frame: memoryview, offset: int, version: int) -> tuple[str | None, int, list[SentTopic]]:
    """Transactional id, acks, and the records by topic and partition, as views of the frame."""
    try:
        return _parse_flexible(frame, offset, version) if version >= _FLEXIBLE_FROM else _parse_plain(frame, offset)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise MalformedRequest("the produce request is truncated or malformed") from error


def _parse_plain(frame: memoryview, offset: int) -> tuple[str | None, int, list[SentTopic]]:
    transactional_id, offset = read_nullable_string(frame, offset)
    acks, _ = _ACKS_AND_TIMEOUT.unpack_from(frame, offset)
    (topic_count,) = _INT32.unpack_from(frame, offset + 6)
    offset += 10
    topics = []
    for _ in range(topic_count):
        (length,) = _INT16.unpack_from(frame, offset)
        if length < 0:
            raise IndexError
        key = bytes(frame[offset : offset + 2 + length])
        offset += 2 + length
        (partition_count,) = _INT32.unpack_from(frame, offset)
        offset += 4
        partitions = []
        for _ in range(partition_count):
            index, size = _RECORDS.unpack_from(frame, offset)
            offset += 8
            size = max(size, 0)
            if offset + size > len(frame):
                raise IndexError
            partitions.append(Sent(index, frame[offset : offset + size]))
            offset += size
        topics.append(SentTopic(key, key[2:].decode(), None, partitions))
    return transactional_id, acks, topics


def _parse_flexible(frame: memoryview, offset: int, version: int) -> tuple[str | None, int, list[SentTopic]]:
    length, offset = read_varint(frame, offset)
    transactional_id = str(frame[offset : offset + length - 1], "utf-8") if length else None
    offset += max(length - 1, 0)
    acks, _ = _ACKS_AND_TIMEOUT.unpack_from(frame, offset)
    topic_count, offset = read_varint(frame, offset + 6)
    topics = []
    for _ in range(topic_count - 1):
        start = offset
        name = topic_id = None
        if version >= _TOPIC_IDS_FROM:
            offset += 16
            topic_id = UUID(bytes=bytes(frame[start:offset]))
        else:
            length, text = read_varint(frame, offset)
            if not length:
                raise IndexError
            offset = text + length - 1
            name = str(frame[text:offset], "utf-8")
        key = bytes(frame[start:offset])
        partition_count, offset = read_varint(frame, offset)
        partitions = []
        for _ in range(partition_count - 1):
            (index,) = _INT32.unpack_from(frame, offset)
            length, offset = read_varint(frame, offset + 4)
            size = max(length - 1, 0)
            if offset + size > len(frame):
                raise IndexError
            partitions.append(Sent(index, frame[offset : offset + size]))
            offset = skip_tagged_fields(frame, offset + size)
        offset = skip_tagged_fields(frame, offset)
        topics.append(SentTopic(key, name, topic_id, partitions))
    return transactional_id, acks, topics


def response(header: RequestHeader, topics: list[tuple[bytes, list[Result]]]) -> bytes:
    """The whole frame of the answer."""
    version = header.api_version
    flexible = version >= _FLEXIBLE_FROM
    out = [b"", _INT32.pack(header.correlation_id)]
    if flexible:
        out.append(b"\x00")
    out.append(_length(len(topics), flexible))
    for key, results in topics:
        out += (key, _length(len(results), flexible))
        for result in results:
            fields = (result.partition, result.error, result.base_offset, result.append_time)
            if version >= 5:
                out.append(_RESULT_WITH_START.pack(*fields, result.log_start))
            else:
                out.append(_RESULT.pack(*fields))
            if version >= 8:
                out.append(_length(0, flexible))  # no single record is ever blamed
                out.append(_nullable(result.message, flexible))
            if flexible:
                out.append(b"\x00")
        if flexible:
            out.append(b"\x00")
    out.append(b"\x00\x00\x00\x00\x00" if flexible else b"\x00\x00\x00\x00")  # no throttling, no tagged fields
    out[0] = _INT32.pack(sum(map(len, out)))
    return b"".join(out)


def _length(count: int, flexible: bool) -> bytes:
    return compact_length(count) if flexible else _INT32.pack(count)


def _nullable(text: str | None, flexible: bool) -> bytes:
    if text is None:
        return b"\x00" if flexible else b"\xff\xff"
    data = text.encode()
    return (compact_length(len(data)) if flexible else _INT16.pack(len(data))) + data
