"""Stopping a broker whose store fails: the folder is free again, and the next start recovers it."""

import asyncio
import sqlite3
from pathlib import Path

import pytest

from headrace.broker import Broker
from headrace.broker.store import Store


class StoreThatCannotClose(Store):
    def close(self) -> None:
        super().close()
        raise sqlite3.OperationalError("disk I/O error")


class StoreThatCannotWrite(Store):
    """As after a failed sync: each change is refused until the broker starts again."""

    def start(self) -> None:
        super().start()
        self._failed = "the metadata store failed"


async def starts_again(data: Path) -> None:
    broker = Broker(data)
    await broker.start()
    await broker.stop()


def test_a_store_that_cannot_close_does_not_keep_the_folder_locked(tmp_path: Path) -> None:
    async def main() -> None:
        broker = Broker(tmp_path, store_type=StoreThatCannotClose)
        await broker.start()
        with pytest.raises(sqlite3.OperationalError):
            await broker.stop()
        await starts_again(tmp_path)

    asyncio.run(main())


def test_a_store_that_cannot_write_does_not_keep_the_folder_locked(tmp_path: Path) -> None:
    async def main() -> None:
        broker = Broker(tmp_path, store_type=StoreThatCannotWrite)
        await broker.start()
        await broker.stop()
        await starts_again(tmp_path)

    asyncio.run(main())
