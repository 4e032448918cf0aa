"""Gradient compression and mixed precision in NumPy, from the definition alone: slow, obvious, never shipped.

Sums whose order is part of the definition are Python loops over the summed index, vectorised over the others,
so that every float32 rounding happens where the definition puts it. It never imports the package it judges.

Section by section: the dense projection, reductions in a fixed order, clipping, ternary quantisation,
accumulation, bfloat16, loss scaling.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from . import chacha

Float32Array = NDArray[np.float32]
Float64Array = NDArray[np.float64]
Trits = NDArray[np.int8]
Scaling = Literal["reference", "unbiased", "contractive"]
QuantizerScale = Literal["reference", "least_squares", "unbiased"]

# Dense projection

DENSITY = 0.32
PLUS_BELOW = 687194880
MINUS_BELOW = 1374389504
SMALLEST_DIM = 64
ENTRIES_AT_ONCE = 1 << 19


def stream_id(step: int, slot: int) -> int:
    """The ChaCha stream of a step and a slot, 32 bits each."""
    return (slot << 32) | step


def compressed_dim(n: int, ratio: float) -> int:
    """k = max(ceil(f32(n) * f32(ratio)), 64), the product in float32."""
    return max(int(np.ceil(_nearest_float32(n) * np.float32(ratio))), SMALLEST_DIM)


def _nearest_float32(n: int) -> np.float32:
    """A 64-bit integer rounded to float32 once; `np.float32(n)` would go through float64."""
    return np.float32(np.uint64(n).astype(np.float32))


def projection_rows(seed: int, stream: int, first: int, rows: int, k: int) -> Trits:
    """Rows `first` .. `first + rows` of the n x k matrix: entry (i, j) is decided by word i * k + j."""
    words = chacha.words(seed, stream, first * k, rows * k).reshape(rows, k)
    return np.where(words < PLUS_BELOW, 1, np.where(words < MINUS_BELOW, -1, 0)).astype(np.int8)


def projection_factor(scaling: Scaling, n: int, k: int) -> np.float32:
    """The factor s of both directions; "unbiased" and "contractive" are rounded to float32 once."""
    if scaling == "reference":
        with np.errstate(divide="ignore"):
            return np.float32(np.float32(1.0) / np.sqrt(np.float32(n)))
    if scaling == "unbiased":
        return np.float32(1.0 / math.sqrt(DENSITY * k))
    return np.float32(1.0 / math.sqrt(DENSITY * (k + n + 1.125)))


def _signed(signs: Trits, values: Float32Array) -> Float32Array:
    """Row r holds +values[r], -values[r] or, for a zero sign, +0 even where values[r] is not finite.

    Adding that +0 changes nothing: a sum that starts at +0 is never -0.
    """
    values = values[:, np.newaxis]
    return np.where(signs == 0, np.float32(0.0), np.where(signs > 0, values, -values))


def compress(
    gradients: Float32Array,
    k: int,
    *,
    seed: int,
    step: int = 0,
    slot: int = 0,
    scaling: Scaling = "reference",
) -> Float32Array:
    """y[j] = the sum over i, ascending, of the signed g[i] * s, in float32 from 0."""
    n = gradients.size
    stream = stream_id(step, slot)
    y = np.zeros(k, dtype=np.float32)
    rows_at_once = max(ENTRIES_AT_ONCE // k, 1)
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        scaled = gradients * projection_factor(scaling, n, k)
        for first in range(0, n, rows_at_once):
            rows = min(rows_at_once, n - first)
            signs = projection_rows(seed, stream, first, rows, k)
            for row in _signed(signs, scaled[first : first + rows]):
                y += row
    return y


def decompress(
    data: Float32Array,
    n: int,
    *,
    seed: int,
    step: int = 0,
    slot: int = 0,
    scaling: Scaling = "reference",
) -> Float32Array:
    """x[i] = the sum over j, ascending, of the signed c[j] * s, in float32 from 0."""
    k = data.size
    stream = stream_id(step, slot)
    x = np.zeros(n, dtype=np.float32)
    if k == 0:
        return x
    rows_at_once = max(ENTRIES_AT_ONCE // k, 1)
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        scaled = data * projection_factor(scaling, n, k)
        for first in range(0, n, rows_at_once):
            rows = min(rows_at_once, n - first)
            signs = np.ascontiguousarray(projection_rows(seed, stream, first, rows, k).T)
            part = x[first : first + rows]
            for column in _signed(signs, scaled):
                part += column
    return x


# Reductions in a fixed order

LANES = 64
BLOCK = 4096


def fixed_order_sum(terms: Float64Array) -> float:
    """Float64 sum: element i of a 4096-block goes to lane i % 64; lanes, then blocks, are added by pairs.

    An odd block at the end of a level is carried up as it is.
    """
    blocks = -(-terms.size // BLOCK)
    if blocks == 0:
        return 0.0
    padded = np.zeros(blocks * BLOCK, dtype=np.float64)
    padded[: terms.size] = terms
    lanes = np.zeros((blocks, LANES), dtype=np.float64)
    for row in padded.reshape(blocks, BLOCK // LANES, LANES).transpose(1, 0, 2):
        lanes += row
    while lanes.shape[1] > 1:
        lanes = lanes[:, 0::2] + lanes[:, 1::2]
    totals = [float(total) for total in lanes[:, 0]]
    while len(totals) > 1:
        pairs = [totals[i] + totals[i + 1] for i in range(0, len(totals) - 1, 2)]
        totals = pairs + totals[2 * len(pairs) :]
    return totals[0]


def sum_squares(values: Float32Array) -> float:
    """The sum of the squares, each exact in float64."""
    wide = values.reshape(-1).astype(np.float64)
    return fixed_order_sum(wide * wide)


def sum_magnitudes(values: Float32Array) -> float:
    """The sum of |v|."""
    return fixed_order_sum(np.abs(values.reshape(-1).astype(np.float64)))


def norm(values: Float32Array) -> float:
    """The Euclidean norm."""
    return math.sqrt(sum_squares(values))


# Clipping


def clip(gradients: Float32Array, max_norm: float) -> Float32Array:
    """The gradient itself where its norm is at most max_norm, else the gradient times max_norm / norm.

    Quotient and products are float64; each product is rounded once.
    """
    length = norm(gradients)
    if length <= max_norm:
        return gradients.copy()
    with np.errstate(under="ignore"):
        return (gradients.astype(np.float64) * (max_norm / length)).astype(np.float32)


# Ternary quantisation

SMALLEST_MEAN = 1e-10
THRESHOLD = 0.777


@dataclass(frozen=True)
class Ternary:
    """Trits, their scale, and the magnitude above which a value was kept."""

    trits: Trits
    scale: np.float32
    threshold: float


def quantise(values: Float32Array, form: QuantizerScale = "reference") -> Ternary:
    """-1, 0 or +1 for every value, and the scale that turns them back.

    reference      scale = mean |v| (1 when that is at most 1e-10), kept where |v / scale| > 0.5
    least_squares  kept where |v| > 0.777 mean |v|, scale = mean |v| of the kept
    unbiased       kept in the same way, scale = |v|^2 / <trits, v>

    Of zeros alone, or of nothing, nothing is kept and the scale is 1. A scale beyond float32 comes as infinity.
    """
    mean = sum_magnitudes(values) / values.size if values.size else 0.0
    if form == "reference":
        scale = np.float32(mean)
        if scale <= np.float32(SMALLEST_MEAN):
            scale = np.float32(1.0)
        return Ternary(_divided_trits(values, scale), scale, 0.5 * float(scale))
    threshold = THRESHOLD * mean
    magnitudes = np.abs(values.astype(np.float64))
    kept = magnitudes > threshold
    if not kept.any():
        return Ternary(np.zeros(values.shape, dtype=np.int8), np.float32(1.0), threshold)
    inner = fixed_order_sum(np.where(kept, magnitudes, 0.0))
    top = inner / int(kept.sum()) if form == "least_squares" else sum_squares(values) / inner
    trits = np.where(kept, np.sign(values), 0.0).astype(np.int8)
    with np.errstate(over="ignore", under="ignore"):
        return Ternary(trits, np.float32(top), threshold)


def _divided_trits(values: Float32Array, scale: np.float32) -> Trits:
    with np.errstate(over="ignore"):
        divided = values / scale
    return (divided > 0.5).astype(np.int8) - (divided < -0.5).astype(np.int8)


def ternary_values(trits: Trits, scale: np.float32) -> Float32Array:
    """What the trits stand for: the input of `decompress`."""
    return trits.astype(np.float32) * scale


def ternary_compression_ratio(n: int, k: int) -> np.float32:
    """32 n / (2 k + 32), in float32."""
    return np.float32(32 * n) / np.float32(2 * k + 32)


# Accumulation


class Accumulator:
    """A float32 running sum of vectors and the mass that they stand for."""

    def __init__(self, size: int) -> None:
        self.total = np.zeros(size, dtype=np.float32)
        self.mass = 0.0

    def accumulate(self, gradients: Float32Array, mass: float = 1.0) -> None:
        """Add the sum of the gradients of `mass` samples."""
        self.total = self.total + gradients
        self.mass += mass

    def get_and_reset(self) -> Float32Array:
        """Sum * f32(1 / mass), or the zeros when nothing was added."""
        mean = self.total * np.float32(1.0 / self.mass) if self.mass else self.total
        self.total = np.zeros_like(self.total)
        self.mass = 0.0
        return mean


# bfloat16


def bf16_truncate(values: Float32Array) -> NDArray[np.uint16]:
    """The upper half of the bits, as it is (so a NaN whose payload is in the lower half turns into inf)."""
    return (values.view(np.uint32) >> 16).astype(np.uint16)


def bf16_nearest_even(values: Float32Array) -> NDArray[np.uint16]:
    """The nearest bfloat16, of two the even one; beyond the largest one infinity; a NaN the quiet one of its sign."""
    bits = values.view(np.uint32).astype(np.uint64)
    rounded = (bits + np.uint64(0x7FFF) + ((bits >> np.uint64(16)) & np.uint64(1))) >> np.uint64(16)
    quiet = np.where(bits >> np.uint64(31), np.uint64(0xFFC0), np.uint64(0x7FC0))
    return np.where(np.isnan(values), quiet, rounded).astype(np.uint16)


def bf16_stochastic(values: Float32Array, seed: int, step: int) -> NDArray[np.uint16]:
    """Bits + the low half of keystream word i of stream `step`, truncated; inf stays, a NaN becomes quiet."""
    bits = values.reshape(-1).view(np.uint32)
    dither = chacha.words(seed, stream_id(step, 0), 0, bits.size) & np.uint32(0xFFFF)
    rounded = ((bits.astype(np.uint64) + dither) >> np.uint64(16)).astype(np.uint16)
    upper = (bits >> 16).astype(np.uint16)
    magnitude = bits & np.uint32(0x7FFFFFFF)
    result = np.where(magnitude == 0x7F800000, upper, rounded)
    result = np.where(magnitude > 0x7F800000, upper | np.uint16(0x0040), result)
    return result.astype(np.uint16).reshape(values.shape)


def bf16_to_f32(bits: NDArray[np.uint16]) -> Float32Array:
    """The float32 whose upper half is the given bits and whose lower half is zero."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


# Loss scaling


@dataclass
class LossScaler:
    """Dynamic loss scaling: back off on an overflow, grow after a run of `growth_interval` clean steps."""

    scale: float = 65536.0
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000
    min_scale: float = 1.0
    max_scale: float = 2.0**24
    clean_steps: int = 0

    def update(self, overflow: bool) -> None:
        """One step; the scale never leaves [min_scale, max_scale]."""
        if overflow:
            self._move(lambda scale: scale * self.backoff_factor)
            return
        self.clean_steps += 1
        if self.clean_steps >= self.growth_interval:
            self._move(lambda scale: scale * self.growth_factor)

    def _move(self, change: Callable[[float], float]) -> None:
        self.scale = min(max(change(self.scale), self.min_scale), self.max_scale)
        self.clean_steps = 0


def safe_clip(values: Float32Array, low: float, high: float) -> Float32Array:
    """Values held in [low, high]; a NaN becomes 0."""
    held = np.where(values < np.float32(low), np.float32(low), values)
    held = np.where(held > np.float32(high), np.float32(high), held)
    return np.where(np.isnan(values), np.float32(0.0), held).astype(np.float32)
