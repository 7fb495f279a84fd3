"""Each event once, against a walk over all that passed."""

import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.operators.chunks import MemoryChunks
from headrace.operators.dedup import Dedup
from headrace.operators.operator import BEGINNING, RESULTS, Run
from headrace.topology import Late
from tests.operators.reference import Policy, Row, Stepped
from tests.operators.rows import FEW_OR_MANY, SCHEMA, assert_agrees, row, steps, table


def dedup(within: int, on: tuple[str, ...] = ("key",), late: Late = Late.DIVERT) -> Dedup:
    return Dedup(on=on, time="at", within_us=within, input=SCHEMA, late=late)


class AllThatPassed:
    def __init__(self, policy: Policy, within: int) -> None:
        self.policy, self.within = policy, within
        self.passed: list[tuple[Any, int]] = []
        self.fired = BEGINNING

    def step(self, rows: list[Row], watermark: int) -> Stepped:
        out = Stepped()
        for one in rows:
            if one["at"] is None or self.policy.at(one) + self.within <= self.fired:
                out.late.append(one)
                continue
            key, time = self.policy.key(one), self.policy.at(one)
            if not any(other == key and abs(time - at) < self.within for other, at in self.passed):
                self.passed.append((key, time))
                out.results.append(one)
        self.fired = watermark
        return out


@pytest.mark.parametrize("examples", FEW_OR_MANY)
@pytest.mark.parametrize("rounds", [0, 1, 8])
@pytest.mark.parametrize("late", [Late.DROP, Late.DIVERT])
def test_the_first_of_its_like_passes(late: Late, rounds: int, examples: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.operators.dedup.ROUNDS", rounds)

    @settings(max_examples=examples, deadline=None)
    @given(steps(), st.integers(1, 50), st.sampled_from([(), ("key",), ("key", "struct")]))
    def holds(cuts: list[tuple[list[Row], int]], within: int, on: tuple[str, ...]) -> None:
        operator = pickle.loads(pickle.dumps(dedup(within, on, late)))
        reference = AllThatPassed(Policy(on, "at", (), SCHEMA), within)
        run = assert_agrees(operator, reference.step, [*cuts, ([], 10**6)])
        assert not list(run.chunks.names())

    holds()


def test_rows_keep_the_order_of_their_arrival() -> None:
    rows = [
        row(key, time, place) for place, (key, time) in enumerate([("b", 9), ("a", 3), ("b", 8), ("a", 1), ("c", 2)])
    ]
    output = Run(dedup(5), MemoryChunks()).step(0, rows=table(rows))
    assert output.tables[RESULTS].column("key").to_pylist() == ["b", "a", "c"]


def test_a_hot_key_passes_every_so_often() -> None:
    # Ten rows a second for an hour: each that passes waits for the one before.
    count = 36_000
    schema = pa.schema([("key", pa.int64()), ("at", SCHEMA.field("at").type)])
    at = pa.array(np.arange(count) * 100_000).cast(schema.field("at").type)
    rows = pa.table([pa.array(np.zeros(count, np.int64)), at], schema)
    operator = Dedup(on=("key",), time="at", within_us=1_000_000, input=schema)
    output = Run(operator, MemoryChunks()).step(0, rows=rows)
    assert np.diff(output.tables[RESULTS].column("at").cast(pa.int64()).to_numpy()).tolist() == [1_000_000] * 3599
