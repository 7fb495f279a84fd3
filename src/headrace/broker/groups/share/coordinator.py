"""The coordinator of share groups: their members, and the records these acquire and acknowledge."""

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING
from uuid import UUID

from headrace.broker.clock import Clock
from headrace.broker.errors import ApiError, ErrorCode
from headrace.broker.group_settings import BY_DURATION, EARLIEST, LATEST, GroupConfig, duration_ms
from headrace.broker.groups.configs import GroupConfigs
from headrace.broker.groups.offsets import Settlement
from headrace.broker.groups.registry import Group, Kind, Registry
from headrace.broker.groups.share import records
from headrace.broker.groups.share.assignor import Place
from headrace.broker.groups.share.group import ShareGroup, ShareMember
from headrace.broker.groups.share.partition import SharePartition
from headrace.broker.groups.share.sessions import Sessions
from headrace.broker.groups.share.window import Ack, Stored, Window, check_acks
from headrace.broker.groups.share.writer import Writer
from headrace.broker.groups.timers import Timer
from headrace.broker.settings import BrokerSettings
from headrace.broker.storage.partition import Partition
from headrace.broker.storage.reading import offset_for_timestamp
from headrace.broker.store import Store, StoreError

if TYPE_CHECKING:
    from headrace.broker.topics import Topics

log = logging.getLogger(__name__)

JOINING, LEAVING = 0, -1


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatRequest:
    group_id: str
    member_id: str
    epoch: int
    rack_id: str | None = None
    topics: frozenset[str] | None = None
    """None: those it named before."""
    client_id: str = ""
    client_host: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatAnswer:
    member_id: str
    epoch: int
    interval_ms: int
    assigned: frozenset[Place] | None = None
    """None: what it was told before."""


