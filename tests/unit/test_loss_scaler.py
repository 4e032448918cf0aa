"""LossScaler: its walk between the limits, its arithmetic, validation, and its state."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tritter_accel as ta
from tests.reference.floats import assert_same_bits
from tritter_accel import mixed_precision
from tritter_accel.mixed_precision import LossScaler


def walk(scaler: LossScaler, updates: str) -> list[float]:
    """The scales after each update: '.' a clean step, '!' an overflow."""
    scales = []
    for update in updates:
        scaler.update(update == "!")
        scales.append(scaler.scale)
    return scales


def test_defaults() -> None:
    scaler = LossScaler()
    assert scaler.scale == 65536.0
    assert walk(scaler, "." * 1999)[-1] == 65536.0
    assert walk(scaler, ".") == [131072.0]
    assert walk(scaler, "!") == [65536.0]


def test_an_overflow_starts_the_count_of_clean_steps_again() -> None:
    assert walk(LossScaler(8.0, growth_interval=3), "..!...!..") == [8, 8, 4, 4, 4, 8, 4, 4, 4]


def test_growth_starts_the_count_again() -> None:
    assert walk(LossScaler(8.0, growth_interval=2), ".....") == [8, 16, 16, 32, 32]


def test_the_scale_stops_at_its_least_and_comes_back() -> None:
    scaler = LossScaler(4.0, growth_interval=1)
    assert walk(scaler, "!" * 200)[-1] == 1.0
    assert walk(scaler, "...") == [2.0, 4.0, 8.0]


def test_the_scale_stops_at_its_most_and_comes_back() -> None:
    scaler = LossScaler(2.0**20, growth_interval=1)
    assert walk(scaler, "." * 200)[-1] == 2.0**24
    assert walk(scaler, "!") == [2.0**23]


def test_limits_can_be_set() -> None:
    scaler = LossScaler(8.0, growth_interval=1, min_scale=3.0, max_scale=20.0)
    assert walk(scaler, "!!!....") == [4, 3, 3, 6, 12, 20, 20]


def test_scale_loss_and_unscale() -> None:
    scaler = LossScaler(1024.0)
    assert scaler.scale_loss(2.5) == 2560.0
    gradients = np.array([[1024.0, -512.0], [0.0, 1.0]], dtype=np.float32)
    scaler.unscale_gradients(gradients)
    np.testing.assert_array_equal(gradients, [[1.0, -0.5], [0.0, 1 / 1024]])


@pytest.mark.parametrize("poison", [None, np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("size", [1, 7, 64, 100_001, 2_000_000])
def test_unscale_and_check_is_both_calls_in_one(size: int, poison: float | None) -> None:
    scaler = LossScaler(3.0)
    gradients = np.random.default_rng(size).standard_normal(size).astype(np.float32)
    if poison is not None:
        gradients[size * 2 // 3] = poison
    expected = gradients / np.float32(3.0)
    assert scaler.unscale_and_check(gradients) is (poison is not None)
    np.testing.assert_array_equal(gradients, expected)
    assert scaler.scale == 3.0


def test_unscale_and_check_sees_what_a_scale_below_one_overflows() -> None:
    scaler = LossScaler(0.5, min_scale=0.25)
    assert scaler.unscale_and_check(np.array([3e38], dtype=np.float32)) is True
    assert scaler.unscale_and_check(np.empty(0, dtype=np.float32)) is False


@pytest.mark.parametrize("poison", [None, np.nan, np.inf])
def test_out_takes_the_quotients_and_the_gradients_stay(poison: float | None) -> None:
    scaler = LossScaler(3.0)
    gradients = np.random.default_rng(2).standard_normal((30, 70)).astype(np.float32)
    if poison is not None:
        gradients[29, 69] = poison
    gradients.setflags(write=False)
    out = np.empty_like(gradients)
    assert scaler.unscale_gradients(gradients, out=out) is out
    assert_same_bits(out, gradients / np.float32(3.0))
    out.fill(7)
    assert scaler.unscale_and_check(gradients, out=out) is (poison is not None)
    assert_same_bits(out, gradients / np.float32(3.0))


def test_unscaling_needs_an_array_that_it_can_change() -> None:
    scaler = LossScaler(2.0)
    read_only = np.ones(4, dtype=np.float32)
    read_only.setflags(write=False)
    bad: list[Any] = [read_only, np.ones(4), np.ones(8, dtype=np.float32)[::2], [1.0, 2.0]]
    for values in bad:
        for unscale in (scaler.unscale_gradients, scaler.unscale_and_check):
            with pytest.raises(ta.ArrayError) as caught:
                unscale(values)
            assert caught.value.argument == "gradients"
    np.testing.assert_array_equal(read_only, np.ones(4))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_check_overflow_looks_and_does_not_update(value: float) -> None:
    scaler = LossScaler(2.0, growth_interval=1)
    assert scaler.check_overflow(np.array([1.0, value], dtype=np.float32)) is True
    assert scaler.check_overflow(np.array([1.0, 3.4e38], dtype=np.float32)) is False
    assert scaler.check_overflow(np.zeros(0, dtype=np.float32)) is False
    assert scaler.scale == 2.0


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("initial_scale", 0.0),
        ("initial_scale", -1.0),
        ("initial_scale", math.nan),
        ("initial_scale", math.inf),
        ("growth_factor", 0.5),
        ("growth_factor", math.nan),
        ("growth_factor", math.inf),
        ("backoff_factor", 1.5),
        ("backoff_factor", 0.0),
        ("backoff_factor", -0.5),
        ("backoff_factor", math.nan),
        ("growth_interval", 0),
        ("growth_interval", -1),
        ("min_scale", 0.0),
        ("min_scale", -1.0),
        ("min_scale", math.nan),
        ("max_scale", math.inf),
        ("max_scale", math.nan),
        ("max_scale", 0.5),
    ],
)
def test_bad_arguments_are_named(argument: str, value: Any) -> None:
    with pytest.raises(ta.ArgumentError, match=rf"^argument {argument}: ") as caught:
        LossScaler(**{argument: value})
    assert caught.value.argument == argument


def test_a_growth_interval_is_an_integer() -> None:
    interval: Any = 1.5
    with pytest.raises(ta.ArgumentTypeError) as caught:
        LossScaler(growth_interval=interval)
    assert caught.value.argument == "growth_interval"


def test_state_dict_restores_scale_factors_and_the_count_of_clean_steps() -> None:
    original = LossScaler(512.0, 4.0, 0.25, 3, min_scale=2.0, max_scale=2.0**20)
    walk(original, "!..")
    restored = LossScaler()
    restored.load_state_dict(original.state_dict())
    assert restored.scale == original.scale == 128.0
    updates = ".!!!!!!" + "." * 40
    assert walk(restored, updates) == walk(original, updates)


def test_state_dict_is_a_snapshot_of_plain_values() -> None:
    scaler = LossScaler(8.0, growth_interval=1)
    state = scaler.state_dict()
    assert all(isinstance(key, str) and isinstance(value, int | float) for key, value in state.items())
    walk(scaler, "...")
    scaler.load_state_dict(state)
    assert scaler.scale == 8.0


def test_a_state_that_is_no_state_is_refused_and_changes_nothing() -> None:
    scaler = LossScaler(8.0)
    for key, value in scaler.state_dict().items():
        without = {name: kept for name, kept in scaler.state_dict().items() if name != key}
        for bad in (without, {**scaler.state_dict(), key: -abs(value) - 1}):
            with pytest.raises((ta.TrainingError, KeyError)):
                scaler.load_state_dict(bad)
    assert scaler.scale == 8.0


def test_pickle_and_copy_keep_the_count_of_clean_steps() -> None:
    original = LossScaler(8.0, growth_interval=3)
    walk(original, "..")
    twins = [pickle.loads(pickle.dumps(original)), copy.copy(original), copy.deepcopy(original)]
    assert walk(original, ".") == [16.0]
    for twin in twins:
        assert walk(twin, ".!...") == [16.0, 8.0, 8.0, 8.0, 16.0]


def test_repr_shows_the_scale_in_one_line() -> None:
    text = repr(LossScaler(1024.0))
    assert "\n" not in text
    assert text.startswith("LossScaler(")
    assert "1024" in text


# The other functions of the module that have no state


def test_safe_clip_works_in_place_and_refuses_crossed_limits() -> None:
    values = np.array([[math.nan, 2.0], [-2.0, 0.5]], dtype=np.float32)
    mixed_precision.safe_clip(values, -1.0, 1.0)
    np.testing.assert_array_equal(values, [[0.0, 1.0], [-1.0, 0.5]])
    for low, high in [(1.0, -1.0), (math.nan, 1.0), (-1.0, math.nan)]:
        with pytest.raises(ta.ArgumentError):
            mixed_precision.safe_clip(values, low, high)
    np.testing.assert_array_equal(values, [[0.0, 1.0], [-1.0, 0.5]])


def test_safe_clip_into_out_leaves_the_values() -> None:
    values = np.array([[math.nan, 2.0], [-2.0, 0.5]], dtype=np.float32)
    out = np.empty_like(values)
    assert mixed_precision.safe_clip(values, -1.0, 1.0, out=out) is out
    np.testing.assert_array_equal(out, [[0.0, 1.0], [-1.0, 0.5]])
    np.testing.assert_array_equal(values, [[math.nan, 2.0], [-2.0, 0.5]])
    with pytest.raises(ta.ArgumentError):
        mixed_precision.safe_clip(values, 1.0, -1.0, out=out)
    with pytest.raises(ta.ArrayError, match="overlaps an input"):
        mixed_precision.safe_clip(values, -1.0, 1.0, out=values)
    np.testing.assert_array_equal(out, [[0.0, 1.0], [-1.0, 0.5]])


def test_bits_and_norm_come_together() -> None:
    values = np.array([[3.0, -4.0]], dtype=np.float32)
    bits, norm = mixed_precision.convert_to_bf16_with_norm(values)
    np.testing.assert_array_equal(bits, [[0x4040, 0xC080]])
    assert bits.dtype == np.uint16
    assert norm == 5.0
    out = np.zeros(2, dtype=np.uint16)
    assert mixed_precision.convert_to_bf16_with_norm(values, out=out)[0] is out
    nothing, zero = mixed_precision.convert_to_bf16_with_norm(np.empty((0, 3), dtype=np.float32))
    assert (nothing.shape, zero) == ((0, 3), 0.0)


def test_bf16_conversions_keep_the_shape_and_fill_out() -> None:
    values = np.array([[1.0, -2.0, 3.5]], dtype=np.float32)
    halves = mixed_precision.convert_to_bf16(values)
    assert halves.shape == (1, 3)
    out_halves = np.zeros((1, 3), dtype=np.uint16)
    assert np.shares_memory(mixed_precision.convert_to_bf16(values, out=out_halves), out_halves)
    np.testing.assert_array_equal(out_halves, [[0x3F80, 0xC000, 0x4060]])
    out_values = np.zeros((1, 3), dtype=np.float32)
    assert np.shares_memory(mixed_precision.convert_from_bf16(halves, out=out_values), out_values)
    np.testing.assert_array_equal(out_values, values)


def test_bf16_arrays_travel_as_ml_dtypes_too() -> None:
    halves = mixed_precision.convert_to_bf16(np.array([1.0, -2.0, 3.5], dtype=np.float32))
    view = mixed_precision.as_bfloat16(halves)
    assert view.dtype == ml_dtypes.bfloat16
    assert np.shares_memory(view, halves)
    np.testing.assert_array_equal(mixed_precision.convert_from_bf16(view), [1.0, -2.0, 3.5])


def test_bf16_arguments_are_named() -> None:
    values = np.ones(4, dtype=np.float32)
    rounding: Any = "up"
    float64: Any = np.ones(4)
    no_bits: Any = values
    with pytest.raises(ta.ArgumentError, match="nearest_even") as caught:
        mixed_precision.convert_to_bf16(values, rounding=rounding)
    assert caught.value.argument == "rounding"
    with pytest.raises(ta.ArgumentError) as caught:
        mixed_precision.convert_to_bf16(values, rounding="stochastic", seed=-1)
    assert caught.value.argument == "seed"
    with pytest.raises(ta.ArrayError) as wrong_array:
        mixed_precision.convert_to_bf16(float64)
    assert wrong_array.value.argument == "values"
    with pytest.raises(ta.ArrayError) as wrong_bits:
        mixed_precision.convert_from_bf16(no_bits)
    assert wrong_bits.value.argument == "bits"
    for bits in (-1, 1 << 16):
        with pytest.raises(ta.ArgumentError):
            mixed_precision.bf16_to_f32(bits)
