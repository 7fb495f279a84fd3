"""Debezium's envelope as a table: topics that its own engine wrote, with and without schemas, and what is rejected."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, localcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import functions as F

import headrace as hr
from headrace.engine.read.debezium import UNAVAILABLE
from headrace.engine.read.parsing import IS_REJECTED, Shape, is_row, parse, reason, rows
from headrace.testing import Harness
from headrace.topology import Format, Schema

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

pytestmark = pytest.mark.timeout(300)

RECORDED = Path(__file__).parent / "debezium"
RECORD = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, "
    "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)
AT = datetime(2026, 1, 1, 12, tzinfo=UTC)
ORDERS = (
    "id BIGINT, small SMALLINT, number INT, amount DECIMAL(12,2), exact DECIMAL(38,10), free STRING, rate FLOAT, "
    "ratio DOUBLE, paid BOOLEAN, name STRING NOT NULL, code STRING, born DATE, opens STRING, made TIMESTAMP_NTZ, "
    "made_ms TIMESTAMP_NTZ, seen TIMESTAMP, span STRING, details STRING, tags ARRAY<STRING>, counts ARRAY<INT>, "
    "prices ARRAY<DECIMAL(10,2)>, ref STRING, mood STRING, cost DECIMAL(12,2), raw BINARY, host STRING, long STRING"
)
READ = {
    **dict.fromkeys(("id", "small", "number"), int),
    **dict.fromkeys(("amount", "exact", "cost"), Decimal),
    "rate": lambda text: struct.unpack("f", struct.pack("f", float(text)))[0],
    "ratio": float,
    "paid": lambda text: text == "true",
    "born": date.fromisoformat,
    "made": datetime.fromisoformat,
    "made_ms": datetime.fromisoformat,
    "seen": lambda text: datetime.fromisoformat(text).astimezone(UTC),
    "tags": lambda _: ["x", None, "y z"],
    "counts": lambda _: [1, None, -3],
    "prices": lambda _: [Decimal("1.10"), Decimal("-2.00")],
    "raw": lambda text: bytes.fromhex(text.removeprefix("\\x")),
}  # fmt: skip
"""How the text that PostgreSQL prints of a column is read; the others are text."""
AS_DEBEZIUM_HAS_IT = {
    # Blanks that SQL ignores; the digits that a number needs; no value of a column that did not change; and a time, a
    # span and a number as numbers, or as other text than PostgreSQL's.
    "with_schema": {"code": "ab ", "free": "1.1", "span": "31741445600000", "long": UNAVAILABLE},
    "without_schema": {"code": "ab ", "opens": "23:59:59.5Z", "span": "P1Y0M2DT3H4M5.6S", "long": UNAVAILABLE},
}  # fmt: skip
ISO_MIDNIGHT = {"without_schema": {"opens": "00:00:00Z"}}
Line = dict[str, Any]


def recorded(name: str) -> list[Line]:
    return [json.loads(line) for line in (RECORDED / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]


def expected(name: str, printed: Line) -> Line:
    row = {column: None if text is None else READ.get(column, str)(text) for column, text in printed.items()}
    if row["id"] == 1:
        row |= AS_DEBEZIUM_HAS_IT[name]
    if row["id"] == 3:
        row |= ISO_MIDNIGHT.get(name, {})
    return row


def shape_of(schema: str, key: tuple[str, ...] = ("id",), is_captured: bool = False) -> Shape:
    return Shape(Schema.of(schema), Format.DEBEZIUM, key, is_table=True, is_captured=is_captured)


def read(
    spark: SparkSession, shape: Shape, records: Sequence[tuple[str | None, str | bytes | None]], reasons: bool = True
) -> list[Row]:
    """For each record whether it is rejected, why, whether it is a row, and the row; in the order given."""
    raw = [(_bytes(key), _bytes(value), "orders", 0, offset, AT, None) for offset, (key, value) in enumerate(records)]
    parsed = parse(spark.createDataFrame(raw, RECORD), shape)
    row = F.when(is_row(shape), F.struct(*rows(shape))).alias("row")
    why = F.when(F.col(IS_REJECTED), reason(shape) if reasons else F.lit("rejected")).alias("reason")
    told = parsed.select("offset", IS_REJECTED, why, is_row(shape).alias("is_row"), row).collect()
    return sorted(told, key=lambda row: int(row["offset"]))


def _bytes(text: str | bytes | None) -> bytes | None:
    return text.encode() if isinstance(text, str) else text


def change(op: str, after: Any = None, before: Any = None) -> str:
    return json.dumps({"before": before, "after": after, "op": op, "source": {"lsn": 1}, "ts_ms": 1})


def described(op: str, fields: Sequence[Line], after: Any = None, before: Any = None) -> str:
    """A change with its schema, as Kafka Connect's JsonConverter writes it."""
    row = {"type": "struct", "fields": list(fields), "optional": True}
    parts = [row | {"field": "before"}, row | {"field": "after"}, {"type": "string", "field": "op"}]
    schema = {"type": "struct", "fields": parts, "name": "shop.public.orders.Envelope"}
    return json.dumps({"schema": schema, "payload": json.loads(change(op, after, before))})


