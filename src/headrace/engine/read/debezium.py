"""Reads Debezium's envelope: a change of a table as JSON, with the row before and after it.

A record is either the change itself, or has it as `payload` beside a `schema` that tells how each value is encoded.
With a schema, Debezium's own encodings are understood: decimals as bytes, times as numbers since 1970. Without one,
values must say by themselves what they are, as those that Headrace captures do: numbers, and times as ISO 8601. (A date
can be a number there as well: only days are meant.)

It uses only Spark expressions, as `parsing` does, and gives what that gives of a JSON value.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import reduce
from operator import or_

from pyspark.sql import Column
from pyspark.sql import functions as F

from headrace.engine.read.json_text import CORRUPT, JSON_READ_OPTIONS, first_row, read_rows, widened
from headrace.topology import Schema
from headrace.topology.datatypes import Array, DataType, Decimal, Map, Primitive, Struct
from headrace.topology.datatypes import Column as Field

__all__ = ["DELETE", "NO_ROW", "ROW", "TIMES", "TRUNCATE", "UNAVAILABLE", "Envelope", "key_columns"]

UNAVAILABLE = "__debezium_unavailable_value"
"""Stands for a large value that an update did not change, and that the database therefore does not tell."""
ROW, DELETE, TRUNCATE = ("r", "c", "u"), "d", "t"
NO_ROW = (TRUNCATE, "m")
"""The operations that are not about one row: a truncate, and a message that a program has written to the log."""
TIMES = (Primitive.DATE, Primitive.TIMESTAMP, Primitive.TIMESTAMP_NTZ)

_OF_TYPE = "type STRING, name STRING, parameters MAP<STRING, STRING>"
_OF_FIELD = f"field STRING, {_OF_TYPE}, items STRUCT<{_OF_TYPE}>"
SCHEMA_PART = f"fields ARRAY<STRUCT<{_OF_FIELD}, fields ARRAY<STRUCT<{_OF_FIELD}>>>>"
"""What is read of the `schema` part: that of a key has the columns, that of a value has them in the field `after`."""

CONNECT, TIME, DATA = "org.apache.kafka.connect.data.", "io.debezium.time.", "io.debezium.data."
DECIMAL, VARIABLE_DECIMAL = f"{CONNECT}Decimal", f"{DATA}VariableScaleDecimal"
DATES = (f"{TIME}Date", f"{CONNECT}Date")
IN_MILLISECONDS = (f"{TIME}Timestamp", f"{CONNECT}Timestamp", f"{TIME}Time", f"{CONNECT}Time")
IN_MICROSECONDS = (f"{TIME}MicroTimestamp", f"{TIME}MicroTime")
IN_NANOSECONDS = (f"{TIME}NanoTimestamp", f"{TIME}NanoTime")
CLOCKS = (f"{TIME}Time", f"{CONNECT}Time", f"{TIME}MicroTime", f"{TIME}NanoTime")
"""Times of day. The other encodings of the units are times since 1970."""
DAY = 86_400_000_000
FIRST_DAY, LAST_DAY = -719_162, 2_932_896
FIRST_MICROSECOND, LAST_MICROSECOND = FIRST_DAY * DAY, (LAST_DAY + 1) * DAY - 1
"""Those of the years 1 to 9999."""
NUMBER = "^-?[0-9]+$"
ISO = "^[+-]?[0-9]{4,}-[0-9]{2}-[0-9]{2}"


@dataclass(frozen=True, slots=True)
class Encoding:
    """How a value is encoded, as the schema part of its record says; null in all of it where that says nothing."""

    name: Column
    parameters: Column

    @classmethod
    def of(cls, described: Column) -> "Encoding":
        return cls(described.getField("name"), described.getField("parameters"))


@dataclass(frozen=True, slots=True)
class Envelope:
    """The parts of a record's value as columns of its own, the last of which is called `parsed`.

    It has what `read_rows` gives of a row, the `op`, and the key's columns `before` the change.
    """

    schema: Schema
    key: tuple[str, ...]
    parsed: str
    with_schemas: bool = True
    """Whether records may have a schema beside the change."""

    def stages(self, text: Column) -> list[dict[str, Column]]:
        """Columns to add, one dict after the other: Spark computes a costly expression once per projection."""
        plain = _struct((field.name, _plain_type(field.type)) for field in self.schema)
        plain_key = _struct((name, _plain_type(self.schema[name].type)) for name in self.key)
        wrapped = "schema STRING, payload STRING, " if self.with_schemas else ""
        stages = [
            {self._outer: read_rows(text, f"STRUCT<{wrapped}before {plain_key}, after {plain}, op STRING>")},
            {self._values: self._plain_values()},
            {self.parsed: self._result()},
        ]
        if self.with_schemas:
            change = first_row(F.col(self._outer))
            texts = _struct((field.name, Primitive.STRING) for field in self.schema)
            key_texts = _struct((name, Primitive.STRING) for name in self.key)
            payload = f"before {key_texts}, after {texts}, op STRING"
            inner = F.struct(
                F.from_json(change.getField("payload"), payload).alias("change"),
                _described(change.getField("schema")).alias("types"),
            )
            stages.insert(1, {self._inner: F.when(change.getField("payload").isNotNull(), inner)})
        return stages

    @property
    def _outer(self) -> str:
        return f"{self.parsed}_outer"

    @property
    def _inner(self) -> str:
        return f"{self.parsed}_inner"

    @property
    def _values(self) -> str:
        return f"{self.parsed}_values"

    def _plain_values(self) -> Column:
        """The values of a change, each null where it is not what it should be."""
        change = first_row(F.col(self._outer))
        plain = self._row(change, lambda value, field: _from_plain(value, field.type))
        if not self.with_schemas:
            return plain
        inner = F.col(self._inner)
        types = inner.getField("types")
        wrapped = self._row(
            inner.getField("change"), lambda text, field: _decoded(text, field.type, _description(types, field.name))
        )
        return F.when(inner.isNotNull(), wrapped).otherwise(plain)

    def _row(self, change: Column, read: Callable[[Column, Field], Column]) -> Column:
        after, before = change.getField("after"), change.getField("before")
        row = F.struct(*(read(after.getField(field.name), field).alias(field.name) for field in self.schema))
        keys = [read(before.getField(name), self.schema[name]).alias(name) for name in self.key]
        return F.struct(
            F.when(after.isNotNull(), row).alias("after"),
            F.struct(*keys).alias("before"),
            change.getField("op").alias("op"),
        )

    def _result(self) -> Column:
        values = F.col(self._values)
        row = values.getField("after")
        # Two rows, as in the result of `read_rows`: the second says that nothing stood behind the first.
        return F.struct(
            F.array(row, row).alias("rows"),
            F.when(self._is_corrupt(), F.lit("corrupt")).alias(CORRUPT),
            values.getField("op").alias("op"),
            values.getField("before").alias("before"),
        )

    def _is_corrupt(self) -> Column:
        outer = F.col(self._outer)
        whole = outer.getField(CORRUPT).isNull() & (F.coalesce(F.size(outer.getField("rows")), F.lit(0)) == 2)
        return reduce(or_, (self.is_misfit(field) for field in self.schema), ~whole)

    def is_misfit(self, field: Field) -> Column:
        """Whether a text in the row after the change is no value of its column's type.

        Of a change without a schema, Spark has seen that of most types.
        """
        value = F.col(self._values).getField("after").getField(field.name)
        plain = F.lit(False)
        if field.type in TIMES:
            plain = _is_misfit(first_row(F.col(self._outer)).getField("after").getField(field.name), value, field.type)
        if not self.with_schemas:
            return plain
        inner = F.col(self._inner)
        text = inner.getField("change").getField("after").getField(field.name)
        return F.when(inner.isNotNull(), _is_misfit(text, value, field.type)).otherwise(plain)

    def texts(self, text: Column) -> Column:
        """The row after the change, as texts. It reads the value again: use it only for rejected records."""
        row = f"after {_struct((field.name, Primitive.STRING) for field in self.schema)}"
        found = first_row(read_rows(text, f"STRUCT<payload STRUCT<{row}>, {row}>"))
        return F.coalesce(found.getField("payload").getField("after"), found.getField("after"))


def key_columns(schema: Schema, key: tuple[str, ...]) -> dict[str, Column]:
    """The key's columns out of a record's key, each null where it is not there. A tombstone has nothing else."""
    text = F.col("key").cast("string")
    outer = F.from_json(text, "schema STRING, payload STRING")
    types = _described(outer.getField("schema"))
    plain = first_row(read_rows(text, _struct((name, _plain_type(schema[name].type)) for name in key)))
    texts = F.from_json(outer.getField("payload"), _struct((name, Primitive.STRING) for name in key))
    # A column of the key can be called payload, but then there is no schema beside it.
    is_wrapped = types.isNotNull() & texts.isNotNull()
    return {
        name: F.when(
            is_wrapped, _decoded(texts.getField(name), schema[name].type, _description(types, name))
        ).otherwise(_from_plain(plain.getField(name), schema[name].type))
        for name in key
    }


def _struct(columns: Iterable[tuple[str, DataType]]) -> str:
    return Struct(tuple(Field(name, type_) for name, type_ in columns)).ddl


def _described(schema: Column) -> Column:
    """How the columns are encoded, as the schema part of a record says."""
    fields = F.from_json(schema, SCHEMA_PART).getField("fields")
    after = F.get(F.filter(fields, lambda field: field.field == "after"), F.lit(0)).getField("fields")
    of_key = F.transform(fields, lambda field: field.dropFields("fields"))
    return F.coalesce(after, of_key)


def _description(types: Column, name: str) -> Column:
    return F.get(F.filter(types, lambda field: field.field == name), F.lit(0))


def _plain_type(type_: DataType) -> DataType:
    """What a value without a schema is read as. Spark takes some numbers for times, and means others than Debezium."""
    return Primitive.STRING if type_ in TIMES else widened(type_)


def _from_plain(value: Column, type_: DataType) -> Column:
    """A value of a change without a schema."""
    match type_:
        case Primitive.DATE:
            return _date(value)
        case Primitive.TIMESTAMP | Primitive.TIMESTAMP_NTZ:
            return F.when(value.rlike(ISO), value.try_cast(type_.ddl))
        case _:
            return value


def _decoded(text: Column, type_: DataType, description: Column) -> Column:
    """The value that a text stands for in a change with a schema; null where it stands for none."""
    match type_:
        case Array(element) if not isinstance(element, Struct | Map | Array):
            items = Encoding.of(description.getField("items"))
            return F.transform(_elements(text), lambda one: _scalar(one, element, items))
        case Array() | Map() | Struct():
            row = f"{Field('value', widened(type_)).ddl}, {CORRUPT} STRING"
            whole = F.from_json(F.concat(F.lit('{"value":'), text, F.lit("}")), row, JSON_READ_OPTIONS)
            return F.when(whole.getField(CORRUPT).isNull(), whole.getField("value"))
        case _:
            return _scalar(text, type_, Encoding.of(description))


def _elements(text: Column) -> Column:
    return F.from_json(text, "ARRAY<STRING>")


def _is_misfit(text: Column, value: Column, type_: DataType) -> Column:
    """Whether a text, or one of the texts of an array, has no value."""
    missing = text.isNotNull() & value.isNull()
    if not isinstance(type_, Array) or isinstance(type_.element, Struct | Map | Array):
        return F.coalesce(missing, F.lit(False))
    pairs = F.zip_with(_elements(text), value, lambda said, meant: said.isNotNull() & meant.isNull())
    return F.coalesce(missing | F.exists(pairs, lambda one: one), F.lit(False))


def _scalar(text: Column, type_: DataType, encoding: Encoding) -> Column:
    match type_:
        case Primitive.BOOLEAN:
            return F.when(text.isin("true", "false"), text == "true")
        case Primitive.BINARY:
            return F.try_to_binary(text, F.lit("base64"))
        case Primitive.DATE:
            return _date(text)
        case Primitive.TIMESTAMP | Primitive.TIMESTAMP_NTZ:
            written = F.when(text.rlike(ISO), text.try_cast("timestamp"))
            return F.when(text.rlike(NUMBER), _moment(text, encoding)).otherwise(written).try_cast(type_.ddl)
        case Primitive.STRING:
            return _shown(text, encoding)
        case Decimal():
            return _number(text, encoding).try_cast(widened(type_).ddl)
        case Primitive.DOUBLE | Primitive.FLOAT:
            return _number(text, encoding).try_cast(type_.ddl)
        case _:
            return text.try_cast(type_.ddl)


def _date(text: Column) -> Column:
    """Days since 1970, or ISO 8601, which Debezium ends with a Z."""
    days = text.try_cast("int")
    told = F.when(days.between(FIRST_DAY, LAST_DAY), F.date_add(F.lit("1970-01-01").cast("date"), days))
    written = F.when(text.rlike(ISO + "Z?$"), F.regexp_replace(text, "Z$", "").try_cast("date"))
    return F.when(text.rlike(NUMBER), told).otherwise(written)


def _moment(text: Column, encoding: Encoding) -> Column:
    """A number as a time since 1970, in the unit that the schema tells."""
    return _let(
        _microseconds(text, encoding),
        lambda micros: F.when(micros.between(FIRST_MICROSECOND, LAST_MICROSECOND), F.timestamp_micros(micros)),
    )


def _microseconds(text: Column, encoding: Encoding) -> Column:
    number, name = text.try_cast("bigint"), encoding.name
    # Not by a division of doubles, which have too few digits for nanoseconds.
    whole = F.try_subtract(number, F.pmod(number, F.lit(1_000))).cast("decimal(20,0)")
    return (
        F.when(name.isin(*IN_MICROSECONDS), number)
        .when(name.isin(*IN_MILLISECONDS), F.try_multiply(number, F.lit(1_000)))
        .when(name.isin(*IN_NANOSECONDS), (whole / 1_000).cast("bigint"))
    )


def _shown(text: Column, encoding: Encoding) -> Column:
    """A text as PostgreSQL would print the value, where Debezium encodes it otherwise."""
    name, is_number = encoding.name, text.rlike(NUMBER)
    clock = _without_zeros(F.date_format(_moment(text, encoding), "HH:mm:ss.SSSSSS"))
    midnight = F.when(_microseconds(text, encoding) == DAY, F.lit("24:00:00"))
    moment = _without_zeros(F.date_format(_moment(text, encoding), "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"))
    return (
        F.when(name.isin(DECIMAL, VARIABLE_DECIMAL), _number(text, encoding))
        .when(is_number & name.isin(*DATES), _date(text).cast("string"))
        .when(is_number & name.isin(*CLOCKS), F.coalesce(midnight, clock))
        .when(is_number & name.isin(*IN_MILLISECONDS, *IN_MICROSECONDS, *IN_NANOSECONDS), moment)
        .otherwise(text)
    )


def _without_zeros(text: Column) -> Column:
    return F.regexp_replace(text, r"\.?0+$", "")


def _number(text: Column, encoding: Encoding) -> Column:
    """The digits of a number: of a text as it is, of bytes as many as Spark's decimals have."""
    parts = F.when(encoding.name == VARIABLE_DECIMAL, F.from_json(text, "scale INT, value STRING"))
    octets = F.try_to_binary(F.coalesce(parts.getField("value"), text), F.lit("base64"))
    declared = encoding.parameters.getItem("scale").try_cast("int")
    scale = F.coalesce(parts.getField("scale"), declared, F.lit(0))
    return F.when(encoding.name.isin(DECIMAL, VARIABLE_DECIMAL), _digits(octets, scale)).otherwise(text)


