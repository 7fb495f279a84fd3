"""Views with `order_by`: an older row or delete has no effect after a newer one, in one batch or across batches."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from headrace import InputError
from headrace.tables import ViewWriter
from headrace.topology import Schema
from tests.tables.conftest import MakeReader, MakeWriter
from tests.tables.rows import batch

AT = "k STRING, v BIGINT, at TIMESTAMP"


def at(minute: int) -> datetime:
    return datetime(2026, 1, 1, 12, minute, tzinfo=UTC)


def row(k: str, v: int, minute: int | None, deleted: bool = False) -> dict[str, Any]:
    return {"k": k, "v": v, "at": None if minute is None else at(minute), "_deleted": deleted}


def rows(*several: dict[str, Any]) -> list[Any]:
    return [batch(several, f"{AT}, _deleted BOOLEAN")]


def contents(reader_of: MakeReader) -> dict[str, int]:
    return {row["k"]: row["v"] for row in reader_of().rows()}


def markers(dsn: str, schema_name: str) -> list[Any] | None:
    """The delete markers of the view; None where it has no table for them."""
    with psycopg.connect(dsn) as connection:
        found = connection.execute(
            "SELECT relname FROM pg_class WHERE relnamespace = 'headrace'::regnamespace AND relkind = 'r' "
            "AND obj_description(oid) LIKE %s",
            [f"delete markers of view {schema_name}.spend,%"],
        ).fetchone()
        return found and connection.execute(f"SELECT * FROM headrace.{found[0]} ORDER BY 1").fetchall()  # type: ignore[arg-type]


def test_in_a_batch_the_greatest_wins_and_null_is_the_least(writer_of: MakeWriter, reader_of: MakeReader) -> None:
    arrived = rows(
        row("a", 1, 3),
        row("a", 2, 2),
        row("a", 3, None),
        row("b", 1, None),
        row("b", 2, None),
        row("c", 1, 1, deleted=True),
        row("c", 2, 0),
    )
    writer_of(AT, order_by=("at",)).write("q", 0, {}, arrived)
    assert contents(reader_of) == {"a": 1, "b": 2}


def test_an_older_row_of_a_later_batch_does_not_replace_a_newer_one(
    writer_of: MakeWriter, reader_of: MakeReader
) -> None:
    writer = writer_of(AT, order_by=("at",))
    writer.write("q", 0, {}, rows(row("a", 1, 5), row("b", 1, 5), row("c", 1, None)))
    writer.write("q", 1, {}, rows(row("a", 2, 4), row("b", 2, 5), row("c", 2, None)))
    # Of equals the later wins, as it does in one batch.
    assert contents(reader_of) == {"a": 1, "b": 2, "c": 2}
    writer.write("q", 2, {}, rows(row("a", 3, None), row("c", 3, 0)))
    assert contents(reader_of) == {"a": 1, "b": 2, "c": 3}


def test_a_delete_is_remembered_until_a_newer_row_comes(
    writer_of: MakeWriter, reader_of: MakeReader, postgres_dsn: str, schema_name: str
) -> None:
    writer = writer_of(AT, order_by=("at",))
    writer.write("q", 0, {}, rows(row("a", 1, 5), row("b", 1, 5)))
    # One that is older than the row, one that is newer, and one that comes before its row.
    writer.write("q", 1, {}, rows(*(row(k, 0, minute, deleted=True) for k, minute in (("a", 4), ("b", 6), ("c", 7)))))
    assert contents(reader_of) == {"a": 1}
    assert markers(postgres_dsn, schema_name) == [("b", at(6)), ("c", at(7))]
    writer.write("q", 2, {}, rows(row("b", 2, 5), row("c", 2, 6)))
    assert contents(reader_of) == {"a": 1}
    writer.write("q", 3, {}, rows(row("b", 0, 5, deleted=True), row("c", 3, 7)))
    assert contents(reader_of) == {"a": 1, "c": 3}
    assert markers(postgres_dsn, schema_name) == [("b", at(6))]


def test_a_delete_without_an_order_value_deletes_what_came_before_it(
    writer_of: MakeWriter, reader_of: MakeReader, postgres_dsn: str, schema_name: str
) -> None:
    writer = writer_of(AT, order_by=("at",))
    gone = [row(k, 0, None, deleted=True) for k in "abcd"]
    writer.write("q", 0, {}, rows(row("a", 1, 5), row("b", 1, 5), row("c", 1, 5)))
    writer.write("q", 1, {}, rows(row("b", 2, 6), *gone, row("c", 2, 6), row("d", 2, None)))
    assert contents(reader_of) == {"c": 2, "d": 2}
    # It has the order of what it deleted.
    assert markers(postgres_dsn, schema_name) == [("a", at(5)), ("b", at(6))]
    writer.write("q", 2, {}, rows(row("a", 3, 4), row("b", 3, 6)))
    assert contents(reader_of) == {"b": 3, "c": 2, "d": 2}


@pytest.mark.parametrize(
    ("columns", "values"),
    [
        ("BOOLEAN", [False, True]),
        ("SMALLINT", [-1, 2]),
        ("BIGINT", [-(2**63), 9, 10]),
        ("FLOAT", [-1.5, 0.1, float("inf"), float("nan")]),
        ("DOUBLE", [-1.5, 0.1, float("nan")]),
        ("DECIMAL(20,3)", ["-1.000", "9.999", "10.000"]),
        ("STRING", ["", "A", "Z", "a", "ä"]),
        ("BINARY", [b"", b"\x00", b"\xff"]),
        ("DATE", [datetime(2025, 12, 31).date(), datetime(2026, 1, 1).date()]),
        ("TIMESTAMP_NTZ", [datetime(2025, 12, 31), datetime(2026, 1, 1)]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_whatever_has_an_order_can_be_ordered_by(
    writer_of: MakeWriter, reader_of: MakeReader, columns: str, values: Sequence[Any]
) -> None:
    from decimal import Decimal

    ascending = [None, *(Decimal(value) if columns.startswith("DECIMAL") else value for value in values)]
    schema = f"k STRING, v BIGINT, o {columns}"
    writer = writer_of(schema, order_by=("o",))
    number = 0
    for v, value in enumerate(ascending):
        for older in (value, *reversed(ascending[:v])):
            arrived = {"k": "a", "v": v if older is value else -1, "o": older}
            writer.write("q", number, {}, [batch([arrived], schema)])
            number += 1
        assert contents(reader_of) == {"a": v}


def test_order_by_several_columns_sorts_text_by_its_bytes(writer_of: MakeWriter, reader_of: MakeReader) -> None:
    columns = "k STRING, v BIGINT, o STRING, p INT"
    arrived = [
        {"k": "a", "v": 1, "o": "a", "p": 1},
        {"k": "a", "v": 2, "o": "Z", "p": 9},
        {"k": "a", "v": 3, "o": "a", "p": 0},
        {"k": "a", "v": 4, "o": "a", "p": None},
    ]
    writer = writer_of(columns, order_by=("o", "p"))
    writer.write("q", 0, {}, [batch(arrived, columns)])
    assert contents(reader_of) == {"a": 1}
    for number, again in enumerate(arrived[1:], 1):
        writer.write("q", number, {}, [batch([again], columns)])
    assert contents(reader_of) == {"a": 1}


def test_the_order_may_be_part_of_a_key_that_needs_quotes(postgres_dsn: str, schema_name: str) -> None:
    columns = '`a "b" %s` BIGINT, order_0 STRING, `Größe` STRING'
    key = ('a "b" %s', "order_0")
    writer = ViewWriter(postgres_dsn, schema_name, "Order", Schema.of(columns), key, ("order_0", key[0]))
    writer.prepare()
    names = f"{columns}, _deleted BOOLEAN"
    arrived = {key[0]: 1, "order_0": "x", "Größe": "groß", "_deleted": False}
    assert writer.write("q", 0, {}, [batch([arrived], names)])
    assert writer.write("q", 1, {}, [batch([arrived | {"Größe": "klein"}], names)])
    with psycopg.connect(postgres_dsn) as connection:
        assert connection.execute(f'SELECT * FROM "{schema_name}"."Order"').fetchall() == [(1, "x", "klein")]
    assert writer.write("q", 2, {}, [batch([arrived | {"_deleted": True}], names)])
    with psycopg.connect(postgres_dsn) as connection:
        assert connection.execute(f'SELECT * FROM "{schema_name}"."Order"').fetchall() == []
    writer.close()


def test_markers_older_than_the_horizon_are_removed(
    writer_of: MakeWriter, reader_of: MakeReader, postgres_dsn: str, schema_name: str
) -> None:
    writer = writer_of(AT, order_by=("at",))
    gone = rows(*(row(k, 0, minute, deleted=True) for k, minute in (("a", 4), ("b", 5), ("c", 6))))
    writer.write("q", 0, {}, gone)
    writer.write("q", 1, {}, [], forget_before=at(5))
    assert markers(postgres_dsn, schema_name) == [("b", at(5)), ("c", at(6))]
    writer.write("q", 2, {}, rows(row("a", 1, 3), row("b", 1, 3)), forget_before=at(5))
    assert contents(reader_of) == {"a": 1}


def test_a_view_that_was_written_before_it_had_an_order_keeps_its_rows(
    writer_of: MakeWriter, reader_of: MakeReader, postgres_dsn: str, schema_name: str
) -> None:
    writer_of(AT).write("q", 0, {}, rows(row("a", 1, 5), row("b", 1, 5), row("c", 0, 5, deleted=True)))
    assert markers(postgres_dsn, schema_name) is None
    ordered = writer_of(AT, order_by=("at",))
    ordered.write("q", 1, {}, rows(row("a", 2, 4), row("b", 2, 6), row("c", 2, 1)))
    assert contents(reader_of) == {"a": 1, "b": 2, "c": 2}


def test_markers_of_another_order_are_replaced_and_a_restart_keeps_them(
    writer_of: MakeWriter, postgres_dsn: str, schema_name: str
) -> None:
    gone = rows(row("a", 0, 5, deleted=True))
    writer_of(AT, order_by=("at",)).write("q", 0, {}, gone)
    writer_of(AT, order_by=("at",))
    assert markers(postgres_dsn, schema_name) == [("a", at(5))]
    writer_of(AT, order_by=("v",))
    assert markers(postgres_dsn, schema_name) == []
    writer_of(AT)
    assert markers(postgres_dsn, schema_name) is None


def test_a_reset_forgets_deletes(writer_of: MakeWriter, reader_of: MakeReader) -> None:
    writer = writer_of(AT, order_by=("at",))
    writer.write("q", 0, {}, rows(row("a", 0, 5, deleted=True)))
    writer.reset()
    writer.prepare()
    writer.write("q", 0, {}, rows(row("a", 1, 4)))
    assert contents(reader_of) == {"a": 1}


@pytest.mark.parametrize(
    ("order_by", "complaint"), [("x", "'x' is not among its columns"), ("o", "'o' is ARRAY<INT>, which has no order")]
)
def test_what_cannot_be_ordered_by(order_by: str, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        ViewWriter("postgresql://127.0.0.1:1/x", "app", "v", Schema.of("k STRING, o ARRAY<INT>"), ("k",), (order_by,))
