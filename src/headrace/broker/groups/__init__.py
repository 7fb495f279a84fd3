"""Groups of consumers: who reads what, and how far they have come."""

from headrace.broker.groups import configs as _configs
from headrace.broker.groups import offsets as _offsets
from headrace.broker.groups import records as _records
from headrace.broker.groups.configs import GroupConfigs
from headrace.broker.groups.coordinator import GroupCoordinator
from headrace.broker.groups.offsets import OffsetEntry, Offsets, Settlement
from headrace.broker.groups.share import records as _share_records
from headrace.broker.groups.share.coordinator import ShareCoordinator

__all__ = ["SCHEMA", "GroupConfigs", "GroupCoordinator", "OffsetEntry", "Offsets", "Settlement", "ShareCoordinator"]

SCHEMA = _records.SCHEMA + _offsets.SCHEMA + _configs.SCHEMA + _share_records.SCHEMA
