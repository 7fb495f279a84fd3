"""Checks what a node's function returned against the node's declaration."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame

from headrace.engine.calls.results import Result
from headrace.engine.calls.windows import Windowed
from headrace.engine.column_metadata import output_time
from headrace.engine.read.parsing import nullable
from headrace.engine.read.tables import Table, rows_of
from headrace.engine.write.encoding import check_can_be_carried
from headrace.errors import InputError
from headrace.topology import QueryNode, Schema
from headrace.topology.datatypes import Column, Decimal, Primitive
from headrace.topology.names import DELETED, VALID_FROM
from headrace.topology.nearest import did_you_mean

__all__ = ["Output", "outputs_of", "read_output"]


@dataclass(frozen=True, slots=True)
class Output:
    """The rows that a node writes to one place, and their columns."""

    rows: DataFrame
    schema: Schema
    event_time: str | None
    """Which of the columns it is; None where there is none."""


def outputs_of(node: QueryNode, returned: Any, *, streaming: bool = True) -> dict[str, DataFrame]:
    """The rows that a function returned, by channel; by the empty name where there are no channels.

    They stream, unless the function was given rows that do not.
    """
    channels = node.channels
    if not channels:
        if isinstance(returned, Mapping):
            raise InputError(
                "it returns a dict, and no channels are declared",
                next_step=f"declare them: channels={[str(name) for name in returned]}",
            )
        return {"": _changes(node, returned) if isinstance(returned, Table) else _rows(returned, "it", streaming)}
    if not isinstance(returned, Mapping):
        raise InputError(
            f"it returns {_a(returned)}, and its channels are {', '.join(channels)}",
            next_step=f"return a dict of them: {{{channels[0]!r}: ...}}",
        )
    for name in returned:
        if name not in channels:
            raise InputError(f"it returns an undeclared channel {name!r}", next_step=did_you_mean(str(name), channels))
    missing = [name for name in channels if name not in returned]
    if missing:
        raise InputError(f"it returns nothing for the channel {missing[0]!r}", next_step="return rows for each of them")
    return {name: _rows(returned[name], f"its channel {name!r}", streaming) for name in channels}


def read_output(node: QueryNode, rows: DataFrame, changes: bool) -> Output:
    """The columns of a node's rows, with its key, times and order checked against them.

    Where the rows are changes, that of a row which is gone is none of their own columns.
    """
    schema = _schema(rows.drop(DELETED, VALID_FROM) if changes else rows)
    _check_key(node, schema)
    if changes:
        _check_deleted(node, rows)
    if not node.sink.takes_records:
        _check_order_by(node, schema)
        return Output(rows, schema, None)
    check_can_be_carried(schema)
    return Output(rows, schema, _event_time(node, rows, schema))


def _changes(node: QueryNode, table: Table) -> DataFrame:
    """The rows of a table that a node returns unchanged. The key must be the same, or deletes would match no row."""
    if not node.holds_table:
        raise InputError(
            f"it returns {table!r}, but a {node.kind} is made of events",
            next_step="return the table's .changes, or declare it with @app.table",
        )
    if sorted(node.key) != sorted(table.key):
        raise InputError(
            f"its key is {', '.join(node.key)}, but the key of the table that it returns is {', '.join(table.key)}",
            next_step=f"write key={list(table.key)!r}",
        )
    return rows_of(table) if node.sink.takes_records else table.changes


def _rows(returned: Any, who: str, streaming: bool) -> DataFrame:
    if isinstance(returned, Table):
        raise InputError(f"{who} returns {returned!r}", next_step="return the table's .changes")
    if isinstance(returned, Windowed):
        raise InputError(
            f"{who} returns hr.windowed(...) without an aggregate", next_step="add .agg(n=hr.count()) to windowed(...)"
        )
    if isinstance(returned, Result):
        raise InputError(f"{who} returns a windowed result", next_step="return it alone, and split it in the next node")
    if not isinstance(returned, DataFrame):
        step = "end the function with `return rows`" if returned is None else "return a DataFrame"
        raise InputError(f"{who} returns {_a(returned)}, not a DataFrame", next_step=step)
    if streaming and not returned.isStreaming:
        raise InputError(
            f"{who} returns a DataFrame that does not stream",
            next_step="derive it from the DataFrames that it is given",
        )
    return returned


def _a(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__name__}"


def _schema(rows: DataFrame) -> Schema:
    for field in rows.schema:
        if field.dataType.typeName() == "void":
            raise InputError(
                f"the column {field.name!r} has no type",
                next_step=f"give it one: .cast('string').alias({field.name!r})",
            )
    # Records that were written before a column came lack it: a node's own columns are never NOT NULL downstream.
    return Schema(tuple(Column(column.name, nullable(column.type)) for column in Schema.of(rows.schema)))


def _check_key(node: QueryNode, schema: Schema) -> None:
    for name in node.key:
        if name not in schema:
            raise InputError(
                f"its key {name!r} is not a column of what it returns", next_step=did_you_mean(name, schema.names)
            )
        type_ = schema[name].type
        allowed = isinstance(type_, Decimal | Primitive) and (node.sink.binary_keys or type_ is not Primitive.BINARY)
        if not allowed:
            raise InputError(
                f"its key {name!r} is {type_.ddl}, which cannot be a key",
                next_step="use a column of a simple type as the key",
            )


def _check_deleted(node: QueryNode, rows: DataFrame) -> None:
    if DELETED not in rows.columns:
        return
    if rows.schema[DELETED].dataType.typeName() != "boolean":
        raise InputError(
            f"{DELETED!r} is {rows.schema[DELETED].dataType.simpleString()}", next_step="make it BOOLEAN: true deletes"
        )
    if not node.key:
        raise InputError(
            "the output is a changelog, so the node needs a key",
            next_step="name the columns that identify a row: key=",
        )


def _check_order_by(node: QueryNode, schema: Schema) -> None:
    for name in node.order_by:
        if name not in schema:
            raise InputError(
                f"order_by: {name!r} is not a column of what it returns", next_step=did_you_mean(name, schema.names)
            )
        if not isinstance(schema[name].type, Decimal | Primitive):
            raise InputError(
                f"order_by: {name!r} is {schema[name].type.ddl}, which has no order",
                next_step="order by a number, a time or a text",
            )


def _event_time(node: QueryNode, rows: DataFrame, schema: Schema) -> str | None:
    if node.event_time is None:
        found = output_time(rows)
        if found is None and node.lateness is not None:
            raise InputError(
                "lateness= needs an event time, and the rows that it returns have none",
                next_step="keep the upstream's column, or name another: event_time=",
            )
        return found
    if node.event_time not in schema:
        raise InputError(
            f"its event time {node.event_time!r} is not a column of what it returns",
            next_step=did_you_mean(node.event_time, schema.names),
        )
    type_ = schema[node.event_time].type
    if type_ is not Primitive.TIMESTAMP:
        raise InputError(f"its event time {node.event_time!r} is {type_.ddl}", next_step="make it TIMESTAMP")
    return node.event_time
