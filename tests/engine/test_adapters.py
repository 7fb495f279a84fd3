"""A new kind of source and a new kind of sink are one file each: no module of Headrace knows of them."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import headrace as hr
from headrace.engine.write.row_sink import RowSink
from headrace.topology import as_mermaid, as_text
from tests.engine.kinds import csv_files, sqlite_table
from tests.engine.kinds.csv_files import CsvFiles
from tests.engine.kinds.sqlite_table import SqliteTable

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.engine.write.batch import Batch
    from headrace.testing import Harness

MOST_LINES = 80


def app_of(folder: Path, **options: Any) -> hr.App:
    app = hr.App("shop")
    (folder / "in").mkdir(exist_ok=True)
    app.source(CsvFiles, "sales", "id STRING, cents INT", key="id", folder=str(folder / "in"), **options)

    @app.stream(to=[SqliteTable(str(folder / "shop.db"))])
    def booked(sales: Any) -> Any:
        return sales.where("cents > 0")

    @app.view(key="id", to=[SqliteTable(str(folder / "shop.db"))])
    def latest(sales: Any) -> Any:
        return sales.select("id", "cents")

    @app.stream(key="id")
    def large(sales: Any) -> Any:
        return sales.where("cents > 100")

    return app


def rows(folder: Path, table: str) -> list[tuple[Any, ...]]:
    with sqlite3.connect(folder / "shop.db") as database:
        return sorted(database.execute(f"SELECT * FROM {table}").fetchall())


def put(folder: Path, name: str, *lines: str) -> None:
    """A file that is there whole or not at all."""
    part = folder / name
    part.write_text("\n".join(lines) + "\n")
    part.rename(folder / "in" / name)


@pytest.mark.parametrize("module", [csv_files, sqlite_table])
def test_a_kind_is_one_short_file(module: Any) -> None:
    assert len(Path(module.__file__).read_text().splitlines()) <= MOST_LINES


def test_an_app_runs_with_them_and_goes_on_after_restarts(
    headrace_harness: Callable[..., Harness], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = app_of(tmp_path)
    write = RowSink.write
    lost: list[int] = []

    def fails_afterwards(self: RowSink, batch: Batch) -> None:
        """The batch is in the store, and Spark does not know: it is written again after the restart."""
        write(self, batch)
        if batch.number == 1 and len(lost) < 2:
            lost.append(batch.number)
            raise OSError("before Spark noted the batch")

    put(tmp_path, "1.csv", "a,50", "b,150", "c,-1")
    harness = headrace_harness(app)
    harness.settle()
    assert rows(tmp_path, "booked") == [("a", 50), ("b", 150)]
    monkeypatch.setattr(RowSink, "write", fails_afterwards)
    put(tmp_path, "2.csv", "a,200")
    with pytest.raises(hr.NodeFailed):
        harness.settle()
    harness.restart()
    harness.settle()
    assert lost
    harness.restart()
    put(tmp_path, "3.csv", "d,1")
    harness.settle()
    assert rows(tmp_path, "booked") == [("a", 50), ("a", 200), ("b", 150), ("d", 1)]
    assert rows(tmp_path, "latest") == [("a", 200), ("b", 150), ("c", -1), ("d", 1)]
    assert [row["id"] for row in harness.rows("large")] == ["b", "a"]


def test_they_are_drawn_and_their_mistakes_are_found_before_the_app_runs(tmp_path: Path) -> None:
    app = app_of(tmp_path, separator=",,")
    assert [problem.message for problem in app.problems()] == ["csv 'sales': separator ',,' is not one character"]
    drawn = as_text(app_of(tmp_path).topology())
    assert f"sales  csv · in {tmp_path / 'in'}" in drawn
    assert f"to SQLite {tmp_path / 'shop.db'}" in drawn
    assert "node_sales[/" in as_mermaid(app_of(tmp_path).topology())


def test_a_node_whose_rows_are_elsewhere_cannot_be_read(tmp_path: Path) -> None:
    app = app_of(tmp_path)

    @app.stream(key="id")
    def again(booked: Any) -> Any:
        return booked

    (problem,) = app.problems()
    assert f"the stream 'booked' writes to SQLite {tmp_path / 'shop.db'}, not a stream" in problem.message


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"to": [SqliteTable("x"), SqliteTable("y")]}, "to: 2 sinks are named, and a node has one"),
        ({"to": ["x.db"]}, "to: 'x.db' is not a sink"),
        ({"to": SqliteTable("x")}, "is not in a list"),
        ({"to": [SqliteTable("x")], "channels": ["a"]}, "channels are topics, and its rows go to SQLite x"),
        ({"to": [SqliteTable("x")], "latency": "real-time"}, 'latency="real-time" writes to a topic only'),
    ],
)
def test_sinks_that_do_not_fit_are_refused(options: dict[str, Any], told: str) -> None:
    app = hr.App("shop")
    app.topic("sales", "id STRING")

    @app.stream(guarantee="at-least-once", **options)
    def booked(sales: Any) -> Any:
        return sales

    assert any(told in problem.message for problem in app.problems())
