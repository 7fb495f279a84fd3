"""Rows of a batch in the driver: every row once, in the order asked for, in memory or on disk."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.engine.write import rows as rows_module
from headrace.engine.write.rows import Rows, _Spool, collect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def piece(times: list[int | None], first: int) -> pa.RecordBatch:
    numbers = list(range(first, first + len(times)))
    return pa.record_batch(
        {
            "n": pa.array(numbers, pa.int64()),
            "at": pa.array(times, pa.int64()),
            "v": pa.array([str(n).encode() for n in numbers], pa.binary()),
        }
    )


def pieces_of(lists: list[list[int | None]]) -> list[pa.RecordBatch]:
    pieces, first = [], 0
    for times in lists:
        pieces.append(piece(times, first))
        first += len(times)
    return pieces


def numbers_in(slices: list[pa.RecordBatch]) -> list[int]:
    return [n for slice_ in slices for n in slice_.column("n").to_pylist()]


times = st.lists(st.lists(st.one_of(st.none(), st.integers(0, 20)), max_size=30), max_size=6)


@given(times, st.booleans(), st.integers(1, 40))
def test_sorted_rows_are_all_there_and_equal_times_keep_their_order(
    lists: list[list[int | None]], spooled: bool, size: int
) -> None:
    pieces = pieces_of(lists)
    rows = Rows(pieces, spooled=spooled)
    every = [(time, n) for n, time in enumerate(time for some in lists for time in some)]
    assert len(rows) == len(every)
    if not every:
        assert list(rows.slices()) == []
        return
    before = rows_module.SLICE
    rows_module.SLICE = size
    try:
        assert numbers_in(list(rows.slices())) == [n for _, n in every]
        order = rows.sorted_by("at")
        got = list(rows.slices(order, only=["n", "v"]))
    finally:
        rows_module.SLICE = before
    assert all(slice_.num_rows <= size for slice_ in got)
    if all(time is None for time, _ in every):
        wanted = [n for _, n in every]
    else:
        wanted = [n for _, n in sorted(every, key=lambda row: (row[0] is None, row[0] or 0))]
    assert numbers_in(got) == wanted
    assert [value for slice_ in got for value in slice_.column("v").to_pylist()] == [str(n).encode() for n in wanted]


keys = st.one_of(
    st.sampled_from(["a", "b", "", "ä"]).map(lambda text: (text, 0.0)),
    st.sampled_from([0.5, float("inf"), float("nan"), 1e300]).map(lambda number: ("a", number)),
)
orders = st.tuples(st.one_of(st.none(), st.booleans()), st.one_of(st.none(), st.sampled_from(["", "a", "b"])))


@given(st.lists(st.lists(st.tuples(keys, orders), max_size=20), max_size=5), st.booleans(), st.booleans(), st.data())
def test_the_last_row_of_each_key_is_chosen_and_the_rows_stay_where_they_are(
    lists: list[list[tuple[tuple[str, float], tuple[bool | None, str | None]]]],
    spooled: bool,
    ordered: bool,
    data: st.DataObject,
) -> None:
    every = [one for some in lists for one in some]
    if not every:
        return
    shape = pa.schema({"text": pa.string(), "number": pa.float64(), "first": pa.bool_(), "then": pa.string()})
    rows = Rows(
        [
            pa.RecordBatch.from_pylist(
                [
                    {"text": text, "number": number, "first": first, "then": then}
                    for (text, number), (first, then) in some
                ],
                shape,
            )
            for some in lists
        ],
        spooled=spooled,
    )
    among = data.draw(st.one_of(st.none(), st.lists(st.sampled_from(range(len(every))), unique=True).map(sorted)))
    considered = list(range(len(every))) if among is None else among

    def rank(place: int) -> tuple[tuple[bool, object], tuple[bool, object], int]:
        first, then = every[place][1] if ordered else (None, None)
        return (first is not None, first or False), (then is not None, then or ""), place

    last: dict[str, int] = {}
    for place in considered:
        name = str(every[place][0])
        last[name] = max(last.get(name, place), place, key=rank)
    chosen = rows.last_of_each(
        ["text", "number"], None if among is None else pa.array(among, pa.int64()), ["first", "then"] if ordered else []
    )
    assert (considered if chosen is None else chosen.to_pylist()) == sorted(last.values())


def test_rows_whose_key_is_null_or_nested_are_left_for_the_database_to_judge() -> None:
    with_null = Rows([pa.record_batch({"k": pa.array(["a", None, "a", None])})])
    assert with_null.last_of_each(["k"]) is None
    nested = Rows([pa.record_batch({"k": pa.array([[1], [1]])})])
    assert nested.last_of_each(["k"]) is None


def test_rows_in_order_are_not_moved() -> None:
    assert Rows(pieces_of([[1, 2, 2], [2, 3]])).sorted_by("at") is None
    assert Rows(pieces_of([[1, 2], [1]])).sorted_by("at") is not None


def test_many_rows_go_to_a_file_without_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_module, "IN_MEMORY", 500)
    spool = _Spool(tmp_path)
    pieces = pieces_of([[5] * 20, [3] * 20, [4] * 20])
    for some in pieces:
        spool.add(some)
    assert len(list(tmp_path.iterdir())) == 1
    with spool.rows([2, 0, 1]) as rows:
        assert list(tmp_path.iterdir()) == []  # a killed process leaves nothing behind
        assert len(rows) == 60
        assert numbers_in(list(rows.slices())) == [*range(40, 60), *range(20), *range(20, 40)]
        assert numbers_in(list(rows.slices(rows.sorted_by("at")))) == [*range(20, 40), *range(40, 60), *range(20)]


@pytest.mark.parametrize("limit", [1 << 30, 1000])
def test_spark_hands_all_rows_over_in_the_order_of_its_partitions(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    monkeypatch.setattr(rows_module, "IN_MEMORY", limit)
    frame = spark.range(0, 25_000, 1, 3).selectExpr("id AS n", "CAST(CAST(id AS STRING) AS BINARY) AS v")
    with collect(frame, tmp_path) as rows:
        assert numbers_in(list(rows.slices())) == list(range(25_000))
        assert pc.sum(rows.column("n")).as_py() == sum(range(25_000))
    with collect(frame.filter("n < 0"), tmp_path) as rows:
        assert len(rows) == 0
        assert list(rows.slices()) == []
    assert list(tmp_path.iterdir()) == []


def test_an_error_in_a_task_is_raised_and_leaves_no_file(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows_module, "IN_MEMORY", 1000)
    frame = spark.range(0, 25_000, 1, 3).selectExpr("CASE WHEN id > 24000 THEN raise_error('broken row') ELSE id END")
    with pytest.raises(Exception, match="broken row"):
        collect(frame, tmp_path)
    assert list(tmp_path.iterdir()) == []
