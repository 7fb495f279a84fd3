"""Views as sinks: the rows of a batch, its number and the offsets it covers in one PostgreSQL transaction."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from headrace.config.cluster import Cluster
from headrace.config.run import RunConfig
from headrace.delivery import Entry
from headrace.engine.calls.results import LATE_RECORD
from headrace.engine.run.checkpoints import Checkpoint
from headrace.engine.write.agreement import BEGUN, BatchWriter, agreed
from headrace.engine.write.batch import Batch
from headrace.engine.write.failed_rows import collected_rows, drain
from headrace.engine.write.rows import Rows, collect
from headrace.engine.write.topics import RECORD, spool_folder
from headrace.tables import ViewWriter, shown
from headrace.topology import Guarantee, Schema, View

__all__ = ["ViewSink", "ordered_by", "view_sink"]

LEDGER = "postgres"
ORDER = "_order_{}"


class ViewSink:
    """A batch is in a view exactly once, since that costs nothing more: at-least-once is no less.

    At-most-once claims the batch first, and does not write it again. Records that cannot be used and rows that came
    too late go to topics, so they have a transaction and a ledger of their own.
    """

    def __init__(
        self, node: View, columns: Schema, records: BatchWriter | None, config: RunConfig, checkpoint: Checkpoint
    ) -> None:
        self._node = node
        self._place = f"the ledger of view {node.table_name} in {shown(config.postgres_dsn)}"
        self._writer = ViewWriter(config.postgres_dsn, node.app_name, node.name, columns, node.key)
        self._records = records
        self._checkpoint = checkpoint
        self._spool: Path = spool_folder(config, node.app_name)
        self._last = BEGUN

    def open(self) -> None:
        self.close()
        note, query_id = self._checkpoint.note, self._checkpoint.query_id
        if note.starts_over and not self._checkpoint.starting_offsets:
            self._writer.reset()  # else keys that come no more would stay for ever
        self._writer.prepare()
        found = self._writer.last_entry()
        entry = agreed(self._checkpoint, None if found is None else Entry(*found), LEDGER, self._place)
        if entry is None:
            self._writer.write(query_id, BEGUN, {}, [])
        self._last = BEGUN if entry is None else entry.position
        ledgers: tuple[str, ...] = (LEDGER,)
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
            # Without rows too: somebody may wait for the view to cover a record that gave none.
            self._writer.write(query_id, batch.number, batch.offsets(), _own(rows, self._node), claimed=claimed)
        self._last = batch.number

    def close(self) -> None:
        self._writer.close()
        if self._records is not None:
            self._records.close()

    def _write_records(self, batch: Batch, rows: Rows, failed: Rows | None) -> None:
        """What of a batch goes to topics: late rows, those that failed, and what could not be used."""
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


def view_sink(
    node: View,
    columns: Schema,
    has_records: bool,
    config: RunConfig,
    cluster: Cluster,
    checkpoint: Checkpoint,
    prefix: str,
) -> ViewSink:
    records = BatchWriter(node, config, cluster, checkpoint, prefix) if has_records else None
    return ViewSink(node, columns, records, config, checkpoint)


def _which(rows: Rows, *, late: bool) -> pa.Array | None:
    """The places of the late rows, or of the view's own; None where no row can be late."""
    if LATE_RECORD not in rows.columns:
        return None
    is_late = rows.column(LATE_RECORD).is_valid()
    return pc.indices_nonzero(is_late if late else pc.invert(is_late))


def _own(rows: Rows, node: View) -> Iterator[pa.RecordBatch]:
    """The rows for the view. Those that a later one of their key replaces need not travel to the database."""
    places = _which(rows, late=False)
    if len(rows):
        places = rows.last_of_each(node.key, places, [name for name in rows.columns if name.startswith("_order")])
    return rows.slices(places, only=[name for name in rows.columns if name != LATE_RECORD])


def _records_of_late(rows: Rows, places: pa.Array) -> Iterator[pa.RecordBatch]:
    for part in rows.slices(places, only=[LATE_RECORD]):
        yield pa.RecordBatch.from_struct_array(part.column(0))


def ordered_by(node: View) -> dict[str, str]:
    """Columns to add for the writer to choose the last row of a key by, and what they are copies of."""
    return {ORDER.format(index): name for index, name in enumerate(node.order_by)}
