"""One share group: its members, and which partitions each of them reads."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from headrace.broker.errors import ApiError, ErrorCode
from headrace.broker.groups.registry import Group
from headrace.broker.groups.share.assignor import Assignment, Place, assign
from headrace.broker.groups.share.partition import SharePartition
from headrace.broker.groups.share.records import GroupRecord, MemberRecord
from headrace.broker.groups.timers import Timer


@dataclass(slots=True, eq=False)
class ShareMember:
    member_id: str
    rack_id: str | None
    client_id: str
    client_host: str
    topics: frozenset[str]
    epoch: int = 0
    previous_epoch: int = -1
    """That of the answer before the last one, which may have been lost."""
    assigned: frozenset[Place] = frozenset()
    session: Timer = field(init=False)

    def check_epoch(self, epoch: int) -> None:
        if epoch not in (self.epoch, self.previous_epoch):
            raise ApiError(ErrorCode.FENCED_MEMBER_EPOCH, f"the member's epoch is {self.epoch}, not {epoch}")

    def take_up(self, epoch: int) -> None:
        if epoch != self.epoch:
            self.previous_epoch, self.epoch = self.epoch, epoch


class ShareGroup(Group):
    kind = "share"

    def __init__(self, group_id: str) -> None:
        super().__init__(group_id)
        self.epoch = 0
        self._dead = False
        self.members: dict[str, ShareMember] = {}
        self.partitions: dict[Place, SharePartition] = {}
        self.topics_version = -1
        """The version of the topics that the assignment was made of."""
        self.starting = asyncio.Lock()
        """Held while start offsets are looked for."""

    # Life

    @property
    def protocol(self) -> str:
        return "share"

    @property
    def state_name(self) -> str:
        if self._dead:
            return "Dead"
        return "Empty" if self.is_empty else "Stable"

    @property
    def is_empty(self) -> bool:
        return not self.members

    @property
    def is_dead(self) -> bool:
        return self._dead

    def die(self) -> None:
        self._dead = True

    def revive(self) -> None:
        self._dead = False

    # Members

    def require(self, member_id: str) -> ShareMember:
        member = self.members.get(member_id)
        if member is None:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
        return member

    def reassign(self, places_of: Callable[[str], frozenset[Place]], *, changed: bool) -> bool:
        """Assign anew; whether anything is different, and a new epoch with it. `changed`: it is in any case."""
        wanted = {
            member.member_id: frozenset[Place]().union(*map(places_of, member.topics))
            for member in self.members.values()
        }
        before: Mapping[str, frozenset[Place]] = {m.member_id: m.assigned for m in self.members.values()}
        after: Assignment = assign(wanted, before)
        if not changed and after == before:
            return False
        self.epoch += 1
        for member in self.members.values():
            member.assigned = after[member.member_id]
        return True

    def record(self) -> GroupRecord:
        return GroupRecord(
            self.group_id,
            self.epoch,
            tuple(
                MemberRecord(
                    m.member_id,
                    m.epoch,
                    m.rack_id,
                    m.client_id,
                    m.client_host,
                    tuple(sorted(m.topics)),
                    tuple(sorted(m.assigned)),
                )
                for m in self.members.values()
            ),
        )

    def cancel_timers(self) -> None:
        for member in self.members.values():
            member.session.cancel()
        for partition in self.partitions.values():
            partition.close()
