"""A message of a queue: what its record's headers say of it beside its row."""

import uuid
from dataclasses import dataclass
from datetime import datetime

__all__ = ["ATTEMPTS_HEADER", "GROUP_HEADER", "ID_HEADER", "Message", "new_id"]

ID_HEADER = "headrace-id"
"""What identifies a message, however often it is delivered."""
ATTEMPTS_HEADER = "headrace-attempts"
"""How often it was tried and failed before."""
GROUP_HEADER = "headrace-group"
"""Of a dead letter: the group whose worker failed."""


def new_id() -> str:
    return uuid.uuid4().hex


@dataclass(frozen=True, slots=True)
class Message:
    """A message as its worker sees it."""

    id: str
    """The same for every delivery of the message, so that a worker can recognise one that it has processed."""
    attempt: int
    """1 for the first attempt."""
    topic: str
    partition: int
    offset: int
    key: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp: datetime | None
