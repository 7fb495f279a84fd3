"""A delayed message as it is in the topic of delayed messages, where the last record of an id counts.

The key is the id. The value and the other headers are the message's own; one header says where it goes and when. A
record without that header, or with no destination in it, ends the id: the message was cancelled, or handed over.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from headrace.config.cluster import Cluster
from headrace.config.run import RunConfig

__all__ = ["DELAYED", "Headers", "Plan", "Stored", "prepare_delays", "read_plan", "record_of_end", "record_of_plan"]

DELAYED = "headrace.delayed"
"""The topic. It has one partition: what happens to an id has one order."""
PLAN_HEADER = "headrace-delayed"
KEY_HEADER = "headrace-key"
SETTINGS = {
    "partitions": "1",
    "cleanup.policy": "delete",
    "retention.ms": "-1",  # the service deletes what is older than the oldest pending message
    "retention.bytes": "-1",
    "segment.bytes": str(16 << 20),
    "message.timestamp.type": "LogAppendTime",  # a delay counts from when the broker has it, not from a client's clock
}

Headers: TypeAlias = Sequence[tuple[str, bytes | None]]


@dataclass(frozen=True, slots=True)
class Plan:
    """Where a message goes, and when: at a moment, or after a time. All times are milliseconds."""

    to: str
    at: int | None = None
    after: int | None = None
    every: int | None = None
    of: int | None = None
    """The offset of the record that this one replaces, if the service wrote it: it counts only while that one does."""


@dataclass(frozen=True, slots=True)
class Stored:
    """What a record of the topic says. Without a plan, the id ends; `of` is then the record that was handed over."""

    id: bytes
    plan: Plan | None
    of: int | None
    key: bytes | None
    value: bytes | None
    headers: Headers

    @property
    def size(self) -> int:
        return 200 + len(self.value or b"") + sum(len(name) + len(value or b"") for name, value in self.headers)


def record_of_plan(
    id: bytes, plan: Plan, key: bytes | None, value: bytes | None, headers: Headers
) -> tuple[str, bytes, bytes | None, list[tuple[str, bytes | None]]]:
    """Topic, key, value and headers of the record that stores a message with its plan."""
    said = {name: number for name in ("at", "after", "every", "of") if (number := getattr(plan, name)) is not None}
    own: list[tuple[str, bytes | None]] = [(PLAN_HEADER, _json({"to": plan.to} | said))]
    if key is not None:
        own.append((KEY_HEADER, key))
    return DELAYED, id, value, [*own, *headers]


def record_of_end(id: bytes, of: int | None = None) -> tuple[str, bytes, None, list[tuple[str, bytes | None]]]:
    """The record that ends an id: it is cancelled, or its record at `of` was handed over."""
    return DELAYED, id, None, [] if of is None else [(PLAN_HEADER, _json({"of": of}))]


def read_plan(id: bytes | None, value: bytes | None, headers: Any) -> Stored | None:
    """What a record says; None if it is not Headrace's."""
    said: dict[str, Any] = {}
    key: bytes | None = None
    rest: list[tuple[str, bytes | None]] = []
    for name, content in headers or ():
        if name == PLAN_HEADER:
            try:
                said = json.loads(content)
            except (TypeError, ValueError):
                return None
        elif name == KEY_HEADER:
            key = content
        else:
            rest.append((name, content))
    if id is None or not isinstance(said, dict):
        return None
    if "to" not in said:
        return Stored(id, None, said.get("of"), key, value, rest) if value is None else None
    plan = Plan(said["to"], *(said.get(name) for name in ("at", "after", "every", "of")))
    if not isinstance(plan.to, str) or not all(isinstance(one, int | None) for one in (plan.every, plan.of)):
        return None
    if not isinstance(plan.at if plan.at is not None else plan.after, int):
        return None
    return Stored(id, plan, plan.of, key, value, rest)


def prepare_delays(cluster: Cluster, config: RunConfig) -> None:
    """Create the topic if it does not exist."""
    if DELAYED not in cluster.partitions([DELAYED]):
        replication = {name: value for name, value in config.topic_settings.items() if name == "replication.factor"}
        cluster.create(DELAYED, 1, SETTINGS | replication)


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
