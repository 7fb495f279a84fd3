"""What a sink is to the run: it takes the batches of a query."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from headrace.config.cluster import Cluster
from headrace.config.run import RunConfig
from headrace.engine.run.checkpoints import Checkpoint
from headrace.engine.write.batch import Batch

if TYPE_CHECKING:
    from headrace.engine.plan.planner import PlannedQuery

__all__ = ["BatchSink", "SinkContext"]


class BatchSink(Protocol):
    """Where the batches of a query go. A sink that raised is opened again before the next batch."""

    def open(self) -> None:
        """Connect, fence a predecessor, and find out which batches are there already."""

    def write(self, batch: Batch) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class SinkContext:
    """What an adapter makes the sink of a node with."""

    planned: "PlannedQuery"
    config: RunConfig
    cluster: Cluster
    checkpoint: Checkpoint
    prefix: str = ""
    """The app's, of the names of its topics."""
    by_tasks: bool = False
    """Whether Spark's tasks write what needs no transaction, because they run on a cluster."""

    @property
    def spool(self) -> Path:
        """The folder for the rows of a batch that do not fit into memory."""
        return self.config.home.absolute() / "spool" / self.planned.node.app_name