# ---- what Debezium's own engine wrote


@pytest.mark.parametrize("name", ["with_schema", "without_schema"])
def test_what_debezium_recorded_is_the_table_that_it_read(spark: SparkSession, name: str) -> None:
    lines = recorded(name)
    upto = next(index for index, line in enumerate(lines) if "rows" in line)
    told = read(spark, shape_of(ORDERS), [(line["key"], line["value"]) for line in lines[:upto]], False)
    assert [one["reason"] for one in told] == [None] * upto
    table: dict[int, Line] = {}
    operations = []
    for one in told:
        row = one["row"].asDict(recursive=True)
        deleted = row.pop("_deleted")
        assert row.pop("_time") == AT.replace(tzinfo=None)
        assert row.pop("_order") == one["offset"]
        operations.append((row["id"], deleted))
        if deleted:
            assert {column: value for column, value in row.items() if value is not None} == {"id": row["id"]}
            table.pop(row["id"], None)
        else:
            table[row["id"]] = row | {"seen": row["seen"] and row["seen"].replace(tzinfo=UTC)}
    assert table == {int(row["id"]): expected(name, row) for row in lines[upto]["rows"]}
    assert operations == [
        (1, False), (2, False), (3, False), (4, False), (1, False), (2, True), (2, True), (20, False), (4, True),
        (4, True),
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["with_schema", "without_schema"])
def test_a_recorded_topic_is_a_view_and_is_looked_up(headrace_harness: Callable[..., Harness], name: str) -> None:
    app = hr.App(f"dbz_{name}")
    app.topic("visits", "order_id BIGINT, at TIMESTAMP", key="order_id", event_time="at", lateness="1 minute")
    app.table("orders", "id BIGINT, amount DECIMAL(12,2), name STRING, seen TIMESTAMP", key="id", format="debezium")

    @app.view(key="id")
    def latest(orders: Any) -> Any:
        return orders.changes

    @app.stream(key="order_id")
    def named(visits: Any, orders: Any) -> Any:
        return hr.enrich(visits, orders.select("id", "name"), on={"order_id": "id"}, as_of="now", how="left")

    lines = recorded(name)
    upto = next(index for index, line in enumerate(lines) if "rows" in line)
    with headrace_harness(app) as harness:
        _produce(harness, "orders", [(line["key"], line["value"]) for line in lines[:upto]])
        harness.settle()
        assert [(row["id"], row["amount"], row["name"]) for row in harness.rows("latest")] == [
            (1, Decimal("13.00"), 'Åsa "1"'), (3, Decimal("-0.01"), ""), (20, None, "moved")
        ]  # fmt: skip
        harness.send("visits", [{"order_id": id_, "at": AT} for id_ in (1, 2, 4, 20)])
        harness.settle()
        assert {row["order_id"]: row["name"] for row in harness.rows("named")} == {
            1: 'Åsa "1"', 2: None, 4: None, 20: "moved"
        }  # fmt: skip
        assert harness.records("orders.rejected") == []
        # What Debezium tells of a truncate has no keys: it is kept where somebody looks.
        _produce(harness, "orders", [(line["key"], line["value"]) for line in lines[upto + 1 : -1]])
        harness.settle()
        assert {row["id"] for row in harness.rows("latest")} == {1, 3, 6, 20}
        (rejected,) = harness.rows("orders.rejected")
        assert rejected["reason"].startswith("it is a truncate, which tells no keys")
        # Clients get the change itself.
        last = harness.records("orders")[-1].row
        assert last.get("payload", last)["after"]["id"] == 6
        with pytest.raises(hr.InputError, match="the rows of orders are changes"):
            harness.rows("orders")
        with pytest.raises(hr.InputError, match="its topic has a database's changes"):
            harness.send("orders", {"id": 1})


