"""Completes the captured tables of an app with the columns and keys that their databases have."""

from headrace.capture import table_schema
from headrace.config.run import RunConfig
from headrace.errors import CaptureError, Problem, ServiceError, TableError, TopologyError
from headrace.services.finding import with_postgres
from headrace.topology import Capture, Node, Schema, Topology, captured_databases, described

__all__ = ["with_captures_described"]


def with_captures_described(topology: Topology, config: RunConfig) -> Topology:
    """The graph with what the declarations of its captures leave out. It connects to the databases only for that.

    Raises CaptureError where a database cannot tell, TopologyError where a declaration does not fit its table.
    """
    complete, problems = dict[Node, Node](), list[Problem]()
    for captures in captured_databases(topology.nodes.values()).values():
        for capture in captures:
            if not capture.is_described:
                schema, key = _read(capture, config)
                try:
                    complete[capture] = described(capture, schema, key)
                except TopologyError as error:
                    problems += error.problems
    if problems:
        raise TopologyError(tuple(problems))
    return topology.replaced(complete) if complete else topology


def _read(capture: Capture, config: RunConfig) -> tuple[Schema, tuple[str, ...]]:
    try:
        address = capture.database.address or with_postgres(config, "--postgres").postgres_dsn
        return table_schema(address, capture.table, capture.columns, capture.masks)
    except (ServiceError, TableError) as error:
        raise CaptureError(
            f"the columns of the table {capture.table} cannot be read from its database: {error.problem}",
            next_step="start the database, correct its address, or give schema= and key= to app.capture()",
        ) from error
