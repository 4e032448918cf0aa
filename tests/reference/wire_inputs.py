"""Gradients by formula, for the golden messages: anybody can make them again from a few lines."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .compression import Float32Array
from .splitmix import SplitMix64

SPECIAL_BITS = (
    0x00000000,  # 0
    0x80000000,  # -0
    0x00000001,  # the smallest subnormal
    0x807FFFFF,  # the largest negative subnormal
    0x00800000,  # the smallest normal
    0x7F7FFFFF,  # the largest finite
    0x7F800000,  # infinity
    0xFF800000,
    0x7FC00000,  # the quiet NaN
    0xFFC12345,  # a quiet NaN with a sign and a payload
    0x3F808000,  # halfway between two bfloat16, to the even one down
    0x3F818000,  # halfway, up
    0x7F7F8000,  # halfway beyond the largest bfloat16
)


def cubes(n: int) -> Float32Array:
    """f32(x^3) with x = 2 * unit - 1 in float64, units of splitmix64 from seed n: many small, few large."""
    stream = SplitMix64(n)
    units = [2.0 * stream.unit() - 1.0 for _ in range(n)]
    return np.array([x * x * x for x in units], dtype=np.float64).astype(np.float32)


def zeros(n: int) -> Float32Array:
    """0 everywhere."""
    return np.zeros(n, dtype=np.float32)


def equal(n: int) -> Float32Array:
    """3 at even places, -3 at odd ones: every magnitude is a tie."""
    return np.where(np.arange(n) % 2 == 0, np.float32(3.0), np.float32(-3.0))


def subnormal(n: int) -> Float32Array:
    """`cubes` times 1e-39, rounded to float32."""
    return (cubes(n).astype(np.float64) * 1e-39).astype(np.float32)


def special(n: int) -> Float32Array:
    """`cubes`, but the first places hold `SPECIAL_BITS`, infinities and NaN among them."""
    values = cubes(n)
    count = min(n, len(SPECIAL_BITS))
    values[:count] = np.array(SPECIAL_BITS[:count], dtype=np.uint32).view(np.float32)
    return values


INPUTS: dict[str, Callable[[int], Float32Array]] = {
    "cubes": cubes,
    "zeros": zeros,
    "equal": equal,
    "subnormal": subnormal,
    "special": special,
}
