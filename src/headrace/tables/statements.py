"""Parts of the statements that write a view."""

from collections.abc import Iterable, Sequence

from psycopg import sql

__all__ = ["column", "every", "listed", "names", "same"]


def column(table: str, name: str) -> sql.Identifier:
    return sql.Identifier(table, name)


def names(columns: Iterable[str]) -> sql.Composed:
    return listed(map(sql.Identifier, columns))


def listed(parts: Iterable[sql.Composable]) -> sql.Composed:
    return sql.SQL(", ").join(parts)


def every(conditions: Iterable[sql.Composable]) -> sql.Composed:
    return sql.SQL("({})").format(sql.SQL(" AND ").join(conditions))


def same(one: str, its: Sequence[str], other: str, others: Sequence[str]) -> sql.Composed:
    """Whether two rows have the same key, by the names of its columns in each."""
    return every(
        sql.SQL("{} = {}").format(column(one, left), column(other, right))
        for left, right in zip(its, others, strict=True)
    )
