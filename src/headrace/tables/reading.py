"""Reading a view, and your own writes in it: wait until it covers a record, then read."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeAlias

import psycopg
from psycopg import sql
from psycopg.rows import dict_row

from headrace.errors import Error, InputError, NotCovered, TableError
from headrace.tables import ledger
from headrace.tables.connection import Connection, connect, explained
from headrace.tables.ledger import Coverage
from headrace.topology import did_you_mean

__all__ = ["Receipt", "ViewReader"]

Row: TypeAlias = dict[str, Any]

EXPECTED = (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn)
FIRST_PAUSE = 0.005
LONGEST_PAUSE = 0.1


class Receipt(Protocol):
    """Where a record was written, as a producer returns it."""

    @property
    def topic(self) -> str: ...

    @property
    def partition(self) -> int: ...

    @property
    def offset(self) -> int: ...


Receipts: TypeAlias = Receipt | Sequence[Receipt] | None


class ViewReader:
    """Reads a view. Use one reader per thread: it has a connection."""

    def __init__(self, dsn: str, schema_name: str, table_name: str, key: tuple[str, ...]) -> None:
        self._dsn = dsn
        self._view = f"{schema_name}.{table_name}"
        self._table = sql.Identifier(schema_name, table_name)
        self._key = key
        self._connection: Connection | None = None

    def get(self, key: Any, *, after: Receipts = None, timeout: float = 30.0) -> Row | None:
        """The row of a key, or None. A key of several columns is a tuple, or a mapping by column.

        With `after`, waits until the view covers that record, or those; raises NotCovered after the timeout.
        """
        found = self.rows(self._key_of(key), after=after, timeout=timeout)
        return found[0] if found else None

    def rows(
        self,
        where: str | Mapping[str, Any] | None = None,
        parameters: Sequence[Any] | Mapping[str, Any] = (),
        *,
        after: Receipts = None,
        timeout: float = 30.0,
    ) -> list[Row]:
        """Rows as dicts, unordered: all, those equal to a mapping, or those that match an SQL condition with `%s`."""
        self.wait(after, timeout)
        condition, values = _condition(where, parameters)
        query = sql.SQL("SELECT * FROM {} WHERE {}").format(self._table, condition)
        try:
            with self._asked("read") as connection, connection.cursor(row_factory=dict_row) as cursor:
                return cursor.execute(query, values).fetchall()
        except psycopg.errors.UndefinedTable as error:
            raise TableError(
                f"view {self._view} does not exist yet", next_step="start its app first: headrace run"
            ) from error
        except psycopg.errors.UndefinedColumn as error:
            raise self._unknown_column(where, error) from error

    def wait(self, after: Receipts, timeout: float = 30.0) -> None:
        """Return when the view covers the record, or all of them."""
        waiting = _receipts(after)
        limit = time.monotonic() + timeout
        pause = FIRST_PAUSE
        while waiting:
            coverage = self.coverage()
            waiting = [receipt for receipt in waiting if not self._covers(coverage, receipt)]
            left = limit - time.monotonic()
            if waiting and left <= 0:
                raise self._not_covered(waiting[0], coverage, timeout)
            if waiting:
                time.sleep(min(pause, left))
                pause = min(pause * 1.5, LONGEST_PAUSE)

    def coverage(self) -> Coverage | None:
        """The last batch in the view and the offsets it covers; None before the first."""
        try:
            with self._asked("read the coverage of") as connection, connection.cursor() as cursor:
                return ledger.covered(cursor, self._view)
        except psycopg.errors.UndefinedTable:
            return None

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @contextmanager
    def _asked(self, what: str) -> Iterator[Connection]:
        try:
            with explained(self._dsn, f"{what} view {self._view}", but=EXPECTED):
                if self._connection is None or self._connection.closed:
                    self._connection = connect(self._dsn)
                yield self._connection
        except BaseException:
            self.close()
            raise

    def _key_of(self, key: Any) -> Mapping[str, Any]:
        if isinstance(key, Mapping):
            given = key
        else:
            values = key if isinstance(key, tuple) else (key,)
            if len(values) != len(self._key):
                raise InputError(
                    f"the key of view {self._view} is ({', '.join(self._key)}), but {len(values)} of it were given"
                )
            given = dict(zip(self._key, values, strict=True))
        if set(given) != set(self._key):
            raise InputError(f"the key of view {self._view} is ({', '.join(self._key)}), not ({', '.join(given)})")
        return given

    def _unknown_column(self, where: str | Mapping[str, Any] | None, error: psycopg.Error) -> Error:
        with self._asked("read the columns of") as connection, connection.cursor() as cursor:
            cursor.execute(sql.SQL("SELECT * FROM {} LIMIT 0").format(self._table))
            columns = [column.name for column in cursor.description or ()]
        if isinstance(where, Mapping):
            unknown = next(name for name in where if name not in columns)
            return InputError(f"view {self._view} has no column {unknown!r}", next_step=did_you_mean(unknown, columns))
        return TableError(
            f"the condition names what view {self._view} does not have: {error.diag.message_primary}",
            next_step=f"its columns are {', '.join(columns)}",
        )

    def _covers(self, coverage: Coverage | None, receipt: Receipt) -> bool:
        if coverage is None or not coverage.offsets:
            return False
        if receipt.topic not in coverage.offsets:
            raise InputError(
                f"view {self._view} does not read topic {receipt.topic!r}, so it cannot cover a record of it",
                next_step=f"pass a receipt of {' or '.join(map(repr, coverage.offsets))}",
            )
        return coverage.offsets[receipt.topic].get(str(receipt.partition), -1) > receipt.offset

    def _not_covered(self, receipt: Receipt, coverage: Coverage | None, timeout: float) -> NotCovered:
        reached = "has no batch yet"
        if coverage is not None:
            offset = coverage.offsets.get(receipt.topic, {}).get(str(receipt.partition), 0)
            reached = f"covers the offsets of that partition before {offset}, with batch {coverage.batch}"
        where = f"{receipt.topic}[{receipt.partition}] offset {receipt.offset}"
        return NotCovered(
            f"view {self._view} did not reach {where} within {timeout:g} s: it {reached}",
            next_step="check that its app runs, or allow more time with timeout=",
        )


def _receipts(after: Any) -> list[Receipt]:
    # A receipt may be a named tuple, and so a sequence itself.
    receipts = [after] if hasattr(after, "topic") or isinstance(after, str) else list(after or ())
    for receipt in receipts:
        if not hasattr(receipt, "offset"):
            raise InputError(
                f"after: {receipt!r} is not a receipt", next_step="pass what producer.send(...).result() returns"
            )
    return receipts


def _condition(
    where: str | Mapping[str, Any] | None, parameters: Sequence[Any] | Mapping[str, Any]
) -> tuple[sql.Composable, Sequence[Any] | Mapping[str, Any]]:
    if where is None:
        return sql.SQL("true"), ()
    if isinstance(where, str):
        return sql.SQL(where), parameters
    equal = [sql.SQL("{} IS NOT DISTINCT FROM %s").format(sql.Identifier(name)) for name in where]
    return sql.SQL(" AND ").join(equal) if equal else sql.SQL("true"), tuple(where.values())
