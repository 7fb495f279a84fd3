"""What an operator is: a pure step from state, rows and watermark to state and rows."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from headrace.operators.chunks import Chunks
from headrace.topology.names import FAILED, LATE

__all__ = ["BEGINNING", "FAILED", "LATE", "RESULTS", "Operator", "Output", "Run", "Step"]

BEGINNING = -(2**62)
"""A time before all others, in microseconds, far enough from the edge for durations to be added and taken off."""

RESULTS = ""
"""The name of the output of the results. Late rows and those on which a function raised have outputs as well."""


@dataclass(frozen=True, slots=True)
class Step:
    """The input of a bucket: the rows of a batch and the watermark. Times are microseconds since 1970."""

    rows: Mapping[str, pa.Table]
    """By the input's name; an input without rows may be missing. In the order of arrival."""
    watermark: int
    """That of this batch: what is due before it is written now."""
    fired: int
    """That of the batch before, the same in all buckets: what was due before it is written, and older rows are late."""


@dataclass(frozen=True, slots=True)
class Output:
    tables: Mapping[str, pa.Table]
    """By the output's name; an output without rows may be missing."""
    late: int = 0
    """How many rows were late, whether they are in the output of late rows or dropped."""
    unmatched: int = 0
    """How many events found no row in the table in which they were looked up."""
    early: int = 0
    """How many of those did so because they are older than the first row of their key."""


class Operator(Protocol):
    """Has plain values only: it is sent to Python workers."""

    @property
    def version(self) -> int:
        """The version of the layout of its state: a state of another version is refused, never misread."""
        ...

    @property
    def waits(self) -> bool:
        """Whether it holds rows back until the watermark has passed them. Otherwise a step without rows gives none."""
        ...

    @property
    def inputs(self) -> Mapping[str, pa.Schema]: ...

    @property
    def outputs(self) -> Mapping[str, pa.Schema]: ...

    def step(self, chunks: Chunks, step: Step) -> Output: ...


@dataclass(slots=True)
class Run:
    """An operator over its own state in memory, step by step: how it is tried without Spark."""

    operator: Operator
    chunks: Chunks
    fired: int = field(default=BEGINNING)
    late: int = 0

    def step(self, watermark: int, **rows: pa.Table) -> Output:
        """The watermark never goes back; the only input may be named `rows`."""
        named = {RESULTS if name == "rows" else name: table for name, table in rows.items()}
        watermark = max(watermark, self.fired)
        output = self.operator.step(self.chunks, Step(named, watermark, self.fired))
        self.fired, self.late = watermark, self.late + output.late
        return output
