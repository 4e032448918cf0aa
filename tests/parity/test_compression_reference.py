"""The package against the NumPy reference on inputs that nobody chose by hand, bits compared as integers.

The dense projection is a fixed order of float32 additions, so nothing but equality will do; ternary scales
are fixed float64 sums rounded once. Where the definition leaves the last bit of a threshold open, the
comparison says so.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import subprocess
import sys
from functools import cache
from typing import get_args

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

import tritter_accel as ta
from tests.reference import chacha, compression
from tests.reference.floats import assert_same_bits
from tests.thread_count import thread_count

Float32Array = NDArray[np.float32]

SETTINGS = settings(
    derandomize=True,
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
SCALINGS = get_args(compression.Scaling)
QUANTIZER_SCALES = get_args(compression.QuantizerScale)
SPECIAL = [0.0, -0.0, 1e-45, -1e-45, 1.1754942e-38, 1.1754944e-38, 3.4028235e38, -3.4028235e38, 1.0, -1.0]
NOT_FINITE = [math.inf, -math.inf, math.nan]
LARGEST_DIM = 300

seeds = st.one_of(st.sampled_from([0, 1, 42, 2**32 - 1, 2**32, 2**63, 2**64 - 1]), st.integers(0, 2**64 - 1))
words_32 = st.one_of(st.sampled_from([0, 1, 2**31, 2**32 - 1]), st.integers(0, 2**32 - 1))
threads = st.sampled_from([1, 2, 3])
scalings = st.sampled_from(SCALINGS)


@st.composite
def gradients(draw: st.DrawFn, *, finite: bool = False, largest: float | None = None) -> Float32Array:
    """Vectors of 0 to 3000 float32: short ones anything, long ones random with special values put in."""
    n = draw(
        st.one_of(
            st.sampled_from([0, 1, 2, 63, 64, 65, 127, 128, 129, 1023, 1024, 1025]), st.integers(0, 3000)
        )
    )
    if n <= 65:
        elements = (
            st.floats(width=32, allow_nan=not finite, allow_infinity=not finite)
            if largest is None
            else st.floats(-largest, largest, width=32)
        )
        return draw(hnp.arrays(np.float32, n, elements=elements))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    magnitude = draw(st.sampled_from([1e-40, 1e-12, 1e-3, 1.0, 1e6, 1e30]))
    values = (rng.standard_normal(n) * magnitude).astype(np.float32)
    choices = [v for v in SPECIAL if largest is None or abs(v) <= largest] + ([] if finite else NOT_FINITE)
    places = st.tuples(st.integers(0, n - 1), st.sampled_from(choices))
    for index, value in draw(st.lists(places, max_size=6)):
        values[index] = value
    return values


@st.composite
def ratios(draw: st.DrawFn, n: int, largest_dim: int = LARGEST_DIM) -> float:
    """Any float32 ratio whose k stays small enough for the slow form."""
    top = float(np.float32(min(1.0, largest_dim / max(n, 1))))
    return draw(st.one_of(st.just(top), st.floats(float(np.float32(1e-6)), top, width=32)))


@given(n=st.integers(0, 2**40), ratio=st.floats(0, 1, width=32, exclude_min=True))
@settings(SETTINGS, max_examples=500)
def test_compressed_dim(n: int, ratio: float) -> None:
    assert ta.GradientCompressor().compressed_dim(n, ratio) == compression.compressed_dim(n, ratio)


@given(data=st.data(), seed=seeds, step=words_32, slot=words_32, scaling=scalings, threads=threads)
@settings(SETTINGS, max_examples=150)
def test_compress(
    data: st.DataObject, seed: int, step: int, slot: int, scaling: compression.Scaling, threads: int
) -> None:
    values = data.draw(gradients())
    ratio = data.draw(ratios(values.size))
    k = compression.compressed_dim(values.size, ratio)
    before = values.copy()
    with thread_count(threads):
        compressor = ta.GradientCompressor(ta.TrainingConfig(seed=seed, scaling=scaling))
        compressed = compressor.compress(values, ratio, step=step, slot=slot)
    expected = compression.compress(values, k, seed=seed, step=step, slot=slot, scaling=scaling)
    assert_same_bits(compressed.data, expected)
    assert_same_bits(values, before)
    carried = (compressed.original_dim, compressed.seed, compressed.step, compressed.slot, compressed.scaling)
    assert carried == (values.size, seed, step, slot, scaling)


@given(
    data=st.data(),
    n=st.one_of(st.sampled_from([0, 1, 63, 64, 65, 4095, 4096, 4097]), st.integers(0, 3000)),
    seed=seeds,
    step=words_32,
    slot=words_32,
    scaling=scalings,
    threads=threads,
)
@settings(SETTINGS, max_examples=150)
def test_decompress(
    data: st.DataObject, n: int, seed: int, step: int, slot: int, scaling: compression.Scaling, threads: int
) -> None:
    k = data.draw(st.one_of(st.sampled_from([64, 65, 100, 255, 256, 257]), st.integers(64, LARGEST_DIM)))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    values = rng.standard_normal(k).astype(np.float32)
    places = st.tuples(st.integers(0, k - 1), st.sampled_from(SPECIAL + NOT_FINITE))
    for index, value in data.draw(st.lists(places, max_size=4)):
        values[index] = value
    compressed = ta.CompressedGradient(values, n, seed, 0.1, step=step, slot=slot, scaling=scaling)
    with thread_count(threads):
        restored = ta.GradientCompressor(ta.TrainingConfig(seed=seed)).decompress(compressed)
    expected = compression.decompress(values, n, seed=seed, step=step, slot=slot, scaling=scaling)
    assert_same_bits(restored, expected)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize(("n", "ratio"), [(1537, 1.0), (20011, 0.0257)])
def test_work_that_is_worth_several_threads(n: int, ratio: float, threads: int) -> None:
    """The sizes above stay on one thread, where a second one would only cost; these do not."""
    values = np.random.default_rng(n).standard_normal(n).astype(np.float32)
    k = compression.compressed_dim(n, ratio)
    compressor = ta.GradientCompressor(ta.TrainingConfig(ratio, seed=n))
    with thread_count(threads):
        compressed = compressor.compress(values, step=3, slot=1)
        restored = compressor.decompress(compressed)
    expected = reference_of_large_work(n, k)
    assert_same_bits(compressed.data, expected[0])
    assert_same_bits(restored, expected[1])


@cache
def reference_of_large_work(n: int, k: int) -> tuple[Float32Array, Float32Array]:
    """Computed once for all thread counts."""
    values = np.random.default_rng(n).standard_normal(n).astype(np.float32)
    there = compression.compress(values, k, seed=n, step=3, slot=1)
    return there, compression.decompress(there, n, seed=n, step=3, slot=1)


@pytest.mark.parametrize(
    ("step", "word", "value", "entry"),
    [
        (465133, 2768, 687194879, 1.0),
        (942669, 1616, 687194880, -1.0),
        (1439495, 1680, 1374389503, -1.0),
        (80755, 447, 1374389504, 0.0),
    ],
)
def test_the_limits_of_an_entry_are_exact(step: int, word: int, value: int, entry: float) -> None:
    """Words of seed 42 that are the last or first of their kind; a random test meets one in four billion."""
    assert chacha.words(42, step, word, 1)[0] == value
    i, j = divmod(word, 64)
    one = np.zeros(64, dtype=np.float32)
    one[i] = 1.0
    assert ta.GradientCompressor().compress(one, step=step).data[j] == entry * 0.125  # s = 1 / sqrt(64)
    one[i], one[j] = 0.0, 1.0
    compressed = ta.CompressedGradient(one, 64, 42, 1.0, step=step)
    assert ta.GradientCompressor().decompress(compressed)[i] == entry * 0.125


def test_zero_entries_keep_an_infinity_out() -> None:
    """One infinite gradient reaches the columns whose entry is not zero, and only those."""
    values = np.zeros(100, dtype=np.float32)
    values[7] = np.inf
    entries = compression.projection_rows(42, 0, 7, 1, 64)[0]
    expected = np.array(
        [math.copysign(math.inf, entry) if entry else 0.0 for entry in entries], dtype=np.float32
    )
    assert_same_bits(ta.GradientCompressor().compress(values).data, expected)


# Ternary


@given(
    data=st.data(),
    seed=seeds,
    step=words_32,
    form=st.sampled_from(QUANTIZER_SCALES),
    scaling=scalings,
    threads=threads,
)
@settings(SETTINGS, max_examples=120)
def test_compress_ternary(
    data: st.DataObject,
    seed: int,
    step: int,
    form: compression.QuantizerScale,
    scaling: compression.Scaling,
    threads: int,
) -> None:
    values = data.draw(gradients(finite=True, largest=2.0**106))
    ratio = data.draw(ratios(values.size))
    k = compression.compressed_dim(values.size, ratio)
    y = compression.compress(values, k, seed=seed, step=step, scaling=scaling)
    config = ta.TrainingConfig(seed=seed, scaling=scaling, quantizer_scale=form)
    with thread_count(threads):
        ternary = ta.GradientCompressor(config).compress_ternary(values, ratio, step=step)
    assert ternary.data.shape == (k,)
    assert (ternary.original_dim, ternary.compressed_dim) == (values.size, k)
    assert (ternary.seed, ternary.step, ternary.slot, ternary.scaling) == (seed, step, 0, scaling)
    expected = compression.quantise(y, form)
    if form == "reference":
        assert np.float32(ternary.scale) == expected.scale
        np.testing.assert_array_equal(ternary.data, expected.trits)
        return
    # A threshold may be held in float32 or float64: a value within a rounding of it may fall on either side.
    assume(compression.sum_magnitudes(y) == 0 or compression.sum_magnitudes(y) / k > 1e-9)
    clear = np.abs(np.abs(y.astype(np.float64)) - expected.threshold) > 1e-6 * expected.threshold
    np.testing.assert_array_equal(ternary.data[clear], expected.trits[clear])
    if clear.all():
        np.testing.assert_allclose(ternary.scale, expected.scale, rtol=1e-6)


@given(
    n=st.one_of(st.sampled_from([0, 1, 64, 65]), st.integers(0, 3000)),
    k=st.integers(64, LARGEST_DIM),
    seed=seeds,
    step=words_32,
    slot=words_32,
    scale=st.floats(float(np.float32(1e-10)), float(np.float32(1e10)), width=32),
    scaling=scalings,
    threads=threads,
)
@SETTINGS
def test_decompress_ternary(
    n: int,
    k: int,
    seed: int,
    step: int,
    slot: int,
    scale: float,
    scaling: compression.Scaling,
    threads: int,
) -> None:
    trits = np.random.default_rng(k).integers(-1, 2, size=k).astype(np.int8)
    ternary = ta.TernaryCompressedGradient(trits, scale, n, k, seed, step=step, slot=slot, scaling=scaling)
    with thread_count(threads):
        restored = ta.GradientCompressor(ta.TrainingConfig(seed=seed)).decompress_ternary(ternary)
    values = compression.ternary_values(trits, np.float32(scale))
    assert_same_bits(
        restored, compression.decompress(values, n, seed=seed, step=step, slot=slot, scaling=scaling)
    )


def test_a_value_of_exactly_half_the_scale_is_dropped() -> None:
    """Two gradients, 1 and x: mean |y| = (A + B x) s / 64, A entries of the first row, B added by the second.

    x = A / (128 - B) is half of that mean, and at some steps a binary fraction, so that nothing is rounded.
    """
    for step in range(1000):
        first, second = compression.projection_rows(42, step, 0, 2, 64).astype(np.int64)
        alone = np.where(first == 0, second, 0)
        filled = int(np.count_nonzero(first))
        added = int(np.abs(alone).sum() + (first * second).sum())
        if (filled << 10) % (128 - added) == 0 and {-1, 1} <= set(alone.tolist()):
            break
    half = filled / (128 - added)
    values = np.zeros(64, dtype=np.float32)
    values[:2] = 1.0, half
    ternary = ta.GradientCompressor().compress_ternary(values, step=step)
    assert ternary.scale == 2 * half * 0.125
    y = ta.GradientCompressor().compress(values, step=step).data
    ties = np.abs(y) == np.float32(half * 0.125)
    np.testing.assert_array_equal(ties, alone != 0)
    np.testing.assert_array_equal(ternary.data, np.where(ties, 0, np.sign(y)))


# Reductions and clipping


@given(values=gradients(finite=True), threads=threads)
@example(values=np.full(4096 * 5 + 77, 0.1, dtype=np.float32), threads=2)
@example(values=np.full(1_000_003, 1e-3, dtype=np.float32), threads=3)
@SETTINGS
def test_gradient_norm_is_the_fixed_order_sum(values: Float32Array, threads: int) -> None:
    with thread_count(threads):
        assert ta.gradient_norm(values) == compression.norm(values)


def test_gradient_norm_does_not_stick_where_a_float32_sum_does() -> None:
    """A float32 sum of ones in index order stops at 2^24."""
    count = 2**24 + 2**20
    assert ta.gradient_norm(np.ones(count, dtype=np.float32)) == math.sqrt(count)


@given(values=gradients(finite=True, largest=2.0**100), share=st.floats(0.01, 3.0), threads=threads)
@SETTINGS
def test_clip_gradients(values: Float32Array, share: float, threads: int) -> None:
    norm = compression.norm(values)
    max_norm = float(np.float32(share * norm))
    assume(max_norm > 1e-30)
    assume(abs(max_norm / norm - 1) > 1e-6)
    before = values.copy()
    with thread_count(threads):
        clipped = ta.clip_gradients(values, max_norm)
    assert_same_bits(values, before)
    with thread_count(threads):
        assert ta.clip_gradients_(before, max_norm) == norm
    assert_same_bits(before, clipped)
    expected = compression.clip(values, max_norm)
    if norm < max_norm:
        assert_same_bits(clipped, values)
    else:
        np.testing.assert_allclose(clipped, expected, rtol=1e-6, atol=1e-44)


@given(data=st.data(), seed=seeds, share=st.floats(0.01, 3.0), threads=threads)
@SETTINGS
def test_compression_clips_first(data: st.DataObject, seed: int, share: float, threads: int) -> None:
    values = data.draw(gradients(finite=True, largest=2.0**100))
    norm = compression.norm(values)
    max_norm = float(np.float32(share * norm))
    assume(max_norm > 1e-30)
    assume(abs(max_norm / norm - 1) > 1e-6)
    before = values.copy()
    with thread_count(threads):
        compressor = ta.GradientCompressor(ta.TrainingConfig(0.05, seed, max_norm))
        compressed = compressor.compress(values)
    assert_same_bits(values, before)
    clipped = compression.clip(values, max_norm)
    expected = compression.compress(clipped, compression.compressed_dim(values.size, 0.05), seed=seed)
    if norm < max_norm:
        assert_same_bits(compressed.data, expected)
    else:
        # One rounding of the factor apart, and then every partial sum rounds anew.
        bound = 1e-6 * float(np.abs(clipped).sum(dtype=np.float64)) / math.sqrt(values.size)
        np.testing.assert_allclose(compressed.data, expected, rtol=1e-6, atol=bound + 1e-44)


# Accumulation


@given(
    n=st.integers(0, 300),
    masses=st.lists(st.sampled_from([0.5, 1.0, 2.0, 3.0, 7.0, 64.0]), max_size=8),
    threads=threads,
)
@SETTINGS
def test_accumulator(n: int, masses: list[float], threads: int) -> None:
    rng = np.random.default_rng(n)
    actual, expected = ta.GradientAccumulator(n), compression.Accumulator(n)
    with thread_count(threads):
        for _ in range(2):  # a second round starts from nothing
            for mass in masses:
                values = (rng.standard_normal(n) * 10.0 ** rng.integers(-3, 4, size=n)).astype(np.float32)
                actual.accumulate(values, mass)
                expected.accumulate(values, mass)
            assert actual.count == len(masses)
            assert actual.mass == sum(masses)
            assert_same_bits(actual.get_and_reset(), expected.get_and_reset())
            assert (actual.count, actual.mass) == (0, 0.0)


# Every machine gives the same bits

LEVELS = ["scalar", "avx2", "avx512"]
EVERYTHING = """
import hashlib, json, sys
import numpy as np
import tritter_accel as ta
from tritter_accel import mixed_precision

