"""What all joins share: the columns they go by, what they refuse, and what they tell the planner of themselves."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from pyspark.sql import DataFrame

from headrace.engine.calls.results import Result
from headrace.engine.column_metadata import event_times_of, is_windowed
from headrace.engine.read.tables import Table
from headrace.errors import InputError
from headrace.topology import Duration
from headrace.topology.choices import Choice
from headrace.topology.duration import DurationLike
from headrace.topology.nearest import did_you_mean

__all__ = [
    "How",
    "JoinUse",
    "OnLike",
    "check_clash",
    "check_streams",
    "check_types",
    "chosen",
    "columns_of",
    "columns_on",
    "duration",
    "event_time",
    "note",
    "span_of",
    "uses_of_joins",
]

NOT_AT_ALL = Duration(0)
C = TypeVar("C", bound=Choice)
OnLike: TypeAlias = str | Sequence[str] | Mapping[str, str]


class How(Choice):
    """Which rows without a match are kept."""

    INNER = "inner"
    LEFT = "left"
    RIGHT = "right"
    FULL = "full"


@dataclass(frozen=True, slots=True)
class JoinUse:
    """A join as a node used it: what its checkpoint depends on, and what it means for the watermark of readers."""

    described: Mapping[str, Any]
    behind_watermark: Duration = NOT_AT_ALL
    """How far behind the watermark its rows are written."""
    added_disorder: Duration = NOT_AT_ALL
    """How much more out of order its rows can be than those it reads: where one side is behind, a pair has the time of
    the other side, and pairs with earlier times follow."""
    explained: str = ""
    """What computes it, for `headrace graph --explain`."""
    joins_streams: bool = False
    """Whether it is one of Spark's joins of two streams."""
    looks_up_table: bool = False
    """Whether it looks events up in a table, which must be read first."""
    idle: Duration | None = None
    """After how long without events one of the node's sources no longer delays the watermark of the others."""


_uses: ContextVar[list[JoinUse] | None] = ContextVar("uses of joins", default=None)


@contextmanager
def uses_of_joins() -> Iterator[list[JoinUse]]:
    """All joins that are made inside."""
    uses: list[JoinUse] = []
    token = _uses.set(uses)
    try:
        yield uses
    finally:
        _uses.reset(token)


def note(use: JoinUse) -> None:
    uses = _uses.get()
    if uses is not None:
        uses.append(use)


def columns_on(
    call: str, on: OnLike, left: tuple[str, Sequence[str]], right: tuple[str, Sequence[str]]
) -> dict[str, str]:
    """The columns that must be equal: those of the left and those of the right."""
    if isinstance(on, str):
        pairs = {on: on}
    elif isinstance(on, Mapping):
        pairs = dict(on)
    elif isinstance(on, Sequence):
        pairs = {name: name for name in on}
    else:
        pairs = {}
    if not pairs or not all(isinstance(name, str) for pair in pairs.items() for name in pair):
        raise InputError(
            f"{call}: on is {on!r}", next_step='name one or more columns, or {"ad": "id"} if their names differ'
        )
    if len(set(pairs.values())) < len(pairs):
        raise InputError(f"{call}: on names a column twice: {', '.join(pairs.values())}")
    for (side, columns), names in ((left, pairs.keys()), (right, pairs.values())):
        for name in names:
            if name not in columns:
                step = did_you_mean(name, columns)
                raise InputError(f"{call}: on: {name!r} is not a column of the {side}", next_step=step)
    return pairs


def columns_of(call: str, on: str | Sequence[str], side: str, columns: Sequence[str]) -> tuple[str, ...]:
    """The columns that must be equal, which have the same names in all streams."""
    if isinstance(on, Mapping):
        raise InputError(f"{call}: on is {dict(on)!r}", next_step="name one or more columns that all have")
    return tuple(columns_on(call, on, (side, columns), (side, columns)))


def check_types(call: str, pairs: Mapping[str, str], left: DataFrame, right: DataFrame) -> None:
    """Different types would be compared as a third one, and equal keys be in different buckets."""
    for one, another in pairs.items():
        ours, theirs = left.schema[one].dataType, right.schema[another].dataType
        if ours != theirs:
            raise InputError(
                f"{call}: on: {one!r} is {ours.simpleString()} on the left, and {another!r} "
                f"{theirs.simpleString()} on the right",
                next_step=f"cast one of them: {another}.cast({ours.simpleString()!r})",
            )


def check_clash(call: str, left: Sequence[str], right: Sequence[str], renamed: str) -> None:
    """Refuse columns of the same name, which would both be in the result. `renamed` is what to write instead."""
    known = {name.casefold() for name in left}
    clash = [name for name in right if name.casefold() in known]
    if clash:
        raise InputError(
            f"{call}: both sides have {', '.join(map(repr, clash))}",
            next_step=f"rename it on one side: {renamed.format(clash[0])}",
        )


def event_time(call: str, stream: DataFrame) -> str:
    times = event_times_of(stream)
    if not times and is_windowed(stream):
        raise InputError(
            f"{call}: the rows are the result of an operator with state, and have no watermark",
            next_step="move this to the next node",
        )
    if not times:
        raise InputError(
            f"{call}: the rows have no event time",
            next_step="declare event_time= and lateness= of the topic, and keep that column",
        )
    if len(times) > 1:
        raise InputError(
            f"{call}: the rows have several event times: {', '.join(times)}", next_step="drop all but one of them"
        )
    return times[0]


def duration(call: str, option: str, value: DurationLike) -> Duration:
    try:
        return Duration.of(value)
    except InputError as error:
        raise InputError(f"{call}: {option}: {error.problem}", next_step=error.next_step) from None


def span_of(call: str, within: DurationLike | None) -> Duration:
    """How long state is kept, which has no default."""
    if within is None:
        raise InputError(f"{call} needs within=", next_step='add within="10 minutes"')
    span = duration(call, "within", within)
    if not span.microseconds:
        raise InputError(f"{call}: within is zero", next_step='write a duration such as "10 minutes"')
    return span


def chosen(call: str, option: str, choices: type[C], value: str) -> C:
    try:
        return choices.of(value)
    except InputError as error:
        raise InputError(f"{call}: {option}: {error.problem}", next_step=error.next_step) from None


def check_streams(call: str, **streams: Any) -> None:
    for name, stream in streams.items():
        if isinstance(stream, Table):
            raise InputError(
                f"{call}: {name} is a table, not a stream",
                next_step="write hr.enrich(stream, table, on=...), or use the table's .changes",
            )
        if isinstance(stream, Result):
            raise InputError(
                f"{call}: {name} is a windowed result with late rows or changes, not a DataFrame",
                next_step="return it, and move this to the next node",
            )
        if not isinstance(stream, DataFrame):
            raise InputError(f"{call}: {name} is {type(stream).__name__}, not a DataFrame")
