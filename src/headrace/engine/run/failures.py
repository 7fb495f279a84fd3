"""Why a query ended, in one line; whether retrying may help; and what to do if it does not."""

import builtins
import re
from dataclasses import dataclass

from pyspark.errors import StreamingQueryException

from headrace.config.kafka_errors import is_transient
from headrace.errors import Error, PostgresUnavailable
from headrace.topology.place import users_place

__all__ = ["Raised", "advice_on", "cause_of", "is_away", "raised_by"]

# The errors of Kafka's Java client when a cluster is unavailable; Spark passes on only their text.
AWAY = re.compile(r"kafka\.common\.errors\.(\w*Timeout|Disconnect|Network|NotLeader|Coordinator|Retriable)\w*Exception")
# Spark waits ten seconds for a Python process, which a machine with too much to do may not start in time.
STARVED = "Python worker failed to connect back"
PYTHON_ERROR = re.compile(r"^Traceback \(most recent call last\):\n(?:^[ \t].*\n|^\n)*^(\S.*)$", re.MULTILINE)
TRACEBACK_LINE = re.compile(r'^ +File "([^"]+)", line (\d+)', re.MULTILINE)
# What Spark raises for a value that an expression cannot compute with: a data exception, or raise_error().
SQL_ERROR = re.compile(r"\[[A-Z_.]+\] (.*?) SQLSTATE: (?:22\w{3}|P0001)", re.DOTALL)
CALLED_FROM = re.compile(r"^\S+ was called from\n(.+):(\d+)$", re.MULTILINE)
CERTAIN = (ArithmeticError, AssertionError, AttributeError, LookupError, NameError, TypeError, ValueError)
CAUSED_BY = re.compile(r"^Caused by: (.*)$", re.MULTILINE)
# What py4j puts before the error of Java's.
CALLING = re.compile(r"\AAn error occurred while calling .*\n: ")

# Spark's words, ours if they are better than its first line, and what to do.
KNOWN = (
    (
        re.compile(r"Some data may have been lost because.*?^Reason: (.*?)$", re.MULTILINE | re.DOTALL),
        "records were deleted before they were read, or the topic was deleted and created again: {}",
        "start over with the records that are there: --reset {node}, or with those since a time: "
        "--replay {node}:TOPIC=TIME",
    ),
    (
        re.compile("UnknownTopicOrPartitionException"),
        "a topic that it reads no longer exists",
        "if the topic is restored, restart; otherwise start over with --reset {node}",
    ),
    (
        re.compile("No space left on device"),
        "no space left on the disk of {folder}",
        "free space there and restart; processing resumes with this batch",
    ),
    (
        re.compile(r"^.*(?:Checksum error: file:|STATE_DIRECTORY\]|STATE_STORE|delta file|RocksDB).*$", re.MULTILINE),
        "the checkpoint at {folder} is damaged: {}",
        "restore it from a copy, or start over with --reset {node}",
    ),
)
MENDED = "fix the cause and restart; processing resumes with this batch"


@dataclass(frozen=True, slots=True)
class Raised:
    """What was raised while a row was computed."""

    error: str
    """The last line of the traceback."""
    place: str | None
    """The innermost line of the user's files; None where the traceback has none."""
    is_python: bool = True

    @property
    def is_certain(self) -> bool:
        """Whether it follows from the row and the code alone, so that it will be raised again. SQL errors do."""
        kind = getattr(builtins, self.error.partition(":")[0], None)
        return not self.is_python or (isinstance(kind, type) and issubclass(kind, CERTAIN))

    def __str__(self) -> str:
        return self.error if self.place is None else f"{self.error} at {self.place}"


def raised_by(error: BaseException) -> Raised | None:
    """What a function or an expression of a node raised on a row; None where the error has another cause."""
    if isinstance(error, Error):
        return None
    text = str(error)
    if tracebacks := list(PYTHON_ERROR.finditer(text)):
        last = tracebacks[-1]
        return Raised(last[1].strip(), _users_line(TRACEBACK_LINE.findall(last[0])))
    if found := SQL_ERROR.search(text):
        return Raised(found[1].strip().rstrip("."), _users_line(CALLED_FROM.findall(text)), is_python=False)
    return None


def _users_line(lines: list[tuple[str, str]]) -> str | None:
    found = users_place((file, int(line)) for file, line in lines)
    return None if found is None else str(found)


def is_away(error: BaseException) -> bool:
    """Whether Kafka or PostgreSQL is unavailable, or the machine is overloaded, so that waiting may help."""
    text = str(error)
    return (
        isinstance(error, PostgresUnavailable)
        or is_transient(error)
        or STARVED in text
        or AWAY.search(text) is not None
    )


def cause_of(error: BaseException) -> str:
    """The cause in one line: the Python error inside Spark's error, or the innermost Java error."""
    if isinstance(error, Error):
        return str(error)
    text = CALLING.sub("", str(error).strip())
    if (raised := raised_by(error)) is not None:
        return str(raised)
    if found := CAUSED_BY.findall(text):
        return str(found[-1]).strip()
    first = text.splitlines()[0] if text else ""
    name = type(error).__name__
    return first if isinstance(error, StreamingQueryException) else f"{name}: {first}" if first else name


def advice_on(error: BaseException, node: str, folder: object) -> tuple[str, str | None]:
    """Why a node failed, and what to do next. `folder` is that of its checkpoint."""
    if isinstance(error, Error):
        return error.problem, error.next_step or MENDED
    for sign, cause, advice in KNOWN:
        if found := sign.search(str(error)):
            said = (found[1] if found.groups() else found[0]).strip()
            return cause.format(said, node=node, folder=folder), advice.format(node=node)
    return cause_of(error), MENDED
