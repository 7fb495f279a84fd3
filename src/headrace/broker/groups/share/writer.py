"""How acknowledgements become durable: one commit for all that wait, whichever partitions and groups they are of."""

import asyncio
import logging
import sqlite3
from typing import NamedTuple

from headrace.broker.groups.share import records
from headrace.broker.groups.share.partition import SharePartition
from headrace.broker.groups.share.window import Ranges
from headrace.broker.store import Store

log = logging.getLogger(__name__)


class _Written(NamedTuple):
    partition: SharePartition
    settling: Ranges


class Writer:
    """Partitions that change while a commit is under way are in the next one, each once, as it is then."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._loop = asyncio.get_running_loop()
        self._changed: dict[SharePartition, str] = {}
        self._durable: asyncio.Future[None] | None = None
        self._under_way = False

    def changed(self, group_id: str, partition: SharePartition) -> "asyncio.Future[None]":
        """Done once the partition as it is now is durable."""
        self._changed[partition] = group_id
        if self._durable is None:
            self._durable = self._loop.create_future()
            if not self._under_way:
                self._loop.call_soon(self._begin)
        return self._durable

    def _begin(self) -> None:
        changed, self._changed = self._changed, {}
        durable, self._durable = self._durable, None
        if durable is None:
            return
        rows, written = [], []
        for partition, group_id in changed.items():
            if not partition.gone:
                stored, settling = partition.begin_write()
                rows.append(records.partition_row(group_id, partition.log, partition.state_epoch, stored))
                written.append(_Written(partition, settling))

        def write(connection: sqlite3.Connection) -> None:
            records.save_partitions(connection, rows)

        def ended(write: "asyncio.Future[None]") -> None:
            self._under_way = False
            if self._durable is not None:
                self._loop.call_soon(self._begin)
            self._end(written, durable, write.exception())

        self._under_way = True
        self._store.write(write).add_done_callback(ended)

    @staticmethod
    def _end(written: list[_Written], durable: "asyncio.Future[None]", failure: BaseException | None) -> None:
        if failure is None:
            durable.set_result(None)
        else:
            log.warning("acknowledgements could not be stored: %s", failure)
            durable.set_exception(failure)
            durable.exception()  # seen: where a lock was over, nobody waits for it
        for partition, settling in written:
            try:
                partition.end_write(settling, failure is None)
            except Exception:
                log.exception("%r: a commit of its acknowledgements could not be told", partition.log)
