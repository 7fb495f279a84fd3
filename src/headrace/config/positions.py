"""Positions in a topic as people write them: beginning, end, an offset, a time."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from headrace.errors import InputError

if TYPE_CHECKING:
    from headrace.config.cluster import Cluster, Partitions

__all__ = ["POSITION_HELP", "TopicPosition"]

POSITION_HELP = (
    "beginning, end, an offset (42), N before the end (-10), "
    "or a time (2026-01-31T12:00:00Z, or @ and milliseconds since 1970)"
)
_NAMES: dict[str, Literal["beginning", "end"]] = {
    "beginning": "beginning",
    "earliest": "beginning",
    "end": "end",
    "latest": "end",
}


@dataclass(frozen=True)
class TopicPosition:
    """A position in each partition: `value` is an offset, a distance or milliseconds, depending on `kind`."""

    kind: Literal["beginning", "end", "offset", "before-end", "time"]
    value: int = 0

    @classmethod
    def parse(cls, text: str) -> "TopicPosition":
        word = text.strip().lower()
        if word in _NAMES:
            return cls(_NAMES[word])
        if word.isdecimal():
            return cls("offset", int(word))
        if word[:1] == "-" and word[1:].isdecimal():
            return cls("before-end", int(word[1:]))
        if word[:1] == "@" and word[1:].isdecimal():
            return cls("time", int(word[1:]))
        try:
            moment = datetime.fromisoformat(text.strip())
        except ValueError:
            raise InputError(f"{text!r} is not a position", next_step=f"write {POSITION_HELP}") from None
        return cls("time", round(moment.timestamp() * 1000))  # without a zone, the machine's own

    def resolve(self, cluster: "Cluster", partitions: Sequence[tuple[str, int]], **options: Any) -> "Partitions":
        """The offset in each partition, limited to the offsets that exist there."""
        from confluent_kafka.admin import OffsetSpec

        ends = cluster.offsets(partitions, OffsetSpec.latest(), **options)
        if self.kind == "end":
            return ends
        if self.kind == "time":
            found = cluster.offsets(partitions, OffsetSpec.for_timestamp(self.value), **options)
            return {key: ends[key] if offset < 0 else offset for key, offset in found.items()}
        starts = cluster.offsets(partitions, OffsetSpec.earliest(), **options)
        if self.kind == "beginning":
            return starts
        if self.kind == "before-end":
            return {key: max(starts[key], end - self.value) for key, end in ends.items()}
        return {key: min(max(starts[key], self.value), end) for key, end in ends.items()}