def digest(values):
    return hashlib.sha256(np.ascontiguousarray(values).tobytes()).hexdigest()

ta.set_num_threads(int(sys.argv[1]))
values = np.random.default_rng(1).standard_normal(9001).astype(np.float32)
found = {"level": ta.simd_level(), "norm": ta.gradient_norm(values).hex()}
found["clip"] = digest(ta.clip_gradients(values, 0.5))
for k in (64, 79, 100, 128, 257):
    compressor = ta.GradientCompressor(ta.TrainingConfig(k / 9001, gradient_clipping=3.0))
    compressed = compressor.compress(values, step=5)
    found[f"compress {k}"] = digest(compressed.data)
    found[f"decompress {k}"] = digest(compressor.decompress(compressed))
    for form in ("reference", "least_squares", "unbiased"):
        config = ta.TrainingConfig(k / 9001, quantizer_scale=form)
        ternary = ta.GradientCompressor(config).compress_ternary(values)
        found[f"{form} {k}"] = [digest(ternary.data), float(ternary.scale).hex()]
for rounding in ("truncate", "nearest_even", "stochastic"):
    found[rounding] = digest(mixed_precision.convert_to_bf16(values, rounding=rounding, seed=3))
print(json.dumps(found))
"""


def results_of_a_process(level: str, threads: int) -> dict[str, object]:
    """What a fresh process computes with the SIMD level capped."""
    environment = {**os.environ, "TRITTER_ACCEL_SIMD": level}
    command = [sys.executable, "-c", EVERYTHING, str(threads)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


def test_results_do_not_depend_on_simd_level_or_threads() -> None:
    scalar = results_of_a_process("scalar", 1)
    assert scalar.pop("level") == "scalar"
    values = np.random.default_rng(1).standard_normal(9001).astype(np.float32)
    assert scalar["norm"] == compression.norm(values).hex()
    stochastic = compression.bf16_stochastic(values, seed=3, step=0)
    assert scalar["stochastic"] == hashlib.sha256(stochastic.tobytes()).hexdigest()
    for level, threads in [("scalar", 3), ("avx2", 1), ("avx2", 2), ("avx512", 2), ("avx512", 1)]:
        found = results_of_a_process(level, threads)
        assert LEVELS.index(str(found.pop("level"))) <= LEVELS.index(level)
        assert found == scalar, (level, threads)
