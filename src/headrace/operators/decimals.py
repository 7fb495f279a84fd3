"""Decimals as 32-bit limbs in arrays of 64 bits, so that numpy adds and divides them exactly.

A value is limbs[0] + limbs[1] * 2^32 + ..., the last limb carrying the sign. Four billion such limbs can be added
before one of them overflows; the carries are settled once, at the end.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from headrace.operators.keys import Ints, Mask

__all__ = ["decimal_mean", "from_limbs", "limbs_of"]

LOW = np.int64(2**32 - 1)


def limbs_of(column: pa.Array) -> list[Ints]:
    """The limbs of each value, 0 where it is null; two of them do for up to 18 digits."""
    words = np.frombuffer(column.buffers()[1], np.int64).reshape(-1, 2)[column.offset : column.offset + len(column)]
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    low, high = np.where(valid, words[:, 0], 0), np.where(valid, words[:, 1], 0)
    if column.type.precision <= 18:
        return [low & LOW, low >> 32]
    return [low & LOW, (low >> 32) & LOW, high & LOW, high >> 32]


def from_limbs(limbs: Sequence[Ints], null: Mask, kind: pa.DataType) -> pa.Array:
    """The values; null as well where one has more digits than its type."""
    first, second, third, fourth = _settled(limbs)
    _, size = _magnitude([first, second, third, fourth])
    null = null | (_compare(size, 10**kind.precision) >= 0)
    words = np.empty((len(null), 2), np.int64)
    words[:, 0] = first | (second << 32)
    words[:, 1] = third | (fourth << 32)
    present = pa.array(~null).buffers()[1]
    return pa.Array.from_buffers(kind, len(null), [present, pa.py_buffer(words)])


def decimal_mean(total: pa.Array, counts: pa.Array, kind: pa.DataType) -> pa.Array:
    """The total by the count, rounded half up to the scale of the type; null where the count is 0."""
    number = counts.to_numpy(zero_copy_only=False)
    negative, size = _magnitude(_settled(limbs_of(total)))
    factor = np.int64(10 ** (kind.scale - total.type.scale))
    size = _carried([limb * factor for limb in size] + [np.zeros_like(number)])
    divisor, rest = np.maximum(number, 1), np.zeros_like(number)
    digits: list[Ints] = []
    for limb in reversed(size):
        digit, rest = np.divmod((rest << 32) | limb, divisor)
        digits.insert(0, digit)
    digits[0] = digits[0] + (2 * rest >= divisor)
    digits = _carried(digits)
    null = (number == 0) | ~total.is_valid().to_numpy(zero_copy_only=False) | (digits[4] != 0)
    return from_limbs([np.where(negative, -digit, digit) for digit in digits[:4]], null, kind)


def _settled(limbs: Sequence[Ints]) -> list[Ints]:
    """Four limbs, each but the last from 0 to 2^32 - 1."""
    return _carried([*limbs, *(np.zeros_like(limbs[0]) for _ in range(4 - len(limbs)))])


def _carried(limbs: Sequence[Ints]) -> list[Ints]:
    settled, carry = [], np.zeros_like(limbs[0])
    for limb in limbs[:-1]:
        value = limb + carry
        settled.append(value & LOW)
        carry = value >> 32
    return [*settled, limbs[-1] + carry]


def _magnitude(limbs: Sequence[Ints]) -> tuple[Mask, list[Ints]]:
    negative = limbs[-1] < 0
    return negative, _carried([np.where(negative, -limb, limb) for limb in limbs])


def _compare(limbs: Sequence[Ints], bound: int) -> Ints:
    """-1, 0 or 1 as the value is below, at or above the bound."""
    outcome = np.zeros(len(limbs[0]), np.int64)
    for limb in limbs[:-1]:
        here = np.sign(limb - (bound & int(LOW)))
        outcome = np.where(here == 0, outcome, here)
        bound >>= 32
    here = np.sign(limbs[-1] - bound)
    return np.where(here == 0, outcome, here)
