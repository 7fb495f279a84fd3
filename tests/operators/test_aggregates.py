"""Partial figures: however rows are cut and folded, the result is that of all rows at once."""

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import EngineError, InputError
from headrace.operators.aggregates import Aggregates, result_type
from headrace.operators.chunks import packed, unpacked
from headrace.operators.grouping import grouped, matches
from headrace.topology import Aggregate, AggregateKind
from tests.operators import reference
from tests.operators.rows import FEW_OR_MANY, POOLS, SCHEMA, every_aggregate, row, table


def times_of(rows: pa.Table) -> np.ndarray:
    return rows.column("at").cast(pa.int64()).to_numpy()


def folded(folding: Aggregates, partials: pa.Table, keys: pa.Array) -> tuple[pa.Table, pa.Array]:
    groups = grouped([keys], len(partials))
    return folding.fold(partials, groups), keys.take(pa.array(groups.first))


@pytest.mark.parametrize("examples", FEW_OR_MANY)
def test_figures_of_pieces_are_those_of_the_whole(examples: int) -> None:
    one = st.builds(row, st.sampled_from(["a", "b", None]), st.integers(-5, 5), st.integers(0, 2**9))

    @settings(max_examples=examples, deadline=None)
    @given(
        st.lists(st.lists(one, min_size=1, max_size=6), min_size=1, max_size=5),
        st.lists(st.sampled_from(list(POOLS)), min_size=2, max_size=4, unique=True),
    )
    def holds(pieces: list[list[reference.Row]], columns: list[str]) -> None:
        wanted = every_aggregate(columns)
        folding = Aggregates(wanted, SCHEMA)
        kept: pa.Table | None = None
        keys = pa.array([], pa.string())
        for piece in pieces:
            rows = table(piece)
            fresh, fresh_keys = folded(folding, folding.lift(rows, times_of(rows)), rows.column("key").combine_chunks())
            if kept is not None:
                fresh = pa.concat_tables([kept, fresh])
                fresh_keys = pa.concat_arrays([keys, fresh_keys])
            kept, keys = folded(folding, fresh, fresh_keys)
            kept = unpacked(packed(kept))
        assert kept is not None
        finished = folding.finish(kept)
        assert finished.schema.equals(folding.results)
        everything = [some for piece in pieces for some in piece]
        for key, made in zip(keys.to_pylist(), finished.to_pylist(), strict=True):
            mine = [some for some in everything if some["key"] == key]
            expected = reference.aggregates(wanted, SCHEMA, mine, "at")
            for name, value in expected.items():
                assert reference.identity(made[name]) == reference.identity(value), name

    holds()


def test_values_of_any_type_are_grouped_as_equals() -> None:
    for column, pool in POOLS.items():
        kind = SCHEMA.field(column).type
        values = pool * 2
        ids = [reference.identity(reference.same_map(value, kind)) for value in values]
        for cut in (0, 1):
            groups = grouped([pa.array(values, kind).slice(cut)], len(values) - cut)
            expected = [ids[cut:].index(one) for one in ids[cut:]]
            assert groups.first[groups.of_rows].tolist() == expected, column


def test_matches_finds_equal_rows_nulls_included() -> None:
    sought = [pa.array(["a", None, "c", "a"]), pa.array([1.0, float("nan"), 3.0, 2.0])]
    among = [pa.array([None, "a", "a"]), pa.array([float("nan"), 1.0, 1.0])]
    assert matches(sought, among, (4, 3)).tolist() == [1, 0, -1, -1]
    assert matches([], [], (2, 1)).tolist() == [0, 0]
    assert matches([], [], (2, 0)).tolist() == [-1, -1]


@pytest.mark.parametrize(
    ("kind", "column", "expected"),
    [
        (AggregateKind.SUM, pa.int16(), pa.int64()),
        (AggregateKind.SUM, pa.float32(), pa.float64()),
        (AggregateKind.SUM, pa.decimal128(12, 2), pa.decimal128(22, 2)),
        (AggregateKind.SUM, pa.decimal128(38, 10), pa.decimal128(38, 10)),
        (AggregateKind.MEAN, pa.int64(), pa.float64()),
        (AggregateKind.MEAN, pa.decimal128(12, 2), pa.decimal128(16, 6)),
        (AggregateKind.MEAN, pa.decimal128(38, 10), pa.decimal128(38, 14)),
        (AggregateKind.COUNT, pa.string(), pa.int64()),
        (AggregateKind.COLLECT, pa.string(), pa.list_(pa.string())),
        (AggregateKind.LAST, pa.map_(pa.string(), pa.int64()), pa.map_(pa.string(), pa.int64())),
    ],
)
def test_results_have_the_types_of_spark(kind: AggregateKind, column: pa.DataType, expected: pa.DataType) -> None:
    assert result_type(kind, column) == expected


@pytest.mark.parametrize("kind", [AggregateKind.SUM, AggregateKind.MEAN])
def test_what_is_no_number_is_not_added_up(kind: AggregateKind) -> None:
    with pytest.raises(InputError, match="not a number"):
        result_type(kind, pa.string())


def test_maps_have_no_smallest() -> None:
    with pytest.raises(InputError, match="no order"):
        result_type(AggregateKind.MIN, pa.struct([("m", pa.map_(pa.string(), pa.int64()))]))


@pytest.mark.parametrize(
    ("kind", "values", "total"),
    [
        (pa.int64(), [2**63 - 1, -1, -(2**63), 5], 3),
        (pa.int64(), [2**62, 2**62 - 1], 2**63 - 1),
        (pa.int64(), [2**62, 2**62], None),
        (pa.int64(), [-(2**63), -1], None),
        (pa.decimal128(38, 0), [Decimal(10**38 - 2), Decimal(1)], Decimal(10**38 - 1)),
        (pa.decimal128(38, 0), [Decimal(10**38 - 1), Decimal(1)], None),
        (pa.decimal128(38, 0), [Decimal(10**38 - 1)] * 9, None),
        (pa.decimal128(38, 0), [Decimal(10**38 - 1), Decimal(7), Decimal(1 - 10**38)], Decimal(7)),
    ],
)
def test_sums_are_exact_or_refused(kind: pa.DataType, values: list[object], total: object) -> None:
    schema = pa.schema([("v", kind)])
    folding = Aggregates((("total", Aggregate(AggregateKind.SUM, "v")),), schema)
    rows = pa.Table.from_pylist([{"v": value} for value in values], schema)
    lifted = folding.lift(rows, np.zeros(len(values), dtype=np.int64))
    groups = grouped([], len(values))
    if total is None:
        with pytest.raises(EngineError, match="total of a window is too large"):
            folding.fold(lifted, groups)
    else:
        assert folding.finish(folding.fold(lifted, groups)).to_pylist() == [{"total": total}]
