"""bfloat16 against ml_dtypes, stochastic rounding and loss scaling against the reference."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

import tritter_accel as ta
from tests.reference import compression
from tests.reference.floats import assert_same_bits
from tests.thread_count import thread_count
from tritter_accel import mixed_precision

Float32Array = NDArray[np.float32]
Halves = NDArray[np.uint16]

SETTINGS = settings(derandomize=True, deadline=None, max_examples=60)
STRIDE = 251  # a prime, so that the lower half of the patterns takes every value
PATTERNS_AT_ONCE = 1 << 22
LARGEST = 2.0**100
SPECIAL_LOWER_HALVES = [0x0000, 0x0001, 0x7FFF, 0x8000, 0x8001, 0xFFFF]

any_floats = hnp.arrays(np.float32, st.integers(0, 200), elements=st.floats(width=32))
seeds = st.one_of(st.sampled_from([0, 1, 2**32, 2**64 - 1]), st.integers(0, 2**64 - 1))
threads = st.sampled_from([1, 2, 3])


def strided_patterns() -> Iterator[Float32Array]:
    """Every 251st of the 2^32 float32, 17 million values."""
    for first in range(0, 1 << 32, STRIDE * PATTERNS_AT_ONCE):
        last = min(first + STRIDE * PATTERNS_AT_ONCE, 1 << 32)
        yield np.arange(first, last, STRIDE, dtype=np.uint64).astype(np.uint32).view(np.float32)


def special_patterns() -> Float32Array:
    """Every upper half with lower halves around zero, a tie and the next carry."""
    upper = np.arange(1 << 16, dtype=np.uint32) << 16
    return (
        np.concatenate([upper | lower for lower in SPECIAL_LOWER_HALVES]).astype(np.uint32).view(np.float32)
    )


def by_ml_dtypes(values: Float32Array) -> Halves:
    with np.errstate(all="ignore"):
        halves: Halves = values.astype(ml_dtypes.bfloat16).view(np.uint16)
    return halves


@pytest.mark.exhaustive
def test_nearest_even_over_all_floats() -> None:
    out = np.empty(PATTERNS_AT_ONCE, dtype=np.uint16)
    for first in range(0, 1 << 32, PATTERNS_AT_ONCE):
        patterns = np.arange(first, first + PATTERNS_AT_ONCE, dtype=np.uint64).astype(np.uint32)
        values = patterns.view(np.float32)
        mixed_precision.convert_to_bf16(values, rounding="nearest_even", out=out)
        np.testing.assert_array_equal(out, by_ml_dtypes(values))


def test_nearest_even_over_a_stride_of_all_floats() -> None:
    for values in strided_patterns():
        converted = mixed_precision.convert_to_bf16(values, rounding="nearest_even")
        np.testing.assert_array_equal(converted, by_ml_dtypes(values))


def test_nearest_even_at_ties_carries_and_special_values() -> None:
    values = special_patterns()
    converted = mixed_precision.convert_to_bf16(values, rounding="nearest_even")
    np.testing.assert_array_equal(converted, by_ml_dtypes(values))


def test_truncation_over_a_stride_of_all_floats() -> None:
    for values in (*strided_patterns(), special_patterns()):
        np.testing.assert_array_equal(
            mixed_precision.convert_to_bf16(values), compression.bf16_truncate(values)
        )


def test_back_from_every_bfloat16() -> None:
    halves = np.arange(1 << 16, dtype=np.uint16)
    restored = mixed_precision.convert_from_bf16(halves)
    assert restored.dtype == np.float32
    np.testing.assert_array_equal(restored.view(np.uint32), halves.astype(np.uint32) << 16)
    assert_same_bits(restored, halves.view(ml_dtypes.bfloat16).astype(np.float32))


@given(values=any_floats, threads=threads)
@SETTINGS
def test_short_arrays_of_any_length(values: Float32Array, threads: int) -> None:
    """Lengths that no vector register divides, so the tail of a kernel is taken."""
    with thread_count(threads):
        truncated = mixed_precision.convert_to_bf16(values)
        nearest = mixed_precision.convert_to_bf16(values, rounding="nearest_even")
        stochastic = mixed_precision.convert_to_bf16(values, rounding="stochastic", seed=9)
    np.testing.assert_array_equal(truncated, compression.bf16_truncate(values))
    np.testing.assert_array_equal(nearest, by_ml_dtypes(values))
    assert_same_up_to_quiet_nan(stochastic, compression.bf16_stochastic(values, seed=9, step=0))


def assert_same_up_to_quiet_nan(actual: Halves, expected: Halves) -> None:
    """Equal bits, any quiet NaN for any other: the definition asks for a quiet NaN, not for a payload."""
    assert actual.dtype == np.uint16
    assert actual.shape == expected.shape
    nan = (expected & np.uint16(0x7FFF)) > np.uint16(0x7F80)
    np.testing.assert_array_equal(actual[~nan], expected[~nan])
    assert ((actual[nan] & np.uint16(0x7FC0)) == np.uint16(0x7FC0)).all()


@given(
    n=st.one_of(st.sampled_from([0, 1, 15, 16, 17, 4095, 4096, 4097]), st.integers(0, 20_000)),
    seed=seeds,
    step=st.one_of(st.sampled_from([0, 1, 2**32 - 1]), st.integers(0, 2**32 - 1)),
    threads=threads,
)
@SETTINGS
def test_stochastic_rounding(n: int, seed: int, step: int, threads: int) -> None:
    patterns = np.random.default_rng(n).integers(0, 1 << 32, size=n, dtype=np.uint32)
    values = patterns.view(np.float32)
    with thread_count(threads):
        converted = mixed_precision.convert_to_bf16(values, rounding="stochastic", seed=seed, step=step)
    assert_same_up_to_quiet_nan(converted, compression.bf16_stochastic(values, seed, step))


def test_stochastic_rounding_takes_the_index_in_c_order() -> None:
    values = np.random.default_rng(0).standard_normal((7, 11, 13)).astype(np.float32)
    converted = mixed_precision.convert_to_bf16(values, rounding="stochastic", seed=4, step=2)
    assert converted.shape == (7, 11, 13)
    np.testing.assert_array_equal(
        converted.reshape(-1), compression.bf16_stochastic(values, 4, 2).reshape(-1)
    )


def test_stochastic_rounding_keeps_infinities_and_quiets_every_nan() -> None:
    values = special_patterns()
    converted = mixed_precision.convert_to_bf16(values, rounding="stochastic", seed=1)
    infinite, nan = np.isinf(values), np.isnan(values)
    np.testing.assert_array_equal(converted[infinite], compression.bf16_truncate(values[infinite]))
    assert nan.sum() > 1000
    assert ((converted[nan] & 0x7FC0) == 0x7FC0).all()


@pytest.mark.parametrize("value", [1.0 + 2**-9, -(1.0 + 2**-8 * 0.9), 3.14159274, 1e-3, 6e-39, -2.5e30])
def test_stochastic_rounding_is_unbiased(value: float) -> None:
    """The mean over 2^18 elements is within five standard errors of the value; truncation is not."""
    count = 1 << 18
    values = np.full(count, value, dtype=np.float32)
    exact = float(values[0])
    rounded = mixed_precision.convert_to_bf16(values, rounding="stochastic", seed=11)
    below = compression.bf16_truncate(values[:1])
    low, high = (
        float(x) for x in compression.bf16_to_f32(np.array([below[0], below[0] + 1], dtype=np.uint16))
    )
    share = (exact - low) / (high - low)
    assert 0.05 < share < 0.95
    assert set(np.unique(rounded)) == {int(below[0]), int(below[0]) + 1}
    mean = float(compression.bf16_to_f32(rounded).astype(np.float64).mean())
    standard_error = abs(high - low) * math.sqrt(share * (1 - share) / count)
    assert abs(mean - exact) < 5 * standard_error
    assert abs(low - exact) > 5 * standard_error


def test_stochastic_rounding_is_unbiased_over_steps() -> None:
    """The same element is rounded independently at every step."""
    values = np.linspace(1.0, 2.0, 512, endpoint=False, dtype=np.float32) + np.float32(0.001)
    steps = 400
    total = np.zeros(values.size, dtype=np.float64)
    for step in range(steps):
        halves = mixed_precision.convert_to_bf16(values, rounding="stochastic", seed=5, step=step)
        total += compression.bf16_to_f32(halves)
    error = total / steps - values
    # A step of bfloat16 in [1, 2) is 2^-7; the deviation of one rounding is at most half of it.
    assert np.abs(error).max() < 5 * 2**-8 / math.sqrt(steps)


@pytest.mark.parametrize("value", [0.0, -0.0, 1.0, -1.5, 65504.0, 3.4028235e38, math.inf, -math.inf, 1e-45])
def test_scalars_agree_with_arrays(value: float) -> None:
    half = mixed_precision.f32_to_bf16(value)
    assert half == int(compression.bf16_truncate(np.array([value], dtype=np.float32))[0])
    restored = np.array([mixed_precision.bf16_to_f32(half)], dtype=np.float32)
    assert_same_bits(restored, compression.bf16_to_f32(np.array([half], dtype=np.uint16)))


# Loss scaling


@given(
    updates=st.lists(st.tuples(st.booleans(), st.integers(1, 40)), max_size=40),
    initial=st.sampled_from([1.0, 2.0, 1024.0, 65536.0, 2.0**24]),
    factors=st.sampled_from([(2.0, 0.5), (4.0, 0.25), (8.0, 0.5), (2.0, 0.125)]),
    interval=st.integers(1, 50),
    limits=st.sampled_from([(1.0, 2.0**24), (0.25, 2.0**26), (1.0, 2.0**24 - 1)]),
)
@settings(SETTINGS, max_examples=200)
def test_loss_scaler(
    updates: list[tuple[bool, int]],
    initial: float,
    factors: tuple[float, float],
    interval: int,
    limits: tuple[float, float],
) -> None:
    """Runs of clean or overflowing steps; powers of two are exact, so equality is asked for."""
    initial = min(initial, limits[1])
    actual = mixed_precision.LossScaler(initial, *factors, interval, min_scale=limits[0], max_scale=limits[1])
    expected = compression.LossScaler(initial, *factors, interval, *limits)
    for overflow, repeats in updates:
        for _ in range(repeats):
            actual.update(overflow)
            expected.update(overflow)
            assert actual.scale == expected.scale


@given(
    updates=st.lists(st.booleans(), max_size=60),
    growth=st.floats(1.01, 3.0),
    backoff=st.floats(0.2, 0.99),
)
@SETTINGS
def test_loss_scaler_with_factors_that_round(updates: list[bool], growth: float, backoff: float) -> None:
    actual = mixed_precision.LossScaler(100.0, growth, backoff, 2)
    expected = compression.LossScaler(100.0, growth, backoff, 2)
    for overflow in updates:
        actual.update(overflow)
        expected.update(overflow)
        assert actual.scale == pytest.approx(expected.scale, rel=1e-4)


# Finite checks and clipping


@given(values=any_floats)
@SETTINGS
def test_has_nan_or_inf(values: Float32Array) -> None:
    expected = not np.isfinite(values).all()
    assert mixed_precision.has_nan_or_inf(values) is bool(expected)
    assert mixed_precision.LossScaler().check_overflow(values) is bool(expected)


@pytest.mark.parametrize("n", [1, 15, 16, 17, 63, 64, 65, 4097, 100_003])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_one_value_that_is_not_finite_is_found_anywhere(n: int, value: float) -> None:
    values = np.full(n, 3.4028235e38, dtype=np.float32)  # a check by summing would overflow here
    assert not mixed_precision.has_nan_or_inf(values)
    for place in {0, n // 2, n - 1}:
        values[place] = value
        assert mixed_precision.has_nan_or_inf(values)
        values[place] = 0.0


@given(
    values=any_floats,
    first=st.floats(-LARGEST, LARGEST, width=32),
    second=st.floats(-LARGEST, LARGEST, width=32),
)
@settings(SETTINGS, max_examples=150)
def test_safe_clip(values: Float32Array, first: float, second: float) -> None:
    low, high = min(first, second), max(first, second)
    expected = compression.safe_clip(values, low, high)
    mixed_precision.safe_clip(values, low, high)
    # By value: which of two equal zeros a clamp returns is open.
    np.testing.assert_array_equal(values, expected)


@given(
    values=st.integers(0, 200).flatmap(
        lambda n: hnp.arrays(np.float32, n, elements=st.floats(-LARGEST, LARGEST, width=32))
    )
)
@SETTINGS
def test_unscaling_divides_by_the_scale_in_place(values: Float32Array) -> None:
    scaler = mixed_precision.LossScaler(1024.0)
    expected = values / np.float32(1024.0)
    scaler.unscale_gradients(values)
    assert_same_bits(values, expected)
    assert scaler.scale_loss(0.375) == 384.0


@pytest.mark.parametrize("rounding", ["truncate", "nearest_even"])
@pytest.mark.parametrize("size", [0, 1, 63, 4096, 5000, 300_001])
def test_conversion_with_norm_is_both_calls_in_one(rounding: Any, size: int) -> None:
    values = np.random.default_rng(size).standard_normal(size).astype(np.float32)
    bits, norm = mixed_precision.convert_to_bf16_with_norm(values, rounding=rounding)
    np.testing.assert_array_equal(bits, mixed_precision.convert_to_bf16(values, rounding=rounding))
    assert norm == ta.gradient_norm(values)
    assert abs(norm - np.linalg.norm(values.astype(np.float64))) <= 1e-12 * norm
    if size:
        for poison in (np.nan, np.inf):
            values[size // 2] = poison
            assert not np.isfinite(mixed_precision.convert_to_bf16_with_norm(values)[1])
