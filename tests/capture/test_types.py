"""Every type round-trips: what the topic has, PostgreSQL reads as the value that it printed."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.capture import table_schema
from headrace.capture.values import array_items, record_items
from headrace.topology.captures import Mask, TableName
from tests.capture.capturing import Capturing

COLUMNS = {
    "small": ("smallint", "SMALLINT", ["-32768", "7"]),
    "whole": ("integer", "INT", ["2147483647", "0"]),
    "big": ("bigint", "BIGINT", ["-9223372036854775808", "9007199254740993"]),
    "price": ("numeric(12,2)", "DECIMAL(12,2)", ["-1234567890.10", "NaN", "0.00"]),
    "exact": ("numeric", "STRING", ["123456789012345678901234567890.123456789", "NaN", "Infinity", "1e-20"]),
    "single": ("real", "FLOAT", ["1.5e+20", "NaN", "-Infinity", "0.1"]),
    "double": ("double precision", "DOUBLE", ["0.1", "1e-300", "Infinity", "-0"]),
    "yes": ("boolean", "BOOLEAN", ["t", "f"]),
    "words": ("text", "STRING", ["", 'quote " back \\ slash', "tab\tnew\nline \u00e4 \U0001f600 \x01"]),
    "short": ("varchar(20)", "STRING", ["x"]),
    "fixed": ("char(5)", "STRING", ["ab"]),
    "day": ("date", "DATE", ["2026-01-31", "infinity", "0044-03-15 BC", "12026-01-01"]),
    "clock": ("time", "STRING", ["12:34:56.789"]),
    "zoned_clock": ("timetz", "STRING", ["12:34:56+02"]),
    "moment": ("timestamp", "TIMESTAMP_NTZ", ["2026-01-31 12:34:56.789", "infinity", "0044-03-15 00:00:00 BC"]),
    "instant": ("timestamptz", "TIMESTAMP", ["2026-01-31 12:34:56+02", "-infinity", "20000-01-01 00:00:00+00"]),
    "span": ("interval", "STRING", ["1 year 2 mons -3 days 04:05:06.7"]),
    "document": ("jsonb", "STRING", ['{"a": [1, null, "x"]}', "null"]),
    "raw_document": ("json", "STRING", ['{ "a" : 1 }']),
    "numbers": ("integer[]", "ARRAY<INT>", ["{1,NULL,3}", "{}", "{{1,2},{3,4}}", "[2:3]={5,6}"]),
    "texts": ("text[]", "ARRAY<STRING>", ['{"a,b","",NULL,"NULL","q\\"x","\\\\"}']),
    "days": ("timestamptz[]", "ARRAY<TIMESTAMP>", ['{"2026-01-31 12:00:00+00",infinity}']),
    "id_": ("uuid", "STRING", ["6f1c2a9e-0d6b-4c59-8c3e-0d1f7a1b2c3d"]),
    "mood": ("mood", "STRING", ["so so"]),
    "positive": ("positive", "INT", ["5"]),
    "pair": ("pair", "STRUCT<a INT, b STRING>", ['(1,"x ""y"" \\\\, (z)")', '(,"")', "(2,)"]),
    "blob": ("bytea", "BINARY", ["\\x00ff10", "\\x"]),
    "address": ("inet", "STRING", ["10.0.0.1", "10.0.0.0/8", "::1"]),
    "range_": ("int4range", "STRING", ["[1,5)"]),
    "bits": ("bit varying", "STRING", ["10101"]),
}
"""By column: its type, what it is to Spark, and values."""
TYPES = """
CREATE TYPE mood AS ENUM ('happy', 'so so'); CREATE DOMAIN positive AS integer CHECK (VALUE > 0);
CREATE TYPE pair AS (a int, b text)
"""


def as_postgres(value: Any, type_: str) -> Any:
    """A JSON value in a form that PostgreSQL reads."""
    if type_ == "bytea" and value is not None:
        return "\\x" + base64.b64decode(value).hex()
    if isinstance(value, list):
        return "{" + ",".join("NULL" if one is None else _element(one, type_) for one in value) + "}"
    if isinstance(value, dict):
        texts = [None if one is None else str(one).replace("\\", "\\\\").replace('"', '""') for one in value.values()]
        fields = ["" if one is None else f'"{one}"' for one in texts]
        return f"({','.join(fields)})"
    return {True: "t", False: "f"}.get(value, value) if isinstance(value, bool) else value


def _element(value: Any, type_: str) -> str:
    if isinstance(value, list):
        return str(as_postgres(value, type_))
    return '"' + str(value).replace("\\", "\\\\").replace('"', '\\"') + '"'


def test_the_stream_and_the_snapshot_write_what_postgres_printed(capturing: Capturing) -> None:
    capturing.partitions = 1
    for statement in TYPES.split(";"):
        capturing.sql(statement)
    columns = ", ".join(f"{name} {type_}" for name, (type_, _, _) in COLUMNS.items())
    extra = "number int GENERATED ALWAYS AS IDENTITY, doubled int GENERATED ALWAYS AS (id * 2) STORED"
    capturing.sql(f"CREATE TABLE things (id int PRIMARY KEY, {columns}, {extra})")
    topic = capturing.table("things")
    count = max(len(values) for _, _, values in COLUMNS.values())

    def insert(first: int) -> None:
        for row in range(count):
            chosen = {name: values[row] for name, (_, _, values) in COLUMNS.items() if row < len(values)}
            names = ", ".join(["id", *chosen])
            places = ", ".join(["%s", *(f"%s::text::{COLUMNS[name][0]}" for name in chosen)])
            capturing.sql(f"INSERT INTO things ({names}) VALUES ({places})", first + row, *chosen.values())

    insert(0)
    with capturing.running():
        capturing.await_snapshots()
        insert(100)
        events = capturing.await_events(topic, 2 * count)
    rows = {event["after"]["id"]: event["after"] for event in events}
    assert [event["op"] for event in events] == ["r"] * count + ["c"] * count
    for key, row in rows.items():
        assert row == {**rows[key % 100], "id": key, "number": row["number"], "doubled": key * 2}
        for name, (type_, _, _) in COLUMNS.items():
            value = as_postgres(row[name], type_.removesuffix("[]"))
            is_same = f"(%s::text::{type_})::text IS NOT DISTINCT FROM {name}::text FROM things WHERE id = %s"
            bounds = f"{name}::text LIKE '[%%' OR" if type_ == "integer[]" else ""
            found = capturing.sql(f"SELECT {bounds} {is_same}", None if value is None else str(value), key)
            assert found[0][0], (name, row[name])
    assert rows[0]["small"] == -32768
    assert rows[1]["price"] == "NaN"
    assert rows[0]["exact"] == "123456789012345678901234567890.123456789"
    assert rows[0]["moment"] == "2026-01-31T12:34:56.789"
    assert rows[0]["instant"] == "2026-01-31T10:34:56Z"
    assert rows[1]["instant"] == "-infinity"
    assert rows[0]["span"] == "P1Y2M-3DT4H5M6.7S"
    assert rows[0]["pair"] == {"a": 1, "b": 'x "y" \\, (z)'}
    assert rows[2]["numbers"] == [[1, 2], [3, 4]]
    assert rows[0]["texts"] == ["a,b", "", None, "NULL", 'q"x', "\\"]
    schema, key = table_schema(capturing.dsn, TableName(capturing.name, "things"))
    assert key == ("id",)
    for name, (_, ddl, _) in COLUMNS.items():
        assert schema[name].type.ddl.replace("`", "") == ddl, name
    masked, _ = table_schema(
        capturing.dsn, TableName(capturing.name, "things"), ("small", "words"), {"small": Mask.HASH}
    )
    assert [(column.name, column.type.ddl) for column in masked] == [
        ("id", "INT"),
        ("small", "STRING"),
        ("words", "STRING"),
    ]


TEXTS = st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), max_size=12)


@pytest.fixture(scope="module")
def database(postgres_dsn: str) -> Any:
    import psycopg

    with psycopg.connect(postgres_dsn, autocommit=True) as connection:
        yield connection


@given(st.lists(st.none() | TEXTS, max_size=5))
def test_arrays_are_read_as_postgres_prints_them(database: Any, items: list[str | None]) -> None:
    (printed,) = database.execute("SELECT %s::text[]::text", (items,)).fetchone()
    assert array_items(printed) == items


@given(st.lists(st.lists(st.none() | TEXTS, min_size=2, max_size=2), min_size=1, max_size=3))
def test_arrays_of_two_dimensions(database: Any, items: list[list[str | None]]) -> None:
    (printed,) = database.execute("SELECT %s::text[]::text", (items,)).fetchone()
    assert array_items(printed) == items


@given(st.tuples(st.none() | TEXTS, st.none() | TEXTS, st.none() | TEXTS))
def test_records_are_read_as_postgres_prints_them(database: Any, items: tuple[str | None, ...]) -> None:
    (printed,) = database.execute("SELECT ROW(%s::text, %s::text, %s::text)::text", items).fetchone()
    assert record_items(printed) == list(items)


@given(TEXTS)
def test_texts_become_json(text: str) -> None:
    from headrace.capture.values import quoted

    assert json.loads(quoted(text)) == text
