"""Every group there is, of whatever kind: one name space, one life cycle, one clock that ends what is over.

What a kind of group does is in its own package. Here a group is a name that has members or has none, and something in
the store that goes when it goes.
"""

import asyncio
import logging
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
from typing import ClassVar, NamedTuple, TypeVar

from headrace.broker.errors import ApiError, ErrorCode
from headrace.broker.groups.offsets import Settlement
from headrace.broker.groups.timers import Timer
from headrace.broker.settings import BrokerSettings
from headrace.broker.store import Store, StoreError

log = logging.getLogger(__name__)

LOOKED_AT_AT_ONCE = 1_000  # things that may expire, before others on the loop get their turn


class Group(ABC):
    """A group of any kind."""

    kind: ClassVar[str]
    """As ListGroups tells it."""

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id

    @property
    @abstractmethod
    def protocol(self) -> str:
        """The protocol type that ListGroups tells."""

    @property
    @abstractmethod
    def state_name(self) -> str: ...

    @property
    @abstractmethod
    def is_empty(self) -> bool:
        """Whether it has no members, so that it can be deleted."""

    @property
    @abstractmethod
    def is_dead(self) -> bool:
        """Whether it is being deleted."""

    @abstractmethod
    def die(self) -> None:
        """It is being deleted: nobody may join it."""

    @abstractmethod
    def revive(self) -> None:
        """It could not be deleted."""

    @abstractmethod
    def cancel_timers(self) -> None: ...


class Expired(NamedTuple):
    """What of a group is over by itself; with `nothing_left`, the group as well."""

    settlement: Settlement
    nothing_left: bool


G = TypeVar("G", bound=Group)


class Kind(ABC):
    """What the registry asks those who look after the groups of one kind."""

    @abstractmethod
    def load(self) -> Iterable[Group]:
        """The groups as they were."""

    @abstractmethod
    def close(self) -> None:
        """Those who wait are answered, before the timers end."""

    @abstractmethod
    def forget(self, group: Group) -> Settlement:
        """All that is known of the group goes."""

    @abstractmethod
    def expire(self, group: Group) -> Expired | None:
        """What of the group is over, if anything is."""

    def weight(self, group: Group) -> int:
        """How many things `expire` looks at."""
        return 1

    def find(self, group_id: str) -> Group | None:
        """A group that is there by what is known of it alone."""
        return None

    def found(self) -> Iterable[str]:
        """The names for which `find` may know a group."""
        return ()


class ListedGroup(NamedTuple):
    group_id: str
    protocol_type: str
    state: str
    type: str


