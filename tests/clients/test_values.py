"""A row becomes JSON in which nothing is lost, comes back as it was, and is refused by name where it does not fit."""

import datetime
import decimal
import enum
import json
import re
import uuid
from dataclasses import dataclass, field
from typing import Annotated, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

import headrace as hr
from headrace.clients.decoding import RowReader
from headrace.clients.rows import RowWriter
from headrace.topology import Topic
from tests.clients.strategies import carried_schemas, comparable, rows_of

UTC = datetime.UTC
NOON = datetime.datetime(2026, 1, 31, 12, 0, 0, 250, tzinfo=UTC)


def topic(schema: Any, **options: Any) -> Topic:
    app = hr.App("shop")
    node = app.topic("orders", schema, **options)
    assert app.problems() == ()
    return node


def written(schema: Any, row: Any, **options: Any) -> tuple[bytes | None, str]:
    key, value = RowWriter(topic(schema, **options)).write(row)
    return key, value.decode()


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_what_is_written_is_read_back_as_it_was(data: st.DataObject) -> None:
    schema = data.draw(carried_schemas)
    row = data.draw(rows_of(schema))
    _, value = RowWriter(topic(schema)).write(row)
    assert comparable(RowReader(schema).read(value)) == comparable(row)


@pytest.mark.parametrize("sign", ["", "-"])
@pytest.mark.parametrize("type_", ["DOUBLE", "FLOAT"])
def test_what_has_no_digits_is_written_as_spark_writes_it(type_: str, sign: str) -> None:
    row = {"x": float(f"{sign}inf"), "several": [float(f"{sign}nan"), 1.5]}
    value = written(f"x {type_}, several ARRAY<{type_}>", row)[1]
    assert value == f'{{"x":"{sign}Infinity","several":["NaN",1.5]}}'


def test_every_column_is_written_in_the_order_of_the_schema_and_nulls_too() -> None:
    ddl = "id STRING, amount DECIMAL(12,2), at TIMESTAMP, raw BINARY, tags ARRAY<STRING>, note STRING"
    row = {
        "tags": ["a", None],
        "id": 'say "ü"',
        "amount": decimal.Decimal("1.5"),
        "at": NOON,
        "raw": b"\x00\xff",
    }
    assert written(ddl, row)[1] == (
        '{"id":"say \\"ü\\"","amount":1.50,"at":"2026-01-31T12:00:00.000250Z","raw":"AP8=","tags":["a",null],'
        '"note":null}'
    )


@dataclass
class Line:
    sku: str
    price: Annotated[decimal.Decimal, "DECIMAL(8,2)"]


class Kind(enum.Enum):
    NEW = "new"
    USED = "used"


@dataclass
class Order:
    id: uuid.UUID
    kind: Kind
    at: datetime.datetime
    lines: list[Line] = field(default_factory=list)
    note: str | None = None
    count: int = 1


class Ride(BaseModel):
    id: uuid.UUID
    zone: str
    fare: Annotated[decimal.Decimal, "DECIMAL(8,2)"] | None = None


def test_a_dataclass_goes_out_and_comes_back() -> None:
    order = Order(uuid.uuid4(), Kind.USED, NOON, [Line("a", decimal.Decimal("2.50"))])
    _, value = RowWriter(topic(Order)).write(order)
    assert RowReader(Order).read(value) == order
    assert RowReader(topic(Order).schema).read(value)["lines"] == [{"sku": "a", "price": decimal.Decimal("2.50")}]
    left_out = {"id": str(order.id), "kind": "new", "at": "2026-01-31T12:00:00Z", "count": None}
    assert RowReader(Order).read(json.dumps(left_out).encode()).count == 1


def test_a_pydantic_model_goes_out_and_comes_back() -> None:
    ride = Ride(id=uuid.uuid4(), zone="harbour", fare=decimal.Decimal("12.10"))
    _, value = RowWriter(topic(Ride)).write(ride)
    assert RowReader(Ride).read(value) == ride


