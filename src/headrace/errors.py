"""Everything Headrace raises on purpose, in one tree.

Error
├── BrokerError              the broker cannot start: an invalid folder, address or setting
├── CaptureError             a database cannot be captured as declared: what to type there or in the app
├── EngineError              Spark cannot run the app: a problem with Java, the connector's jars or the cluster
│   ├── CheckpointError      a checkpoint does not match the app, the cluster or the sink
│   ├── FunctionFailed       a function of a node raised on a record; see `record`, `place` and `raised`
│   └── NodeFailed           a node failed repeatedly, so the app stopped; see `node`, `batch` and `cause`
├── InputError               a line, a setting or a position is invalid
├── KafkaError               a request to a Kafka cluster failed; `code` is Kafka's name for the reason
│   ├── Unreachable          no broker answers at the address
│   ├── TopicNotFound        the topic, or one of its partitions, does not exist
│   ├── GroupNotFound        the group does not exist
│   ├── GroupInUse           the group has active members, so its offsets cannot be changed
│   └── NotDelivered         records were not acknowledged by a broker
├── ServiceError             a home folder, or a service that runs in it, cannot be used
├── TableError               PostgreSQL, or a table in it, cannot be used
│   ├── NotCovered           a view did not reach a receipt within the timeout
│   ├── PostgresUnavailable  PostgreSQL does not answer, or the connection was lost: it is safe to retry
│   ├── ViewChanged          a view's table has other columns, or another key, than its function returns
│   └── ViewFenced           another run has taken over the view
└── TopologyError            an app's declarations are invalid: all problems at once, each with file and line
    ├── NotLoaded            the file could not be run, or it has no app, or several
    └── PlanError            what nodes return is invalid: all problems of all nodes, before any query starts

A message says what is wrong and where; `next_step` says what to type next. `str()` gives both in one line.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

__all__ = [
    "BrokerError",
    "CaptureError",
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
    "PostgresUnavailable",
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
    """The broker cannot start: an invalid folder, address or setting."""


class CaptureError(Error):
    """A database cannot be captured as declared: it needs a statement, or the app another declaration."""


class EngineError(Error):
    """Spark cannot run the app: a problem with Java, the connector's jars or the cluster."""


class CheckpointError(EngineError):
    """A checkpoint does not match the app, the cluster or the sink: continuing would lose or duplicate rows."""


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
    """The input is invalid."""


class KafkaError(Error):
    """A request to a Kafka cluster failed; `code` is Kafka's name for the reason."""

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
    """The group has active members, so its offsets cannot be changed."""


class NotDelivered(KafkaError):
    """Records were not acknowledged."""


class ServiceError(Error):
    """A home folder, or a service that runs in it, cannot be used."""


class TableError(Error):
    """PostgreSQL, or a table in it, cannot be used."""


class NotCovered(TableError):
    """A view did not reach a receipt within the timeout."""


class PostgresUnavailable(TableError):
    """PostgreSQL does not answer, or the connection was lost; nothing was partly written, so it is safe to retry."""


class ViewChanged(TableError):
    """A view's table has other columns, or another key, than its function returns."""


class ViewFenced(TableError):
    """Another run has taken over the view, so this one can no longer write it."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem in a declaration, with its file and line."""

    message: str
    file: str
    line: int
    next_step: str | None = None

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.line else self.file
        said = f"{where}: {self.message}"
        return said if self.next_step is None else f"{said}; {self.next_step}"


class TopologyError(Error):
    """An app's declarations are invalid; `problems` lists all problems, in the order of the file."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        lines = [str(problem) for problem in self.problems]
        super().__init__(lines[0] if len(lines) == 1 else "\n".join([f"{len(lines)} problems:", *lines]))


class NotLoaded(TopologyError):
    """The file could not be run, or it has no app, or several of which none was chosen."""


class PlanError(TopologyError):
    """What nodes return does not match what was declared, or cannot be run with the given options."""


RENAMED: dict[str, type[Error]] = {"PostgresAway": PostgresUnavailable}
"""Names of earlier versions."""


def renamed(name: str) -> type[Error]:
    """The class that had another name in earlier versions. Call it from a module's `__getattr__`."""
    now = RENAMED[name]
    warnings.warn(f"{name} is deprecated: its name is {now.__name__}", DeprecationWarning, stacklevel=3)
    return now


def __getattr__(name: str) -> Any:
    if name not in RENAMED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return renamed(name)
