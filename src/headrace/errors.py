"""Everything Headrace raises on purpose, in one tree.

Error
├── BrokerError          the broker cannot start: its folder, its address or a setting is in the way
├── EngineError          Spark cannot run the app: Java, the connector's jars or the cluster is in the way
│   ├── CheckpointError  a checkpoint does not fit the app, the cluster or the sink, and going on would lose or double
│   ├── FunctionFailed   a node's function raised on a record; `record`, `place` and `raised` say more
│   └── NodeFailed       a node kept failing, so the app stopped; `node`, `batch` and `cause` say more
├── InputError           a line, a setting or a position that cannot be understood
├── KafkaError           a cluster refused, or failed at, what was asked of it
│   ├── Unreachable      no broker answers at the address
│   ├── TopicNotFound    the topic, or one of its partitions, does not exist
│   ├── GroupNotFound    the group does not exist
│   ├── GroupInUse       the group has members, so its offsets are theirs
│   └── NotDelivered     records that no broker acknowledged
├── ServiceError         a home folder, or a service that runs in it, is in the way
├── TableError           PostgreSQL, or a table in it, is in the way
│   ├── NotCovered       a view has not reached a receipt in the time given
│   ├── PostgresAway     PostgreSQL does not answer, or went away in the middle: nothing was half done, try again
│   ├── ViewChanged      a view's table has other columns, or another key, than its function gives
│   └── ViewFenced       another run has taken the view over
└── TopologyError        what an app declares does not hold: all its problems at once, each with file and line
    ├── NotLoaded        the file could not be run, or holds no app, or several
    └── PlanError        what nodes return does not fit: all problems of all nodes, before any query starts

A message says what is wrong and where; `next_step` says what to type next. `str()` gives both in one line.
"""

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = [
    "BrokerError",
    "CheckpointError",
    "EngineError",
    "Error",
    "FunctionFailed",
    "GroupInUse",
    "GroupNotFound",
    "InputError",
    "KafkaError",
    "NodeFailed",
    "NotCovered",
    "NotDelivered",
    "NotLoaded",
    "PlanError",
    "PostgresAway",
    "Problem",
    "ServiceError",
    "TableError",
    "TopicNotFound",
    "TopologyError",
    "Unreachable",
    "ViewChanged",
    "ViewFenced",
]


class Error(Exception):
    """The root of the tree: catch this one to catch them all."""

    def __init__(self, problem: str, *, next_step: str | None = None) -> None:
        super().__init__(problem if next_step is None else f"{problem}; {next_step}")
        self.problem = problem
        self.next_step = next_step


class BrokerError(Error):
    """The broker cannot start: its folder, its address or a setting is in the way."""


class EngineError(Error):
    """Spark cannot run the app: Java, the connector's jars or the cluster is in the way."""


class CheckpointError(EngineError):
    """A checkpoint does not fit the app, the cluster or the sink: going on would lose or double rows."""


class FunctionFailed(EngineError):
    """A node's function raised on a record."""

    def __init__(
        self,
        problem: str,
        *,
        next_step: str | None = None,
        record: str | None = None,
        place: str | None = None,
        raised: str | None = None,
        certain: bool = True,
    ) -> None:
        super().__init__(problem, next_step=next_step)
        self.record = record
        """The record, as in `orders[0]@17`: topic, partition and offset."""
        self.place = place
        """The line of the user's file."""
        self.raised = raised
        """The last line of the traceback."""
        self.certain = certain
        """Whether it is this record alone, so that trying again does not help."""


class NodeFailed(EngineError):
    """A node failed, and restarting it did not help."""

    def __init__(
        self, node: str, batch: int | None, cause: str, *, next_step: str | None = None, attempts: int = 1
    ) -> None:
        where = "before its first batch" if batch is None else f"in batch {batch}"
        failed = "keeps failing" if attempts > 1 else "failed"
        super().__init__(f"node {node!r} {failed} {where}: {cause}", next_step=next_step)
        self.node = node
        self.batch = batch
        self.cause = cause
        self.attempts = attempts


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


class ServiceError(Error):
    """A home folder, or a service that runs in it, is in the way."""


class TableError(Error):
    """PostgreSQL, or a table in it, is in the way."""


class NotCovered(TableError):
    """A view has not reached a receipt in the time given."""


class PostgresAway(TableError):
    """PostgreSQL does not answer, or went away in the middle: nothing was half done, so trying again is safe."""


class ViewChanged(TableError):
    """A view's table has other columns, or another key, than its function gives."""


class ViewFenced(TableError):
    """Another run has taken the view over, so this one must not write it any more."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong in a declaration, and where it stands."""

    message: str
    file: str
    line: int
    next_step: str | None = None

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.line else self.file
        said = f"{where}: {self.message}"
        return said if self.next_step is None else f"{said}; {self.next_step}"


class TopologyError(Error):
    """What an app declares does not hold; `problems` has every reason, in the order of the file."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        lines = [str(problem) for problem in self.problems]
        super().__init__(lines[0] if len(lines) == 1 else "\n".join([f"{len(lines)} problems:", *lines]))


class NotLoaded(TopologyError):
    """The file could not be run, or holds no app, or several and none was chosen."""


class PlanError(TopologyError):
    """What nodes return does not fit what was declared, or cannot be run the way that was asked for."""
