"""Encodes rows as records without loss: topic, key, value, headers, timestamp.

A value is a JSON object with every column in it, nulls too, and times to the microsecond. A key of one column is
its text; of several it is a JSON array of them, each written as in the value. The record's timestamp is left to
the producer: were it the event time, a broker would delete old events, or refuse windows that end in the future,
before the next node has read them.
"""

from collections.abc import Mapping, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from headrace.errors import InputError
from headrace.topology import Schema
from headrace.topology.datatypes import NOT_FINITE, Decimal, Primitive, map_without_text_keys
from headrace.topology.datatypes import DataType as FieldType
from headrace.topology.names import DELETED, ERROR_HEADER, ORDER, REASON_HEADER, TIME_HEADER, VALID_FROM

__all__ = [
    "HEADERS",
    "ORDERED_RECORD",
    "RECORD",
    "changelog",
    "check_can_be_carried",
    "failed_headers",
    "headers_of",
    "key_read",
    "records",
    "time_header",
]

TIMESTAMP = "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"
TIMESTAMP_NTZ = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"
JSON_WRITE_OPTIONS = {
    "ignoreNullFields": "false",
    "timestampFormat": TIMESTAMP,
    "timestampNTZFormat": TIMESTAMP_NTZ,
    "timeZone": "UTC",
}
HEADERS = "ARRAY<STRUCT<key: STRING, value: BINARY>>"
RECORD = ("topic", "key", "value", "headers", "timestamp")
ORDERED_RECORD = (*RECORD, ORDER)
"""The columns of a record, and what a batch of them is sorted by before it is written."""
QUOTED = (Primitive.TIMESTAMP, Primitive.TIMESTAMP_NTZ, Primitive.DATE)


def records(
    rows: DataFrame, schema: Schema, topic: str, key: Sequence[str], order: str | None, keep: Sequence[str] = ()
) -> DataFrame:
    """Rows as records of a topic, with `_order` and the columns in `keep`."""
    return _records(rows, schema, topic, key, order, value_of(schema), F.lit(None), keep)


def changelog(
    rows: DataFrame,
    schema: Schema,
    topic: str,
    key: Sequence[str],
    time: str | None,
    order: str | None,
    keep: Sequence[str] = (),
) -> DataFrame:
    """Rows of a table as records: one that is `_deleted` has no value. `time` is their event time."""
    gone = F.coalesce(named(DELETED), F.lit(False)) if DELETED in rows.columns else F.lit(False)
    since, needs_header = F.lit(None).cast("timestamp"), F.lit(False)
    if VALID_FROM in rows.columns:
        since, needs_header = named(VALID_FROM), F.lit(True)
    elif time is not None:
        since, needs_header = named(time), gone  # the value of a row that is there says it itself
    header = F.struct(F.lit(TIME_HEADER).alias("key"), F.date_format(since, TIMESTAMP).cast("binary").alias("value"))
    headers = F.when(needs_header & since.isNotNull(), F.array(header))
    return _records(rows, schema, topic, key, order, F.when(~gone, value_of(schema)), headers, keep)


def _records(
    rows: DataFrame,
    schema: Schema,
    topic: str,
    key: Sequence[str],
    order: str | None,
    value: Column,
    headers: Column,
    keep: Sequence[str],
) -> DataFrame:
    return rows.select(
        F.lit(topic).alias("topic"),
        key_of(schema, key).cast("binary").alias("key"),
        value.cast("binary").alias("value"),
        headers.cast(HEADERS).alias("headers"),
        F.lit(None).cast("timestamp").alias("timestamp"),
        (F.lit(None).cast("timestamp") if order is None else named(order)).alias(ORDER),
        *map(named, keep),
    )


def time_header() -> Column:
    """The time that a record of a changelog was given in its headers; null where there is none."""
    found = F.filter("headers", lambda header: header.key == TIME_HEADER)
    return F.get(found, 0).value.cast("string").try_cast("timestamp")


def failed_headers(reason: Column, error: Column) -> dict[str, Column]:
    """The headers that say why a row failed."""
    return {REASON_HEADER: reason, ERROR_HEADER: error}


def headers_of(values: Mapping[str, Column]) -> Column:
    """Headers by their names."""
    return F.array(
        *(F.struct(F.lit(name).alias("key"), value.cast("binary").alias("value")) for name, value in values.items())
    )


def value_of(schema: Schema) -> Column:
    return F.to_json(F.struct(*(named(name) for name in schema.names)), JSON_WRITE_OPTIONS)


def key_of(schema: Schema, key: Sequence[str]) -> Column:
    """The key's text. Where its one column is null there is none."""
    if not key:
        return F.lit(None).cast("string")
    if len(key) == 1:
        return _text(schema, key[0])
    parts = [_json(schema, name) for name in key]
    return F.concat(F.lit("["), F.concat_ws(",", *parts), F.lit("]"))


def key_read(schema: Schema, key: Sequence[str]) -> dict[str, Column]:
    """The key's columns out of the bytes of a record's key, each null where they are not what `key_of` writes."""
    text = F.col("key").cast("string")
    if len(key) == 1:
        return {key[0]: text.try_cast(schema[key[0]].type.ddl)}
    # Numbers are doubles to from_json, which would cut a decimal's digits; a variant keeps them, but not -0.0's sign.
    parts = F.from_json(text, "ARRAY<STRING>")
    decimals = F.try_variant_get(F.try_parse_json(text), "$", "ARRAY<STRING>")

    def part(index: int, type_: FieldType) -> Column:
        read = F.get(decimals if isinstance(type_, Decimal) else parts, index).try_cast(type_.ddl)
        return F.when(F.size(parts) == len(key), read)

    return {name: part(index, schema[name].type) for index, name in enumerate(key)}


def named(name: str) -> Column:
    """A column by its exact name, whatever characters that has."""
    return F.col("`" + name.replace("`", "``") + "`")


def check_can_be_carried(schema: Schema) -> None:
    """Refuse columns that cannot be written as JSON."""
    for column in schema:
        bad = map_without_text_keys(column.type)
        if bad is not None:
            raise InputError(
                f"the column {column.name!r} has {bad.ddl}, but the keys of a JSON object are strings",
                next_step=f"make it MAP<STRING, {bad.value.ddl}>",
            )


def _text(schema: Schema, name: str) -> Column:
    match schema[name].type:
        case Primitive.TIMESTAMP:
            return F.date_format(named(name), TIMESTAMP)
        case Primitive.TIMESTAMP_NTZ:
            return F.date_format(named(name), TIMESTAMP_NTZ)
        case _:
            return named(name).cast("string")


def _json(schema: Schema, name: str) -> Column:
    if schema[name].type is Primitive.STRING:
        listed = F.to_json(F.array(named(name)))
        written = listed.substr(F.lit(2), F.length(listed) - 2)
    elif schema[name].type in QUOTED:
        written = _quoted(_text(schema, name))
    elif schema[name].type in (Primitive.DOUBLE, Primitive.FLOAT):
        text = _text(schema, name)
        written = F.when(text.isin(*NOT_FINITE), _quoted(text)).otherwise(text)
    else:
        written = _text(schema, name)
    return F.coalesce(written, F.lit("null"))


def _quoted(text: Column) -> Column:
    return F.concat(F.lit('"'), text, F.lit('"'))
