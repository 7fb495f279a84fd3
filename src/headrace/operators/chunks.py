"""The state of a bucket: Arrow tables by name, each read and written whole.

An operator divides its state by what is due together (a window, a slice of time), so that a batch reads and writes
only what it needs.
"""

from collections.abc import Iterator
from typing import Protocol

import pyarrow as pa

__all__ = ["Chunks", "MemoryChunks", "packed", "unpacked"]


class Chunks(Protocol):
    """The interface of an operator to its state; a change is kept if the batch is committed."""

    def names(self) -> Iterator[str]:
        """The names of all chunks, in no order."""
        ...

    def read(self, name: str) -> pa.Table | None: ...

    def write(self, name: str, table: pa.Table) -> None: ...

    def delete(self, name: str) -> None:
        """Remove a chunk, if it is there."""
        ...


class MemoryChunks:
    """State in memory, serialised as well: what is read is a copy of what was written."""

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
