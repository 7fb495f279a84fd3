"""Whole numbers and decimals as 32-bit words in 64 bits each, so that numpy adds them and nothing is lost on the way.

Four billion such words can be added before one of them overflows; the carries are passed on once, at the end.
"""

import numpy as np
import pyarrow as pa

from headrace.errors import EngineError
from headrace.operators.grouping import Indices

__all__ = ["numbers_of", "overflow", "words_of"]


def words_of(values: pa.Array) -> Indices:
    """The words of each int64 or decimal, a row of them for each, the last one signed; 0 where it is null."""
    decimal = pa.types.is_decimal(values.type)
    width = 4 if decimal else 2
    words = np.frombuffer(values.buffers()[1], "<u4").reshape(-1, width)[values.offset : values.offset + len(values)]
    if decimal and values.type.precision <= 18:
        words = words[:, :2]
    wide = words.astype(np.int64)
    wide[:, -1] = words[:, -1].astype(np.int32)
    if values.null_count:
        wide[~values.is_valid().to_numpy(zero_copy_only=False)] = 0
    return wide


def numbers_of(words: Indices, null: np.typing.NDArray[np.bool_], kind: pa.DataType, name: str) -> pa.Array:
    """The numbers of sums of words; one too large for the type is an error with the aggregate's name."""
    decimal = pa.types.is_decimal(kind)
    wide = np.zeros((len(words), 4 if decimal else 2), np.int64)
    wide[:, : words.shape[1]] = words
    for word in range(wide.shape[1] - 1):
        wide[:, word + 1] += wide[:, word] >> 32
    if np.any(wide[:, -1] != wide[:, -1].astype(np.int32)):
        raise overflow(name, kind)
    present = pa.array(np.zeros(len(null)), mask=null).buffers()[0]
    numbers = pa.Array.from_buffers(kind, len(null), [present, pa.py_buffer(wide.astype("<u4").tobytes())])
    try:
        numbers.validate(full=decimal)
    except pa.ArrowInvalid:
        raise overflow(name, kind) from None
    return numbers


def overflow(name: str, kind: pa.DataType) -> EngineError:
    return EngineError(
        f"{name} of a window is too large for {kind}",
        next_step="cast its column to DOUBLE, or to a decimal with fewer digits after the point, before the window",
    )
