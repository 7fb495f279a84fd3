"""Parses records into rows, strictly: an invalid record is rejected with a reason, and does not stop the query.

It uses only Spark expressions, so that no row is sent to Python.

`from_json` alone lets trailing text, empty values, broken UTF-8 and rounded decimals pass. So a value is read as
the first of two elements of an array inside an object: text after the value then breaks the array, and the
column for corrupt records, which Spark fills for objects alone, tells of every field that does not fit.
Decimals are read with six more digits than the schema has, and must be the same without them: what is lost is
told, and the noise of binary fractions (0.30000000000000004) is not mistaken for it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import reduce
from operator import and_, or_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from headrace.engine.write.encoding import key_read, time_header
from headrace.errors import InputError
from headrace.topology import CorrectedTime, Duration, EventTime, Format, ProcessingTime, Schema
from headrace.topology.datatypes import MAX_PRECISION, Array, DataType, Decimal, Map, Primitive, Struct
from headrace.topology.datatypes import Column as Field
from headrace.topology.names import DELETED, ORDER, VALID_FROM
from headrace.topology.times import UNITS, looks_like

__all__ = ["IS_REJECTED", "Shape", "nullable", "parse", "reason", "rows"]

JSON_READ_OPTIONS = {"columnNameOfCorruptRecord": "_corrupt", "allowSingleQuotes": "false"}
BEFORE, AFTER = '{"rows":[', ",null]}"
PARSED, IS_REJECTED = "_parsed", "_rejected"
MORE_DIGITS = 6
FIRST_TIME, LAST_TIME = "TIMESTAMP'0001-01-01 00:00:00Z'", "TIMESTAMP'9999-12-31 23:59:59.999999Z'"

CONNECTOR_COLUMNS = {
    "_key": "key",
    "_topic": "topic",
    "_partition": "partition",
    "_offset": "offset",
    "_timestamp": "timestamp",
    "_headers": "headers",
}
"""The columns of the record itself, and what Spark's connector calls them."""


@dataclass(frozen=True, slots=True)
class Shape:
    """How the records of a feed are read: what a row has, and what makes a record unusable."""

    schema: Schema
    format: Format = Format.JSON
    key: tuple[str, ...] = ()
    time: EventTime | None = None
    ahead: Duration | None = None
    record_columns: tuple[str, ...] = ()
    is_table: bool = False
    """Whether the records are a changelog, in which a null value deletes the key."""


def parse(raw: DataFrame, shape: Shape) -> DataFrame:
    """The record's own columns, and beside them what was `_parsed` of it, and whether it is `_rejected`."""
    return parser(shape)(raw)


def parser(shape: Shape) -> Callable[[DataFrame], DataFrame]:
    """A parser for records of a shape. Building its expressions takes longer than parsing a few records: keep it."""
    text = F.col("value").cast("string")
    match shape.format:
        case Format.BYTES:
            parsed, usable = _alone(F.col("value"), shape), F.length("value") > 0
        case Format.STRING:
            parsed, usable = _alone(text, shape), (F.length("value") > 0) & F.is_valid_utf8(text)
        case Format.DEBEZIUM:
            raise InputError("topics in Debezium's envelope can be declared, and not read yet")
        case Format.JSON:
            parsed, usable = _read_json(text, shape.schema), F.is_valid_utf8(text) & _is_whole(F.col(PARSED))
    for _, broken in _conditions(shape):
        usable &= ~broken
    if shape.is_table:
        usable = F.when(_is_delete(), _has_key(shape)).otherwise(usable)
    rejected = ~F.coalesce(usable, F.lit(False))
    # A projection of its own: Spark computes a costly expression once per projection, not once per use.
    return lambda raw: raw.withColumn(PARSED, parsed).withColumn(IS_REJECTED, rejected)


def rows(shape: Shape) -> list[Column]:
    """The columns of a row, from the result of `parse`."""
    columns = []
    for field in shape.schema:
        value = _value_of(field.name, shape)
        if _would_round(value, field.type) is not None:
            value = value.try_cast(nullable(field.type).ddl)
        columns.append(_of_change(value, field.name, shape).alias(field.name))
    columns += [F.col(CONNECTOR_COLUMNS[name]).alias(name) for name in shape.record_columns]
    if isinstance(shape.time, ProcessingTime | CorrectedTime):
        columns.append(_of_change(time_of(shape), shape.time.column, shape).alias(shape.time.column))
    if shape.is_table:
        columns += [_is_delete().alias(DELETED), _valid_from(shape).alias(VALID_FROM), F.col("offset").alias(ORDER)]
    return columns


