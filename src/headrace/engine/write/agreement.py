"""Whether a checkpoint and a sink's ledger belong together, and the writer of batches that asks."""

from contextlib import AbstractContextManager

from headrace.config.cluster import Cluster
from headrace.config.run import RunConfig
from headrace.delivery import Entry, LedgeredWriter, RecordProducer
from headrace.engine.run.checkpoints import Checkpoint
from headrace.errors import CheckpointError
from headrace.topology import QueryNode

__all__ = ["BEGUN", "BatchWriter", "agreed"]

BEGUN = -1
"""The batch of a checkpoint's first entry, before any batch is written."""


def agreed(checkpoint: Checkpoint, entry: Entry | None, ledger: str, shown: str) -> Entry | None:
    """The ledger's entry, if it is this checkpoint's; None if the checkpoint has no entry yet.

    A ledger that is not the one this checkpoint wrote is refused: trusting it would lose or duplicate batches.
    `ledger` is the name it is noted by, `shown` what it is called in a message.
    """
    note, query_id = checkpoint.note, checkpoint.query_id
    reset = f"start over with --reset {checkpoint.node}: all is read and written again"
    if entry is None:
        if ledger in note.registered:
            raise CheckpointError(
                f"the checkpoint of {checkpoint.node!r} has written batches, but {shown} has none of them: it was "
                "deleted, or the batches were written elsewhere",
                next_step=f"name the right address, or {reset}",
            )
        return None
    if entry.writer != query_id:
        if not note.starts_over:
            raise CheckpointError(
                f"{shown} has batches of another checkpoint of {checkpoint.node!r} "
                f"({entry.writer}, not {query_id}): its folder was deleted, or it is that of another home folder",
                next_step=f"run it where that checkpoint is, or {reset}",
            )
        return None
    newest = checkpoint.last_batch()
    if entry.position > (BEGUN if newest is None else newest):
        raise CheckpointError(
            f"{shown} has batch {entry.position} of {checkpoint.node!r}, but its checkpoint has "
            f"{'no batch' if newest is None else f'no batch after {newest}'}: it is an old copy",
            next_step=f"restore the newer checkpoint, or {reset}",
        )
    return entry


class BatchWriter:
    """Writes the records of a node's batches, each in one transaction with its ledger entry."""

    ledger_name = "kafka"

    def __init__(
        self, node: QueryNode, config: RunConfig, cluster: Cluster, checkpoint: Checkpoint, prefix: str = ""
    ) -> None:
        self._checkpoint = checkpoint
        self._writer = LedgeredWriter(f"{node.app_name}.{node.name}", config, cluster, prefix)

    def open(self) -> None:
        self._writer.open(self._checkpoint.query_id, self._agree, BEGUN)

    def has(self, batch: int) -> bool:
        """Whether the batch was committed before."""
        return bool(batch <= self._writer.position)

    def transaction(self, batch: int) -> AbstractContextManager[RecordProducer]:
        return self._writer.transaction(batch)

    def close(self) -> None:
        self._writer.close()

    def _agree(self, entry: Entry | None) -> Entry | None:
        return agreed(self._checkpoint, entry, self.ledger_name, str(self._writer.ledger))
