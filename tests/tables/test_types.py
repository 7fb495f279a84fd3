"""Every type a row can have, through a table and back."""

import base64
import datetime
import json
import math
import struct
from decimal import Decimal as Number
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace import TableError
from headrace.tables import ViewReader, ViewWriter
from headrace.tables.types import postgres_type
from headrace.topology import Schema
from headrace.topology.datatypes import Array, DataType, Decimal, Map, Primitive, Struct
from tests.tables.conftest import MakeReader, MakeWriter
from tests.tables.rows import batch

COLUMNS = """
    id BIGINT, flag BOOLEAN, tiny TINYINT, small SMALLINT, whole INT, big BIGINT, single FLOAT, double DOUBLE,
    text STRING, bytes BINARY, day DATE, at TIMESTAMP, local TIMESTAMP_NTZ, amount DECIMAL(12,2), fine DECIMAL(38,18),
    flags ARRAY<BOOLEAN>, numbers ARRAY<DOUBLE>, texts ARRAY<STRING>, blobs ARRAY<BINARY>, days ARRAY<DATE>,
    times ARRAY<TIMESTAMP>, amounts ARRAY<DECIMAL(12,2)>, grid ARRAY<ARRAY<INT>>,
    place STRUCT<x: DOUBLE, name: STRING, at: TIMESTAMP, local: TIMESTAMP_NTZ, day: DATE, b: BINARY, d: DECIMAL(38,18)>,
    counts MAP<STRING, BIGINT>, rates MAP<INT, DECIMAL(12,2)>, deep ARRAY<STRUCT<tags: ARRAY<STRING>, single: FLOAT>>
"""
SCHEMA = Schema.of(COLUMNS)


def test_the_types_of_the_table() -> None:
    said = {column.name: postgres_type(column.type) for column in SCHEMA}
    assert said["amount"] == "numeric(12,2)"
    assert said["at"] == "timestamp with time zone"
    assert said["texts"] == "text[]"
    assert said["amounts"] == "numeric(12,2)[]"
    assert {said[name] for name in ("grid", "place", "counts", "rates", "deep")} == {"jsonb"}


SURROGATES_AND_NUL = st.characters(exclude_categories=("Cs",), exclude_characters="\0")
TIMES = st.datetimes(datetime.datetime(1, 1, 1), datetime.datetime(9999, 12, 31, 23, 59, 59, 999999))


def values(type_: DataType) -> st.SearchStrategy[Any]:
    match type_:
        case Primitive.BOOLEAN:
            return st.booleans()
        case Primitive.TINYINT:
            return st.integers(-(2**7), 2**7 - 1)
        case Primitive.SMALLINT:
            return st.integers(-(2**15), 2**15 - 1)
        case Primitive.INT:
            return st.integers(-(2**31), 2**31 - 1)
        case Primitive.BIGINT:
            return st.integers(-(2**63), 2**63 - 1)
        case Primitive.FLOAT:
            return st.floats(width=32)
        case Primitive.DOUBLE:
            return st.floats()
        case Primitive.STRING:
            return st.text(SURROGATES_AND_NUL, max_size=12) | st.sampled_from(
                ["", "NULL", "\\N", "\\.", '"', "{,}", "\n"]
            )
        case Primitive.BINARY:
            return st.binary(max_size=12)
        case Primitive.DATE:
            return st.dates()
        case Primitive.TIMESTAMP:
            return TIMES.map(lambda time: time.replace(tzinfo=datetime.UTC))
        case Primitive.TIMESTAMP_NTZ:
            return TIMES
        case Primitive():
            raise AssertionError(type_)
        case Decimal(precision, scale):
            limit = 10**precision - 1
            return st.integers(-limit, limit).map(lambda units: Number((units < 0, _digits(units), -scale)))
        case Array(element):
            return st.lists(st.none() | values(element), max_size=3)
        case Map(key, value):
            keys = values(key).filter(lambda text: text == text)
            return st.dictionaries(keys, st.none() | values(value), max_size=3).map(lambda items: list(items.items()))
        case Struct(columns):
            return st.fixed_dictionaries({column.name: st.none() | values(column.type) for column in columns})


def _digits(units: int) -> tuple[int, ...]:
    return tuple(map(int, str(abs(units))))


def expected(value: Any, type_: DataType) -> Any:
    """What psycopg gives back of a value."""
    if value is None:
        return None
    match type_:
        case Array(element) if postgres_type(type_) != "jsonb":
            return [expected(item, element) for item in value]
        case Array() | Map() | Struct():
            return in_json(value, type_)
        case _:
            return value