def _digits(unscaled: Column, scale: Column) -> Column:
    """A number of big-endian bytes in two's complement, with the point before its last `scale` digits."""
    code = F.hex(unscaled)
    octets = F.transform(
        F.sequence(F.lit(0), (F.length(code) / 2 - 1).cast("int")),
        lambda place: F.conv(F.substring(code, place * 2 + 1, F.lit(2)), 16, 10).try_cast("decimal(38,0)"),
    )

    def of_octets(octets: Column) -> Column:
        sign = F.when(F.get(octets, F.lit(0)) >= 128, F.lit("-")).otherwise(F.lit(""))
        return _let(sign, lambda sign: _let(_size(octets, sign), lambda size: _pointed(sign, size, scale)))

    return _let(octets, of_octets)


def _size(octets: Column, sign: Column) -> Column:
    """The digits of the number without its sign."""
    zero, one, most, base = (F.lit(number).cast("decimal(38,0)") for number in (0, 1, 255, 256))
    # The complement of a negative number is as small as the number, so that it does not overflow.
    positive = F.transform(octets, lambda octet: F.when(sign == "-", most - octet).otherwise(octet))
    sum_ = F.aggregate(
        positive, zero, lambda sum_, octet: F.try_add(F.try_multiply(sum_, base), octet).try_cast("decimal(38,0)")
    )
    return F.try_add(sum_, F.when(sign == "-", one).otherwise(zero)).cast("string")


def _pointed(sign: Column, size: Column, scale: Column) -> Column:
    padded = F.lpad(size, F.greatest(F.length(size), scale + 1), F.lit("0"))
    whole = F.substring(padded, F.lit(1), F.length(padded) - scale)
    part = F.substring(padded, F.length(padded) - scale + 1, scale)
    return (
        F.when(scale > 0, F.concat(sign, whole, F.lit("."), part))
        .when(scale < 0, F.concat(sign, size, F.repeat(F.lit("0"), -scale)))
        .otherwise(F.concat(sign, size))
    )


def _let(value: Column, use: Callable[[Column], Column]) -> Column:
    """What `use` makes of a value, which is computed once, and stands once in the plan, however often it is used."""
    return F.get(F.transform(F.array(value), use), F.lit(0))
