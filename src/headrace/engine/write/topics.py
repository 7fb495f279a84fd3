"""Topics as sinks: a batch is written exactly once, at least once or at most once, as the node's guarantee says."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame

from headrace.config.run import RunConfig
from headrace.delivery import RecordProducer
from headrace.engine.adapters import SinkAdapter
from headrace.engine.run.checkpoints import Checkpoint
from headrace.engine.write.agreement import BatchWriter
from headrace.engine.write.batch import Batch
from headrace.engine.write.encoding import RECORD
from headrace.engine.write.failed_rows import collected_rows, drain
from headrace.engine.write.rows import Rows, collect
from headrace.engine.write.sink import BatchSink, SinkContext
from headrace.topology import Guarantee
from headrace.topology.names import ORDER

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["AtLeastOnceTopics", "AtMostOnceTopics", "ExactlyOnceTopics", "TopicSinkAdapter"]


class ExactlyOnceTopics:
    """A batch, including channels and rejects, and its ledger entry are one transaction."""

    def __init__(self, writer: BatchWriter, checkpoint: Checkpoint, spool: Path) -> None:
        self._writer = writer
        self._checkpoint = checkpoint
        self._spool = spool

    def open(self) -> None:
        self._writer.open()
        self._checkpoint.take_note(registered=(self._writer.ledger_name,), starts_over=False)

    def write(self, batch: Batch) -> None:
        if self._writer.has(batch.number):
            drain(batch)
            return
        with collected(batch, self._spool) as parts:
            if parts:
                self._write(batch.number, parts)

    def close(self) -> None:
        self._writer.close()

    def _write(self, batch: int, parts: Sequence[Rows]) -> None:
        with self._writer.transaction(batch) as producer:
            producer.send(in_order(parts))


class AtMostOnceTopics(ExactlyOnceTopics):
    """The ledger entry is committed before the rows are sent: a batch that was interrupted is never written again."""

    def __init__(self, writer: BatchWriter, checkpoint: Checkpoint, spool: Path, config: RunConfig) -> None:
        super().__init__(writer, checkpoint, spool)
        self._config = config
        self._plain: RecordProducer | None = None

    def open(self) -> None:
        super().open()
        self._plain = RecordProducer(self._config)

    def close(self) -> None:
        super().close()
        if self._plain is not None:
            producer, self._plain = self._plain, None
            producer.close()

    def _write(self, batch: int, parts: Sequence[Rows]) -> None:
        assert self._plain is not None
        with self._writer.transaction(batch):
            pass
        self._plain.send(in_order(parts))
        self._plain.flush()


class AtLeastOnceTopics:
    """A batch that is replayed is written again.

    Where Spark's tasks run beside the driver, the driver writes as it does for the other guarantees, which costs less
    than Spark's own writer. On a cluster that one writes, from all its tasks at once.
    """

    def __init__(self, config: RunConfig, spool: Path, *, by_tasks: bool) -> None:
        self._config = config
        self._spool = spool
        self._by_tasks = by_tasks
        self._producer: RecordProducer | None = None

    def open(self) -> None:
        self.close()
        self._producer = RecordProducer(self._config)

    def write(self, batch: Batch) -> None:
        assert self._producer is not None
        with collected(batch, self._spool, self._write_by_tasks if self._by_tasks else None) as parts:
            self._producer.send(in_order(parts))
            self._producer.flush()

    def close(self) -> None:
        if self._producer is not None:
            producer, self._producer = self._producer, None
            producer.close()

    def _write_by_tasks(self, frame: DataFrame) -> None:
        records_of(frame).write.format("kafka").options(**self._config.connector_options()).save()


class TopicSinkAdapter(SinkAdapter):
    """Makes the sink that keeps a node's guarantee."""

    def sink(self, context: SinkContext) -> BatchSink:
        node, config, checkpoint = context.planned.node, context.config, context.checkpoint
        if node.guarantee is Guarantee.AT_LEAST_ONCE:
            return AtLeastOnceTopics(config, context.spool, by_tasks=context.by_tasks)
        writer = BatchWriter(node, config, context.cluster, checkpoint, context.prefix)
        if node.guarantee is Guarantee.AT_MOST_ONCE:
            return AtMostOnceTopics(writer, checkpoint, context.spool, config)
        return ExactlyOnceTopics(writer, checkpoint, context.spool)


def records_of(frame: DataFrame) -> DataFrame:
    """What Spark's writer takes of a record. It sets no timestamps."""
    return frame.select("topic", "key", "value", "headers")


def in_order(parts: Iterable[Rows]) -> "Iterator[pa.RecordBatch]":
    """Each part by event time, so that a reader who gets the batch in pieces finds none of its rows late."""
    for rows in parts:
        order = rows.sorted_by(ORDER) if ORDER in rows.columns else None
        yield from rows.slices(order, only=RECORD)


@contextmanager
def collected(batch: Batch, spool: Path, write: Callable[[DataFrame], None] | None = None) -> Iterator[list[Rows]]:
    """The rows of a batch, the records of those that failed, and its rejects; what is empty is left out.

    With `write`, the batch is written by that, and its rows are none of the parts.
    """
    with ExitStack() as stack:
        rows, failed = collected_rows(batch, spool, write)
        parts = [stack.enter_context(part) for part in (rows, failed) if part is not None]
        parts += [stack.enter_context(collect(frame, spool)) for frame in batch.rejects(counted=failed is None)]
        yield [part for part in parts if len(part)]