class Registry:
    def __init__(self, store: Store, settings: BrokerSettings) -> None:
        self._store = store
        self._settings = settings
        self._groups: dict[str, Group] = {}
        self._kinds: dict[str, Kind] = {}
        self._loop = asyncio.get_running_loop()
        self._upkeep = Timer(self._loop, self._look_after)
        self._expiry: asyncio.Task[None] | None = None
        self.closed = False

    def add_kind(self, name: str, kind: Kind) -> None:
        self._kinds[name] = kind

    def load(self) -> None:
        """Take up the groups as they were; to be called on the loop."""
        for kind in self._kinds.values():
            self._groups |= {group.group_id: group for group in kind.load()}
        self._upkeep.set(self._settings.offsets_retention_check_interval_ms)

    def close(self) -> None:
        """Stop. Those who wait are told to look for the coordinator again, and keep their ids for when it is back."""
        self.closed = True
        self._upkeep.cancel()
        if self._expiry is not None:
            self._expiry.cancel()
        for kind in self._kinds.values():
            kind.close()
        for group in self._groups.values():
            group.cancel_timers()

    # Finding

    def find(self, group_id: str, kind: type[G], otherwise: ErrorCode = ErrorCode.GROUP_ID_NOT_FOUND) -> G | None:
        """The group of that kind, if there is one; `otherwise` is raised where the name is of another kind."""
        group = self._find(group_id)
        if group is None or isinstance(group, kind):
            return group
        raise ApiError(otherwise, f"Group {group_id} is not a {kind.kind} group.")

    def put(self, group: Group) -> None:
        self._groups[group.group_id] = group

    def all(self) -> list[Group]:
        for kind in self._kinds.values():
            for group_id in set(kind.found()) - self._groups.keys():
                self._find(group_id)
        return [group for group in self._groups.values() if not group.is_dead]

    def of_kind(self, kind: type[G]) -> list[G]:
        return [group for group in self._groups.values() if isinstance(group, kind)]

    def _find(self, group_id: str) -> Group | None:
        group = self._groups.get(group_id)
        if group is None:
            group = next((found for kind in self._kinds.values() if (found := kind.find(group_id))), None)
            if group is not None:
                self._groups[group_id] = group
        return group

    def _kind(self, group: Group) -> Kind:
        return self._kinds[group.kind]

    # Administration

    def list_groups(self, states: Collection[str] = (), types: Collection[str] = ()) -> list[ListedGroup]:
        """The groups in one of these states and of one of these types, where any are given; case does not matter."""
        wanted_states = {state.strip().lower() for state in states}
        wanted_types = {name.lower() for name in types}
        return [
            ListedGroup(group.group_id, group.protocol, group.state_name, group.kind)
            for group in self.all()
            if (not wanted_states or group.state_name.lower() in wanted_states)
            and (not wanted_types or group.kind in wanted_types)
        ]

    async def delete(self, group_ids: Sequence[str]) -> list[ErrorCode]:
        """Delete groups without members, with all that is known of them. One code for each."""
        if self.closed:
            return [ErrorCode.COORDINATOR_NOT_AVAILABLE for _ in group_ids]
        codes: dict[str, ErrorCode] = {}
        doomed: list[Group] = []
        for group_id in group_ids:
            group = self._find(group_id)
            if group is None or group.is_dead:
                codes.setdefault(group_id, ErrorCode.GROUP_ID_NOT_FOUND)
            elif not group.is_empty:
                codes[group_id] = ErrorCode.NON_EMPTY_GROUP
            else:
                codes[group_id] = ErrorCode.NONE
                group.die()
                doomed.append(group)
        if doomed:
            try:
                settlements = [self._kind(group).forget(group) for group in doomed]
                await asyncio.shield(self._bury(doomed, settlements))
            except StoreError:
                for group in doomed:
                    codes[group.group_id] = ErrorCode.COORDINATOR_NOT_AVAILABLE
        return [codes[group_id] for group_id in group_ids]

    # Expiry

    def _look_after(self) -> None:
        self._upkeep.set(self._settings.offsets_retention_check_interval_ms)
        self._expiry = self._loop.create_task(self.expire())

    async def expire(self) -> None:
        """Forget what is over, and groups that nothing is left of."""
        writes: list[asyncio.Future[None]] = []
        looked_at = 0
        for group in self.all():
            kind = self._kind(group)
            looked_at += kind.weight(group)
            expired = kind.expire(group)
            if expired is not None:
                if expired.nothing_left:
                    group.die()
                writes.append(self._bury([group] if expired.nothing_left else [], [expired.settlement]))
            if looked_at > LOOKED_AT_AT_ONCE:
                looked_at = 0
                await asyncio.sleep(0)
        if writes:
            log.info("offsets or all that was left of %d groups expired", len(writes))
            await asyncio.wait(writes)

    def _bury(self, doomed: Sequence[Group], settlements: Sequence[Settlement]) -> asyncio.Future[None]:
        """Write it all at once. The doomed are dead meanwhile, so that nobody joins or commits."""

        def buried(write: asyncio.Future[None]) -> None:
            failure = write.exception()
            if failure is not None:
                log.warning("groups or offsets could not be deleted: %s", failure)
            for settlement in settlements:
                (settlement.apply if failure is None else settlement.abandon)()
            for group in doomed:
                if failure is not None:
                    group.revive()
                    continue
                group.cancel_timers()
                self._groups.pop(group.group_id, None)

        def change(connection: sqlite3.Connection) -> None:
            for settlement in settlements:
                settlement.write(connection)

        write = self._store.write(change)
        write.add_done_callback(buried)
        return write
