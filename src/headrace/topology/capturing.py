"""Reads the declaration of a captured table, and completes it with what its database says of it."""

from collections.abc import Sequence
from dataclasses import replace

from headrace.errors import InputError, Problem, TopologyError
from headrace.topology.captures import UNKNOWN_SCHEMA, Capture, MaskLike, Snapshot, TableName, masks_of
from headrace.topology.choices import Format
from headrace.topology.databases import Database, DatabaseLike, database_of
from headrace.topology.declaring import Declaration, KeyLike, names_of
from headrace.topology.duration import Duration, DurationLike
from headrace.topology.nearest import did_you_mean
from headrace.topology.schema import Schema, SchemaLike
from headrace.topology.sources import check_table_columns, read_source
from headrace.topology.times import EventTimeLike

__all__ = ["described", "read_capture", "read_table_name"]

NO_LATENESS = Duration(0)
# Stand in for what cannot be read, in an app that never gets as far as a topology.
NO_TABLE = TableName("public", "unreadable")
NO_DATABASE = Database(None)


def read_table_name(declaration: Declaration, table: str) -> TableName:
    return declaration.read("table", TableName.of, table, NO_TABLE)


def read_capture(
    declaration: Declaration,
    *,
    app_name: str,
    name: str,
    topic_name: str,
    database: DatabaseLike,
    table: TableName,
    schema: SchemaLike | None,
    key: KeyLike,
    event_time: EventTimeLike | None,
    lateness: DurationLike | None,
    ahead: DurationLike | None,
    columns: KeyLike,
    where: str | None,
    mask: MaskLike,
    snapshot: str,
) -> Capture:
    """The node; what is wrong with it is among the declaration's problems."""
    late = NO_LATENESS if lateness is None and event_time is not None else lateness
    # Without a schema, key and event time are checked once it has been read.
    read = read_source(declaration, schema, Format.DEBEZIUM, key, event_time, late, ahead, ())
    capture = Capture(
        app_name=app_name,
        name=name,
        place=declaration.place,
        schema=UNKNOWN_SCHEMA if schema is None else read.schema,
        has_schema=schema is not None,
        key=read.key,
        event_time=read.event_time,
        lateness=read.lateness,
        ahead=read.ahead,
        topic_name=topic_name,
        format=Format.DEBEZIUM,
        record_columns=("_timestamp",)
        if read.event_time is not None and read.event_time.column == "_timestamp"
        else (),
        database=declaration.read("database", database_of, database, NO_DATABASE).named_after(app_name),
        table=table,
        columns=declaration.read("columns", names_of, columns, ()),
        where=declaration.read("where", _condition_of, where, None),
        masks=declaration.read("mask", masks_of, mask, {}),
        snapshot=declaration.read("snapshot", Snapshot.of, snapshot, Snapshot.INITIAL),
    )
    _check(declaration, capture)
    return capture


def described(capture: Capture, schema: SchemaLike, key: Sequence[str]) -> Capture:
    """The capture with the columns and the key that its database has, where the declaration does not say them.

    Raises TopologyError where the declaration does not fit them.
    """
    problems: list[Problem] = []
    declaration = Declaration(f"{capture.kind} {capture.name!r}", capture.place, problems)
    # What was declared has been read once already, and is read the same again.
    complete = replace(
        capture,
        schema=capture.schema if capture.has_schema else Schema.of(schema),
        has_schema=True,
        key=capture.key or tuple(key),
    )
    read_source(
        declaration,
        complete.schema,
        Format.DEBEZIUM,
        complete.key,
        complete.event_time,
        complete.lateness if complete.event_time is not None else None,
        complete.ahead,
        (),
    )
    if not complete.key:
        declaration.problem(
            f"the table {capture.table} has no primary key",
            'add one in the database, or name the columns that identify a row: key="id"',
        )
    _check(declaration, complete)
    if problems:
        raise TopologyError(tuple(problems))
    return complete


def _check(declaration: Declaration, capture: Capture) -> None:
    for name in capture.masks:
        if name in capture.key:
            declaration.problem(f"mask: {name!r} is in the key, which identifies a row", "leave it out of mask")
        if capture.columns and name not in capture.columns:
            declaration.problem(
                f"mask: {name!r} is not among the columns", "leave it out of mask, or add it to columns"
            )
    if not capture.has_schema:
        return
    check_table_columns(declaration, capture.schema)
    taken = (*capture.columns, *capture.key)
    for name in capture.schema.names if capture.columns else ():
        if name not in taken:
            declaration.problem(
                f"schema: {name!r} is not among the columns that are captured", did_you_mean(name, taken)
            )
    for name, how in capture.masks.items():
        if name in capture.schema:
            for problem, next_step in how.problems(capture.schema[name]):
                declaration.problem(f"mask: {problem}", next_step)


def _condition_of(value: str | None) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or not value.strip():
        raise InputError(f"{value!r} is not a condition", next_step="write it in SQL: where=\"status <> 'draft'\"")
    return value.strip()
