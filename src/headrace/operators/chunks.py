"""The state of a bucket: Arrow tables by name, each read and written whole.

An operator cuts its state by what falls due together (a window, a slice of time), so that a batch reads and writes
what it touches and not all there is.
"""

from collections.abc import Iterator
from typing import Protocol

import pyarrow as pa

__all__ = ["Chunks", "MemoryChunks", "packed", "unpacked"]


class Chunks(Protocol):
    """What an operator may do with its state; a change is kept if the batch is."""

    def names(self) -> Iterator[str]:
        """The names of all chunks, in no order."""
        ...

    def read(self, name: str) -> pa.Table | None: ...

    def write(self, name: str, table: pa.Table) -> None: ...

    def delete(self, name: str) -> None:
        """Forget a chunk; one that is not there is no error."""
        ...


class MemoryChunks:
    """State in memory, serialised all the same: what is read is never what was written, but equal to it."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}

    def names(self) -> Iterator[str]:
        yield from list(self.blobs)

    def read(self, name: str) -> pa.Table | None:
        blob = self.blobs.get(name)
        return None if blob is None else unpacked(blob)

    def write(self, name: str, table: pa.Table) -> None:
        self.blobs[name] = packed(table)

    def delete(self, name: str) -> None:
        self.blobs.pop(name, None)


def packed(table: pa.Table) -> bytes:
    """A table as one Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    blob: bytes = sink.getvalue().to_pybytes()
    return blob


def unpacked(blob: bytes | memoryview) -> pa.Table:
    return pa.ipc.open_stream(pa.py_buffer(blob)).read_all()
