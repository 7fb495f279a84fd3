"""ShareFetch: acknowledgements in, then records that nobody else holds, at once or as soon as there are any."""

import asyncio
import logging
import struct
from types import SimpleNamespace
from typing import TYPE_CHECKING
from uuid import UUID

from headrace.broker.errors import ApiError, ErrorCode
from headrace.broker.groups.share.assignor import Place
from headrace.broker.groups.share.coordinator import Acknowledging
from headrace.broker.groups.share.partition import Acquired, Plan, SharePartition
from headrace.broker.groups.share.sessions import CLOSING, OPENING, Session
from headrace.broker.storage.reading import NotReady, Slice
from headrace.broker.wire.codec import RequestHeader
from headrace.broker.wire.fetch import prepare_all
from headrace.broker.wire.sharing import acknowledgements, highest_type, session_key
from headrace.broker.wire.writers import compact_length

if TYPE_CHECKING:
    from headrace.broker.wire.connection import Connection, Parts

logger = logging.getLogger(__name__)

_INT32 = struct.Struct(">i")
_INT16 = struct.Struct(">h")
_ERROR = struct.Struct(">ih")
_ACQUIRED = struct.Struct(">qqhx")  # with its empty tagged fields
_NO_LEADER = struct.pack(">iix", -1, -1)
_NULL = b"\x00"


class Found:
    """What is answered for one partition."""

    __slots__ = ("acknowledged", "acquired", "error", "index", "records")

    def __init__(self, index: int) -> None:
        self.index = index
        self.error = ErrorCode.NONE
        self.acknowledged = ErrorCode.NONE
        self.records: Slice | None = None
        self.acquired: list[Acquired] = []


class ShareFetch:
    def __init__(self, connection: "Connection", header: RequestHeader, request: SimpleNamespace) -> None:
        self._connection = connection
        self._share = connection.broker.groups.share
        self._configs = connection.broker.groups.configs
        self._header = header
        self._request = request
        self._answer = connection.promise()
        self._found: dict[Place, Found] = {}
        self._waiting_on: list[SharePartition] = []
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._hurry = False
        self._finished = False
        self._renewing = False
        self._closing = False
        self._released: list[asyncio.Future[None]] = []

    def begin(self) -> None:
        """Take the acknowledgements and acquire what is there, now if nothing has to be waited for."""
        request = self._request
        try:
            self._group_id, self._member_id = key = session_key(request)
            self._group = self._share.group(self._group_id)
            self._session, taken = self._enter(key)
        except ApiError as error:
            # Where there are too many sessions, one that could not be opened is not to be tried again at once.
            wait_ms = request.max_wait if error.code is ErrorCode.SHARE_SESSION_LIMIT_REACHED else 0
            self._timer = asyncio.get_running_loop().call_later(wait_ms / 1000, self._refuse, error)
            return
        unstarted = self._share.unstarted(self._group, self._session.places)
        if taken is not None or unstarted or self._released:
            self._task = asyncio.create_task(self._prepare(taken, unstarted))
        else:
            self._fetch()

    def _enter(self, key: tuple[str, str]) -> tuple[Session, Acknowledging | None]:
        """The session this request is of, and its acknowledgements."""
        request, sessions = self._request, self._share.sessions
        epoch = request.share_session_epoch
        allowed = highest_type(self._connection.broker, self._group_id, request, self._header.api_version)
        self._renewing = self._header.api_version >= 2 and request.is_renew_ack
        if self._renewing and (request.max_wait or request.min_bytes or request.max_bytes or request.max_records):
            raise ApiError(ErrorCode.INVALID_REQUEST, "a request that renews locks fetches nothing")
        acks = acknowledgements(request)
        if epoch == OPENING:
            if acks:
                raise ApiError(ErrorCode.INVALID_REQUEST, "a new session has nothing to acknowledge")
            session = sessions.open(key, self._connection.number)
        elif epoch == CLOSING:
            session = sessions.close(key)
            session.places.clear()
        else:
            session = sessions.next(key, epoch)
        if epoch != CLOSING:
            session.change(
                ((topic.topic_id, p.partition_index) for topic in request.topics for p in topic.partitions),
                ((topic.topic_id, index) for topic in request.forgotten_topics_data for index in topic.partitions),
            )
        taken = self._share.acknowledge(self._group, key[1], acks, allowed) if acks else None
        self._closing = epoch == CLOSING
        if self._closing:
            self._released = self._share.release(self._group, key[1])
        return session, taken

    async def _prepare(self, taken: Acknowledging | None, unstarted: list[Place]) -> None:
        try:
            if unstarted:
                await self._share.start(self._group, unstarted)
            if taken is not None:
                for place, code in (await taken.outcome()).items():
                    self._place(place).acknowledged = code
                self._hurry = True  # the member waits for what became of its acknowledgements
            if self._released:
                await asyncio.wait(self._released)
            self._task = None
            if not self._finished:
                self._fetch()
        except Exception:
            logger.exception("a share fetch could not be answered: closing its connection")
            self._connection.close()

    def _place(self, place: Place) -> Found:
        return self._found.setdefault(place, Found(place[1]))

    # Waiting

    def _fetch(self) -> None:
        if self._closing or self._renewing or not self._session.places:
            self._respond()
        elif not self._try(at_once=self._hurry or self._request.max_wait <= 0):
            self._timer = asyncio.get_running_loop().call_later(self._request.max_wait / 1000, self.finish)
            for place in self._session.places:
                partition = self._group.partitions.get(place)
                if partition is not None:
                    partition.wait(self)
                    self._waiting_on.append(partition)

    def wake(self) -> None:
        """A partition has records again: answer if that is enough."""
        self._try_or_close()

    def finish(self) -> None:
        """Answer with what is there: the time is up."""
        self._hurry = True
        self._try_or_close()

    def abandon(self) -> None:
        """The connection is gone."""
        self._finished = True
        self._stop_waiting()

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for partition in self._waiting_on:
            partition.stop_waiting(self)
        self._waiting_on.clear()

    def _try_or_close(self) -> None:
        if self._finished or self._task is not None:
            return
        try:
            self._try(at_once=self._hurry)
        except Exception:
            logger.exception("a share fetch could not be answered: closing its connection")
            self._connection.close()

    def _try(self, at_once: bool) -> bool:
        """Acquire and answer if there is enough; True also while bytes are brought in from the disk for it."""
        try:
            plans, errors, size = self._plan()
        except NotReady as missing:
            self._task = asyncio.create_task(self._bring_in(missing))
            return True
        if not (at_once or errors or (size and size >= self._request.min_bytes)):
            return False
        for place, partition, plan in plans:
            found = self._place(place)
            found.acquired = partition.take(plan, self._member_id, self._request.batch_size)
            found.records = plan.records
        for place, code in errors.items():
            self._place(place).error = code
        self._respond()
        return True

    async def _bring_in(self, missing: NotReady) -> None:
        try:
            await missing.prepare()
        except (ApiError, OSError) as error:
            logger.warning("a share fetch could not read the log: %s", error)
        self._task = None
        self._hurry = True
        self._try_or_close()

    def _plan(self) -> tuple[list[tuple[Place, SharePartition, Plan]], dict[Place, ErrorCode], int]:
        """What could be acquired of each partition, what went wrong, and how many bytes it is."""
        request, missing = self._request, []
        plans: list[tuple[Place, SharePartition, Plan]] = []
        errors: dict[Place, ErrorCode] = {}
        records, size = 0, 0
        for place in self._rotated():
            try:
                partition = self._share.partition(self._group, place)
                if records >= request.max_records or (records and size >= request.max_bytes):
                    continue
                plan = partition.plan(request.max_records - records, request.max_bytes - size)
            except NotReady as not_ready:
                missing.append(not_ready)
            except ApiError as error:
                errors[place] = error.code
            except OSError as error:
                logger.error("%s-%s could not be read: %s", *place, error)
                errors[place] = ErrorCode.KAFKA_STORAGE_ERROR
            else:
                if plan is not None and plan.records is not None:
                    plans.append((place, partition, plan))
                    records += plan.count
                    size += plan.records.length
        if missing:
            raise NotReady(lambda: prepare_all(missing))
        return plans, errors, size

    def _rotated(self) -> list[Place]:
        """Each request begins with another partition, so that none has to wait for all others to be empty."""
        places = list(self._session.places)
        first = self._session.epoch % len(places)
        return places[first:] + places[:first]

    # Answering

    def _refuse(self, error: ApiError) -> None:
        if self._finished:
            return
        self._finished = True
        self._answer.send(response(self._header, 0, {}, error.code, error.message))
        self._connection.done()

    def _respond(self) -> None:
        self._finished = True
        self._stop_waiting()
        for place, is_new in self._session.places.items():
            if is_new:
                self._place(place)
                self._session.places[place] = False
        lock_ms = self._configs.of(self._group_id).share_record_lock_duration_ms
        self._answer.send(response(self._header, lock_ms, self._found))
        self._connection.done()