def reason(shape: Shape) -> Column:
    """Why a record was rejected. It parses the value several times: use it only for rejected records."""
    text = F.col("value").cast("string")
    if shape.is_table:
        columns = ", ".join(shape.schema[name].ddl for name in shape.key)
        why = F.when(_is_delete(), f"it is a delete, and its key does not match {columns}")
    else:
        why = F.when(F.col("value").isNull(), "the value is null")
    why = why.when(F.length("value") == 0, "the value is empty")
    if shape.format is not Format.BYTES:
        why = why.when(~F.is_valid_utf8(text), "the value is not UTF-8")
    if shape.format is Format.JSON:
        whole = F.coalesce(_is_whole(_wrapped(text, "ARRAY<STRUCT<`\x00` INT>>")), F.lit(False))
        why = why.when(~whole, "the value is not one JSON object")
        for field in shape.schema:
            alone = _read_json(text, Schema((field,))).getField("_corrupt")
            why = why.when(alone.isNotNull(), f"{field.name!r} is not {field.type.ddl}")
    for words, broken in _conditions(shape):
        why = why.when(F.coalesce(broken, F.lit(True)), words)
    return why.otherwise("the value does not fit the schema")


def time_of(shape: Shape) -> Column:
    """The event time of a row, from the result of `parse`."""
    match shape.time:
        case ProcessingTime():
            return F.current_timestamp()
        case CorrectedTime(occurred, sent, received):
            offset = F.try_subtract(_value_of(received, shape), _value_of(sent, shape))
            return F.try_add(_value_of(occurred, shape), offset)
        case None:
            return F.lit(None).cast("timestamp")
        case time:
            return _value_of(time.column, shape)


def _is_delete() -> Column:
    return F.col("value").isNull()


def _has_key(shape: Shape) -> Column:
    return reduce(and_, [part.isNotNull() for part in key_read(shape.schema, shape.key).values()])


def _of_change(value: Column, name: str, shape: Shape) -> Column:
    """A column of a table's row: a delete has only its key and its time."""
    if shape.is_table and name in shape.key:
        return F.when(_is_delete(), key_read(shape.schema, shape.key)[name]).otherwise(value)
    if shape.is_table and shape.time is not None and name == shape.time.column:
        return F.when(_is_delete(), _told_time()).otherwise(value)
    return value


def _valid_from(shape: Shape) -> Column:
    """The time from which a table's row is valid."""
    if shape.time is None:
        return _told_time()
    return F.when(_is_delete(), _told_time()).otherwise(time_of(shape))


def _told_time() -> Column:
    return F.coalesce(time_header(), F.col("timestamp"))


def interval(duration: Duration) -> Column:
    """A span of time as Spark's own, exact to the microsecond."""
    return F.expr(f"INTERVAL '{duration}'") if duration.microseconds else F.expr("INTERVAL '0' SECOND")


def nullable(type_: DataType) -> DataType:
    """The type with nothing in it that was declared NOT NULL."""
    match type_:
        case Array(element):
            return Array(nullable(element))
        case Map(key, value):
            return Map(key, nullable(value))
        case Struct(fields):
            return Struct(tuple(Field(field.name, nullable(field.type)) for field in fields))
        case _:
            return type_


def _conditions(shape: Shape) -> Iterator[tuple[str | Column, Column]]:
    """The conditions that make a row invalid, each with its reason; a condition that is null counts as true."""
    if shape.format is Format.JSON:
        for field in shape.schema:
            if field.type is Primitive.TIMESTAMP:
                yield _why_no_time(field.name), _is_no_time(_value_of(field.name, shape))
    for name in shape.key:
        yield f"the key {name!r} is null", _value_of(name, shape).isNull()
    if shape.time is not None and not isinstance(shape.time, ProcessingTime):
        time = time_of(shape)
        yield f"the event time {str(shape.time)!r} is null", time.isNull()
        if shape.ahead is not None:
            words = f"the event time {str(shape.time)!r} is more than {shape.ahead} beyond the record's timestamp"
            yield words, F.coalesce(time > F.try_add(F.col("timestamp"), interval(shape.ahead)), F.lit(False))
    if shape.format is Format.JSON:
        for field in shape.schema:
            yield from _broken_field(field, shape)


def _is_no_time(value: Column) -> Column:
    """Whether a time is none that Python, too, can read. Spark takes any number, and wraps around where it is large."""
    return F.coalesce((value < F.expr(FIRST_TIME)) | (value > F.expr(LAST_TIME)), F.lit(False))


