"""Strict reading of records, held against a plain reading in Python."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import functions as F

from headrace.engine.read.parsing import IS_REJECTED, Shape, parse, reason, rows
from headrace.topology import ColumnTime, Duration, Format, Schema, corrected_time, ingestion_time, processing_time

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

pytestmark = pytest.mark.timeout(300)

READ_AT = datetime(2026, 1, 1, 12, tzinfo=UTC)
RECORD = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, "
    "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)
EVERYTHING = Schema.of(
    "card STRING, n INT, big BIGINT, amount DECIMAL(6,2), at TIMESTAMP, f DOUBLE, ok BOOLEAN, raw BINARY, "
    "list ARRAY<INT>, inner STRUCT<p: BIGINT, q: DECIMAL(3,1)>, map MAP<STRING, INT>"
)
PAYMENTS = Shape(
    Schema.of("card STRING, amount DECIMAL(6,2), at TIMESTAMP"),
    key=("card",),
    time=ColumnTime("at"),
    ahead=Duration.of("1 hour"),
)


def read(spark: SparkSession, shape: Shape, values: Sequence[bytes | None], key: bytes | None = b"k") -> list[Row]:
    """For each value whether it is rejected, why, and the row; in the order given."""
    records = [(key, value, "t", 0, offset, READ_AT, None) for offset, value in enumerate(values)]
    parsed = parse(spark.createDataFrame(records, RECORD), shape)
    # Of a rejected record no row is taken: Python cannot even read some of them.
    row = F.when(~F.col(IS_REJECTED), F.struct(*rows(shape))).alias("row")
    told = parsed.select("offset", IS_REJECTED, reason(shape).alias("reason"), row).select("*", "row.*").collect()
    return sorted(told, key=lambda row: int(row["offset"]))


# ---- what is rejected, and why

TOO_FAR = "the event time 'at' is more than 1 hour beyond the record's timestamp"
LOOKS_LIKE = (
    "'at' looks like {}, and a number is read as seconds since 1970; "
    "send whole seconds, or text such as 2026-01-31T12:00:00Z"
)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (None, "the value is null"),
        (b"", "the value is empty"),
        (b"  ", "the value is not one JSON object"),
        (b"null", "the value is not one JSON object"),
        (b"5", "the value is not one JSON object"),
        (b'[{"card": "c"}]', "the value is not one JSON object"),
        (b'{"card": "c"', "the value is not one JSON object"),
        (b'{"card": "c"} and more', "the value is not one JSON object"),
        (b'{"card": "c"}{"card": "d"}', "the value is not one JSON object"),
        (b'{"card": "c"}, {"card": "d"}', "the value is not one JSON object"),
        (b'{"card": "c"}]', "the value is not one JSON object"),
        (b'{"card": "c"}]}', "the value is not one JSON object"),
        (b"{'card': 'c'}", "the value is not one JSON object"),
        (b'],"x":[0', "the value is not one JSON object"),
        (b'{"card": "c"}],"x":[0', "the value is not one JSON object"),
        (b'{"card": "\xff"}', "the value is not UTF-8"),
        (b'{"card": null, "at": "2026-01-01T00:00:00Z"}', "the key 'card' is null"),
        (b'{"at": "2026-01-01T00:00:00Z"}', "the key 'card' is null"),
        (b'{"card": "c"}', "the event time 'at' is null"),
        (b'{"card": "c", "at": "yesterday"}', "'at' is not TIMESTAMP"),
        (b'{"card": "c", "at": "2026-01-01T13:00:00.000001Z"}', TOO_FAR),
        (b'{"card": "c", "at": 1767225600000}', LOOKS_LIKE.format("milliseconds")),
        (b'{"card": "c", "at": 1767225600000000}', LOOKS_LIKE.format("microseconds")),
        (b'{"card": "c", "at": 1767225600000000000}', LOOKS_LIKE.format("nanoseconds")),
        (b'{"card": "c", "at": -100000000000}', "'at' is outside the years 1 to 9999"),
        (b'{"card": "c", "at": 1767225600, "amount": "much"}', "'amount' is not DECIMAL(6,2)"),
        (b'{"card": "c", "at": 1767225600, "amount": 12345}', "'amount' is not DECIMAL(6,2)"),
        (b'{"card": "c", "at": 1767225600, "amount": 1.234}', "'amount' has more digits than DECIMAL(6,2)"),
        (b'{"card": "c", "at": 1767225600, "amount": 9999.999}', "'amount' has more digits than DECIMAL(6,2)"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_rejected_with_the_reason(spark: SparkSession, value: bytes | None, why: str) -> None:
    (told,) = read(spark, PAYMENTS, [value])
    assert (told[IS_REJECTED], told.reason) == (True, why)


def test_what_can_be_used_is_read_to_the_microsecond_and_to_the_cent(spark: SparkSession) -> None:
    values = [
        b' {"card": "c", "amount": 12.50, "at": "2026-01-01T12:59:59.123456Z", "more": {"x": [1]}} \n',
        b'{"card": "c", "amount": 1e2, "at": "2026-01-01T14:00:00+01:00"}',
        b'{"at": "2026-01-01 00:00:00", "card": 7, "card": "\\u00e9"}',
    ]
    told = read(spark, PAYMENTS, values)
    assert [row[IS_REJECTED] for row in told] == [False] * 3
    assert [(row.card, row.amount, row["at"]) for row in told] == [
        ("c", Decimal("12.50"), datetime(2026, 1, 1, 12, 59, 59, 123456)),
        ("c", Decimal("100.00"), datetime(2026, 1, 1, 13)),
        ("é", None, datetime(2026, 1, 1)),
    ]


@pytest.mark.parametrize("ahead", ["0 seconds", "1 microsecond", "1 day 2 hours 3 minutes", "100000000 days"])
def test_ahead_is_exact(spark: SparkSession, ahead: str) -> None:
    limit = Duration.of(ahead)
    shape = Shape(Schema.of("at TIMESTAMP"), time=ColumnTime("at"), ahead=limit)
    if limit.timedelta < timedelta(days=1000):
        edge = READ_AT + limit.timedelta
        moments = [edge, edge + timedelta(microseconds=1)]
        told = read(spark, shape, [json.dumps({"at": moment.isoformat()}).encode() for moment in moments])
        assert [row[IS_REJECTED] for row in told] == [False, True]
    else:
        assert [row[IS_REJECTED] for row in read(spark, shape, [b'{"at": "9999-01-01T00:00:00Z"}'])] == [False]


def test_a_time_that_is_no_event_time_is_not_read_as_one_of_another_unit_either(spark: SparkSession) -> None:
    shape = Shape(Schema.of("id INT, seen TIMESTAMP"))
    units = (1767225600, 1767225600000, 1767225600000000)
    told = read(spark, shape, [json.dumps({"id": 1, "seen": number}).encode() for number in units])
    assert [row[IS_REJECTED] for row in told] == [False, True, True]
    assert told[1].reason.startswith("'seen' looks like milliseconds")
    assert not read(spark, shape, [b'{"id": 1}', b'{"id": 1, "seen": "0001-01-02T00:00:00Z"}'])[0][IS_REJECTED]


def test_not_null_holds_at_every_depth(spark: SparkSession) -> None:
    shape = Shape(Schema.of("id INT NOT NULL, s STRUCT<a: INT NOT NULL>, l ARRAY<STRUCT<a: INT NOT NULL>>"))
    values = [
        b'{"id": 1, "s": {"a": 1}, "l": [{"a": 1}, null]}',
        b'{"id": 1}',
        b"{}",
        b'{"id": 1, "s": {}}',
        b'{"id": 1, "l": [{"a": 1}, {}]}',
    ]
    told = read(spark, shape, values)
    assert [row.reason if row[IS_REJECTED] else None for row in told] == [
        None,
        None,
        "'id' is null and was declared NOT NULL",
        "'s' has a null inside that was declared NOT NULL",
        "'l' has a null inside that was declared NOT NULL",
    ]


def test_decimals_round_at_no_depth(spark: SparkSession) -> None:
    shape = Shape(Schema.of("l ARRAY<DECIMAL(3,1)>, m MAP<STRING, DECIMAL(3,1)>, s STRUCT<d: DECIMAL(3,1)>"))
    good, bad = b'{"l": [1.1, null], "m": {"a": 1.1}, "s": {"d": 1.1}}', b'{"%s": %s}'
    rounding = ((b"l", b"[1.1, 1.11]"), (b"m", b'{"a": 1.11}'), (b"s", b'{"d": 1.11}'))
    told = read(spark, shape, [good, *(bad % piece for piece in rounding)])
    assert [row[IS_REJECTED] for row in told] == [False, True, True, True]
    assert told[0].l == [Decimal("1.1"), None]
    assert "more digits" in told[3].reason


@pytest.mark.parametrize(
    ("format_", "values", "kept"),
    [
        (Format.STRING, [b"text", b"", None, b"\xff", b"{"], ["text", "{"]),
        (Format.BYTES, [b"text", b"", None, b"\xff"], [b"text", b"\xff"]),
    ],
)
def test_other_formats(spark: SparkSession, format_: Format, values: list[bytes | None], kept: list[Any]) -> None:
    type_ = "STRING" if format_ is Format.STRING else "BINARY"
    told = read(spark, Shape(Schema.of(f"value {type_}"), format_), values)
    assert [row.value for row in told if not row[IS_REJECTED]] == kept
    assert {row.reason for row in told if row[IS_REJECTED]} <= {
        "the value is empty",
        "the value is null",
        "the value is not UTF-8",
    }


def test_a_null_record_key_is_rejected_where_it_is_the_key(spark: SparkSession) -> None:
    shape = Shape(
        Schema.of("n INT"),
        key=("_key",),
        record_columns=("_key", "_topic", "_partition", "_offset", "_timestamp", "_headers"),
    )
    (told,) = read(spark, shape, [b'{"n": 1}'])
    assert (told._key, told._topic, told._partition, told._offset, told._headers) == (b"k", "t", 0, 0, None)
    (told,) = read(spark, shape, [b'{"n": 1}'], key=None)
    assert told[IS_REJECTED]
    assert told.reason == "the key '_key' is null"


# ---- times


def test_a_wrong_clock_is_corrected_by_when_it_sent(spark: SparkSession) -> None:
    shape = Shape(
        Schema.of("occurred TIMESTAMP, sent TIMESTAMP"),
        time=corrected_time("occurred", "sent"),
        ahead=Duration.of("1 hour"),
    )
    values = [
        b'{"occurred": "1970-01-01T00:00:10Z", "sent": "1970-01-01T00:00:15Z"}',
        b'{"occurred": "1970-01-01T00:00:10Z"}',
        b'{"occurred": "1970-01-01T03:00:00Z", "sent": "1970-01-01T00:00:15Z"}',
    ]
    told = read(spark, shape, values)
    assert [row[IS_REJECTED] for row in told] == [False, True, True]
    assert told[0]._event_time == datetime(2026, 1, 1, 11, 59, 55)
    assert "null" in told[1].reason
    assert "more than 1 hour beyond" in told[2].reason
    extreme = [(b'{"occurred": "+294247-01-10T04:00:54Z", "sent": "-290308-12-21T19:59:05Z"}', READ_AT)]
    beyond_all_numbers = parse(spark.createDataFrame(extreme, "value BINARY, timestamp TIMESTAMP"), shape)
    assert [row[IS_REJECTED] for row in beyond_all_numbers.select(IS_REJECTED).collect()] == [True]


def test_ingestion_and_processing_time(spark: SparkSession) -> None:
    (told,) = read(spark, Shape(Schema.of("n INT"), time=ingestion_time(), record_columns=("_timestamp",)), [b"{}"])
    assert told._timestamp == READ_AT.replace(tzinfo=None)
    (told,) = read(spark, Shape(Schema.of("n INT"), time=processing_time()), [b"{}"])
    assert abs(told._event_time - datetime.now(UTC).replace(tzinfo=None)) < timedelta(minutes=5)


# ---- against a plain reading in Python


class Unusable(Exception):
    pass


def whole(value: Any, bits: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not -(2 ** (bits - 1)) <= value < 2 ** (bits - 1):
        raise Unusable
    return value


def exact(value: Any, precision: int, scale: int) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        raise Unusable
    number = Decimal(value)
    try:
        scaled = number.quantize(Decimal(1).scaleb(-scale))
    except InvalidOperation:
        raise Unusable from None
    if scaled != number or abs(scaled) >= Decimal(10) ** (precision - scale):
        raise Unusable
    return scaled


NOT_FINITE = ("NaN", "Infinity", "-Infinity")


def field(value: Any, kind: str) -> Any:
    if value is None:
        return None
    match kind:
        case "card":
            if not isinstance(value, str):
                raise Unusable
            return value
        case "n":
            return whole(value, 32)
        case "big" | "p":
            return whole(value, 64)
        case "amount":
            return exact(value, 6, 2)
        case "q":
            return exact(value, 3, 1)
        case "at":
            if not isinstance(value, str):
                raise Unusable
            try:
                moment = datetime.fromisoformat(value)
            except ValueError:
                raise Unusable from None
            return (moment if moment.tzinfo is None else moment.astimezone(UTC)).replace(tzinfo=None)
        case "f":
            if value in NOT_FINITE:
                return float(value)
            if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
                raise Unusable
            return float(value)
        case "ok":
            if not isinstance(value, bool):
                raise Unusable
            return value
        case "raw":
            if not isinstance(value, str):
                raise Unusable
            return base64.b64decode(value)
        case "list":
            if not isinstance(value, list):
                raise Unusable
            return [field(one, "n") for one in value]
        case "map":
            if not isinstance(value, dict):
                raise Unusable
            return {name: field(one, "n") for name, one in value.items()}
        case _:
            if not isinstance(value, dict):
                raise Unusable
            return (field(value.get("p"), "p"), field(value.get("q"), "q"))


def plainly(value: bytes | None) -> dict[str, Any] | None:
    """The row that Python reads, or None where the record is to be rejected."""
    if not value:
        return None
    try:
        parsed = json.loads(value.decode(), parse_float=Decimal)
        if not isinstance(parsed, dict):
            return None
        return {name: field(parsed.get(name), name) for name in EVERYTHING.names}
    except (ValueError, Unusable):
        return None


integers = st.one_of(st.integers(-5, 5), st.sampled_from([2**31 - 1, 2**31, -(2**31), 2**63 - 1, 2**63, 10**30]))
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
numbers = st.one_of(
    integers,
    st.decimals(-1000, 1000, places=1).map(float),
    st.decimals(-99999, 99999, places=2).map(float),
    st.floats(allow_nan=False, allow_infinity=False),
)
moments = st.datetimes(datetime(1970, 1, 1), datetime(2100, 1, 1)).flatmap(
    lambda moment: st.sampled_from([moment.isoformat(), moment.isoformat() + "Z", moment.isoformat(" ") + "+05:30"])
)
scalars: st.SearchStrategy[Any] = st.one_of(st.none(), st.booleans(), numbers, texts, moments)
fitting: dict[str, st.SearchStrategy[Any]] = {
    "card": texts,
    "n": st.integers(-(2**31), 2**31 - 1),
    "big": st.integers(-(2**63), 2**63 - 1),
    "amount": st.decimals(-9999, 9999, places=2).map(float),
    "at": moments,
    "f": st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from(NOT_FINITE),
    "ok": st.booleans(),
    "raw": st.binary(max_size=6).map(lambda raw: base64.b64encode(raw).decode()),
    "list": st.lists(st.none() | st.integers(-9, 9), max_size=3),
    "inner": st.fixed_dictionaries(
        {}, optional={"p": st.integers(-9, 9), "q": st.none() | st.sampled_from([1.5, 99.9, 0.25, 100])}
    ),
    "map": st.dictionaries(texts, st.none() | st.integers(-9, 9), max_size=3),
}
# A text is anything's text to Spark, so only texts are tried where texts are wanted; times and bytes as text too
# have more spellings than one, so only sure ones are tried.
odd: dict[str, st.SearchStrategy[Any]] = {
    "card": st.none(),
    "at": st.none() | st.booleans() | st.sampled_from(["soon", "2026-13-01T00:00:00", "", "x" * 30]),
    "raw": st.none() | st.booleans() | integers | st.just("!"),
    "list": scalars.filter(lambda value: not isinstance(value, str)) | st.lists(st.booleans(), min_size=1, max_size=2),
    "inner": scalars.filter(lambda value: not isinstance(value, str)) | st.just([1]),
    "map": scalars.filter(lambda value: not isinstance(value, str)) | st.just({"a": "b"}),
}
no_digits = scalars.filter(lambda value: not isinstance(value, str) or value.isalpha())
odd |= dict.fromkeys(("n", "big", "ok", "amount", "f"), no_digits)
objects = st.fixed_dictionaries({}, optional={**fitting, "unknown": st.one_of(scalars, st.lists(scalars, max_size=2))})
spoilt = st.tuples(objects, st.sampled_from(sorted(odd))).flatmap(
    lambda given: odd[given[1]].map(lambda value: {**given[0], given[1]: value})
)
written = st.one_of(objects, objects, spoilt).flatmap(
    lambda value: st.sampled_from(
        [json.dumps(value), json.dumps(value, ensure_ascii=False), json.dumps(value, indent=1)]
    )
)
garbage = st.one_of(
    st.binary(max_size=12),
    st.sampled_from([b"", b" ", b"null", b"[]", b"{}", b"{}{}", b"{},{}", b"{}]", b"}", b"\x00", b'],"x":[0']),
)
broken = st.one_of(
    garbage,
    st.tuples(written, garbage).map(lambda pair: pair[0].encode() + pair[1]),
    st.tuples(garbage, written).map(lambda pair: pair[0] + pair[1].encode()),
    st.tuples(written, st.integers(0, 40)).map(lambda pair: pair[0].encode()[: -1 - pair[1]]),
    st.tuples(written, st.integers(0, 40)).map(
        lambda pair: pair[0].encode()[: pair[1]] + b"\xc3" + pair[0].encode()[pair[1] :]
    ),
)
values = st.one_of(written.map(str.encode), written.map(str.encode), broken, st.none())


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(values, min_size=150, max_size=300))
def test_spark_reads_what_python_reads_and_rejects_the_rest(
    spark: SparkSession, given_values: list[bytes | None]
) -> None:
    told = read(spark, Shape(EVERYTHING), given_values)
    for value, row in zip(given_values, told, strict=True):
        expected = plainly(value)
        assert row[IS_REJECTED] == (expected is None), (value, expected, row)
        if expected is not None:
            found = {name: row[name] for name in EVERYTHING.names}
            found["inner"] = None if row.inner is None else tuple(row.inner)
            found["raw"] = None if row.raw is None else bytes(row.raw)
            if expected["f"] is not None and math.isnan(expected["f"]):
                assert math.isnan(found.pop("f")), value
                del expected["f"]
            assert found == expected, value
