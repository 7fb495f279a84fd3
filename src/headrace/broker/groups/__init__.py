"""Consumer groups: who reads what, and how far they have come."""

from headrace.broker.groups import offsets as _offsets
from headrace.broker.groups import records as _records
from headrace.broker.groups.coordinator import GroupCoordinator
from headrace.broker.groups.offsets import OffsetEntry, Offsets, Settlement

__all__ = ["SCHEMA", "GroupCoordinator", "OffsetEntry", "Offsets", "Settlement"]

SCHEMA = _records.SCHEMA + _offsets.SCHEMA
