"""What an operator is: a pure step from state, rows and watermark to state and rows."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from headrace.operators.chunks import Chunks

__all__ = ["BEGINNING", "FAILED", "LATE", "RESULTS", "Operator", "Output", "Run", "Step"]

BEGINNING = -(2**62)
"""A time before all others, in microseconds, far enough from the edge for durations to be added and taken off."""

RESULTS, LATE, FAILED = "", "late", "failed"
"""The names of the outputs: what was asked for, the rows that came too late for it, and those on which it raised."""


@dataclass(frozen=True, slots=True)
class Step:
    """What a bucket is given: the rows of a batch and how far time has come. Times are microseconds since 1970."""

    rows: Mapping[str, pa.Table]
    """By the input's name; an input without rows may be missing. In the order of arrival."""
    watermark: int
    """No row older than this is waited for any longer."""
    fired: int
    """The watermark that the bucket acted on last: what is due before it has come out already."""


@dataclass(frozen=True, slots=True)
class Output:
    tables: Mapping[str, pa.Table]
    """By the output's name; an output without rows may be missing."""
    late: int = 0
    """How many rows came too late, whether they are among the late rows or dropped."""


class Operator(Protocol):
    """Holds plain values only: it travels to Python workers, and its state outlives it."""

    @property
    def version(self) -> int:
        """The version of the layout of its state: a state of another version is refused, never misread."""
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
