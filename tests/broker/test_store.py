"""The metadata store: one commit for all that wait, all or nothing for each, and what a failure leaves."""

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from headrace.broker.store import Store, StoreError


def on_store(test: Callable[[Store], Awaitable[None]]) -> Callable[[Path], None]:
    def run(tmp_path: Path) -> None:
        async def main() -> None:
            store = Store(tmp_path / "metadata.db")
            store.load(lambda connection: connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY) STRICT").close())
            store.start()
            try:
                await test(store)
            finally:
                store.close()

        asyncio.run(main())

    run.__name__ = test.__name__
    return run


def insert(number: int) -> Callable[[sqlite3.Connection], int]:
    def change(connection: sqlite3.Connection) -> int:
        connection.execute("INSERT INTO t VALUES (?)", (number,))
        return number

    return change


def rows(connection: sqlite3.Connection) -> list[int]:
    return [number for (number,) in connection.execute("SELECT id FROM t ORDER BY id")]


@on_store
async def test_changes_run_in_their_order_and_return_what_they_made(store: Store) -> None:
    done = [store.write(insert(number)) for number in range(50)]
    assert await asyncio.gather(*done) == list(range(50))
    assert await store.write(rows) == list(range(50))


@on_store
async def test_a_change_that_fails_takes_nothing_with_it(store: Store) -> None:
    def broken(connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO t VALUES (99)")
        raise ValueError("no")

    first, second, third = store.write(insert(1)), store.write(broken), store.write(insert(2))
    assert (await first, await third) == (1, 2)
    with pytest.raises(ValueError, match="no"):
        await second
    with pytest.raises(sqlite3.IntegrityError):
        await store.write(insert(1))
    assert await store.write(rows) == [1, 2]


@on_store
async def test_after_a_failure_of_the_file_nothing_is_trusted(store: Store) -> None:
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR

    def broken(connection: sqlite3.Connection) -> None:
        raise error

    beside, failing = store.write(insert(1)), store.write(broken)
    for done in (beside, failing):
        with pytest.raises(StoreError):
            await done
    with pytest.raises(StoreError, match="restart"):
        await store.write(rows)


@on_store
async def test_a_full_disk_fails_what_waits_and_later_changes_go_on(store: Store) -> None:
    error = sqlite3.OperationalError("database or disk is full")
    error.sqlite_errorcode = sqlite3.SQLITE_FULL

    def full(connection: sqlite3.Connection) -> None:
        raise error

    beside, failing = store.write(insert(1)), store.write(full)
    for done in (beside, failing):
        with pytest.raises(StoreError):
            await done
    assert await store.write(insert(2)) == 2
    assert await store.write(rows) == [2]


@on_store
async def test_a_change_that_ends_the_transaction_hangs_nobody(store: Store) -> None:
    def meddles(connection: sqlite3.Connection) -> None:
        connection.execute("COMMIT")

    with pytest.raises(StoreError):
        await asyncio.wait_for(store.write(meddles), 5)
    with pytest.raises(StoreError):
        await asyncio.wait_for(store.write(rows), 5)
