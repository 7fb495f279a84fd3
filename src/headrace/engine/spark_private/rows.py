"""The rows of a DataFrame as Arrow batches, while Spark computes them."""

from collections.abc import Callable, Iterator
from typing import IO, Any

import pyarrow as pa
from pyspark.errors.exceptions.captured import unwrap_spark_exception
from pyspark.serializers import read_int
from pyspark.sql import DataFrame
from pyspark.sql.pandas.serializers import ArrowStreamSerializer
from pyspark.util import _load_from_socket

__all__ = ["collect_arrow_batches"]


def collect_arrow_batches(frame: DataFrame, take: Callable[[pa.RecordBatch], None]) -> list[int]:
    """Run the frame and give its batches to `take` as they arrive. Returns the order that they have in the frame.

    `DataFrame.toArrow` does the same, but keeps all of them in memory.
    """
    port, secret, server = frame._jdf.collectAsArrowToPython()
    order: list[int] = []
    try:
        with _load_from_socket((port, secret), _Arrivals()) as arriving:
            for arrived in arriving:
                if isinstance(arrived, list):
                    order = arrived
                else:
                    take(arrived)
    finally:
        with unwrap_spark_exception():
            server.getResult()  # Spark's own error, if there was one
    return order


class _Arrivals(ArrowStreamSerializer):
    """The batches as they arrive, and last of all the order they should have come in."""

    def load_stream(self, stream: IO[bytes]) -> Iterator[Any]:
        yield from super().load_stream(stream)
        count = read_int(stream)
        # A negative count tells of an error, which the server raises itself.
        yield [read_int(stream) for _ in range(max(count, 0))]
