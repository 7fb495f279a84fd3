"""PostgreSQL's types for the types of a row, and the names it allows."""

from headrace.errors import InputError
from headrace.topology import Schema
from headrace.topology.datatypes import Array, DataType, Decimal, Map, Primitive, Struct
from headrace.topology.names import DELETED, ORDER

__all__ = ["POSITION", "check_names", "check_order", "is_json", "postgres_type"]

LONGEST_NAME = 63
POSITION = "_position"
"""Of the rows of a batch: their place in it."""
SYSTEM_COLUMNS = ("tableoid", "xmin", "cmin", "xmax", "cmax", "ctid")
# As format_type() writes them, so that a column can be compared with the existing one.
PRIMITIVES = {
    Primitive.BOOLEAN: "boolean",
    Primitive.TINYINT: "smallint",
    Primitive.SMALLINT: "smallint",
    Primitive.INT: "integer",
    Primitive.BIGINT: "bigint",
    Primitive.FLOAT: "real",
    Primitive.DOUBLE: "double precision",
    Primitive.STRING: "text",
    Primitive.BINARY: "bytea",
    Primitive.DATE: "date",
    Primitive.TIMESTAMP: "timestamp with time zone",
    Primitive.TIMESTAMP_NTZ: "timestamp without time zone",
}


def postgres_type(type_: DataType) -> str:
    """Lists of plain values are arrays; other nested types are jsonb."""
    match type_:
        case Primitive():
            return PRIMITIVES[type_]
        case Decimal(precision, scale):
            return f"numeric({precision},{scale})"
        case Array(Primitive() | Decimal() as element):
            return f"{postgres_type(element)}[]"
        case Array() | Map() | Struct():
            return "jsonb"


def is_json(type_: DataType) -> bool:
    return postgres_type(type_) == "jsonb"


def check_names(schema_name: str, table_name: str, columns: Schema, key: tuple[str, ...]) -> None:
    """Refuse names that PostgreSQL would truncate or has reserved."""
    view = f"view {schema_name}.{table_name}"
    for what, name in (("app", schema_name), ("view", table_name), *(("column", name) for name in columns.names)):
        if len(name.encode()) > LONGEST_NAME:
            raise InputError(
                f"{view}: the name of the {what} {name!r} is longer than PostgreSQL's limit of {LONGEST_NAME} bytes",
                next_step="choose a shorter name",
            )
    if schema_name.lower().startswith("pg_") or schema_name == "information_schema":
        raise InputError(f"{view}: PostgreSQL reserves the schema {schema_name!r}", next_step="rename the app")
    if schema_name == "headrace":
        raise InputError(
            f"{view}: the schema 'headrace' is reserved for the ledger of Headrace", next_step="rename the app"
        )
    for name in columns.names:
        if name in (*SYSTEM_COLUMNS, DELETED, POSITION) or name.startswith(ORDER):
            raise InputError(f"{view}: the column name {name!r} is reserved", next_step="rename it")
    for name in key:
        if name not in columns:
            raise InputError(f"{view}: the key {name!r} is not among its columns: {', '.join(columns.names)}")
    if not key:
        raise InputError(f"{view}: it has no key", next_step='name the columns that identify a row: key="id"')


def check_order(view: str, columns: Schema, order_by: tuple[str, ...]) -> None:
    for name in order_by:
        if name not in columns:
            raise InputError(f"view {view}: order_by: {name!r} is not among its columns: {', '.join(columns.names)}")
        if isinstance(columns[name].type, Array | Map | Struct):
            raise InputError(
                f"view {view}: order_by: {name!r} is {columns[name].type.ddl}, which has no order",
                next_step="order by a number, a time or a text",
            )
