"""Why a query ended: in a line, whether to wait may help, and what to do if it does not."""

import re

from pyspark.errors import StreamingQueryException

from headrace.engine.cluster import is_passing
from headrace.errors import Error, PostgresUnavailable

__all__ = ["advice_on", "cause_of", "is_away"]

# What Java's client says when a cluster is away; Spark hands on no more than its words.
AWAY = re.compile(r"kafka\.common\.errors\.(\w*Timeout|Disconnect|Network|NotLeader|Coordinator|Retriable)\w*Exception")
# Spark waits ten seconds for a Python process, which a machine with too much to do may not start in time.
STARVED = "Python worker failed to connect back"
PYTHON_ERROR = re.compile(r"^Traceback \(most recent call last\):\n(?:^[ \t].*\n|^\n)*^(\S.*)$", re.MULTILINE)
CAUSED_BY = re.compile(r"^Caused by: (.*)$", re.MULTILINE)
# What py4j puts before the error of Java's.
CALLING = re.compile(r"\AAn error occurred while calling .*\n: ")

# Spark's words, ours if they are better than its first line, and what to do.
KNOWN = (
    (
        re.compile(r"Some data may have been lost because.*?^Reason: (.*?)$", re.MULTILINE | re.DOTALL),
        "records were deleted before they were read, or the topic was deleted and made again: {}",
        "start over with the records that are there: --reset {node}, or with those since a time: "
        "--replay {node}:TOPIC=TIME",
    ),
    (
        re.compile("UnknownTopicOrPartitionException"),
        "a topic that it reads is gone",
        "if it comes back as it was, start the app again; else start over with --reset {node}",
    ),
    (
        re.compile("No space left on device"),
        "no space left on the disk of {folder}",
        "make room there and start the app again: it goes on where it was",
    ),
    (
        re.compile(r"^.*(?:Checksum error: file:|STATE_DIRECTORY\]|STATE_STORE|delta file|RocksDB).*$", re.MULTILINE),
        "the checkpoint at {folder} is damaged: {}",
        "bring it back from a copy, or start over with --reset {node}",
    ),
)
MENDED = "once that is mended, start the app again: it goes on with this batch"


def is_away(error: BaseException) -> bool:
    """Whether Kafka or PostgreSQL is away, or the machine has too much to do, so that to wait may help."""
    told = str(error)
    return (
        isinstance(error, PostgresUnavailable) or is_passing(error) or STARVED in told or AWAY.search(told) is not None
    )


def cause_of(error: BaseException) -> str:
    """What went wrong, in a line: an error of Python's inside Spark's, or the innermost of Java's."""
    if isinstance(error, Error):
        return str(error)
    text = CALLING.sub("", str(error).strip())
    if found := PYTHON_ERROR.findall(text):
        return str(found[-1]).strip()
    if found := CAUSED_BY.findall(text):
        return str(found[-1]).strip()
    first = text.splitlines()[0] if text else ""
    name = type(error).__name__
    return first if isinstance(error, StreamingQueryException) else f"{name}: {first}" if first else name


def advice_on(error: BaseException, node: str, folder: object) -> tuple[str, str | None]:
    """The cause for which a node was given up, and what to type next. `folder` is its checkpoint's."""
    if isinstance(error, Error):
        return error.problem, error.next_step or MENDED
    for sign, cause, advice in KNOWN:
        if found := sign.search(str(error)):
            said = (found[1] if found.groups() else found[0]).strip()
            return cause.format(said, node=node, folder=folder), advice.format(node=node)
    return cause_of(error), MENDED