def _produce(harness: Harness, topic: str, records: Sequence[tuple[str | None, str | None]]) -> None:
    producer = Producer(harness._settings)
    for key, value in records:
        producer.produce(topic, value, key)
    assert producer.flush(30) == 0


# ---- what is read, and what is rejected

SMALL = "id BIGINT, n INT, price DECIMAL(6,2), at TIMESTAMP, born DATE, name STRING NOT NULL, list ARRAY<INT>"


@pytest.mark.parametrize("is_captured", [True, False])
def test_changes_without_schemas_are_read(spark: SparkSession, is_captured: bool) -> None:
    row = {
        "id": 1,
        "n": 2,
        "price": 1.5,
        "at": "2026-01-31T12:00:00.5Z",
        "born": "2026-01-31",
        "name": "a",
        "list": [1],
    }
    records = [
        ('{"id":1}', change("r", row)),
        ('{"id":1}', change("c", {"id": 1, "price": "1.50", "name": "b", "born": 20484})),
        ('{"id":1}', change("u", {"id": 1, "name": "c", "more": {"x": 1}}, {"id": 1, "n": "wrong"})),
        ('{"id":1}', change("d", None, {"id": 1, "name": None})),
        ('{"id":2}', change("d")),
        ('{"id":3}', None),
        (None, change("m")),
    ]
    told = read(spark, shape_of(SMALL, is_captured=is_captured), records)
    assert [one["reason"] for one in told] == [None] * len(records)
    assert [one["is_row"] for one in told] == [True] * 6 + [False]
    found = [one["row"].asDict() for one in told[:6]]
    assert [(one["id"], one["name"], one["_deleted"]) for one in found] == [
        (1, "a", False), (1, "b", False), (1, "c", False), (1, None, True), (2, None, True), (3, None, True)
    ]  # fmt: skip
    assert [one["price"] for one in found[:2]] == [Decimal("1.50"), Decimal("1.50")]
    assert [one["born"] for one in found[:2]] == [date(2026, 1, 31), date(2026, 1, 31)]
    assert found[0]["at"] == datetime(2026, 1, 31, 12, 0, 0, 500000)
    assert (found[0]["n"], found[0]["list"]) == (2, [1])


def test_a_truncate_is_no_row_where_deletes_tell_of_it(spark: SparkSession) -> None:
    (captured,) = read(spark, shape_of(SMALL, is_captured=True), [(None, change("t"))])
    assert (captured[IS_REJECTED], captured["is_row"]) == (False, False)
    (foreign,) = read(spark, shape_of(SMALL), [(None, change("t"))])
    assert (foreign[IS_REJECTED], foreign["is_row"]) == (True, False)


