"""The package against the golden file: to the bit, and by the stated tolerance where it sums in float64.

The keystream has no public name; every projection row pins it, and the rows differ in seed.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

import tritter_accel as ta
from tests.reference.floats import assert_same_bits, from_hex
from tests.reference.training_golden import (
    GOLDEN,
    PROJECTION_NAMES,
    PROJECTIONS,
    Projection,
    generated_input,
    sequential_sum,
)
from tritter_accel import mixed_precision

RATIO_ERRORS = GOLDEN["errors"][:-2]


def compressor(row: Projection) -> ta.GradientCompressor:
    return ta.GradientCompressor(ta.TrainingConfig(row.ratio, row.seed, row.clip))


def clip_tolerance(row: Projection) -> float:
    """How far a row may be off because the golden norm is a float32 sum: 1.07e-6 off itself at n = 30011."""
    return 1e-6 if row.n <= 1000 else 5e-6


@pytest.mark.parametrize(
    "row", GOLDEN["compressed_dim_n_ratio_k"], ids=lambda row: f"n{row[0]}-ratio{row[1]:.3g}"
)
def test_compressed_dim(row: tuple[int, float, int]) -> None:
    n, ratio, k = row
    assert ta.GradientCompressor().compressed_dim(n, ratio) == k
    assert ta.GradientCompressor(ta.TrainingConfig(ratio)).compressed_dim(n) == k


@pytest.mark.parametrize("row", PROJECTIONS, ids=PROJECTION_NAMES)
class TestProjection:
    def test_compress(self, row: Projection) -> None:
        compressed = compressor(row).compress(row.gradients)
        if row.clips:
            tolerance = clip_tolerance(row) * float(np.abs(row.compressed).max())
            np.testing.assert_allclose(compressed.data, row.compressed, rtol=0, atol=tolerance)
        else:
            assert_same_bits(compressed.data, row.compressed)
        assert compressed.original_dim == row.n
        assert compressed.compressed_dim == row.k
        assert compressed.seed == row.seed
        assert compressed.ratio == row.ratio
        assert (compressed.step, compressed.slot, compressed.scaling) == (0, 0, "reference")

    def test_decompress(self, row: Projection) -> None:
        compressed = ta.CompressedGradient(row.compressed, row.n, row.seed, row.ratio)
        restored = compressor(row).decompress(compressed)
        assert restored.shape == (row.n,)
        if row.decompressed is not None:
            assert_same_bits(restored, row.decompressed)
        assert_same_bits(restored[:64], row.decompressed_first)
        assert_same_bits(restored[-64:], row.decompressed_last)
        assert sequential_sum(restored) == row.decompressed_sum

    def test_ternary(self, row: Projection) -> None:
        ternary = compressor(row).compress_ternary(row.gradients)
        assert ternary.data.dtype == np.int8
        np.testing.assert_array_equal(ternary.data, row.trits)
        rtol = 3e-6 if row.clips else 1e-6
        np.testing.assert_allclose(ternary.scale, row.scale, rtol=rtol)
        assert (ternary.original_dim, ternary.compressed_dim, ternary.seed) == (row.n, row.k, row.seed)
        assert np.float32(ternary.compression_ratio()) == row.compression_ratio

    def test_ternary_decompress(self, row: Projection) -> None:
        ternary = ta.TernaryCompressedGradient(row.trits, float(row.scale), row.n, row.k, row.seed)
        restored = compressor(row).decompress_ternary(ternary)
        assert restored.shape == (row.n,)
        assert_same_bits(restored[:64], row.ternary_decompressed_first)
        assert sequential_sum(restored) == row.ternary_decompressed_sum


def test_accumulator() -> None:
    accumulator = ta.GradientAccumulator(7)
    for seed in range(100, 105):
        accumulator.accumulate(generated_input(7, seed))
    assert_same_bits(accumulator.get_and_reset(), from_hex(GOLDEN["accumulator"]["mean"]))


@pytest.mark.parametrize(("value", "half", "back"), GOLDEN["bf16_truncate_in_out_back"])
class TestBf16Truncation:
    def test_arrays(self, value: str, half: str, back: str) -> None:
        halves = mixed_precision.convert_to_bf16(from_hex(value))
        assert halves.dtype == np.uint16
        assert [f"{int(bits):04x}" for bits in halves] == [half]
        restored = mixed_precision.convert_from_bf16(halves)
        assert f"{restored.view(np.uint32)[0]:08x}" == back

    def test_scalars(self, value: str, half: str, back: str) -> None:
        number = from_hex(value)[0]
        if value == "7f800001":
            # A Python float is a float64, and widening a signalling NaN makes it quiet before the call.
            assert mixed_precision.f32_to_bf16(float(number)) == 0x7FC0
            return
        bits = mixed_precision.f32_to_bf16(float(number))
        assert f"{bits:04x}" == half
        assert_same_bits(np.array([mixed_precision.bf16_to_f32(bits)], dtype=np.float32), from_hex(back))


def test_loss_scaler() -> None:
    scaler = mixed_precision.LossScaler()
    scales = [scaler.scale]
    for i in range(9000):
        scaler.update(i % 3001 == 1500)
        if i % 500 == 499:
            scales.append(scaler.scale)
    assert scales == GOLDEN["loss_scaler"]["scales"]


def test_safe_clip() -> None:
    values = np.array([np.nan, np.inf, -np.inf, -3.0, 0.5, 3.0], dtype=np.float32)
    mixed_precision.safe_clip(values, -1.0, 1.0)
    assert_same_bits(values, np.array(GOLDEN["safe_clip"]["out"], dtype=np.float32))


@pytest.mark.parametrize(("text", "message"), RATIO_ERRORS, ids=[text for text, _ in RATIO_ERRORS])
@pytest.mark.parametrize(
    "call",
    [
        lambda ratio: ta.TrainingConfig(ratio),
        lambda ratio: ta.TrainingConfig().with_compression_ratio(ratio),
        lambda ratio: ta.GradientCompressor().compress(np.ones(4, dtype=np.float32), ratio),
        lambda ratio: ta.GradientCompressor().compress_ternary(np.ones(4, dtype=np.float32), ratio),
        lambda ratio: ta.GradientCompressor().compressed_dim(4, ratio),
    ],
    ids=["config", "with_compression_ratio", "compress", "compress_ternary", "compressed_dim"],
)
def test_ratio_messages(call: Callable[[float], object], text: str, message: str) -> None:
    with pytest.raises(ta.InvalidRatioError, match=f"^{re.escape(message)}$") as caught:
        call(float(text))
    assert np.float32(caught.value.ratio) == np.float32(text)
    assert np.signbit(caught.value.ratio) == np.signbit(np.float32(text))


def test_nan_ratio_prints_as_the_others_do() -> None:
    with pytest.raises(ta.InvalidRatioError, match=r"^invalid compression ratio NaN: must be in \(0, 1\]$"):
        ta.TrainingConfig(float("nan"))


def test_dimension_mismatch_message() -> None:
    messages = dict(GOLDEN["errors"])
    wanted = messages["DimensionMismatch(expected=4, actual=3)"]
    with pytest.raises(ta.DimensionMismatchError, match=f"^{re.escape(wanted)}$"):
        ta.GradientAccumulator(4).accumulate(np.ones(3, dtype=np.float32))


def there_and_back(
    form: str, sender: ta.GradientCompressor, receiver: ta.GradientCompressor, gradients: NDArray[np.float32]
) -> NDArray[np.float32]:
    if form == "plain":
        return receiver.decompress(sender.compress(gradients))
    return receiver.decompress_ternary(sender.compress_ternary(gradients))


@pytest.mark.parametrize("form", ["plain", "ternary"])
def test_seed_mismatch_message(form: str) -> None:
    wanted = dict(GOLDEN["errors"])["SeedMismatch(compress=42, decompress=7)"]
    sender = ta.GradientCompressor(ta.TrainingConfig(seed=42))
    receiver = ta.GradientCompressor(ta.TrainingConfig(seed=7))
    gradients = np.ones(4, dtype=np.float32)
    with pytest.raises(ta.SeedMismatchError, match=f"^{re.escape(wanted)}$"):
        there_and_back(form, sender, receiver, gradients)
