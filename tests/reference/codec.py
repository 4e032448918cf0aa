"""The codec in NumPy, from the definition alone: which values are sent, and how they become digits.

Three steps in the order the data takes: the projections that `compression` does not hold (Hadamard, the largest
values), the quantisers, and the packing of digits and indices into bytes. Each has its way back. Slow and obvious,
never shipped; it never imports the package it judges. `wire` puts the bytes into messages.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from . import chacha, compression
from .compression import Float32Array, QuantizerScale, Scaling

Projection = Literal["none", "dense", "hadamard", "topk"]
Quantize = Literal["none", "bfloat16", "ternary", "sign", "levels2", "levels4"]
Flags = NDArray[np.bool_]
Places = NDArray[np.int64]
Indices = NDArray[np.uint16]
Digits = NDArray[np.uint8]
Packed = NDArray[np.uint8]

PROJECTIONS: tuple[Projection, ...] = get_args(Projection)
QUANTIZES: tuple[Quantize, ...] = get_args(Quantize)


class NotFiniteError(Exception):
    """A value that would be lost, or look like any other, if it were sent."""


def compressed_dim(projection: Projection, n: int, ratio: float) -> int:
    """k: how many of n values are sent."""
    if projection == "none":
        return n
    if projection == "dense":
        return compression.compressed_dim(n, ratio)
    if projection == "hadamard":
        return min(n, compression.compressed_dim(n, ratio))
    return topk_dim(n, ratio)


# The Hadamard projection

LARGEST_BLOCK = 4096
ORDER_WORD = 64
TAIL_SIGN_WORD = 16384
SIGN_WORD = 32768


def walsh_hadamard(values: Float32Array) -> Float32Array:
    """The transform of every row, butterflies of distance 1, 2, 4, ..., each sum and difference in float32."""
    length = values.shape[-1]
    distance = 1
    while distance < length:
        pairs = values.reshape(*values.shape[:-1], length // (2 * distance), 2, distance)
        low, high = pairs[..., 0, :], pairs[..., 1, :]
        values = np.stack([low + high, low - high], axis=-2).reshape(values.shape)
        distance *= 2
    return values


def negated(values: Float32Array, where: Flags) -> Float32Array:
    """The values, with the sign bit turned over where told."""
    return np.where(where, -values, values)


@dataclass(frozen=True)
class HadamardPlan:
    """What both ways share: the layout of n places and the draws of one stream."""

    block: int  # b, a power of two
    blocks: int  # B, whole blocks
    rest: int  # r, values beyond them
    order: Places  # of the b rows
    block_signs: Flags  # (B, b): which values are negated before the transform
    tail_signs: Flags  # (b,)
    kept: Places  # the k places that are sent, in the order in which they are sent
    kept_of_segment: tuple[int, ...]


@lru_cache(maxsize=2048)
def hadamard_plan(n: int, k: int, seed: int, step: int, slot: int) -> HadamardPlan:
    """The plan for n >= 1 values of which k are sent."""
    stream = compression.stream_id(step, slot)
    block = 1
    while 2 * block <= min(n, LARGEST_BLOCK):
        block *= 2
    blocks, rest = divmod(n, block)

    low, high = (int(word) for word in chacha.words(seed, stream, 0, 2))
    u = ((low + (high << 32)) * n) >> 64

    order = list(range(block))
    for i, word in enumerate(chacha.words(seed, stream, ORDER_WORD, block)):
        other = i + ((int(word) * (block - i)) >> 32)
        order[i], order[other] = order[other], order[i]

    # Segments of places: whole blocks; where there is a rest, the tail takes the last b places.
    limits = [a * block for a in range(blocks + 1)]
    if rest:
        limits = [*limits[:-1], n - block, n]
    kept: list[int] = []
    counts: list[int] = []
    for first, end in pairwise(limits):
        count = (k * end + u) // n - (k * first + u) // n
        rows = [row for row in order if row < end - first][:count]
        assert len(rows) == count
        kept += [first + row for row in sorted(rows)]
        counts.append(count)
    assert len(kept) == k

    return HadamardPlan(
        block=block,
        blocks=blocks,
        rest=rest,
        order=np.array(order, dtype=np.int64),
        block_signs=_signs(seed, stream, SIGN_WORD, blocks, block),
        tail_signs=_signs(seed, stream, TAIL_SIGN_WORD, 1, block)[0],
        kept=np.array(kept, dtype=np.int64),
        kept_of_segment=tuple(counts),
    )


def _signs(seed: int, stream: int, first_word: int, blocks: int, block: int) -> Flags:
    """Value i of block a has bit i // w of word `first_word` + a * w + i % w, for the w words of a block."""
    w = max(1, block // 32)
    words = chacha.words(seed, stream, first_word, blocks * w).reshape(blocks, w)
    i = np.arange(block)
    shifted: chacha.Words = words[:, i % w] >> (i // w).astype(np.uint32)
    flags: Flags = np.equal(shifted & np.uint32(1), np.uint32(1))
    return flags


def hadamard_factor(scaling: Scaling, n: int, k: int, block: int) -> np.float32:
    """f of both directions: 1 / sqrt(b), times sqrt(n / k) when unbiased; float64, rounded once."""
    if scaling == "unbiased":
        return np.float32(math.sqrt(n / k) / math.sqrt(block))
    return np.float32(1.0 / math.sqrt(block))


def hadamard_compress(
    gradients: Float32Array,
    k: int,
    *,
    seed: int,
    step: int = 0,
    slot: int = 0,
    scaling: Scaling = "reference",
) -> Float32Array:
    """k of the n rows of the transform, times f."""
    n = gradients.size
    if n == 0:
        return np.zeros(0, dtype=np.float32)
    plan = hadamard_plan(n, k, seed, step, slot)
    _refuse_what_would_be_lost(gradients, plan)
    b, B, r = plan.block, plan.blocks, plan.rest
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        z = walsh_hadamard(negated(gradients[: B * b].reshape(B, b), plan.block_signs))
        places = np.zeros(n, dtype=np.float32)
        places[: B * b] = z.reshape(-1)
        if r:
            e = np.float32(1.0 / math.sqrt(b))
            tail = np.concatenate([z[-1, r:] * e, gradients[n - r :]])
            places[n - b :] = walsh_hadamard(negated(tail, plan.tail_signs))
        return places[plan.kept] * hadamard_factor(scaling, n, k, b)


def hadamard_decompress(
    data: Float32Array, n: int, *, seed: int, step: int = 0, slot: int = 0, scaling: Scaling = "reference"
) -> Float32Array:
    """The transposed way: values to their places, the tail's transform, then the blocks'."""
    k = data.size
    x = np.zeros(n, dtype=np.float32)
    if n == 0:
        return x
    plan = hadamard_plan(n, k, seed, step, slot)
    b, B, r = plan.block, plan.blocks, plan.rest
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        places = np.zeros(n, dtype=np.float32)
        if k:
            places[plan.kept] = data * hadamard_factor(scaling, n, k, b)
        if r:
            e = np.float32(1.0 / math.sqrt(b))
            tail = negated(walsh_hadamard(places[n - b :]), plan.tail_signs)
            places[n - b : n - r] = tail[: b - r] * e
            x[n - r :] = tail[b - r :]
        z = places[: B * b].reshape(B, b)
        x[: B * b] = negated(walsh_hadamard(z), plan.block_signs).reshape(-1)
    return x


def _refuse_what_would_be_lost(gradients: Float32Array, plan: HadamardPlan) -> None:
    """A value that is not finite reaches every row of its block, and of the tail; one of them must be sent."""
    b, B, r, counts = plan.block, plan.blocks, plan.rest, plan.kept_of_segment
    for a in range(B):
        sent = counts[a] + (counts[B] if r and a == B - 1 else 0)
        if sent == 0 and not np.isfinite(gradients[a * b : (a + 1) * b]).all():
            raise NotFiniteError(f"no row of block {a} is sent")
    if r and counts[B] == 0 and not np.isfinite(gradients[B * b :]).all():
        raise NotFiniteError("no row of the tail is sent")


# The largest values

TOPK_CHUNK = 4096


def _topk_count(m: int, ratio: float) -> int:
    """How many of the m values of a chunk are sent."""
    return max(1, math.ceil(np.float32(m) * np.float32(ratio)))


def topk_chunks(n: int) -> list[int]:
    """The lengths of the chunks of n values."""
    return [min(TOPK_CHUNK, n - first) for first in range(0, n, TOPK_CHUNK)]


def topk_dim(n: int, ratio: float) -> int:
    """k, the sum over the chunks; by arithmetic, because n may be anything that a header can say."""
    whole, rest = divmod(n, TOPK_CHUNK)
    return whole * _topk_count(TOPK_CHUNK, ratio) + (_topk_count(rest, ratio) if rest else 0)


def topk_compress(gradients: Float32Array, ratio: float) -> tuple[Indices, Float32Array]:
    """Places within their chunk, ascending, and the values there."""
    indices: list[int] = []
    values: list[np.float32] = []
    first = 0
    for m in topk_chunks(gradients.size):
        chunk = gradients[first : first + m]
        magnitudes = chunk.view(np.uint32) & np.uint32(0x7FFFFFFF)
        by_magnitude = np.argsort(-magnitudes.astype(np.int64), kind="stable")  # of equals the lower index
        largest = sorted(int(i) for i in by_magnitude[: _topk_count(m, ratio)])
        indices += largest
        values += list(chunk[largest])
        first += m
    return np.array(indices, dtype=np.uint16), np.array(values, dtype=np.float32)


def topk_places(indices: Indices, n: int, ratio: float) -> Places:
    """The place in the gradient of every index."""
    firsts = [
        chunk * TOPK_CHUNK for chunk, m in enumerate(topk_chunks(n)) for _ in range(_topk_count(m, ratio))
    ]
    return np.array(firsts, dtype=np.int64) + indices


def topk_decompress(indices: Indices, values: Float32Array, n: int, ratio: float) -> Float32Array:
    """The values at their places, 0 elsewhere."""
    x = np.zeros(n, dtype=np.float32)
    x[topk_places(indices, n, ratio)] = values
    return x


# Quantisers

POSITIVE_LEVELS: dict[Quantize, Float32Array] = {
    "levels2": np.array([0.45278004, 1.5104176], dtype=np.float32),
    "levels4": np.array(
        [0.12839504, 0.3880483, 0.65675914, 0.94234043, 1.2562312, 1.6180464, 2.0690172, 2.7325895],
        dtype=np.float32,
    ),
}
SCALED: tuple[Quantize, ...] = ("ternary", "sign", "levels2", "levels4")


def levels(quantize: Quantize) -> Float32Array:
    """The level of every digit: the negative ones in falling magnitude, then the positive ones in rising one."""
    positive = POSITIVE_LEVELS[quantize]
    return np.concatenate([-positive[::-1], positive])


def scale_blocks(k: int, quantizer_block: int | None) -> list[int]:
    """The lengths of the scale blocks of k values."""
    length = quantizer_block or max(k, 1)
    return [min(length, k - first) for first in range(0, k, length)]


def quantise(
    values: Float32Array, quantize: Quantize, form: QuantizerScale, quantizer_block: int | None
) -> tuple[Float32Array, Digits]:
    """A scale for every scale block and a digit for every value."""
    if not np.isfinite(values).all():
        raise NotFiniteError("a value that is quantised")
    scales: list[np.float32] = []
    digits: list[Digits] = []
    first = 0
    for m in scale_blocks(values.size, quantizer_block):
        scale, of_block = _quantise_block(values[first : first + m], quantize, form)
        if not np.isfinite(scale):
            raise NotFiniteError("a scale beyond float32")
        scales.append(scale)
        digits.append(of_block)
        first += m
    return np.array(scales, dtype=np.float32), np.concatenate([np.zeros(0, dtype=np.uint8), *digits])


def _quantise_block(
    values: Float32Array, quantize: Quantize, form: QuantizerScale
) -> tuple[np.float32, Digits]:
    if quantize == "ternary":
        ternary = compression.quantise(values, form)
        return ternary.scale, (ternary.trits + 1).astype(np.uint8)
    if quantize == "sign":
        return _sign_scale(values, form), (values < 0).astype(np.uint8)
    return _quantise_levels(values, POSITIVE_LEVELS[quantize], form)


def _sign_scale(values: Float32Array, form: QuantizerScale) -> np.float32:
    a = compression.sum_magnitudes(values)
    if form == "unbiased":
        return _rounded(compression.sum_squares(values) / a if a else 0.0)
    return _rounded(a / values.size)


def _quantise_levels(
    values: Float32Array, positive: Float32Array, form: QuantizerScale
) -> tuple[np.float32, Digits]:
    wide, level = values.astype(np.float64), positive.astype(np.float64)
    s2 = compression.sum_squares(values)
    rms = math.sqrt(s2 / values.size)
    c = np.zeros(values.size, dtype=np.int64)
    for lower, upper in pairwise(level):
        c += np.abs(wide) > (lower + upper) / 2 * rms
    q = np.where(values < 0, -level[c], level[c])
    inner = compression.fixed_order_sum(wide * q)
    least_squares = inner / compression.fixed_order_sum(q * q)
    unbiased = s2 / inner if inner else 0.0
    scale = unbiased if form == "unbiased" else least_squares
    digits = np.where(values < 0, level.size - 1 - c, level.size + c).astype(np.uint8)
    return _rounded(scale), digits


def _rounded(scale: float) -> np.float32:
    with np.errstate(over="ignore", under="ignore"):
        return np.float32(scale)


def dequantise(
    scales: Float32Array, digits: Digits, quantize: Quantize, quantizer_block: int | None
) -> Float32Array:
    """What the digits stand for; products in float32."""
    if quantize == "ternary":
        unit = digits.astype(np.float32) - np.float32(1.0)
    elif quantize == "sign":
        unit = np.where(digits == 0, np.float32(1.0), np.float32(-1.0))
    else:
        unit = levels(quantize)[digits]
    blocks = scale_blocks(digits.size, quantizer_block)
    with np.errstate(over="ignore", under="ignore"):
        return unit * np.repeat(scales, blocks)


# Packing

BASE_AND_PLANES: dict[Quantize, tuple[int, int]] = {
    "ternary": (3, 5),
    "sign": (2, 8),
    "levels2": (4, 4),
    "levels4": (16, 2),
}
CHUNK_BYTES = 64


def packed_size(m: int, quantize: Quantize) -> int:
    """The bytes of one scale block of m digits; whole chunks have 64, the last one as many as it needs."""
    planes = BASE_AND_PLANES[quantize][1]
    whole, rest = divmod(m, CHUNK_BYTES * planes)
    return whole * CHUNK_BYTES + -(-rest // planes)


def pack(digits: Digits, quantize: Quantize) -> Packed:
    """The bytes of one scale block: byte j of a chunk of w bytes holds digits j, w + j, 2 w + j, ..."""
    base, planes = BASE_AND_PLANES[quantize]
    packed: list[int] = []
    for first in range(0, digits.size, CHUNK_BYTES * planes):
        chunk = [int(digit) for digit in digits[first : first + CHUNK_BYTES * planes]]
        w = -(-len(chunk) // planes)
        chunk += [0] * (w * planes - len(chunk))
        packed += [sum(base**i * chunk[w * i + j] for i in range(planes)) for j in range(w)]
    return np.array(packed, dtype=np.uint8)


def unpack(packed: Packed, m: int, quantize: Quantize) -> tuple[Digits, bool]:
    """The m digits of one scale block, and whether the bytes are the ones that `pack` makes of them."""
    base, planes = BASE_AND_PLANES[quantize]
    digits: list[int] = []
    position = 0
    while len(digits) < m:
        of_chunk = min(CHUNK_BYTES * planes, m - len(digits))
        w = -(-of_chunk // planes)
        chunk = [int(byte) for byte in packed[position : position + w]]
        digits += [chunk[j] // base**i % base for i in range(planes) for j in range(w)][:of_chunk]
        position += w
    unpacked = np.array(digits, dtype=np.uint8)
    return unpacked, np.array_equal(pack(unpacked, quantize), packed)


INDEX_BITS = 12


def packed_indices_size(k: int) -> int:
    """The bytes of k indices."""
    return -(-INDEX_BITS * k // 8)


def pack_indices(indices: Indices) -> bytes:
    """12 bits each in one long number, least bit first."""
    number = sum(int(index) << (INDEX_BITS * i) for i, index in enumerate(indices))
    return number.to_bytes(packed_indices_size(indices.size), "little")


def unpack_indices(packed: bytes, k: int) -> tuple[Indices, bool]:
    """The k indices, and whether the bits beyond them are 0."""
    number = int.from_bytes(packed, "little")
    indices = [(number >> (INDEX_BITS * i)) & 0xFFF for i in range(k)]
    return np.array(indices, dtype=np.uint16), number >> (INDEX_BITS * k) == 0
