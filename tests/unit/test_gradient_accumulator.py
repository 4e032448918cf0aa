"""GradientAccumulator: the mean by mass, the reset, lengths, and copies in the middle of a batch."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import tritter_accel as ta
from tests.reference.floats import assert_same_bits


def vector(n: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(n).astype(np.float32)


def test_a_new_accumulator_is_empty() -> None:
    accumulator = ta.GradientAccumulator(5)
    assert (accumulator.size, accumulator.count, accumulator.mass) == (5, 0, 0.0)


def test_nothing_accumulated_gives_the_zeros() -> None:
    accumulator = ta.GradientAccumulator(5)
    assert_same_bits(accumulator.get_and_reset(), np.zeros(5, dtype=np.float32))
    assert ta.GradientAccumulator(0).get_and_reset().shape == (0,)


def test_mean_of_equal_shares() -> None:
    accumulator = ta.GradientAccumulator(3)
    accumulator.accumulate(np.array([1, 2, 3], dtype=np.float32))
    accumulator.accumulate(np.array([3, 2, -3], dtype=np.float32))
    assert (accumulator.count, accumulator.mass) == (2, 2.0)
    assert_same_bits(accumulator.get_and_reset(), np.array([2, 2, 0], dtype=np.float32))


def test_reset_forgets_everything() -> None:
    accumulator = ta.GradientAccumulator(3)
    accumulator.accumulate(vector(3))
    accumulator.get_and_reset()
    assert (accumulator.count, accumulator.mass) == (0, 0.0)
    accumulator.accumulate(vector(3, 1))
    assert_same_bits(accumulator.get_and_reset(), vector(3, 1))


def test_a_result_is_not_touched_by_what_comes_after() -> None:
    accumulator = ta.GradientAccumulator(3)
    accumulator.accumulate(vector(3))
    result = accumulator.get_and_reset()
    accumulator.accumulate(vector(3, 1))
    accumulator.get_and_reset()
    assert_same_bits(result, vector(3))


def test_sums_by_mass_give_the_mean_of_the_whole_batch_and_means_do_not() -> None:
    """Shards of 10, 3 and 1 samples: a mean of shard means gives the last sample ten times its weight."""
    samples = np.random.default_rng(3).standard_normal((14, 50)).astype(np.float32)
    shards = [samples[:10], samples[10:13], samples[13:]]
    by_mass, by_mean = ta.GradientAccumulator(50), ta.GradientAccumulator(50)
    for shard in shards:
        by_mass.accumulate(shard.sum(axis=0), mass=float(len(shard)))
        by_mean.accumulate(shard.mean(axis=0))
    assert (by_mass.count, by_mass.mass) == (3, 14.0)
    full_batch = samples.astype(np.float64).mean(axis=0)
    np.testing.assert_allclose(by_mass.get_and_reset(), full_batch, rtol=1e-5, atol=1e-6)
    assert np.abs(by_mean.get_and_reset() - full_batch).max() > 0.1


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("n", [1, 7, 64, 4097, 1_000_003])
def test_it_tells_whether_its_sum_is_finite(n: int, poison: float) -> None:
    accumulator = ta.GradientAccumulator(n)
    assert accumulator.finite is True
    for place in {0, n // 2, n - 1}:
        accumulator.accumulate(vector(n))
        assert accumulator.finite is True
        poisoned = vector(n)
        poisoned[place] = poison
        accumulator.accumulate(poisoned)
        assert accumulator.finite is False
        accumulator.accumulate(vector(n))
        accumulator.accumulate(-poisoned)
        assert accumulator.finite is False  # what was added cannot be taken back
        assert not np.isfinite(accumulator.get_and_reset()[place])
        assert accumulator.finite is True


def test_finite_gradients_can_have_a_sum_that_is_not() -> None:
    accumulator = ta.GradientAccumulator(2)
    large = np.array([3e38, 1.0], dtype=np.float32)
    accumulator.accumulate(large)
    assert accumulator.finite
    accumulator.accumulate(large)
    assert not accumulator.finite


def test_a_refused_gradient_does_not_count_as_poison() -> None:
    accumulator = ta.GradientAccumulator(2)
    poisoned = np.full(2, np.nan, dtype=np.float32)
    with pytest.raises(ta.ArgumentError):
        accumulator.accumulate(poisoned, -1.0)
    with pytest.raises(ta.DimensionMismatchError):
        accumulator.accumulate(poisoned[:1])
    assert (accumulator.finite, accumulator.count) == (True, 0)
    accumulator.accumulate(poisoned)
    with pytest.raises(ta.DimensionMismatchError):
        accumulator.get_and_reset(out=np.empty(3, dtype=np.float32))
    assert (accumulator.finite, accumulator.count) == (False, 1)


def test_copies_know_whether_their_sum_is_finite() -> None:
    accumulator = ta.GradientAccumulator(2)
    for wanted in (True, False):
        twins = [pickle.loads(pickle.dumps(accumulator)), copy.copy(accumulator), copy.deepcopy(accumulator)]
        assert [twin.finite for twin in twins] == [wanted] * 3
        accumulator.accumulate(np.array([1.0, np.inf], dtype=np.float32))


def test_gradients_of_any_shape_are_read_flat() -> None:
    accumulator = ta.GradientAccumulator(12)
    accumulator.accumulate(vector(12).reshape(3, 4))
    assert_same_bits(accumulator.get_and_reset(), vector(12))


def test_another_length() -> None:
    accumulator = ta.GradientAccumulator(4)
    accumulator.accumulate(vector(4))
    for n in (0, 3, 5):
        with pytest.raises(ta.DimensionMismatchError) as caught:
            accumulator.accumulate(vector(n))
        assert (caught.value.expected, caught.value.actual) == (4, n)
    assert accumulator.count == 1
    assert_same_bits(accumulator.get_and_reset(), vector(4))


@pytest.mark.parametrize("mass", [-1.0, math.nan, math.inf])
def test_a_bad_mass_changes_nothing(mass: float) -> None:
    accumulator = ta.GradientAccumulator(4)
    accumulator.accumulate(vector(4))
    with pytest.raises(ta.ArgumentError) as caught:
        accumulator.accumulate(vector(4, 1), mass)
    assert caught.value.argument == "mass"
    assert (accumulator.count, accumulator.mass) == (1, 1.0)
    assert_same_bits(accumulator.get_and_reset(), vector(4))


@pytest.mark.parametrize(
    "values",
    [np.ones(4), np.ones(8, dtype=np.float32)[::2], [1.0, 1.0, 1.0, 1.0]],
    ids=["f64", "strided", "list"],
)
def test_another_array(values: Any) -> None:
    with pytest.raises(ta.ArrayError) as caught:
        ta.GradientAccumulator(4).accumulate(values)
    assert caught.value.argument == "gradients"


@pytest.mark.parametrize("size", [-1, 2**64, 2**80])
def test_a_size_that_is_no_size(size: int) -> None:
    with pytest.raises(ta.ArgumentError) as caught:
        ta.GradientAccumulator(size)
    assert caught.value.argument == "size"


def test_a_size_that_no_memory_holds() -> None:
    with pytest.raises(ta.AllocationError):
        ta.GradientAccumulator(2**58)


def test_out_is_filled_and_returned() -> None:
    accumulator = ta.GradientAccumulator(4)
    accumulator.accumulate(vector(4))
    out = np.full(4, 99, dtype=np.float32)
    result = accumulator.get_and_reset(out=out)
    assert np.shares_memory(result, out)
    assert_same_bits(out, vector(4))


def test_a_bad_out_loses_nothing() -> None:
    accumulator = ta.GradientAccumulator(4)
    accumulator.accumulate(vector(4))
    bad: list[Any] = [np.zeros(3, dtype=np.float32), np.zeros(4), np.zeros(8, dtype=np.float32)[::2]]
    for wrong in bad:
        with pytest.raises((ta.ArrayError, ta.DimensionMismatchError)):
            accumulator.get_and_reset(out=wrong)
    assert accumulator.count == 1
    assert_same_bits(accumulator.get_and_reset(), vector(4))


def test_pickle_and_copy_in_the_middle_of_a_batch() -> None:
    original = ta.GradientAccumulator(4)
    original.accumulate(vector(4), mass=2.5)
    twins = [pickle.loads(pickle.dumps(original)), copy.copy(original), copy.deepcopy(original)]
    original.accumulate(vector(4, 1), mass=0.5)
    expected = original.get_and_reset()
    for twin in twins:
        assert (twin.size, twin.count, twin.mass) == (4, 1, 2.5)
        twin.accumulate(vector(4, 1), mass=0.5)
        assert_same_bits(twin.get_and_reset(), expected)


def test_repr_shows_size_and_count_in_one_line() -> None:
    accumulator = ta.GradientAccumulator(4)
    accumulator.accumulate(vector(4))
    text = repr(accumulator)
    assert "\n" not in text
    assert "size=4" in text
    assert "count=1" in text