NOT_A_CHANGE = "it is not a change in Debezium's envelope: it has no op of r, c, u or d"
WRONG = [
    ("{}", "", "the value is empty"),
    ("{}", b"\xff", "the value is not UTF-8"),
    ("{}", "5", "the value is not one JSON object"),
    ("{}", change("r", {"id": 1, "name": "a"}) + " more", "the value is not one JSON object"),
    ("{}", '{"id": 1, "name": "a"}', NOT_A_CHANGE),
    ("{}", '{"schema": {}, "payload": {"id": 1}}', NOT_A_CHANGE),
    ("{}", change("x", {"id": 1, "name": "a"}), NOT_A_CHANGE),
    ("{}", change("c"), "it is a change without the row after it"),
    ("{}", change("c", {"name": "a"}), "the key 'id' is null"),
    ("{}", change("c", {"id": 1}), "'name' is null and was declared NOT NULL"),
    ("{}", change("c", {"id": 1, "name": "a", "n": "x"}), "'n' is not INT"),
    ("{}", change("c", {"id": 1, "name": "a", "n": 1.5}), "'n' is not INT"),
    ("{}", change("c", {"id": 1, "name": "a", "price": "NaN"}), "'price' is not DECIMAL(6,2)"),
    ("{}", change("c", {"id": 1, "name": "a", "price": 1.234}), "'price' has more digits than DECIMAL(6,2)"),
    ("{}", change("c", {"id": 1, "name": "a", "born": "infinity"}), "'born' is not DATE"),
    ("{}", change("c", {"id": 1, "name": "a", "at": "infinity"}), "'at' is not TIMESTAMP"),
    ("{}", change("c", {"id": 1, "name": "a", "at": "now"}), "'at' is not TIMESTAMP"),
    ("{}", change("c", {"id": 1, "name": "a", "at": "12026-01-01T00:00:00Z"}), "'at' is outside the years 1 to 9999"),
    (
        "{}",
        change("c", {"id": 1, "name": "a", "at": 1769860800123}),
        "'at' is a number without a schema that tells its unit: set Debezium's time.precision.mode=isostring",
    ),
    (
        "{}",
        change("u", {"id": 1, "name": "a", "list": UNAVAILABLE}),
        "'list' is a large value that did not change, and that the database did not send: ALTER TABLE ... REPLICA "
        "IDENTITY FULL makes it send all",
    ),
    ("{}", change("d"), "it is a delete, and its key does not match id BIGINT"),
    ('{"id":"x"}', None, "it is a delete, and its key does not match id BIGINT"),
    ("not json", None, "it is a delete, and its key does not match id BIGINT"),
    (None, None, "it is a delete, and its key does not match id BIGINT"),
    (
        "{}",
        described("c", [{"field": "n", "type": "string"}], {"id": 1, "name": "a", "n": "x"}),
        "'n' is not INT",
    ),
    (
        "{}",
        described("c", [{"field": "price", "type": "bytes", "name": "org.apache.kafka.connect.data.Decimal",
                         "parameters": {"scale": "3"}}], {"id": 1, "name": "a", "price": "BNI="}),
        "'price' has more digits than DECIMAL(6,2)",
    ),
    (
        "{}",
        described("u", [{"field": "list", "type": "array"}], {"id": 1, "name": "a", "list": UNAVAILABLE}),
        "'list' is a large value that did not change, and that the database did not send: ALTER TABLE ... REPLICA "
        "IDENTITY FULL makes it send all",
    ),
]  # fmt: skip


def test_what_cannot_be_read_is_rejected_with_a_reason(spark: SparkSession) -> None:
    told = read(spark, shape_of(SMALL), [(key, value) for key, value, _ in WRONG])
    assert [one["reason"] for one in told] == [why for _, _, why in WRONG]
    assert not any(one["is_row"] for one in told)


def test_a_key_of_several_columns_is_read_from_a_tombstone(spark: SparkSession) -> None:
    shape = shape_of("a BIGINT, b STRING, at DATE, payload STRING", ("a", "b", "at", "payload"))
    fields = [
        {"field": "a", "type": "int64"}, {"field": "b", "type": "string"},
        {"field": "at", "type": "int32", "name": "io.debezium.time.Date"}, {"field": "payload", "type": "string"},
    ]  # fmt: skip
    values = {"a": 7, "b": 'x"y', "at": 20484, "payload": "p"}
    wrapped = json.dumps({"schema": {"type": "struct", "fields": fields}, "payload": values})
    told = read(spark, shape, [(json.dumps(values), None), (wrapped, None)])
    assert [one["reason"] for one in told] == [None, None]
    for one in told:
        assert one["row"].asDict().items() >= {**values, "at": date(2026, 1, 31), "_deleted": True}.items()