class ShareGroups(Kind):
    def __init__(
        self,
        registry: Registry,
        store: Store,
        settings: BrokerSettings,
        clock: Clock,
        topics: "Topics",
        configs: GroupConfigs,
    ) -> None:
        self._registry = registry
        self._store = store
        self._settings = settings
        self._clock = clock
        self._topics = topics
        self._configs = configs
        self._loop = asyncio.get_running_loop()
        self._writer = Writer(store)
        self.sessions = Sessions(settings.group_share_max_share_sessions)

    def load(self) -> list[ShareGroup]:
        """To be called after the topics are loaded."""
        groups: dict[str, ShareGroup] = {}
        for record in self._store.load(records.load_groups):
            group = groups[record.group_id] = ShareGroup(record.group_id)
            group.epoch = record.epoch
            for known in record.members:
                member = self._new_member(
                    group, known.member_id, known.rack_id, known.client_id, known.client_host, frozenset(known.topics)
                )
                # It was told the group's epoch, or the broker stopped before it was.
                member.epoch, member.previous_epoch = group.epoch, known.epoch
                member.assigned = frozenset(known.assigned)
                member.session.set(self._configs.of(group.group_id).share_session_timeout_ms)
        for row in self._store.load(records.load_partitions):
            owner = groups.get(row.group_id)
            log = self._log((row.topic_id, row.partition))
            if owner is not None and log is not None:
                self._open(owner, log, row.stored, row.state_epoch)
        return list(groups.values())

    def close(self) -> None:
        """Nobody waits here: long polls are answered by their connections."""

    def expire(self, group: Group) -> None:
        """Nothing does, as in Kafka: the group may be worked on again, and must know what is done."""

    def forget(self, group: Group) -> Settlement:
        assert isinstance(group, ShareGroup)

        def apply() -> None:
            for key in self.sessions.of_group(group.group_id):
                self.sessions.end(key)

        return Settlement(partial(records.delete_group, group_id=group.group_id), apply)

    # Members

    async def heartbeat(self, request: HeartbeatRequest) -> HeartbeatAnswer:
        self._check_open(request)
        if request.epoch == LEAVING:
            return await self._leave(request)
        group = self.known(request.group_id)
        if group is None:
            if request.epoch != JOINING:
                # Not GROUP_ID_NOT_FOUND: clients take that for fatal, and this makes them join again.
                raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
            group = ShareGroup(request.group_id)
        member, changed = self._member(group, request)
        self._registry.put(group)
        config = self._config(group)
        member.session.set(config.share_session_timeout_ms)
        if self._refresh(group, changed=changed):
            await self._save(group)
        # Of whole topics: another member may get a part of them meanwhile, which must not count as a new partition.
        await self._start_all(group, [place for topic in member.topics for place in self._places(topic)])
        member.take_up(group.epoch)
        full = request.epoch != member.epoch or request.topics is not None
        return HeartbeatAnswer(
            member_id=member.member_id,
            epoch=member.epoch,
            interval_ms=config.share_heartbeat_interval_ms,
            assigned=member.assigned if full else None,
        )

    def _check_open(self, request: HeartbeatRequest) -> None:
        if self._registry.closed:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if not request.group_id:
            raise ApiError(ErrorCode.INVALID_REQUEST, "GroupId can't be empty.")
        if not request.member_id:
            raise ApiError(ErrorCode.INVALID_REQUEST, "MemberId can't be empty.")
        if request.epoch < LEAVING:
            raise ApiError(ErrorCode.INVALID_REQUEST, "MemberEpoch is invalid.")
        if request.epoch == JOINING and request.topics is None:
            raise ApiError(ErrorCode.INVALID_REQUEST, "SubscribedTopicNames must be set in first request.")

    def _member(self, group: ShareGroup, request: HeartbeatRequest) -> tuple[ShareMember, bool]:
        """The member that sends a heartbeat, and whether it is new or changed."""
        known = group.members.get(request.member_id)
        if request.epoch != JOINING:
            member = group.require(request.member_id)
            member.check_epoch(request.epoch)
        elif known is not None:
            member = known
        else:
            if len(group.members) >= self._settings.group_share_max_size:
                raise ApiError(ErrorCode.GROUP_MAX_SIZE_REACHED)
            assert request.topics is not None
            member = self._new_member(
                group, request.member_id, request.rack_id, request.client_id, request.client_host, request.topics
            )
            return member, True
        changed = request.topics is not None and request.topics != member.topics
        if request.topics is not None:
            member.topics = request.topics
        return member, changed

    def _new_member(
        self,
        group: ShareGroup,
        member_id: str,
        rack_id: str | None,
        client_id: str,
        client_host: str,
        topics: frozenset[str],
    ) -> ShareMember:
        member = ShareMember(member_id, rack_id, client_id, client_host, topics)
        member.session = Timer(self._loop, partial(self._session_over, group, member))
        group.members[member_id] = member
        return member

    async def _leave(self, request: HeartbeatRequest) -> HeartbeatAnswer:
        group = self.group(request.group_id)
        member = group.require(request.member_id)
        await asyncio.shield(self._remove(group, member))
        return HeartbeatAnswer(member_id=member.member_id, epoch=LEAVING, interval_ms=0)

    def _session_over(self, group: ShareGroup, member: ShareMember) -> None:
        if group.members.get(member.member_id) is member:
            log.info("share group %s: member %s has fallen silent", group.group_id, member.member_id)
            self._remove(group, member)

    def _remove(self, group: ShareGroup, member: ShareMember) -> "asyncio.Future[None]":
        """Take a member out: the others get what it held at once. Done once that is durable."""
        member.session.cancel()
        del group.members[member.member_id]
        for partition in group.partitions.values():
            partition.release(member.member_id)
        self._refresh(group, changed=True)
        return self._save(group)

    def _refresh(self, group: ShareGroup, *, changed: bool) -> bool:
        """Assign anew if the members or their topics are different; whether the assignment is."""
        if not changed and group.topics_version == self._topics.version:
            return False
        group.topics_version = self._topics.version
        return group.reassign(self._places, changed=changed)

    def _places(self, topic_name: str) -> frozenset[Place]:
        topic = self._topics.get(topic_name)
        return frozenset() if topic is None else frozenset((topic.id, log.index) for log in topic.partitions)

    def _save(self, group: ShareGroup) -> "asyncio.Future[None]":
        record = group.record()

        def log_failure(saved: "asyncio.Future[None]") -> None:
            if saved.exception() is not None:
                log.warning("share group %s could not be stored: %s", group.group_id, saved.exception())

        saved = self._store.write(lambda connection: records.save_group(connection, record))
        saved.add_done_callback(log_failure)
        return saved

    # Partitions

    def _config(self, group: ShareGroup) -> GroupConfig:
        return self._configs.of(group.group_id)

    def _open(self, group: ShareGroup, log: Partition, stored: Stored, state_epoch: int) -> SharePartition:
        partition = SharePartition(
            log,
            Window(*stored),
            partial(self._config, group),
            partial(self._writer.changed, group.group_id),
            state_epoch,
        )
        group.partitions[log.topic_id, log.index] = partition
        return partition

    def restart(self, group: ShareGroup, log: Partition, stored: Stored, state_epoch: int) -> "asyncio.Future[None]":
        """Let a partition of the group begin anew; done once that is durable."""
        return self._writer.changed(group.group_id, self._open(group, log, stored, state_epoch))

    def write(self, change: Callable[[sqlite3.Connection], None]) -> "asyncio.Future[None]":
        return self._store.write(change)

    async def _start_all(self, group: ShareGroup, places: Collection[Place]) -> None:
        """Give a start offset to each of these partitions that has none yet; durable when it returns."""
        if all(place in group.partitions for place in places):
            return
        async with group.starting:
            begun = {topic_id for topic_id, _ in group.partitions}
            new = []
            for place in places:
                log = self._log(place)
                if place in group.partitions or log is None:
                    continue
                # Partitions added to a topic the group already reads are new: all in them is to be delivered.
                start = log.log_start if place[0] in begun else await self._first_offset(group, log)
                if place not in group.partitions and not log.deleted:
                    new.append(self._open(group, log, Stored(start, b"", b""), 0))
            try:
                for durable in [self._writer.changed(group.group_id, partition) for partition in new]:
                    await asyncio.shield(durable)
            except StoreError:
                # A start that is not durable would be another one after a crash: it is looked for again.
                for partition in new:
                    partition.close()
                    group.partitions.pop((partition.log.topic_id, partition.log.index), None)
                raise

    async def _first_offset(self, group: ShareGroup, log: Partition) -> int:
        reset = self._config(group).share_auto_offset_reset
        if reset == EARLIEST:
            return log.log_start
        if reset == LATEST:
            return log.high_watermark
        age_ms = duration_ms(reset.removeprefix(BY_DURATION))
        assert age_ms is not None, "checked when it was set"
        found = await offset_for_timestamp(log, self._clock.wall_ms() - age_ms)
        return log.high_watermark if found is None else found.offset

    def _log(self, place: Place) -> Partition | None:
        topic = self._topics.by_id(place[0])
        return topic.partitions[place[1]] if topic is not None and 0 <= place[1] < len(topic.partitions) else None

    def forget_topic(self, name: str) -> Settlement:
        """The topic is deleted, and what the groups know of it with it."""
        topic = self._topics.get(name)
        topic_id = UUID(int=0) if topic is None else topic.id

        def apply() -> None:
            for group in self._registry.of_kind(ShareGroup):
                for place in [place for place in group.partitions if place[0] == topic_id]:
                    group.partitions.pop(place).close()

        return Settlement(lambda connection: records.delete_topic(connection, topic_id), apply)

    # Records

    def group(self, group_id: str) -> ShareGroup:
        group = self.known(group_id)
        if group is None:
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
        return group

    async def create(self, group_id: str) -> ShareGroup:
        """A group without members, durable when it returns."""
        group = ShareGroup(group_id)
        self._registry.put(group)
        await asyncio.shield(self._save(group))
        return group

    def known(self, group_id: str) -> ShareGroup | None:
        """The group, if there is one; raises ApiError where the name is of a group of another kind."""
        group = self._registry.find(group_id, ShareGroup)
        if group is not None and group.is_dead:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return group

    def unstarted(self, group: ShareGroup, places: Iterable[Place]) -> list[Place]:
        """Those of these partitions that exist and have no start offset yet."""
        return [place for place in places if place not in group.partitions and self._log(place) is not None]

    async def start(self, group: ShareGroup, places: Collection[Place]) -> None:
        await self._start_all(group, places)

    def partition(self, group: ShareGroup, place: Place) -> SharePartition:
        """The partition of a place that was started, or the ApiError that tells why there is none."""
        partition = group.partitions.get(place)
        if partition is None:
            known = self._topics.by_id(place[0]) is not None
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if known else ErrorCode.UNKNOWN_TOPIC_ID)
        partition.log.check_online()
        return partition

    def acknowledge(
        self, group: ShareGroup, member_id: str, acks: Mapping[Place, Sequence[Ack]], highest_type: int
    ) -> "Acknowledging":
        """Take what a member says of the records it holds, partition by partition: all of one, or nothing of it."""
        codes: dict[Place, ErrorCode] = {}
        durable: dict[Place, asyncio.Future[None]] = {}
        for place, of_place in acks.items():
            codes[place] = ErrorCode.NONE
            try:
                check_acks(of_place, highest_type)
                written = self.partition(group, place).acknowledge(member_id, of_place)
            except ApiError as error:
                codes[place] = error.code
            else:
                if written is not None:
                    durable[place] = written
        return Acknowledging(codes, durable)

    def release(self, group: ShareGroup, member_id: str) -> "list[asyncio.Future[None]]":
        """Give back all that a member holds, wherever."""
        released = (partition.release(member_id) for partition in group.partitions.values())
        return [durable for durable in released if durable is not None]

    def connection_closed(self, connection: int) -> None:
        """A member that is gone with its connection gives back all it holds."""
        for group_id, member_id in self.sessions.connection_closed(connection):
            if not self._registry.closed:
                with suppress(ApiError):  # the group is being deleted
                    self.release(self.group(group_id), member_id)


@dataclass(slots=True)
class Acknowledging:
    """Acknowledgements that were taken, on their way to the store."""

    codes: dict[Place, ErrorCode]
    durable: "dict[Place, asyncio.Future[None]]"

    async def outcome(self) -> dict[Place, ErrorCode]:
        for place, written in self.durable.items():
            try:
                await asyncio.shield(written)
            except StoreError:
                self.codes[place] = ErrorCode.KAFKA_STORAGE_ERROR
        return self.codes
