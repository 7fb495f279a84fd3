"""Everything Headrace raises on purpose, in one tree.

Error
├── InputError           a line, a setting or a position that cannot be understood
└── KafkaError           a cluster refused, or failed at, what was asked of it
    ├── Unreachable      no broker answers at the address
    ├── TopicNotFound    the topic, or one of its partitions, does not exist
    ├── GroupNotFound    the group does not exist
    ├── GroupInUse       the group has members, so its offsets are theirs
    └── NotDelivered     records that no broker acknowledged

A message says what is wrong and where; `next_step` says what to type next. `str()` gives both in one line.
"""

__all__ = [
    "Error",
    "GroupInUse",
    "GroupNotFound",
    "InputError",
    "KafkaError",
    "NotDelivered",
    "TopicNotFound",
    "Unreachable",
]


class Error(Exception):
    """The root of the tree: catch this one to catch them all."""

    def __init__(self, problem: str, *, next_step: str | None = None) -> None:
        super().__init__(problem if next_step is None else f"{problem}; {next_step}")
        self.problem = problem
        self.next_step = next_step


class InputError(Error):
    """What was given cannot be understood."""


class KafkaError(Error):
    """A cluster refused, or failed at, what was asked of it; `code` is Kafka's name for the reason."""

    def __init__(self, problem: str, *, next_step: str | None = None, code: str | None = None) -> None:
        super().__init__(problem, next_step=next_step)
        self.code = code


class Unreachable(KafkaError):
    """No broker answers at the address."""


class TopicNotFound(KafkaError):
    """The topic, or one of its partitions, does not exist."""


class GroupNotFound(KafkaError):
    """The group does not exist."""


class GroupInUse(KafkaError):
    """The group has members, so its offsets are theirs to move."""


class NotDelivered(KafkaError):
    """Records were not acknowledged."""
