"""Rows as blobs: whole Arrow tables in a column, since Spark walks row by row where Python keeps state.

In: the rows of an input, one blob for each bucket. Out: the tables of all outputs, unpacked by one pass over them,
so that no plan has to branch above an operator, which would run it twice.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.operators.chunks import packed, unpacked
from headrace.operators.operator import RESULTS

__all__ = [
    "BUCKET",
    "BUCKET_BESIDE",
    "OUTPUT",
    "PACKED_DDL",
    "column_of",
    "packer",
    "pieces",
    "spread",
    "tagger",
    "unpacker",
]

Mapped = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

BUCKET, OUTPUT = "bucket", "output"
BUCKET_BESIDE = "_headrace_bucket"
"""What the bucket is called as long as it stands among a user's columns."""
PACKED_DDL = "bucket INT, input STRING, place BIGINT, rows BINARY"
"""`place` is the order of arrival: a shuffle keeps none. A row without `input` and `rows` only wakes its bucket."""
PACKED = pa.schema(
    [(BUCKET, pa.int32()), ("input", pa.string()), ("place", pa.int64()), ("rows", pa.binary())],
)
MASK = 0xFFFFFFFF
ROWS_AT_ONCE = 1 << 17
"""How many rows are gathered before they are packed: few large blobs cost less than many small ones."""


def spread(buckets: int, partitions: int) -> list[int]:
    """Numbers for buckets, by which Spark puts equally many in each partition: of 0 to 7 it puts 5 in one of two."""
    room = [-(-buckets // partitions)] * partitions
    numbers: list[int] = []
    for number in itertools.count():
        partition = _spark_hash(number) % partitions
        if room[partition]:
            room[partition] -= 1
            numbers.append(number)
            if len(numbers) == buckets:
                return numbers
    raise AssertionError("numbers never end")


def _spark_hash(number: int) -> int:
    """By which Spark finds the partition of an INT: Murmur3 of 32 bits, with the seed 42."""

    def turned(bits: int, by: int) -> int:
        return (bits << by | bits >> (32 - by)) & MASK

    mixed = turned(42 ^ turned(number * 0xCC9E2D51 & MASK, 15) * 0x1B873593 & MASK, 13) * 5 + 0xE6546B64 & MASK
    mixed ^= 4
    mixed = (mixed ^ mixed >> 16) * 0x85EBCA6B & MASK
    mixed = (mixed ^ mixed >> 13) * 0xC2B2AE35 & MASK
    mixed ^= mixed >> 16
    return mixed - (mixed >> 31 << 32)


def column_of(output: str) -> str:
    """The column that an output's rows are in where all are tagged."""
    return "results" if output == RESULTS else output


def packer(name: str, schema: pa.Schema, numbers: Sequence[int]) -> Mapped:
    """From rows with their bucket beside them to blobs, for `mapInArrow`.

    The first task of a batch also sends a row without a blob to each of the buckets with these numbers: they take part
    in every batch, so that all have acted on the same watermark, whether they had rows or not.
    """

    def pack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        partition = 0 if context is None else context.partitionId()
        if partition == 0 and numbers:
            yield _packed_rows(list(numbers), None, 0, [None] * len(numbers))
        place = partition << 32
        for rows in _gathered(batches):
            table = rows.select(schema.names).cast(schema)
            buckets, blobs = [], []
            for bucket, part in _parted(table, rows.column(BUCKET_BESIDE).to_numpy()):
                buckets.append(bucket)
                blobs.append(packed(part))
            yield _packed_rows(buckets, name, place, blobs)
            place += 1

    return pack


def _packed_rows(buckets: list[int], name: str | None, place: int, blobs: Sequence[Any]) -> pa.RecordBatch:
    columns = [buckets, [name] * len(buckets), [place] * len(buckets), blobs]
    arrays = [pa.array(values, field.type) for values, field in zip(columns, PACKED, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=PACKED)


def unpacker(output: str, schema: pa.Schema) -> Mapped:
    """From the blobs of all outputs to the rows of one, for `mapInArrow`."""

    def unpack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for name, table in _tables(batches):
            if name == output:
                yield from table.cast(schema).to_batches()

    return unpack


def tagger(schemas: Mapping[str, pa.Schema]) -> Mapped:
    """From the blobs of all outputs to rows that say which they are of, each output a column of its own."""
    types = {name: pa.struct(list(schema)) for name, schema in schemas.items()}
    tagged = pa.schema([(OUTPUT, pa.string()), *((column_of(name), type_) for name, type_ in types.items())])

    def tag(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for output, table in _tables(batches):
            for batch in table.cast(schemas[output]).combine_chunks().to_batches():
                count = batch.num_rows
                columns: list[pa.Array] = [pa.array([output], pa.string()).take(pa.array(np.zeros(count, np.int8)))]
                columns += [
                    pa.StructArray.from_arrays(batch.columns, fields=list(type_))
                    if name == output
                    else pa.nulls(count, type_)
                    for name, type_ in types.items()
                ]
                yield pa.RecordBatch.from_arrays(columns, schema=tagged)

    return tag


def pieces(table: pa.Table) -> Iterator[pa.Table]:
    """A table in parts, none so large that its blob would strain a row of Spark's."""
    for start in range(0, table.num_rows, ROWS_AT_ONCE):
        yield table.slice(start, ROWS_AT_ONCE)


def _gathered(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    held: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        held.append(batch)
        count += batch.num_rows
        if count >= ROWS_AT_ONCE:
            yield pa.Table.from_batches(held)
            held, count = [], 0
    if held:
        yield pa.Table.from_batches(held)


def _parted(table: pa.Table, buckets: "np.ndarray[tuple[int], np.dtype[np.int32]]") -> Iterator[tuple[int, pa.Table]]:
    """The rows of each bucket, in their order."""
    order = np.argsort(buckets, kind="stable")
    found, starts = np.unique(buckets[order], return_index=True)
    ordered = table if len(found) == 1 else table.take(pa.array(order)).combine_chunks()
    for bucket, start, end in zip(found, starts, [*starts[1:], table.num_rows], strict=True):
        yield int(bucket), ordered.slice(start, end - start)


def _tables(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[str, pa.Table]]:
    for batch in batches:
        for output, rows in zip(batch.column(OUTPUT), batch.column("rows"), strict=True):
            if rows.is_valid:
                yield output.as_py(), unpacked(rows.as_buffer())