def response(
    header: RequestHeader,
    lock_ms: int,
    found: dict[Place, Found],
    error: ErrorCode = ErrorCode.NONE,
    message: str | None = None,
) -> "Parts":
    """The frame of the answer: what is written here, and slices of files."""
    topics: dict[UUID, list[Found]] = {}
    for (topic_id, _), of_place in found.items():
        topics.setdefault(topic_id, []).append(of_place)
    parts: Parts = []
    out = bytearray(4)  # the size comes last
    out += _INT32.pack(header.correlation_id) + b"\x00"
    out += _ERROR.pack(0, error) + _string(message) + _INT32.pack(lock_ms)
    out += compact_length(len(topics))
    for topic_id, places in topics.items():
        out += topic_id.bytes + compact_length(len(places))
        for place in places:
            out += _ERROR.pack(place.index, place.error) + _NULL
            out += _INT16.pack(place.acknowledged) + _NULL + _NO_LEADER
            if place.records is None:
                out += compact_length(0)
            else:
                out += compact_length(place.records.length)
                parts += (bytes(out), place.records)
                out.clear()
            out += compact_length(len(place.acquired))
            for acquired in place.acquired:
                out += _ACQUIRED.pack(*acquired)
            out.append(0)
        out.append(0)
    out += compact_length(0) + b"\x00"  # no other nodes
    parts.append(bytes(out))
    first = parts[0]
    assert isinstance(first, bytes)
    size = sum(part.length if isinstance(part, Slice) else len(part) for part in parts) - 4
    parts[0] = _INT32.pack(size) + first[4:]
    return parts


def _string(text: str | None) -> bytes:
    if text is None:
        return _NULL
    encoded = text.encode()
    return compact_length(len(encoded)) + encoded
