"""JSON that Spark reads strictly: what does not fit shows in the column for corrupt records.

`from_json` alone lets trailing text, empty values, broken UTF-8 and rounded decimals pass. So a value is read as
the first of two elements of an array inside an object: text after the value then breaks the array, and the
column for corrupt records, which Spark fills for objects alone, tells of every field that does not fit.
Decimals are read with six more digits than the schema has, and must be the same without them: what is lost is
told, and the noise of binary fractions (0.30000000000000004) is not mistaken for it.
"""

from pyspark.sql import Column
from pyspark.sql import functions as F

from headrace.topology import Schema
from headrace.topology.datatypes import MAX_PRECISION, Array, DataType, Decimal, Map, Struct
from headrace.topology.datatypes import Column as Field

__all__ = ["CORRUPT", "JSON_READ_OPTIONS", "first_row", "is_whole", "read_json", "read_rows", "widened"]

CORRUPT = "_corrupt"
JSON_READ_OPTIONS = {"columnNameOfCorruptRecord": CORRUPT, "allowSingleQuotes": "false"}
BEFORE, AFTER = '{"rows":[', ",null]}"
MORE_DIGITS = 6


def read_json(text: Column, schema: Schema) -> Column:
    """A text that is to be one object with the columns of a schema."""
    wide = Struct(tuple(Field(field.name, widened(field.type)) for field in schema))
    return read_rows(text, wide.ddl)


def read_rows(text: Column, row_type: str) -> Column:
    """A text that is to be one object of a type, as the first of two `rows`."""
    return F.from_json(
        F.concat(F.lit(BEFORE), text, F.lit(AFTER)),
        f"rows ARRAY<{row_type}>, {CORRUPT} STRING",
        JSON_READ_OPTIONS,
    )


def first_row(parsed: Column) -> Column:
    # Not getItem, which fails where there is no such element: a record could stop the flow.
    return F.get(parsed.getField("rows"), F.lit(0))


def is_whole(parsed: Column) -> Column:
    """Whether all that was read is one object that fits."""
    return parsed.getField(CORRUPT).isNull() & (F.size(parsed.getField("rows")) == 2) & first_row(parsed).isNotNull()


def widened(type_: DataType) -> DataType:
    """The type with more digits after the point of every decimal, and as many before it."""
    match type_:
        case Decimal(precision, scale):
            more = min(MORE_DIGITS, MAX_PRECISION - precision)
            return Decimal(precision + more, scale + more)
        case Array(element):
            return Array(widened(element))
        case Map(key, value):
            return Map(key, widened(value))
        case Struct(fields):
            return Struct(tuple(Field(field.name, widened(field.type)) for field in fields))
        case _:
            return type_
