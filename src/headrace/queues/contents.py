"""The contents of delayed messages that are due soon. The index has only where they are."""

import time
from collections.abc import Iterable, Iterator

from confluent_kafka import KafkaError as ClientError
from confluent_kafka import KafkaException, TopicPartition

from headrace.config.cluster import Cluster
from headrace.errors import Unreachable
from headrace.queues.delayed import DELAYED, Stored, read_plan

__all__ = ["Contents"]

LARGEST = 16 << 20
"""Bytes in memory. What does not fit is read when it is due."""
FAR = 500
"""Records between two wanted ones, from which on a new request is faster than reading on."""
LIMIT = 30.0
POLL = 0.5
SETTINGS = {
    "group.id": "headrace.delays.contents",
    "enable.auto.commit": False,
    "auto.offset.reset": "error",
    "enable.partition.eof": False,
    "fetch.message.max.bytes": 64 << 10,
    "fetch.wait.max.ms": 10,
    "queued.max.messages.kbytes": 1024,
    "queued.min.messages": FAR,
}


class Contents:
    """By offset: the messages themselves, as many as fit."""

    def __init__(self, cluster: Cluster) -> None:
        self._consumer = cluster.consumer(SETTINGS)
        self._kept: dict[int, Stored] = {}
        self._size = 0
        self._position: int | None = None

    def keep(self, offset: int, stored: Stored) -> None:
        if offset not in self._kept and self._size + stored.size <= LARGEST:
            self._kept[offset] = stored
            self._size += stored.size

    def drop(self, offset: int) -> None:
        if (stored := self._kept.pop(offset, None)) is not None:
            self._size -= stored.size

    def clear(self) -> None:
        self._kept.clear()
        self._size = 0

    @property
    def is_full(self) -> bool:
        return self._size > LARGEST * 3 // 4

    def missing(self, offsets: Iterable[int]) -> list[int]:
        return sorted(offset for offset in offsets if offset not in self._kept)

    def get(self, offsets: Iterable[int]) -> dict[int, Stored]:
        """The messages at these offsets; those that are not kept are read."""
        wanted = list(offsets)
        read = dict(self.read(self.missing(wanted)))
        return {offset: self._kept[offset] if offset in self._kept else read[offset] for offset in wanted}

    def read(self, offsets: list[int]) -> Iterator[tuple[int, Stored]]:
        """Read messages at ascending offsets from the topic."""
        for offset in offsets:
            deadline = time.monotonic() + LIMIT
            if self._position is None or not self._position <= offset <= self._position + FAR:
                self._go_to(offset)
            while True:
                message = self._consumer.poll(POLL)
                if time.monotonic() > deadline:
                    raise Unreachable(f"the delayed message at offset {offset} was not read within {LIMIT:.0f} s")
                if message is None:
                    continue
                error = message.error()
                if error is not None:
                    if error.retriable() or error.code() in (ClientError._TRANSPORT, ClientError._ALL_BROKERS_DOWN):
                        continue
                    raise KafkaException(error)
                found = message.offset() or 0
                self._position = found + 1
                if found >= offset:
                    break
            stored = read_plan(message.key(), message.value(), message.headers())
            assert found == offset, (found, offset)
            assert stored is not None
            yield offset, stored

    def close(self) -> None:
        self._consumer.close()

    def _go_to(self, offset: int) -> None:
        place = TopicPartition(DELAYED, 0, offset)
        if self._position is None:
            self._consumer.assign([place])
        else:
            self._consumer.seek(place)
        self._position = offset
