"""`hr.join` of two tables: a table that is updated when either changes."""

from pyspark.sql import DataFrame

from headrace.engine.calls.arguments import How, JoinUse, OnLike, check_clash, check_types, chosen, columns_on, note
from headrace.engine.column_metadata import marked_key
from headrace.engine.read.tables import Table, versions_of
from headrace.engine.write.encoding import named
from headrace.errors import InputError
from headrace.operators.hosting import arrow_schema, buckets_of, hosted
from headrace.operators.table_join import LEFT, RIGHT, TableJoin
from headrace.topology.names import DELETED, ORDER, VALID_FROM

__all__ = ["join_tables"]

CALL = "join()"


def join_tables(left: Table, right: Table, on: OnLike, how: str) -> Table:
    pairs = columns_on(CALL, on, (f"table {left}", left.columns), (f"table {right}", right.columns))
    ours, theirs = _rows(left), _rows(right)
    check_types(CALL, pairs, ours, theirs)
    kind = chosen(CALL, "how", How, how)
    kept = [name for name in right.columns if name not in pairs.values()]
    check_clash(CALL, left.columns, kept, f"{right}.select(..., '{{0}} AS its_{{0}}')")
    _check_keys(left, right, pairs, kind)
    operator = TableJoin(
        left=arrow_schema(ours.schema),
        right=arrow_schema(theirs.schema),
        left_key=left.key,
        right_key=right.key,
        on=tuple(pairs.items()),
        how=kind.value,
    )
    # A row must find its matches and the row that it replaces. Both are in the bucket of the key if the key contains
    # the columns of `on`; otherwise all rows have to be in one bucket.
    shared = [(here, there) for here, there in pairs.items() if here in left.key and there in right.key]
    buckets = buckets_of(ours.sparkSession) if shared else 1
    described = {"join of tables": kind.value, "on": dict(pairs), "keys": [*left.key, *right.key], "buckets": buckets}
    where = "" if shared else ", on one core, because the columns of on are not in both keys"
    note(JoinUse(described, explained=f"{kind} join of the tables {left} and {right}: Headrace's operator{where}"))
    keys = {LEFT: [named(here) for here, _ in shared], RIGHT: [named(there) for _, there in shared]}
    rows = hosted(operator, {LEFT: ours, RIGHT: theirs}, keys, buckets).rows()
    marked = rows.select(*(marked_key(name, operator.key) for name in rows.columns))
    return Table(f"{left} with {right}", marked, operator.key, None, left.is_timed or right.is_timed)


def _rows(table: Table) -> DataFrame:
    return versions_of(table).select(*(named(name) for name in [*table.columns, VALID_FROM, ORDER, DELETED]))


def _check_keys(left: Table, right: Table, pairs: dict[str, str], how: How) -> None:
    """Refuse a result without a unique key: a row without a match lacks the columns of the other table's key."""
    for may_lack, table, agreed in (
        (how in (How.LEFT, How.FULL), right, pairs.values()),
        (how in (How.RIGHT, How.FULL), left, pairs.keys()),
    ):
        lacking = [name for name in table.key if name not in agreed]
        if may_lack and lacking:
            raise InputError(
                f'{CALL}: with how="{how}" a row can be without a match, and then has no value for '
                f"{', '.join(map(repr, lacking))}, which is in the key of the table {table} and so of the result",
                next_step=f'join on the key of {table}, or use how="inner"',
            )