def in_json(value: Any, type_: DataType) -> Any:
    if value is None:
        return None
    match type_:
        case Primitive.DOUBLE | Primitive.FLOAT if not math.isfinite(value):
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        case Primitive.BINARY:
            return base64.b64encode(value).decode()
        case Primitive.DATE:
            return value.isoformat()
        case Primitive.TIMESTAMP:
            return value.replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
        case Primitive.TIMESTAMP_NTZ:
            return value.isoformat(timespec="microseconds")
        case Array(element):
            return [in_json(item, element) for item in value]
        case Map(_, mapped):
            return {str(key): in_json(item, mapped) for key, item in value}
        case Struct(columns):
            return {column.name: in_json(value[column.name], column.type) for column in columns}
        case _:
            return value


def same(found: Any, wanted: Any, single: bool = False) -> bool:
    match wanted:
        case float():
            if single and isinstance(found, float | int | Number):
                found = struct.unpack("f", struct.pack("f", float(found)))[0]
            return (math.isnan(wanted) and math.isnan(found)) or float(found) == wanted
        case Number() if isinstance(found, float):
            return found == float(wanted)  # Python reads JSON so; that all digits are there is another test's
        case list():
            return len(found) == len(wanted) and all(same(*pair, single) for pair in zip(found, wanted, strict=True))
        case dict():
            return found.keys() == wanted.keys() and all(
                same(found[name], wanted[name], single or name == "single") for name in wanted
            )
        case _:
            return bool(found == wanted)


@pytest.fixture
def view(writer_of: MakeWriter, reader_of: MakeReader) -> tuple[ViewWriter, ViewReader]:
    return writer_of(COLUMNS, ("id",)), reader_of(("id",))


ROWS = st.lists(
    st.fixed_dictionaries(
        {column.name: st.none() | values(column.type) for column in SCHEMA.columns if column.name != "id"}
    ),
    min_size=1,
    max_size=4,
)
numbers = iter(range(1_000_000))


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(rows=ROWS)
def test_every_value_comes_back_as_it_was(view: tuple[ViewWriter, ViewReader], rows: list[dict[str, Any]]) -> None:
    writer, reader = view
    number = next(numbers)
    given_rows = [{"id": index, **row} for index, row in enumerate(rows)]
    assert writer.write("q", number, {}, [batch([dict.fromkeys(SCHEMA.names), *given_rows], COLUMNS)[1:]])
    for row in given_rows:
        with_floats_exact(reader, row)


def with_floats_exact(reader: ViewReader, row: dict[str, Any]) -> None:
    found = reader.get(row["id"])
    assert found is not None
    for column in SCHEMA:
        wanted = expected(row[column.name], column.type)
        assert same(found[column.name], wanted, column.name == "single"), (column.name, found[column.name], wanted)


def test_numbers_in_json_lose_no_digit(writer_of: MakeWriter, postgres_dsn: str, schema_name: str) -> None:
    columns = "k STRING, d STRUCT<d: DECIMAL(38,18), f: FLOAT, n: BIGINT>"
    inner = {"d": Number("12345678901234567890.123456789012345678"), "f": 0.1, "n": 2**63 - 1}
    writer_of(columns).write("q", 0, {}, [batch([{"k": "a", "d": inner}], columns)])
    with psycopg.connect(postgres_dsn) as connection:
        (text,) = connection.execute(f'SELECT d::text FROM "{schema_name}".spend').fetchone() or ("",)
    assert json.loads(text, parse_float=str) == {
        "d": "12345678901234567890.123456789012345678",
        "f": "0.1",
        "n": 2**63 - 1,
    }


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        ("STRING", "a\0b"),
        ("ARRAY<STRING>", ["fine", "a\0b"]),
        ("STRUCT<x: STRING>", {"x": "a\0b"}),
        ("MAP<STRING, STRING>", [("a\0b", "x")]),
        ("ARRAY<STRUCT<x: MAP<STRING, STRING>>>", [{"x": [("k", "a\0b")]}]),
    ],
)
def test_the_nul_character_is_refused_by_column(writer_of: MakeWriter, type_: str, value: Any) -> None:
    columns = f"k STRING, v {type_}"
    writer = writer_of(columns)
    with pytest.raises(TableError, match=r"column 'v' contains the NUL character.*remove it"):
        writer.write("q", 0, {}, [batch([{"k": "a", "v": value}], columns)])


def test_nan_and_infinity_are_values_and_nan_is_one_key(writer_of: MakeWriter, reader_of: MakeReader) -> None:
    columns = "k DOUBLE, v BIGINT"
    writer = writer_of(columns)
    rows = [(math.nan, 1), (math.inf, 2), (-math.inf, 3), (math.nan, 4), (0.0, 5), (-0.0, 6)]
    writer.write("q", 0, {}, [batch([{"k": k, "v": v} for k, v in rows], columns)])
    reader = reader_of()
    assert len(reader.rows()) == 4
    assert (reader.get(math.nan) or {})["v"] == 4
    assert (reader.get(math.inf) or {})["v"] == 2
    assert (reader.get(0.0) or {})["v"] == 6