def _why_no_time(name: str) -> Column:
    as_text = Schema((Field(name, Primitive.STRING),))
    number = _row(_read_json(F.col("value").cast("string"), as_text)).getField(name)
    why = F.when(F.lit(False), "")
    for digits, unit in UNITS.items():
        why = why.when(number.rlike(f"^[0-9]{{{digits}}}$"), looks_like(name, unit))
    return why.otherwise(f"{name!r} is outside the years 1 to 9999")


def _broken_field(field: Field, shape: Shape) -> Iterator[tuple[str, Column]]:
    value = _value_of(field.name, shape)
    if not field.nullable:
        yield f"{field.name!r} is null and was declared NOT NULL", value.isNull()
    missing = _lacks(value, field.type)
    if missing is not None:
        yield f"{field.name!r} has a null inside that was declared NOT NULL", missing
    rounded = _would_round(value, field.type)
    if rounded is not None:
        yield f"{field.name!r} has more digits than {field.type.ddl}", rounded


def _lacks(value: Column, type_: DataType) -> Column | None:
    """Whether a value contains a null where its type allows none; None if it cannot."""
    match type_:
        case Array(element):
            return _any(value, element, _lacks)
        case Map(_, mapped):
            return _any(F.map_values(value), mapped, _lacks)
        case Struct(fields):
            checks = [value.getField(field.name).isNull() for field in fields if not field.nullable]
            nested = (_lacks(value.getField(field.name), field.type) for field in fields)
            return _either(
                [value.isNotNull() & check for check in [*checks, *(one for one in nested if one is not None)]]
            )
        case _:
            return None


def _would_round(value: Column, type_: DataType) -> Column | None:
    """Whether a decimal inside a value has more digits than its type; None where there is no decimal."""
    match type_:
        case Decimal():
            if _widened(type_) == type_:
                return None
            return value.isNotNull() & ~F.coalesce(value.try_cast(type_.ddl) == value, F.lit(False))
        case Array(element):
            return _any(value, element, _would_round)
        case Map(_, mapped):
            return _any(F.map_values(value), mapped, _would_round)
        case Struct(fields):
            checks = (_would_round(value.getField(field.name), field.type) for field in fields)
            return _either([check for check in checks if check is not None])
        case _:
            return None


def _any(elements: Column, type_: DataType, check: Callable[[Column, DataType], Column | None]) -> Column | None:
    """Whether the check holds for any of the elements; None where it never can."""
    if check(F.lit(None), type_) is None:
        return None
    return F.coalesce(F.exists(elements, lambda element: _certain(check(element, type_))), F.lit(False))


def _certain(condition: Column | None) -> Column:
    return F.lit(False) if condition is None else condition


def _either(conditions: list[Column]) -> Column | None:
    return reduce(or_, conditions) if conditions else None


def _value_of(name: str, shape: Shape) -> Column:
    """A column of the row; a name of the record's own, such as `_offset`, if the row has none of that name."""
    if name in CONNECTOR_COLUMNS and name not in shape.schema:
        return F.col(CONNECTOR_COLUMNS[name])
    return _row(F.col(PARSED)).getField(name)


def _row(parsed: Column) -> Column:
    # Not getItem, which fails where there is no such element: a record could stop the flow.
    return F.get(parsed.getField("rows"), F.lit(0))


def _is_whole(parsed: Column) -> Column:
    """Whether all that was read is one object that fits."""
    return parsed.getField("_corrupt").isNull() & (F.size(parsed.getField("rows")) == 2) & _row(parsed).isNotNull()


def _alone(value: Column, shape: Shape) -> Column:
    """A value that needs no parsing, in the form of one that does."""
    return F.struct(F.array(F.struct(value.alias(shape.schema.names[0]))).alias("rows"))


def _read_json(text: Column, schema: Schema) -> Column:
    wide = Struct(tuple(Field(field.name, _widened(field.type)) for field in schema))
    return _wrapped(text, f"ARRAY<{wide.ddl}>")


def _wrapped(text: Column, rows_type: str) -> Column:
    return F.from_json(
        F.concat(F.lit(BEFORE), text, F.lit(AFTER)), f"rows {rows_type}, _corrupt STRING", JSON_READ_OPTIONS
    )


def _widened(type_: DataType) -> DataType:
    """The type with more digits after the point of every decimal, and as many before it."""
    match type_:
        case Decimal(precision, scale):
            more = min(MORE_DIGITS, MAX_PRECISION - precision)
            return Decimal(precision + more, scale + more)
        case Array(element):
            return Array(_widened(element))
        case Map(key, value):
            return Map(key, _widened(value))
        case Struct(fields):
            return Struct(tuple(Field(field.name, _widened(field.type)) for field in fields))
        case _:
            return type_
