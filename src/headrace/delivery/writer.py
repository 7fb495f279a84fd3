"""The transactional writer: records and the position they bring the writer to become visible together."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from headrace.config.cluster import Cluster
from headrace.config.run import RunConfig
from headrace.delivery.ledger import Entry, Position, TopicLedger
from headrace.delivery.producers import RecordProducer, TransactionalProducer

__all__ = ["LedgeredWriter"]

Agree = Callable[[Entry | None], Entry | None]
"""Takes the ledger's last entry and returns it if it is this writer's; None if the writer is new to the ledger. Raises
where the entry belongs to somebody else."""


class LedgeredWriter:
    """Writes records and a ledger entry in one transaction.

    `name` is the transactional id, so that a new process fences the old one. The ledger is read after that, never
    before: the old process might have committed in between.
    """

    def __init__(self, name: str, config: RunConfig, cluster: Cluster, prefix: str = "") -> None:
        self.ledger = TopicLedger(config, cluster, name, prefix)
        self.position: Position = None
        """The position of the last transaction that was committed."""
        self._id = f"{prefix}{name}"
        self._config = config
        self._producer: TransactionalProducer | None = None
        self._writer = ""

    def open(self, writer: str, agree: Agree, beginning: Position) -> None:
        """Fence a predecessor and find out how far it came. `writer` identifies this writer in the ledger.

        A writer that is new to the ledger enters itself at the position `beginning`.
        """
        self.close()
        self._writer = writer
        self.ledger.prepare()
        self._producer = TransactionalProducer(self._config, self._id)
        entry = agree(self.ledger.last())
        if entry is None:
            self.position = beginning
            with self._producer.transaction():
                self._enter(beginning)
        else:
            self.position = entry.position

    @contextmanager
    def transaction(self, position: Position) -> Iterator[RecordProducer]:
        """What is sent inside, and the entry of the position, are committed together or not at all."""
        if self._producer is None:
            raise RuntimeError(f"the writer {self._id!r} was not opened")
        with self._producer.transaction():
            self._enter(position)
            yield self._producer
        self.position = position
        self.ledger.trim()

    def close(self) -> None:
        if self._producer is not None:
            producer, self._producer = self._producer, None
            producer.close()

    def _enter(self, position: Position) -> None:
        assert self._producer is not None
        self._producer.send_record(*self.ledger.record(Entry(self._writer, position)))