# ---- Debezium's encodings

EPOCH = datetime(1970, 1, 1)
DECIMALS = st.decimals(min_value=-(10**26), max_value=10**26, places=9, allow_nan=False, allow_infinity=False)
MOMENTS = st.datetimes(min_value=datetime(1, 1, 1), max_value=datetime(9999, 12, 31, 23, 59, 59, 999999))
TIME = "io.debezium.time."
FIELDS = [
    {"field": "id", "type": "int64"},
    {"field": "d", "type": "bytes", "name": "org.apache.kafka.connect.data.Decimal", "parameters": {"scale": "9"}},
    {"field": "v", "type": "struct", "name": "io.debezium.data.VariableScaleDecimal"},
    {"field": "ms", "type": "int64", "name": f"{TIME}Timestamp"},
    {"field": "us", "type": "int64", "name": f"{TIME}MicroTimestamp"},
    {"field": "ns", "type": "int64", "name": f"{TIME}NanoTimestamp"},
    {"field": "day", "type": "int32", "name": f"{TIME}Date"},
    {"field": "clock", "type": "int64", "name": f"{TIME}MicroTime"},
    {"field": "all", "type": "array",
     "items": {"type": "bytes", "name": "org.apache.kafka.connect.data.Decimal", "parameters": {"scale": "9"}}},
]  # fmt: skip
ENCODED = (
    "id BIGINT, d DECIMAL(36,9), v STRING, ms TIMESTAMP_NTZ, us TIMESTAMP_NTZ, ns TIMESTAMP_NTZ, day DATE, "
    "clock STRING, all ARRAY<DECIMAL(36,9)>"
)


def encoded(number: Decimal) -> str:
    with localcontext(prec=60):  # Python's own 28 digits would round it
        unscaled = int(number.scaleb(9))
    return base64.b64encode(unscaled.to_bytes((unscaled.bit_length() + 8) // 8, "big", signed=True)).decode()


# Without shrinking: each example is a job of Spark.
@settings(max_examples=2, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
@given(st.lists(st.tuples(DECIMALS, MOMENTS), min_size=20, max_size=40))
def test_encodings_of_debezium_are_read_as_the_values_they_stand_for(
    spark: SparkSession, values: list[tuple[Decimal, datetime]]
) -> None:
    def micros(moment: datetime) -> int:
        return (moment - EPOCH) // timedelta(microseconds=1)

    records: list[tuple[str | None, str | bytes | None]] = []
    wanted = []
    for id_, (number, moment) in enumerate(values):
        us = micros(moment)
        near = datetime(2000 + moment.year % 200, 1, 1) + timedelta(microseconds=us % 86_400_000_000)
        row = {
            "id": id_, "d": encoded(number), "v": {"scale": 9, "value": encoded(number)}, "ms": us // 1000, "us": us,
            "ns": micros(near) * 1000 + 999, "day": (moment.date() - EPOCH.date()).days, "clock": us % 86_400_000_000,
            "all": [encoded(number), None],
        }  # fmt: skip
        records.append((None, described("c", FIELDS, row)))
        clock = moment.strftime("%H:%M:%S") + f".{moment.microsecond:06}".rstrip("0").rstrip(".")
        wanted.append(
            (
                number,
                number,
                EPOCH + timedelta(milliseconds=us // 1000),
                moment,
                near,
                moment.date(),
                clock,
                [number, None],
            )
        )
    told = read(spark, shape_of(ENCODED), records, reasons=False)
    assert [one["reason"] for one in told] == [None] * len(records)
    found = [one["row"] for one in told]
    got = [(r["d"], Decimal(r["v"]), r["ms"], r["us"], r["ns"], r["day"], r["clock"], r["all"]) for r in found]
    assert got == wanted