@pytest.mark.parametrize(
    ("ddl", "row", "key"),
    [
        ("card STRING", {"card": 'a "b"'}, b'a "b"'),
        ("n BIGINT", {"n": -7}, b"-7"),
        ("d DECIMAL(30,18)", {"d": decimal.Decimal("1e-18")}, b"0.000000000000000001"),
        ("at TIMESTAMP", {"at": NOON}, b"2026-01-31T12:00:00.000250Z"),
        ("day DATE", {"day": datetime.date(2026, 1, 31)}, b"2026-01-31"),
        ("b BOOLEAN", {"b": True}, b"true"),
        ("x DOUBLE", {"x": 1e10}, b"1.0E10"),
        ("x DOUBLE", {"x": 0.001}, b"0.001"),
        ("x FLOAT", {"x": 0.1}, b"0.1"),
        ("x FLOAT", {"x": 3.4028234663852886e38}, b"3.4028235E38"),
        ("x DOUBLE", {"x": float("nan")}, b"NaN"),
        ("x FLOAT", {"x": float("-inf")}, b"-Infinity"),
        ("x DOUBLE, f FLOAT, n INT", {"x": float("nan"), "f": float("inf"), "n": 3}, b'["NaN","Infinity",3]'),
        ("card STRING, n INT", {"card": 'a "b"', "n": 3}, b'["a \\"b\\"",3]'),
        ("day DATE, at TIMESTAMP", {"day": "2026-01-31", "at": NOON}, b'["2026-01-31","2026-01-31T12:00:00.000250Z"]'),
    ],
)
def test_a_key_of_one_column_is_its_text_and_of_several_a_json_array(ddl: str, row: Any, key: bytes) -> None:
    names = [part.split()[0] for part in ddl.replace("DECIMAL(30,18)", "D").split(", ")]
    assert written(ddl, row, key=names)[0] == key


