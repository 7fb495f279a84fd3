"""Which names a topic may have, as Kafka has it."""

import re

from headrace.broker.errors import ApiError, ErrorCode

MAX_LENGTH = 249
_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")
# What Kafka keeps in these topics, this broker keeps elsewhere; a topic of that name would only deceive.
INTERNAL = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state", "__cluster_metadata"})


def check_name(name: str) -> None:
    """Raise INVALID_TOPIC_EXCEPTION for a name no topic can have."""
    reason = _fault(name)
    if reason is not None:
        raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {reason}")


def collision_key(name: str) -> str:
    """Two names with the same key cannot both exist: Kafka's metrics cannot tell `.` from `_`."""
    return name.replace(".", "_")


def _fault(name: str) -> str | None:
    if not name:
        return "the empty string is not allowed"
    if name in (".", ".."):
        return f"'{name}' is not allowed"
    if len(name) > MAX_LENGTH:
        return f"the length of '{name}' is longer than the max allowed length {MAX_LENGTH}"
    if not _LEGAL.fullmatch(name):
        return f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
    return None
