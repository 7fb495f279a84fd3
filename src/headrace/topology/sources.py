"""The options of a source: schema, key and event time, checked against each other."""

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.errors import InputError
from headrace.topology.choices import Format
from headrace.topology.datatypes import Column, Primitive, map_without_text_keys
from headrace.topology.declaring import Declaration, KeyLike, names_of
from headrace.topology.duration import Duration, DurationLike
from headrace.topology.names import DELETED, ORDER, VALID_FROM
from headrace.topology.nearest import did_you_mean
from headrace.topology.schema import Schema, SchemaLike
from headrace.topology.times import (
    COMPUTED_TIME_COLUMN,
    CorrectedTime,
    EventTime,
    EventTimeLike,
    IngestionTime,
    ProcessingTime,
    event_time_of,
)

__all__ = [
    "OWN_COLUMNS",
    "RECORD_COLUMNS",
    "TABLE_COLUMNS",
    "SourceOptions",
    "check_table_columns",
    "read_source",
    "record_columns_of",
]

RECORD_COLUMNS = ("_key", "_topic", "_partition", "_offset", "_timestamp", "_headers")
OWN_COLUMNS = frozenset(name.casefold() for name in (*RECORD_COLUMNS, COMPUTED_TIME_COLUMN))
TABLE_COLUMNS = (DELETED, VALID_FROM, ORDER)
"""What a table's changes have beside its columns: whether the key is gone, since when, and after which others."""
VALUE_TYPES = {Format.STRING: Primitive.STRING, Format.BYTES: Primitive.BINARY}
# Stands in for a schema that cannot be read, whose app never gets as far as a topology.
UNREADABLE = Schema((Column("unreadable", Primitive.STRING),))
NO_TIME = Duration(0)


@dataclass(frozen=True, slots=True)
class SourceOptions:
    schema: Schema
    key: tuple[str, ...]
    event_time: EventTime | None
    lateness: Duration
    ahead: Duration | None


def read_source(
    declaration: Declaration,
    schema: SchemaLike | None,
    format: Format | None,
    key: KeyLike,
    event_time: EventTimeLike | None,
    lateness: DurationLike | None,
    ahead: DurationLike | None,
    record_columns: Sequence[str] | None,
) -> SourceOptions:
    """Read all of it; `record_columns` is None where rows do not come from records."""
    columns = _read_schema(declaration, schema, format)
    keys = declaration.read("key", names_of, key, ())
    time = None if event_time is None else declaration.read("event_time", event_time_of, event_time, None)
    late = None if lateness is None else declaration.read("lateness", Duration.of, lateness, NO_TIME)
    if columns is not None:
        declaration.check_key(keys, columns, record_columns or ())
        _check_time(declaration, time, columns)
    if record_columns is None and time is not None and _needs_records(time):
        declaration.problem("event_time: only the records of a topic have a timestamp", "name a column")
    _check_lateness(declaration, event_time, time, late)
    return SourceOptions(
        columns or UNREADABLE,
        keys,
        time,
        late or NO_TIME,
        None if ahead is None else declaration.read("ahead", Duration.of, ahead, None),
    )


def record_columns_of(value: Sequence[str]) -> tuple[str, ...]:
    names = names_of(value)
    for name in names:
        if name not in RECORD_COLUMNS:
            raise InputError(f"a record has no column {name!r}", next_step=did_you_mean(name, RECORD_COLUMNS))
    return names


def check_table_columns(declaration: Declaration, schema: Schema) -> None:
    """The names of what a table's changes have beside its columns are not for columns."""
    for column in schema:
        if column.name.casefold() in TABLE_COLUMNS:
            declaration.problem(f"schema: the column {column.name!r} has a reserved name", "rename it")


def _read_schema(declaration: Declaration, given: SchemaLike | None, format: Format | None) -> Schema | None:
    """The schema, or None where it cannot be read or was not given."""
    value_type = VALUE_TYPES.get(format) if format is not None else None
    if given is None:
        if value_type is not None:
            return Schema((Column("value", value_type),))
        if format is Format.JSON:
            declaration.problem("a JSON topic needs a schema", 'write it as "id STRING, at TIMESTAMP"')
        return None
    schema = declaration.read("schema", Schema.of, given, None)
    if schema is None:
        return None
    for column in schema:
        if column.name.casefold() in OWN_COLUMNS:
            declaration.problem(f"schema: the column {column.name!r} has a reserved name", "rename it")
    if value_type is not None and [column.type for column in schema] != [value_type]:
        declaration.problem(
            f"schema: a topic of format {format} has one {value_type.ddl} column",
            "omit the schema",
        )
    if format in (Format.JSON, Format.DEBEZIUM):
        for column in schema:
            if bad := map_without_text_keys(column.type):
                declaration.problem(
                    f"schema: the column {column.name!r} has {bad.ddl}, and keys in JSON are strings",
                    f"write MAP<STRING, {bad.value.ddl}>",
                )
    return schema


def _check_time(declaration: Declaration, time: EventTime | None, schema: Schema) -> None:
    match time:
        case None | IngestionTime() | ProcessingTime():
            pass
        case CorrectedTime(occurred, sent, received):
            for option, name in (("occurred", occurred), ("sent", sent), ("received", received)):
                declaration.check_timestamp(f"event_time's {option} time", name, schema)
        case column_time:
            declaration.check_timestamp("event_time", column_time.column, schema)


def _check_lateness(
    declaration: Declaration, given: EventTimeLike | None, time: EventTime | None, lateness: Duration | None
) -> None:
    if given is None and lateness is not None:
        declaration.problem("lateness needs an event time", 'add event_time="at"')
    # A clock that only moves on has no stragglers. Events have, and how long to wait is the user's say.
    if time is not None and lateness is None and not isinstance(time, IngestionTime | ProcessingTime):
        declaration.problem(
            "event time without lateness: rows out of order would be lost",
            'set how late a row may be: lateness="1 minute"',
        )


def _needs_records(time: EventTime) -> bool:
    return time.column == "_timestamp" or (isinstance(time, CorrectedTime) and time.received == "_timestamp")