@pytest.mark.parametrize(
    ("ddl", "row", "problem"),
    [
        ("amount DECIMAL(12,2)", {"amount": decimal.Decimal("1.005")}, "'amount' is 1.005, which has more digits than"),
        ("amount DECIMAL(4,2)", {"amount": 100}, "'amount' is 100, which has more digits than DECIMAL(4,2)"),
        ("amount DECIMAL(4,2)", {"amount": 1.5}, "'amount' is the float 1.5, which may not be exact"),
        ("amount DECIMAL(4,2)", {"amount": "much"}, "'amount' is 'much', not DECIMAL(4,2)"),
        ("amount DECIMAL(4,2)", {"amount": decimal.Decimal("NaN")}, "'amount' is NaN, not DECIMAL(4,2)"),
        ("n TINYINT", {"n": 128}, "'n' is 128, which TINYINT cannot hold"),
        ("n INT", {"n": True}, "'n' is True, not INT"),
        ("n INT", {"n": "7"}, "'n' is '7', not INT"),
        ("x DOUBLE", {"x": 10**400}, "which DOUBLE cannot hold"),
        ("x FLOAT", {"x": 1e39}, "'x' is 1e+39, which FLOAT cannot hold"),
        ("id STRING", {"id": 7}, "'id' is 7, not STRING"),
        ("id STRING", {"id": "\ud800"}, "'id' has an unpaired surrogate"),
        ("id STRING NOT NULL", {}, "'id' is missing and was declared NOT NULL"),
        ("id STRING NOT NULL", {"id": None}, "'id' is null and was declared NOT NULL"),
        ("id STRING", {"di": "7"}, "'di' is not a column"),
        ("at TIMESTAMP", {"at": datetime.datetime(2026, 1, 31)}, "'at' is 2026-01-31T00:00:00, which has no time zone"),
        ("at TIMESTAMP", {"at": "yesterday"}, "'at' is 'yesterday', not TIMESTAMP"),
        ("at TIMESTAMP_NTZ", {"at": NOON}, "TIMESTAMP_NTZ has no time zone"),
        ("day DATE", {"day": NOON}, "not DATE"),
        ("b BOOLEAN", {"b": 1}, "'b' is 1, not BOOLEAN"),
        ("raw BINARY", {"raw": "text"}, "'raw' is 'text', not BINARY"),
        ("tags ARRAY<INT>", {"tags": [1, "2"]}, "'tags[1]' is '2', not INT"),
        ("tags ARRAY<INT>", {"tags": "12"}, "'tags' is '12', not a list"),
        ("m MAP<STRING, INT>", {"m": {"a": "b"}}, "\"m['a']\" is 'b', not INT"),
        ("s STRUCT<a: STRUCT<b: INT>>", {"s": {"a": {"b": "c"}}}, "'s.a.b' is 'c', not INT"),
        ("id STRING", 7, "a row is 7, which is not a row"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_column_and_its_value(ddl: str, row: Any, problem: str) -> None:
    with pytest.raises(hr.InputError) as refused:
        written(ddl, row)
    assert problem in str(refused.value)
    assert "topic 'orders'" in str(refused.value)


def test_a_null_key_or_event_time_is_refused_since_the_engine_would_reject_it() -> None:
    ddl = "card STRING, at TIMESTAMP"
    with pytest.raises(hr.InputError, match="'card' is null, and is part of the key"):
        written(ddl, {"at": NOON}, key="card")
    with pytest.raises(hr.InputError, match="'at' is null, and is the event time"):
        written(ddl, {"card": "a"}, event_time="at", lateness="1 minute")


def test_text_and_bytes_are_rows_by_themselves() -> None:
    assert written(None, "hello", format="string") == (None, "hello")
    assert written(None, {"value": b"hello"}, format="bytes") == (None, "hello")
    with pytest.raises(hr.InputError, match="'value' is 7, not STRING"):
        written(None, {"value": 7}, format="string")
    with pytest.raises(hr.InputError, match="is empty"):
        written(None, b"", format="bytes")


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (None, "the value is null"),
        (b"", "the value is empty"),
        (b"\xff", "the value is not UTF-8"),
        (b'{"n": 1} x', "the value is not one JSON object"),
        (b"[1]", "the value is not one JSON object"),
        (b'{"n": NaN}', "the value is not one JSON object"),
        (b'{"n": "1"}', "'n' is '1', not INT"),
        (b'{"n": 2147483648}', "'n' is 2147483648, not INT"),
        (b"{}", "'n' is null and was declared NOT NULL"),
    ],
)
def test_what_cannot_be_read_says_why(value: bytes | None, problem: str) -> None:
    with pytest.raises(hr.InputError) as refused:
        RowReader("n INT NOT NULL").read(value)
    assert str(refused.value) == problem


@pytest.mark.parametrize("type_", ["DOUBLE", "FLOAT"])
def test_what_has_no_digits_is_read_as_spark_writes_it(type_: str) -> None:
    reader = RowReader(f"x {type_}, several ARRAY<{type_}>")
    read = reader.read(b'{"x": "-Infinity", "several": ["NaN", "Infinity", 1.5]}')
    assert repr(read) == "{'x': -inf, 'several': [nan, inf, 1.5]}"
    for other in ("nan", "inf", "1.5", ""):
        with pytest.raises(hr.InputError, match=f"'x' is '{other}', not {type_}"):
            reader.read(f'{{"x": "{other}"}}'.encode())


def test_times_that_others_wrote_are_read_as_the_engine_reads_them() -> None:
    reader = RowReader("at TIMESTAMP")
    for text in ('"2026-01-31T12:00:00Z"', '"2026-01-31 13:00:00+01:00"', '"2026-01-31T12:00:00"', "1769860800"):
        assert reader.read(f'{{"at": {text}}}'.encode()) == {"at": datetime.datetime(2026, 1, 31, 12, tzinfo=UTC)}


@pytest.mark.parametrize(
    ("number", "unit", "seconds"),
    [
        (1769860800000, "milliseconds", "1769860800000 / 1_000"),
        (1769860800000000, "microseconds", "1769860800000000 / 1_000_000"),
        (1769860800, None, "1769860800"),
    ],
)
def test_a_time_in_another_unit_is_told_apart(number: int, unit: str | None, seconds: str) -> None:
    if unit is not None:
        with pytest.raises(hr.InputError, match=f"'at' looks like {unit}.*send whole seconds, or text such as 2026-"):
            RowReader("at TIMESTAMP").read(f'{{"at": {number}}}'.encode())
    with pytest.raises(hr.InputError, match=re.escape(f"give datetime.fromtimestamp({seconds}, UTC)")):
        RowWriter(topic("at TIMESTAMP")).write({"at": number})
