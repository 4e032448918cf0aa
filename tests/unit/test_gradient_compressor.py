"""GradientCompressor and what it returns: arguments, arrays, errors, and each scaling on average."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import tritter_accel as ta
from tests.reference import compression
from tests.reference.floats import assert_same_bits

Float32Array = NDArray[np.float32]
Compress = Callable[..., Any]


def vector(n: int, seed: int = 0) -> Float32Array:
    return np.random.default_rng(seed).standard_normal(n).astype(np.float32)


def method(name: str, **options: Any) -> Compress:
    compress: Compress = getattr(ta.GradientCompressor(ta.TrainingConfig(**options)), name)
    return compress


both = pytest.mark.parametrize("name", ["compress", "compress_ternary"])


# What comes back


def test_the_default_config() -> None:
    assert ta.GradientCompressor().config == ta.TrainingConfig()
    assert ta.GradientCompressor(ta.TrainingConfig(seed=3)).config.seed == 3


def test_compressed_gradient() -> None:
    compressed = ta.GradientCompressor(ta.TrainingConfig(0.25, 9)).compress(vector(1000), step=3, slot=4)
    assert compressed.data.dtype == np.float32
    assert compressed.data.shape == (250,)
    assert (compressed.original_dim, compressed.compressed_dim, len(compressed)) == (1000, 250, 250)
    assert (compressed.seed, compressed.ratio) == (9, 0.25)
    assert (compressed.step, compressed.slot, compressed.scaling) == (3, 4, "reference")


def test_ternary_compressed_gradient() -> None:
    ternary = ta.GradientCompressor(ta.TrainingConfig(0.25, 9)).compress_ternary(vector(1000), step=3, slot=4)
    assert ternary.data.dtype == np.int8
    assert set(np.unique(ternary.data)) == {-1, 0, 1}
    assert (ternary.original_dim, ternary.compressed_dim, len(ternary)) == (1000, 250, 250)
    assert (ternary.seed, ternary.step, ternary.slot, ternary.scaling) == (9, 3, 4, "reference")
    assert ternary.compression_ratio() == pytest.approx(32 * 1000 / (2 * 250 + 32), rel=1e-6)


def test_ratio_is_the_one_requested_even_where_64_dimensions_are_the_least() -> None:
    compressed = ta.GradientCompressor().compress(vector(100), 0.01)
    assert compressed.compressed_dim == 64
    assert np.float32(compressed.ratio) == np.float32(0.01)


def test_ratio_none_takes_the_config() -> None:
    compressor = ta.GradientCompressor(ta.TrainingConfig(0.5))
    assert compressor.compress(vector(1000), None).compressed_dim == 500
    assert compressor.compress(vector(1000), 0.25).compressed_dim == 250
    assert compressor.compressed_dim(1000) == 500
    assert compressor.compressed_dim(1000, 0.25) == 250
    assert compressor.config.default_compression_ratio == 0.5


def test_an_empty_gradient_compresses_to_zeros_and_back_to_nothing() -> None:
    compressor = ta.GradientCompressor()
    empty = np.zeros(0, dtype=np.float32)
    compressed = compressor.compress(empty)
    assert_same_bits(compressed.data, np.zeros(64, dtype=np.float32))
    assert compressor.decompress(compressed).shape == (0,)
    ternary = compressor.compress_ternary(empty)
    assert not ternary.data.any()
    assert compressor.decompress_ternary(ternary).shape == (0,)


@pytest.mark.parametrize("form", ["reference", "least_squares", "unbiased"])
def test_a_zero_gradient_is_ternary_zero_with_scale_one(form: compression.QuantizerScale) -> None:
    compressor = ta.GradientCompressor(ta.TrainingConfig(quantizer_scale=form))
    ternary = compressor.compress_ternary(np.zeros(100, dtype=np.float32))
    assert not ternary.data.any()
    assert ternary.scale == 1.0
    assert_same_bits(compressor.decompress_ternary(ternary), np.zeros(100, dtype=np.float32))


# Steps and slots


@both
def test_step_0_slot_0_is_the_default(name: str) -> None:
    values = vector(500)
    np.testing.assert_array_equal(
        method(name)(values).data, method(name)(values, step=0, slot=0).data, strict=True
    )


def test_every_step_slot_and_seed_has_its_own_matrix() -> None:
    values = vector(500)
    calls = [
        (seed, step, slot)
        for seed in (0, 1, 2**32, 2**64 - 1)
        for step in (0, 1, 2**32 - 1)
        for slot in (0, 1, 2**32 - 1)
    ]
    results = {method("compress", seed=s)(values, step=t, slot=u).data.tobytes() for s, t, u in calls}
    assert len(results) == len(calls)


def test_decompress_uses_the_step_slot_and_scaling_that_the_object_carries() -> None:
    values = vector(300)
    sender = ta.GradientCompressor(ta.TrainingConfig(scaling="unbiased"))
    compressed = sender.compress(values, step=5, slot=6)
    receiver = ta.GradientCompressor(ta.TrainingConfig(scaling="contractive"))
    restored = receiver.decompress(compressed)
    expected = compression.decompress(compressed.data, 300, seed=42, step=5, slot=6, scaling="unbiased")
    assert_same_bits(restored, expected)


@both
@pytest.mark.parametrize("argument", ["step", "slot"])
def test_step_and_slot_are_u32(name: str, argument: str) -> None:
    for value in (-1, 2**32, 2**64):
        with pytest.raises(ta.ArgumentError, match=rf"^argument {argument}: ") as caught:
            method(name)(vector(10), **{argument: value})
        assert caught.value.argument == argument
    with pytest.raises(ta.ArgumentTypeError) as wrong_type:
        method(name)(vector(10), **{argument: 1.5})
    assert wrong_type.value.argument == argument


# Arrays


@both
def test_any_number_of_dimensions_is_read_flat_in_c_order(name: str) -> None:
    values = vector(240).reshape(2, 3, 40)
    nested, flat = method(name)(values), method(name)(values.reshape(-1))
    np.testing.assert_array_equal(nested.data, flat.data, strict=True)
    assert nested.original_dim == 240


@both
def test_a_read_only_input_is_fine(name: str) -> None:
    values = vector(100)
    values.setflags(write=False)
    assert method(name)(values).original_dim == 100


@both
@pytest.mark.parametrize(
    ("values", "mend"),
    [
        (vector(100).astype(np.float64), "astype(np.float32)"),
        (np.arange(100), "astype(np.float32)"),
        (vector(100).astype(np.float16), "astype(np.float32)"),
        (vector(100).astype(">f4"), "astype(np.float32)"),
        (vector(200)[::2], "np.ascontiguousarray"),
        (vector(100)[::-1], "np.ascontiguousarray"),
        (np.asfortranarray(vector(100).reshape(10, 10)), "np.ascontiguousarray"),
    ],
    ids=["float64", "int64", "float16", "big-endian", "strided", "reversed", "fortran"],
)
def test_another_array_names_the_argument_and_the_call_that_mends_it(
    name: str, values: Any, mend: str
) -> None:
    with pytest.raises(ta.ArrayError) as caught:
        method(name)(values)
    assert caught.value.argument == "gradients"
    assert "gradients" in str(caught.value)
    assert mend in str(caught.value)


@both
@pytest.mark.parametrize("values", [[1.0, 2.0], 1.0, None, "text"], ids=repr)
def test_what_is_no_array_is_an_array_error_too(name: str, values: Any) -> None:
    with pytest.raises(ta.ArrayError) as caught:
        method(name)(values)
    assert caught.value.argument == "gradients"


@both
def test_compression_leaves_its_input_alone_when_it_clips(name: str) -> None:
    values = vector(100)
    before = values.copy()
    method(name, gradient_clipping=0.5)(values)
    assert_same_bits(values, before)


# out=


def outputs(name: str) -> tuple[Callable[..., Any], NDArray[Any], NDArray[Any]]:
    """A call that takes out=, a fitting output filled with something else, and the result without out=."""
    compressor = ta.GradientCompressor(ta.TrainingConfig(0.25))
    values = vector(1000)
    compressed, ternary = compressor.compress(values), compressor.compress_ternary(values)
    calls: dict[str, tuple[Callable[..., Any], NDArray[Any]]] = {
        "compress": (lambda **out: compressor.compress(values, **out).data, compressed.data),
        "compress_ternary": (lambda **out: compressor.compress_ternary(values, **out).data, ternary.data),
        "decompress": (
            lambda **out: compressor.decompress(compressed, **out),
            compressor.decompress(compressed),
        ),
        "decompress_ternary": (
            lambda **out: compressor.decompress_ternary(ternary, **out),
            compressor.decompress_ternary(ternary),
        ),
    }
    call, expected = calls[name]
    return call, np.full_like(expected, 99), expected.copy()


all_four = pytest.mark.parametrize(
    "name", ["compress", "compress_ternary", "decompress", "decompress_ternary"]
)


@all_four
def test_out_is_filled_and_returned(name: str) -> None:
    call, out, expected = outputs(name)
    result = call(out=out)
    assert np.shares_memory(result, out)
    np.testing.assert_array_equal(out, expected)
    np.testing.assert_array_equal(result, expected)


@all_four
def test_out_of_another_length(name: str) -> None:
    call, out, _ = outputs(name)
    for wrong in (out[:-1].copy(), np.concatenate([out, out[:1]])):
        before = wrong.copy()
        with pytest.raises((ta.ArrayError, ta.DimensionMismatchError)):
            call(out=wrong)
        np.testing.assert_array_equal(wrong, before)


@all_four
def test_out_of_another_type_or_order(name: str) -> None:
    call, out, _ = outputs(name)
    read_only = out.copy()
    read_only.setflags(write=False)
    for wrong in (out.astype(np.float64), np.repeat(out, 2)[::2], read_only, out.tolist()):
        with pytest.raises(ta.ArrayError) as caught:
            call(out=wrong)
        assert caught.value.argument == "out"


def test_out_that_overlaps_an_input() -> None:
    compressor = ta.GradientCompressor()
    memory = vector(1000)
    before = memory.copy()
    with pytest.raises((ta.ArrayError, ta.ArgumentError)) as caught:
        compressor.compress(memory, out=memory[900:])
    assert caught.value.argument == "out"
    compressed = ta.CompressedGradient(memory[:64], 1000, 42, 0.05)
    with pytest.raises((ta.ArrayError, ta.ArgumentError)):
        compressor.decompress(compressed, out=memory)
    assert_same_bits(memory, before)


# Several gradients under one matrix


@pytest.mark.parametrize("count", [1, 2, 3, 8, 9, 17])
@pytest.mark.parametrize("clip", [None, 0.5])
def test_many_gradients_are_compressed_and_restored_as_each_by_itself(count: int, clip: float | None) -> None:
    compressor = ta.GradientCompressor(ta.TrainingConfig(0.25, 9, gradient_clipping=clip, scaling="unbiased"))
    gradients = vector(count * 700).reshape(count, 700)
    many = compressor.compress_many(gradients, step=3, slot=4)
    assert len(many) == count
    for row, compressed in zip(gradients, many, strict=True):
        alone = compressor.compress(row, step=3, slot=4)
        assert repr(compressed) == repr(alone)
        assert_same_bits(compressed.data, alone.data)
    restored = compressor.decompress_many(many)
    assert restored.shape == (count, 700)
    for row, compressed in zip(restored, many, strict=True):
        assert_same_bits(row, compressor.decompress(compressed))


def test_many_gradients_have_the_bits_of_the_definition() -> None:
    gradients = vector(3 * 200, 5).reshape(3, 200)
    many = ta.GradientCompressor(ta.TrainingConfig(0.5, 11)).compress_many(gradients, step=1)
    for row, compressed in zip(gradients, many, strict=True):
        assert_same_bits(compressed.data, compression.compress(row, 100, seed=11, step=1))


def test_no_gradients() -> None:
    compressor = ta.GradientCompressor()
    assert compressor.compress_many(np.zeros((0, 100), dtype=np.float32)) == []
    assert compressor.decompress_many([]).shape == (0, 0)
    empty = compressor.compress_many(np.zeros((2, 0), dtype=np.float32))
    assert [compressed.data.any() for compressed in empty] == [False, False]
    assert compressor.decompress_many(empty).shape == (2, 0)


def test_data_of_many_gradients_are_rows_of_out() -> None:
    compressor = ta.GradientCompressor(ta.TrainingConfig(0.25))
    gradients = vector(2000).reshape(2, 1000)
    out = np.zeros((2, 250), dtype=np.float32)
    many = compressor.compress_many(gradients, out=out)
    for row, compressed in zip(out, many, strict=True):
        assert np.shares_memory(row, compressed.data)
        assert_same_bits(row, compressed.data)
        assert row.any()
    back = np.zeros((2, 1000), dtype=np.float32)
    assert compressor.decompress_many(many, out=back) is back
    assert_same_bits(back, compressor.decompress_many(many))


def test_further_axes_of_many_gradients_are_read_flat() -> None:
    gradients = vector(2 * 60).reshape(2, 3, 20)
    nested = ta.GradientCompressor().compress_many(gradients)
    flat = ta.GradientCompressor().compress_many(gradients.reshape(2, 60))
    assert [x.original_dim for x in nested] == [60, 60]
    for one, other in zip(nested, flat, strict=True):
        assert_same_bits(one.data, other.data)


@pytest.mark.parametrize("shape", [(), (100,)])
def test_a_single_gradient_is_told_how_to_become_a_row(shape: tuple[int, ...]) -> None:
    with pytest.raises(ta.ArrayError, match=r"call gradients\[np.newaxis\]") as caught:
        ta.GradientCompressor().compress_many(np.ones(shape, dtype=np.float32))
    assert caught.value.argument == "gradients"


def test_a_value_that_cannot_be_clipped_is_named_by_its_flat_index() -> None:
    gradients = vector(300).reshape(3, 100)
    gradients[2, 7] = math.inf
    clipping = ta.GradientCompressor(ta.TrainingConfig(gradient_clipping=1.0))
    with pytest.raises(ta.NonFiniteError) as caught:
        clipping.compress_many(gradients)
    assert (caught.value.argument, caught.value.index) == ("gradients", 207)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"original_dim": 99}, "index 1 has original_dim 99, and index 0 has 100"),
        ({"data": vector(65)}, "index 1 has number of values 65, and index 0 has 64"),
        ({"seed": 7}, "index 1 has seed 7, and index 0 has 42"),
        ({"step": 7}, "index 1 has step 7, and index 0 has 0"),
        ({"slot": 7}, "index 1 has slot 7, and index 0 has 0"),
        ({"scaling": "unbiased"}, "index 1 has scaling 'unbiased', and index 0 has 'reference'"),
    ],
)
def test_gradients_of_different_matrices_are_not_restored_together(change: dict[str, Any], told: str) -> None:
    arguments: dict[str, Any] = {"data": vector(64), "original_dim": 100, "seed": 42, "ratio": 0.5}
    first, other = ta.CompressedGradient(**arguments), ta.CompressedGradient(**(arguments | change))
    with pytest.raises(ta.ArgumentError, match=told) as caught:
        ta.GradientCompressor().decompress_many([first, other])
    assert caught.value.argument == "compressed"


def test_many_gradients_of_another_seed() -> None:
    many = ta.GradientCompressor(ta.TrainingConfig(seed=1)).compress_many(vector(20).reshape(2, 10))
    with pytest.raises(ta.SeedMismatchError):
        ta.GradientCompressor().decompress_many(many)


@pytest.mark.parametrize("projection", ["hadamard", "topk", "none"])
def test_projections_without_a_matrix_have_nothing_to_share(projection: Any) -> None:
    config = ta.TrainingConfig(projection=projection, scaling="contractive")
    compressor = ta.GradientCompressor(config)
    for call in (lambda: compressor.compress_many(vector(200).reshape(2, 100)), lambda: compressor.plan(100)):
        with pytest.raises(
            ta.ArgumentError, match=f"got {projection}, and only the dense projection"
        ) as caught:
            call()
        assert caught.value.argument == "projection"


# Plans


@pytest.mark.parametrize("n", [0, 1, 15, 16, 17, 100, 1000, 3001])
@pytest.mark.parametrize("clip", [None, 0.5])
def test_a_plan_gives_the_bits_of_its_compressor(n: int, clip: float | None) -> None:
    compressor = ta.GradientCompressor(
        ta.TrainingConfig(0.25, 9, gradient_clipping=clip, scaling="contractive")
    )
    plan = compressor.plan(n, 0.3, step=3, slot=4)
    for seed in range(3):
        planned = plan.compress(vector(n, seed))
        anew = compressor.compress(vector(n, seed), 0.3, step=3, slot=4)
        assert repr(planned) == repr(anew)
        assert_same_bits(planned.data, anew.data)
        assert_same_bits(plan.decompress(planned), compressor.decompress(anew))


def test_a_plan_has_the_bits_of_the_definition() -> None:
    plan = ta.GradientCompressor(ta.TrainingConfig(0.5, 11)).plan(200, step=1)
    compressed = plan.compress(vector(200))
    assert_same_bits(compressed.data, compression.compress(vector(200), 100, seed=11, step=1))
    restored = compression.decompress(compressed.data, 200, seed=11, step=1)
    assert_same_bits(plan.decompress(compressed), restored)


def test_what_a_plan_says_of_itself() -> None:
    compressor = ta.GradientCompressor(ta.TrainingConfig(0.25, 9))
    plan = compressor.plan(1600, step=3, slot=4, max_bytes=10**6)
    assert (plan.original_dim, plan.compressed_dim, plan.ratio) == (1600, 400, 0.25)
    assert (plan.seed, plan.step, plan.slot, plan.max_bytes) == (9, 3, 4, 10**6)
    assert plan.nbytes == 1600 * 400 // 4
    assert plan.compressor.config == compressor.config
    assert compressor.plan(1601).nbytes == (1600 + 16) * 401 // 4


def test_a_plan_beyond_max_bytes_is_refused_with_what_it_needs() -> None:
    compressor = ta.GradientCompressor(ta.TrainingConfig(0.25))
    assert compressor.plan(1600, max_bytes=160_000).nbytes == 160_000
    with pytest.raises(ta.ArgumentError, match=r"got 159999, .* 1600 x 400 .* 160000 bytes") as caught:
        compressor.plan(1600, max_bytes=159_999)
    assert caught.value.argument == "max_bytes"
    with pytest.raises(ta.ArgumentError, match=r"got 1073741824, .* takes 250000000000 bytes"):
        ta.GradientCompressor().plan(10**6, 1.0)
    for n in (2**40, 2**63, 2**64 - 1):
        with pytest.raises(ta.ArgumentError, match="max_bytes"):
            compressor.plan(n)


def test_a_plan_refuses_what_another_matrix_made() -> None:
    compressor = ta.GradientCompressor()
    plan = compressor.plan(1000, step=3)
    with pytest.raises(ta.DimensionMismatchError):
        plan.compress(vector(999))
    with pytest.raises(ta.DimensionMismatchError):
        plan.decompress(compressor.compress(vector(999), step=3))
    with pytest.raises(ta.DimensionMismatchError):
        plan.decompress(compressor.compress(vector(1000), 0.2, step=3))
    with pytest.raises(ta.SeedMismatchError):
        plan.decompress(ta.GradientCompressor(ta.TrainingConfig(seed=1)).compress(vector(1000), step=3))
    with pytest.raises(ta.ArgumentError, match="is of step 0, and the plan of step 3"):
        plan.decompress(compressor.compress(vector(1000)))
    with pytest.raises(ta.ArgumentError, match="is of slot 1, and the plan of slot 0"):
        plan.decompress(compressor.compress(vector(1000), step=3, slot=1))


def test_a_plan_takes_the_scaling_from_what_it_restores() -> None:
    unbiased = ta.GradientCompressor(ta.TrainingConfig(scaling="unbiased")).compress(vector(1000))
    compressor = ta.GradientCompressor()
    assert_same_bits(compressor.plan(1000).decompress(unbiased), compressor.decompress(unbiased))


def test_a_plan_pickles_as_its_arguments_and_is_shared_by_its_copies() -> None:
    plan = ta.GradientCompressor(ta.TrainingConfig(0.25, 9)).plan(4000, step=3)
    assert plan.nbytes == 10**6
    text = pickle.dumps(plan)
    assert len(text) < 1000
    assert_same_bits(pickle.loads(text).compress(vector(4000)).data, plan.compress(vector(4000)).data)
    assert copy.copy(plan) is plan
    assert copy.deepcopy(plan) is plan


# Errors


def test_seed_mismatch_carries_both_seeds() -> None:
    compressed = ta.GradientCompressor(ta.TrainingConfig(seed=2**64 - 1)).compress(vector(10))
    with pytest.raises(ta.SeedMismatchError) as caught:
        ta.GradientCompressor(ta.TrainingConfig(seed=0)).decompress(compressed)
    assert (caught.value.compress, caught.value.decompress) == (2**64 - 1, 0)


def test_trits_and_compressed_dim_must_agree() -> None:
    trits = np.zeros(64, dtype=np.int8)
    with pytest.raises(ta.DimensionMismatchError):
        ta.GradientCompressor().decompress_ternary(ta.TernaryCompressedGradient(trits, 1.0, 100, 65, 42))


@pytest.mark.parametrize(("index", "value"), [(0, math.nan), (77, math.inf), (199, -math.inf)])
def test_a_gradient_that_is_not_finite_passes_plain_and_is_refused_elsewhere(
    index: int, value: float
) -> None:
    values = vector(200)
    values[index] = value
    plain = ta.GradientCompressor().compress(values)
    assert not np.isfinite(plain.data).all()
    clipping = ta.GradientCompressor(ta.TrainingConfig(gradient_clipping=1.0))
    for call in (
        ta.GradientCompressor().compress_ternary,
        clipping.compress,
        clipping.compress_ternary,
        lambda gradients: ta.clip_gradients(gradients, 1.0),
    ):
        with pytest.raises(ta.NonFiniteError) as caught:
            call(values)
        assert (caught.value.argument, caught.value.index) == ("gradients", index)
        assert caught.value.value == value or (math.isnan(caught.value.value) and math.isnan(value))


def test_the_first_value_that_is_not_finite_is_the_one_reported() -> None:
    values = vector(10_000)
    values[[8000, 4500, 9999]] = [math.nan, math.inf, -math.inf]
    with pytest.raises(ta.NonFiniteError) as caught:
        ta.GradientCompressor().compress_ternary(values)
    assert (caught.value.index, caught.value.value) == (4500, math.inf)


def test_finite_gradients_whose_projection_overflows_are_not_made_ternary() -> None:
    values = np.full(64, 3.4e38, dtype=np.float32)
    plain = ta.GradientCompressor().compress(values)
    assert not np.isfinite(plain.data).all()
    with pytest.raises(ta.NonFiniteError):
        ta.GradientCompressor().compress_ternary(values)


@pytest.mark.parametrize("limit", [-1.0, math.nan])
def test_clip_gradients_refuses_a_bad_limit(limit: float) -> None:
    with pytest.raises(ta.ArgumentError) as caught:
        ta.clip_gradients(vector(10), limit)
    assert caught.value.argument == "max_norm"


def test_clip_gradients_scales_to_the_limit_and_into_out() -> None:
    values = vector(1000)
    out = np.zeros_like(values)
    clipped = ta.clip_gradients(values, 0.5, out=out)
    assert np.shares_memory(clipped, out)
    np.testing.assert_allclose(out, values * (0.5 / np.linalg.norm(values.astype(np.float64))), rtol=1e-6)
    assert ta.gradient_norm(out) == pytest.approx(0.5, rel=1e-6)
    assert ta.gradient_norm(np.zeros(0, dtype=np.float32)) == 0.0


def test_clip_gradients_in_place_gives_the_norm_and_what_the_other_form_gives() -> None:
    for values in (vector(1000), vector(300_006).reshape(7, -1)):
        clipped = ta.clip_gradients(values, 0.5)
        norm = ta.gradient_norm(values)
        assert ta.clip_gradients_(values, 0.5) == norm
        assert_same_bits(values, clipped)
        assert ta.clip_gradients_(values, 10.0) == pytest.approx(0.5, rel=1e-6)
        assert_same_bits(values, clipped)
    assert ta.clip_gradients_(np.zeros(0, dtype=np.float32), 0.0) == 0.0


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_clip_gradients_in_place_refuses_what_it_cannot_scale_and_changes_nothing(poison: float) -> None:
    values = vector(1000)
    values[700] = poison
    before = values.copy()
    with pytest.raises(ta.NonFiniteError) as caught:
        ta.clip_gradients_(values, 0.5)
    assert (caught.value.argument, caught.value.index) == ("gradients", 700)
    assert_same_bits(values, before)


# Value semantics


def test_compressed_objects_are_frozen() -> None:
    compressor = ta.GradientCompressor()
    for compressed in (compressor.compress(vector(100)), compressor.compress_ternary(vector(100))):
        for name in ("data", "original_dim", "seed", "step", "slot", "scaling"):
            with pytest.raises(AttributeError):
                setattr(compressed, name, 1)


@both
def test_compressed_objects_pickle_and_copy(name: str) -> None:
    original = method(name, scaling="unbiased")(vector(300), step=3, slot=4)
    names = ["original_dim", "compressed_dim", "seed", "step", "slot", "scaling"]
    names.append("ratio" if name == "compress" else "scale")
    for twin in (pickle.loads(pickle.dumps(original)), copy.copy(original), copy.deepcopy(original)):
        assert type(twin) is type(original)
        np.testing.assert_array_equal(twin.data, original.data, strict=True)
        assert [getattr(twin, field) for field in names] == [getattr(original, field) for field in names]
    assert not np.shares_memory(copy.deepcopy(original).data, original.data)


@both
def test_repr_is_one_line_and_does_not_print_the_data(name: str) -> None:
    text = repr(method(name)(vector(10_000), step=17))
    assert "\n" not in text
    assert len(text) < 250
    assert "10000" in text
    assert "seed=42" in text


def test_a_compressor_pickles_and_copies_to_one_that_works_alike() -> None:
    original = ta.GradientCompressor(ta.TrainingConfig(0.3, 5, scaling="contractive"))
    values = vector(300)
    for twin in (pickle.loads(pickle.dumps(original)), copy.copy(original), copy.deepcopy(original)):
        assert twin.config == original.config
        assert_same_bits(twin.compress(values).data, original.compress(values).data)
    assert "\n" not in repr(original)
    assert "seed=5" in repr(original)


# What the scalings promise. With entries of density p = 0.32 the unbiased factor 1 / sqrt(p k) has a mean
# squared error of (n - 2 + 1/p) / k of the energy; the contractive factor is its least-squares multiple.

N, K, STEPS = 200, 64, 2000


def restored_over_steps(scaling: compression.Scaling) -> tuple[Float32Array, NDArray[np.float64]]:
    values = vector(N, seed=12)
    compressor = ta.GradientCompressor(ta.TrainingConfig(K / N, scaling=scaling))
    restored = [compressor.decompress(compressor.compress(values, step=step)) for step in range(STEPS)]
    return values, np.array(restored, dtype=np.float64)


@pytest.mark.parametrize(
    ("scaling", "share", "nmse"),
    [
        ("reference", 0.32 * K / N, None),
        ("unbiased", 1.0, (N + 1.125) / K),
        ("contractive", K / (K + N + 1.125), 1 - K / (K + N + 1.125)),
    ],
)
def test_scalings_give_their_share_and_their_error_on_average(
    scaling: compression.Scaling, share: float, nmse: float | None
) -> None:
    values, restored = restored_over_steps(scaling)
    energy = float(values.astype(np.float64) @ values)
    mean = restored.mean(axis=0)
    # The mean tends to share * values ...
    assert float(mean @ values) / energy == pytest.approx(share, rel=0.02)
    # ... and what is left of it around that falls as 1 / steps: the draws of different steps are independent.
    spread = float(((restored - share * values) ** 2).sum(axis=1).mean()) / energy
    left = float(((mean - share * values) ** 2).sum()) / energy
    assert 0.5 < left * STEPS / spread < 1.6
    if nmse is not None:
        measured = float(((restored - values) ** 2).sum(axis=1).mean()) / energy
        assert measured == pytest.approx(nmse, rel=0.03)


@pytest.mark.parametrize(("form", "nmse"), [("reference", 0.263), ("least_squares", 0.190)])
def test_quantiser_scales_lose_what_they_say_on_gaussian_data(
    form: compression.QuantizerScale, nmse: float
) -> None:
    """A projected vector is near Gaussian, so the error of its trits is the quantiser's on Gaussian data."""
    compressor = ta.GradientCompressor(ta.TrainingConfig(1.0, quantizer_scale=form))
    values = vector(3000)
    y = compressor.compress(values).data.astype(np.float64)
    ternary = compressor.compress_ternary(values)
    error = y - ternary.data * float(ternary.scale)
    assert float(error @ error) / float(y @ y) == pytest.approx(nmse, abs=0.012)


def test_the_unbiased_quantiser_keeps_the_inner_product() -> None:
    compressor = ta.GradientCompressor(ta.TrainingConfig(0.5, quantizer_scale="unbiased"))
    values = vector(2000)
    y = compressor.compress(values).data.astype(np.float64)
    ternary = compressor.compress_ternary(values)
    assert float(ternary.scale) * float(ternary.data @ y) == pytest.approx(float(y @ y), rel=1e-6)
