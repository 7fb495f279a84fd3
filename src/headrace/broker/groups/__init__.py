"""Groups of consumers, of every kind: who reads what, and how far they have come."""

from typing import TYPE_CHECKING

from headrace.broker.clock import Clock
from headrace.broker.groups import configs as _configs
from headrace.broker.groups import offsets as _offsets
from headrace.broker.groups.classic import records as _classic_records
from headrace.broker.groups.classic.coordinator import ClassicGroups
from headrace.broker.groups.classic.group import ClassicGroup
from headrace.broker.groups.configs import GroupConfigs
from headrace.broker.groups.offsets import OffsetEntry, Offsets, Settlement
from headrace.broker.groups.registry import Registry
from headrace.broker.groups.share import records as _share_records
from headrace.broker.groups.share.coordinator import ShareGroups
from headrace.broker.groups.share.group import ShareGroup
from headrace.broker.settings import BrokerSettings
from headrace.broker.store import Store

if TYPE_CHECKING:
    from headrace.broker.topics import Topics

__all__ = ["SCHEMA", "Groups", "OffsetEntry", "Offsets", "Settlement"]

SCHEMA = _classic_records.SCHEMA + _offsets.SCHEMA + _configs.SCHEMA + _share_records.SCHEMA


class Groups(Registry):
    """All groups of this broker, and those who look after each kind of them."""

    def __init__(
        self, store: Store, settings: BrokerSettings, clock: Clock, offsets: Offsets, topics: "Topics"
    ) -> None:
        super().__init__(store, settings)
        self.configs = GroupConfigs(store, settings)
        self.classic = ClassicGroups(self, store, settings, clock, offsets)
        self.share = ShareGroups(self, store, settings, clock, topics, self.configs)
        self.add_kind(ClassicGroup.kind, self.classic)
        self.add_kind(ShareGroup.kind, self.share)

    def load(self) -> None:
        self.configs.load()
        super().load()
