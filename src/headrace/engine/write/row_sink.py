"""Sinks that take rows: each batch once, with its number, in a store that has a ledger of batches."""

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from datetime import datetime, timedelta
from typing import Any, ClassVar, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from headrace.delivery import Entry
from headrace.engine.adapters import SinkAdapter
from headrace.engine.calls.results import LATE_RECORD
from headrace.engine.write.agreement import BEGUN, BatchWriter, agreed
from headrace.engine.write.batch import Batch
from headrace.engine.write.encoding import RECORD
from headrace.engine.write.failed_rows import collected_rows, drain
from headrace.engine.write.rows import Rows, collect
from headrace.engine.write.sink import SinkContext
from headrace.topology import Guarantee, QueryNode
from headrace.topology.names import DELETED, STAYS

__all__ = ["RowSink", "RowSinkAdapter", "RowStore", "SinkContext"]


class RowStore(Protocol):
    """A store of rows that knows which batches it has. Rows and batch are written in one transaction."""

    def prepare(self) -> None:
        """Create what is missing, and fence the previous writer."""

    def reset(self) -> None:
        """Delete all rows: the node starts over."""

    def last_entry(self) -> tuple[str, int] | None:
        """The query that wrote last, and its last batch."""

    def claim(self, query_id: str, batch: int) -> object:
        """Note the batch as written before its rows are: for at-most-once."""

    def write(
        self,
        query_id: str,
        batch: int,
        offsets: Mapping[str, Any],
        rows: Iterable[pa.RecordBatch],
        *,
        claimed: bool = False,
        forget_before: datetime | None = None,
    ) -> object:
        """Write a batch. `offsets` is, by topic and partition, where the next batch begins.

        A row whose `_deleted` is true deletes its key. Deletes before `forget_before` need not be remembered.
        """

    def close(self) -> None: ...


class RowSinkAdapter(SinkAdapter):
    """The adapter of a kind of sink that has a `RowStore`."""

    ledger_name: ClassVar[str]
    """By which a checkpoint notes that it has written to such a store."""

    @abstractmethod
    def store(self, context: SinkContext) -> RowStore:
        """The store of a node's rows. Does not connect."""

    def place(self, context: SinkContext) -> str:
        """What the store's ledger is called in a message."""
        return f"the ledger of {context.planned.node.name!r} in {context.planned.node.sink.described}"

    def sink(self, context: SinkContext) -> "RowSink":
        return RowSink(context, self.store(context), self.ledger_name, self.place(context))


class RowSink:
    """Writes each batch exactly once. At-least-once does the same, since it would cost no less.

    At-most-once claims the batch first, and does not write it again. Rejected records and late rows go to topics, so
    they have a transaction and a ledger of their own.
    """

    def __init__(self, context: SinkContext, store: RowStore, ledger_name: str, place: str) -> None:
        planned = context.planned
        self._node = planned.node
        self._writer = store
        self._ledger_name = ledger_name
        self._place = place
        self._deletes_kept = planned.deletes_kept
        has_records = bool(planned.rejects) or planned.late_topic is not None or planned.node.diverts
        self._records = (
            BatchWriter(planned.node, context.config, context.cluster, context.checkpoint, context.prefix)
            if has_records
            else None
        )
        self._checkpoint = context.checkpoint
        self._spool = context.spool
        self._last = BEGUN

    def open(self) -> None:
        self.close()
        note, query_id = self._checkpoint.note, self._checkpoint.query_id
        if note.starts_over and not self._checkpoint.starting_offsets:
            self._writer.reset()  # otherwise keys that no longer occur would stay
        self._writer.prepare()
        found = self._writer.last_entry()
        entry = agreed(self._checkpoint, None if found is None else Entry(*found), self._ledger_name, self._place)
        if entry is None:
            self._writer.write(query_id, BEGUN, {}, [])
        self._last = BEGUN if entry is None else entry.position
        ledgers: tuple[str, ...] = (self._ledger_name,)
        if self._records is not None:
            self._records.open()
            ledgers += (self._records.ledger_name,)
        self._checkpoint.take_note(registered=ledgers, starts_over=False)

    def write(self, batch: Batch) -> None:
        is_there = batch.number <= self._last
        if is_there and (self._records is None or self._records.has(batch.number)):
            drain(batch)
            return
        rows, failed = collected_rows(batch, self._spool)
        with rows:
            self._write_records(batch, rows, failed)
            if is_there:
                return
            query_id = self._checkpoint.query_id
            claimed = self._node.guarantee is Guarantee.AT_MOST_ONCE
            if claimed:
                self._writer.claim(query_id, batch.number)
            # Also without rows: a reader may wait until the view covers a record that produced none.
            self._writer.write(
                query_id,
                batch.number,
                batch.offsets(),
                _own(rows, self._node),
                claimed=claimed,
                forget_before=self._forget_before(batch),
            )
        self._last = batch.number

    def close(self) -> None:
        self._writer.close()
        if self._records is not None:
            self._records.close()

    def _forget_before(self, batch: Batch) -> datetime | None:
        """Up to where rows would be late: deletes before that need not be remembered. None where that is unknown."""
        watermark = None if self._deletes_kept is None else batch.watermark()
        if self._deletes_kept is None or watermark is None:
            return None
        return watermark - timedelta(microseconds=self._deletes_kept.microseconds)

    def _write_records(self, batch: Batch, rows: Rows, failed: Rows | None) -> None:
        """Write the rows of a batch that go to topics: late rows, failed rows and rejected records."""
        if self._records is None or self._records.has(batch.number):
            return
        late = _which(rows, late=True)
        some_late = late is not None and len(late)
        with ExitStack() as stack:
            rejects = batch.rejects(counted=failed is None)
            parts = [stack.enter_context(collect(frame, self._spool)) for frame in rejects]
            parts += [] if failed is None else [stack.enter_context(failed)]
            if some_late or any(map(len, parts)):
                with self._records.transaction(batch.number) as producer:
                    if some_late:
                        producer.send(_records_of_late(rows, late))
                    for part in parts:
                        producer.send(part.slices(only=RECORD))


def _which(rows: Rows, *, late: bool) -> pa.Array | None:
    """The positions of the late rows, or of the node's own; None where no row can be late."""
    if LATE_RECORD not in rows.columns:
        return None
    is_late = rows.column(LATE_RECORD).is_valid()
    return pc.indices_nonzero(is_late if late else pc.invert(is_late))


def _own(rows: Rows, node: QueryNode) -> Iterator[pa.RecordBatch]:
    """The rows for the store, without those that another row of their key replaces in the same batch."""
    places = _which(rows, late=False)
    if len(rows) and node.holds_table and not _has_unordered_deletes(rows, node):
        order = [*node.order_by, *(name for name in rows.columns if name == STAYS)]
        places = rows.last_of_each(node.key, places, order)
    return rows.slices(places, only=[name for name in rows.columns if name != LATE_RECORD])


def _has_unordered_deletes(rows: Rows, node: QueryNode) -> bool:
    """Whether there are deletes without an order value: what they delete depends on the rows before them."""
    if not node.order_by or DELETED not in rows.columns:
        return False
    found = pc.fill_null(rows.column(DELETED), False)
    for name in node.order_by:
        found = pc.and_(found, rows.column(name).is_null())
    return bool(pc.any(found).as_py())


def _records_of_late(rows: Rows, places: pa.Array) -> Iterator[pa.RecordBatch]:
    for part in rows.slices(places, only=[LATE_RECORD]):
        yield pa.RecordBatch.from_struct_array(part.column(0))
