"""The reference of codec and wire format against itself and closed forms. Runs without the package: it judges the
judge.

Round trips, orthogonality, means and errors on average, the conditions of Lloyd and Max, bytes spelled by hand, and
the golden and hostile files.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.data import make_hostile, make_wire
from tests.reference import codec, compression, wire
from tests.reference.compression import Float32Array, QuantizerScale, Scaling
from tests.reference.floats import assert_same_bits
from tests.reference.wire import Header, Message, RefusedError, Settings
from tests.reference.wire_inputs import INPUTS, cubes

SETTINGS = settings(
    derandomize=True, deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow]
)
LENGTHS = [0, 1, 2, 3, 5, 63, 64, 65, 100, 127, 128, 4095, 4096, 4097, 8191, 8192, 10000]
GOLDEN = make_wire.load()
HOSTILE = make_hostile.load()


def gaussian(n: int, seed: int = 0) -> Float32Array:
    return np.random.default_rng(seed).standard_normal(n).astype(np.float32)


def energy(values: NDArray[np.float32] | NDArray[np.float64]) -> float:
    wide = values.astype(np.float64)
    return float(wide @ wide)


# The Hadamard projection


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("scaling", wire.SCALINGS)
def test_hadamard_at_ratio_1_gives_the_gradient_back(n: int, scaling: Scaling) -> None:
    g = gaussian(n)
    y = codec.hadamard_compress(g, n, seed=3, step=2, slot=1, scaling=scaling)
    assert energy(y) == pytest.approx(energy(g), rel=1e-6)
    x = codec.hadamard_decompress(y, n, seed=3, step=2, slot=1, scaling=scaling)
    np.testing.assert_allclose(x, g, rtol=0, atol=2e-6)


@pytest.mark.parametrize("n", [1, 2, 3, 5, 63, 64, 65, 96, 100, 127])
def test_hadamard_is_orthonormal_and_the_way_back_is_its_transpose(n: int) -> None:
    identity = np.eye(n, dtype=np.float32)
    there = np.array([codec.hadamard_compress(row, n, seed=9) for row in identity]).astype(np.float64)
    back = np.array([codec.hadamard_decompress(row, n, seed=9) for row in identity]).astype(np.float64)
    np.testing.assert_allclose(there @ there.T, np.eye(n), atol=1e-6)
    np.testing.assert_allclose(there.T, back, atol=1e-6)


@pytest.mark.parametrize(("n", "k"), [(100, 64), (4196, 64), (10000, 777), (300001, 64)])
def test_hadamard_keeps_k_rows_spread_over_the_segments(n: int, k: int) -> None:
    times = np.zeros(n)
    for step in range(20):
        plan = codec.hadamard_plan(n, k, 5, step, 0)
        assert sorted(set(plan.kept)) == sorted(plan.kept)
        assert plan.kept.size == k == sum(plan.kept_of_segment)
        assert sorted(plan.order) == list(range(plan.block))
        times[plan.kept] += 1
    assert times.sum() == 20 * k


SHAPES: dict[str, Callable[[int], NDArray[np.float64]]] = {
    "gaussian": lambda n: np.random.default_rng(1).standard_normal(n),
    "heavy": lambda n: np.random.default_rng(2).standard_t(1.5, n),
    "first": lambda n: np.eye(1, n, 0)[0],
    "last": lambda n: np.eye(1, n, n - 1)[0],
    "constant": np.ones,
    "two spikes": lambda n: np.eye(1, n, 0)[0] - 0.5 * np.eye(1, n, n - 1)[0],
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("n", "k", "steps"), [(100, 64, 800), (1000, 100, 800), (4097, 410, 400)])
def test_hadamard_means_and_errors(shape: str, n: int, k: int, steps: int) -> None:
    g = SHAPES[shape](n).astype(np.float32)
    for scaling, share, nmse in (("unbiased", 1.0, n / k - 1), ("contractive", k / n, 1 - k / n)):
        errors, mean = [], np.zeros(n)
        for step in range(steps):
            y = codec.hadamard_compress(g, k, seed=1, step=step, scaling=scaling)  # type: ignore[arg-type]
            x = codec.hadamard_decompress(y, n, seed=1, step=step, scaling=scaling)  # type: ignore[arg-type]
            errors.append(energy(x.astype(np.float64) - g) / energy(g))
            mean += x
        mean /= steps
        assert np.mean(errors) == pytest.approx(nmse, rel=0.03)
        assert float(mean @ g) / energy(g) == pytest.approx(share, rel=0.03)
        # What is left of the mean falls as 1 / steps.
        spread = np.mean(errors) - (1 - share) ** 2
        assert energy(mean - share * g) / energy(g) < 2 * spread / steps


def test_a_value_that_is_not_finite_and_of_which_nothing_is_sent_is_refused() -> None:
    n, k = 300001, 64
    plan = codec.hadamard_plan(n, k, 42, 0, 0)
    refused = 0
    for a in range(plan.blocks - 1):
        g = np.zeros(n, dtype=np.float32)
        g[a * plan.block + 7] = np.nan
        if plan.kept_of_segment[a]:
            y = codec.hadamard_compress(g, k, seed=42)
            assert np.isnan(y).sum() == plan.kept_of_segment[a]
        else:
            refused += 1
            with pytest.raises(codec.NotFiniteError):
                codec.hadamard_compress(g, k, seed=42)
    assert refused > 0


# The largest values


@given(
    n=st.sampled_from([1, 2, 99, 100, 4095, 4096, 4097, 9000]),
    ratio=st.floats(2.0**-20, 1, width=32),
    seed=st.integers(0, 99),
)
@SETTINGS
def test_topk_takes_the_largest_of_each_chunk(n: int, ratio: float, seed: int) -> None:
    g = gaussian(n, seed)
    indices, values = codec.topk_compress(g, ratio)
    assert indices.size == values.size == codec.topk_dim(n, ratio)
    x = codec.topk_decompress(indices, values, n, ratio)
    sent = x != 0
    assert_same_bits(x[sent], g[sent])
    for first in range(0, n, 4096):
        of_chunk = slice(first, first + 4096)
        magnitudes, taken = np.abs(g[of_chunk]), sent[of_chunk]
        count = max(1, math.ceil(magnitudes.size * ratio))
        assert taken.sum() == count
        assert count == magnitudes.size or magnitudes[taken].min() >= magnitudes[~taken].max()


def test_topk_of_equal_values_takes_the_first_and_a_nan_before_infinity() -> None:
    g = np.array([1, -1, 1, -1, 0, np.inf, np.nan, -np.inf], dtype=np.float32)
    assert list(codec.topk_compress(g, 1 / 8)[0]) == [6]
    assert list(codec.topk_compress(g, 3 / 8)[0]) == [5, 6, 7]
    assert list(codec.topk_compress(g, 5 / 8)[0]) == [0, 1, 5, 6, 7]


# Quantisers


@pytest.mark.parametrize("quantize", ["levels2", "levels4"])
def test_levels_are_those_of_lloyd_and_max(quantize: codec.Quantize) -> None:
    """Each level is the mean of a standard Gaussian between the midpoints on either side of it."""
    levels = [float(level) for level in codec.POSITIVE_LEVELS[quantize]]
    limits = [0.0, *((a + b) / 2 for a, b in pairwise(levels)), math.inf]

    def density(x: float) -> float:
        return math.exp(-x * x / 2) / math.sqrt(2 * math.pi)

    def below(x: float) -> float:
        return (1 + math.erf(x / math.sqrt(2))) / 2

    for level, (low, high) in zip(levels, pairwise(limits), strict=True):
        centre = (density(low) - density(high)) / (below(high) - below(low))
        assert level == pytest.approx(centre, abs=3e-7)


@pytest.mark.parametrize(
    ("quantize", "nmse"), [("ternary", 0.190), ("sign", 0.3634), ("levels2", 0.1175), ("levels4", 0.009497)]
)
def test_quantisers_on_gaussian_data(quantize: codec.Quantize, nmse: float) -> None:
    v = gaussian(200_000, 7).astype(np.float64)
    values = v.astype(np.float32)

    def restored(form: QuantizerScale) -> NDArray[np.float64]:
        scales, digits = codec.quantise(values, quantize, form, None)
        return codec.dequantise(scales, digits, quantize, None).astype(np.float64)

    q = restored("least_squares")
    assert energy(v - q) / energy(v) == pytest.approx(nmse, rel=0.02)
    assert abs(float((v - q) @ q)) < 1e-6 * energy(v)
    assert float(restored("unbiased") @ v) == pytest.approx(energy(v), rel=1e-6)
    if quantize != "ternary":
        np.testing.assert_array_equal(restored("reference"), q)


@pytest.mark.parametrize("quantize", codec.SCALED)
@pytest.mark.parametrize("form", wire.QUANTIZER_SCALES)
def test_every_block_is_quantised_by_itself(quantize: codec.Quantize, form: QuantizerScale) -> None:
    values = gaussian(500, 3)
    scales, digits = codec.quantise(values, quantize, form, 192)
    assert scales.size == 3
    for i, first in enumerate((0, 192, 384)):
        scale, of_block = codec.quantise(values[first : first + 192], quantize, form, None)
        assert_same_bits(scales[i : i + 1], scale)
        np.testing.assert_array_equal(digits[first : first + 192], of_block)


@pytest.mark.parametrize("quantize", codec.SCALED)
@pytest.mark.parametrize("form", wire.QUANTIZER_SCALES)
def test_quantised_zeros_are_zeros(quantize: codec.Quantize, form: QuantizerScale) -> None:
    scales, digits = codec.quantise(np.zeros(100, dtype=np.float32), quantize, form, 64)
    assert list(scales) == ([1.0, 1.0] if quantize == "ternary" else [0.0, 0.0])
    assert not codec.dequantise(scales, digits, quantize, 64).any()


def test_a_small_value_is_quantised_by_its_own_scale_unless_as_the_reference_has_it() -> None:
    values = np.array([1e-20, -3e-20, 2e-20], dtype=np.float32)
    assert list(compression.quantise(values, "least_squares").trits) == [0, -1, 1]
    reference = compression.quantise(values)
    assert list(reference.trits) == [0, 0, 0]
    assert float(reference.scale) == 1.0


def test_a_scale_beyond_float32_is_refused() -> None:
    top = float(np.finfo(np.float32).max)
    values = np.array([0.61 * top] * 50 + [top] * 50, dtype=np.float32)
    with pytest.raises(codec.NotFiniteError, match="scale"):
        codec.quantise(values, "ternary", "unbiased", None)


# Packing


@pytest.mark.parametrize("quantize", codec.SCALED)
@pytest.mark.parametrize("m", [1, 2, 5, 63, 64, 65, 99, 127, 128, 129, 319, 320, 321, 512, 513, 1000])
def test_digits_pack_and_unpack(quantize: codec.Quantize, m: int) -> None:
    base, planes = codec.BASE_AND_PLANES[quantize]
    digits = np.random.default_rng(m).integers(0, base, m).astype(np.uint8)
    packed = codec.pack(digits, quantize)
    assert packed.size == codec.packed_size(m, quantize) == -(-m // planes)
    unpacked, clean = codec.unpack(packed, m, quantize)
    np.testing.assert_array_equal(unpacked, digits)
    assert clean
    assert packed.max() <= base**planes - 1


def test_packing_by_hand() -> None:
    assert list(codec.pack(np.array([2, 1, 0, 2, 1, 2], dtype=np.uint8), "ternary")) == [
        2 + 0 + 9,
        1 + 6 + 18,
    ]
    assert list(codec.pack(np.array([3, 1, 2], dtype=np.uint8), "levels2")) == [3 + 4 + 32]
    assert list(codec.pack(np.array([9, 15, 1], dtype=np.uint8), "levels4")) == [9 + 16, 15]
    assert codec.pack_indices(np.array([1, 0x234, 0xFFF], dtype=np.uint16)).hex() == "014023ff0f"
    assert list(codec.unpack_indices(bytes.fromhex("014023ff0f"), 3)[0]) == [1, 0x234, 0xFFF]
    assert not codec.unpack_indices(bytes.fromhex("014023ff1f"), 3)[1]


def test_messages_by_hand() -> None:
    plain = wire.encode(
        np.array([1.0, -0.0], dtype=np.float32), Settings("none", seed=0x0102), step=3, slot=4
    )
    body = (
        "54524954 01 00 00 00 00 000000 0000803f 0200000000000000 0200000000000000 0201000000000000"
        "03000000 04000000 00000000 00000000 0800000000000000 0000803f 00000080"
    )
    assert plain == wire.seal(bytes.fromhex(body))
    values = np.array([0.5] * 30 + [-2.0] * 34, dtype=np.float32)
    signs = wire.encode(values, Settings("none", "sign", "contractive", "unbiased", 64))
    body = (
        "54524954 01 00 03 02 02 000000 0000803f 4000000000000000 4000000000000000 2a00000000000000"
        "00000000 00000000 40000000 00000000 0c00000000000000"
    )
    scale = np.float32((30 * 0.25 + 34 * 4) / (15 + 68)).tobytes().hex()
    # Byte j holds signs j, 8 + j, ..., 56 + j; the last 34 of 64 are negative.
    assert signs == wire.seal(bytes.fromhex(body + scale + "f0f0f0f0f0f0f8f8"))


# Messages


@st.composite
def many_settings(draw: st.DrawFn) -> Settings:
    projection = draw(st.sampled_from(codec.PROJECTIONS))
    scalings = [s for s in wire.SCALINGS if projection != "topk" or s != "unbiased"]
    return Settings(
        projection,
        draw(st.sampled_from(codec.QUANTIZES)),
        draw(st.sampled_from(scalings)),
        draw(st.sampled_from(wire.QUANTIZER_SCALES)),
        draw(st.sampled_from([None, 64, 128, 320, 2**32 - 64])),
        draw(st.sampled_from([0.01, 0.1, 0.5, 1.0])),
        draw(st.integers(0, 2**64 - 1)),
        draw(st.sampled_from([None, 0.5])),
    )


@given(n=st.sampled_from(LENGTHS[:12]), many=many_settings(), step=st.integers(0, 2**32 - 1))
@example(n=1, many=Settings("topk", "ternary"), step=0)
@settings(SETTINGS, max_examples=200)
def test_messages_round_trip_and_are_never_longer_than_the_gradient(
    n: int, many: Settings, step: int
) -> None:
    if many.projection == "dense" and n > 1000:
        many = dataclasses.replace(many, ratio=0.01)
    g = gaussian(n)
    message = wire.encode(g, many, step=step, slot=5)
    assert len(message) <= 68 + 4 * n
    unpacked = wire.read(message)
    assert wire.write(unpacked) == message
    x = wire.decode(message)
    assert x.shape == g.shape
    header = unpacked.header
    assert (header.original_dim, header.seed, header.step, header.slot) == (n, many.seed, step, 5)
    assert wire.payload_length(header) == len(message) - 68
    if (header.projection, header.quantize) == ("none", "none"):
        clip = many.gradient_clipping
        assert_same_bits(x, g if clip is None else compression.clip(g, clip))


@pytest.mark.parametrize("projection", ["dense", "hadamard"])
@pytest.mark.parametrize("k", [0, 1, 5, 64, 99])
def test_a_ratio_that_is_not_recorded(projection: codec.Projection, k: int) -> None:
    header = Header(projection, "ternary", "reference", "reference", None, 99, k)
    digits = np.random.default_rng(k).integers(0, 3, k).astype(np.uint8)
    scales = np.ones(min(k, 1), dtype=np.float32)
    message = wire.write(Message(header, scales=scales, digits=digits))
    assert wire.write(wire.read(message)) == message
    assert wire.decode(message).size == 99


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_messages(name: str) -> None:
    golden, message, row = GOLDEN[name]
    assert golden.message() == message
    unpacked = wire.read(message)
    assert wire.write(unpacked) == message
    header = {key: value for key, value in dataclasses.asdict(unpacked.header).items() if value}
    assert header == row["header"]
    decoded = wire.decode(message)
    assert decoded.size == golden.n
    assert hashlib.sha256(decoded.tobytes()).hexdigest() == row["decoded"]


def test_golden_messages_are_of_every_kind() -> None:
    headers = [wire.read(message).header for _, message, _ in GOLDEN.values()]
    kinds = {(h.projection, h.quantize, h.quantizer_block is not None) for h in headers}
    wanted = {
        (projection, quantize, several)
        for projection in codec.PROJECTIONS
        for quantize in codec.QUANTIZES
        for several in ((False, True) if quantize in codec.SCALED else (False,))
    }
    assert kinds == wanted
    assert set(make_wire.all_golden()) == set(GOLDEN)
    assert {golden.input for golden, _, _ in GOLDEN.values()} == set(INPUTS)


@pytest.mark.parametrize("attack", HOSTILE, ids=lambda attack: attack.name)
def test_hostile_messages_are_refused_for_what_they_attack(attack: make_hostile.Attack) -> None:
    with pytest.raises(RefusedError) as caught:
        wire.read(attack.message)
    assert caught.value.field == attack.field
    assert str(caught.value).startswith(f"{attack.field}: ")


def test_the_hostile_files_are_those_of_the_script() -> None:
    made = {attack.name: attack for attack in make_hostile.attacks()}
    assert {attack.name: attack for attack in HOSTILE} == made


def test_every_message_has_one_spelling() -> None:
    """Every single byte changed under a fitting checksum is refused, or reads as another message."""
    for base in (make_hostile.TRITS, make_hostile.ODD_TOPK, make_hostile.BLOCKS):
        for offset in range(len(base) - 4):
            attacked = wire.patched(base, {offset: bytes([base[offset] ^ 0x41])})
            try:
                unpacked = wire.read(attacked)
            except RefusedError:
                continue
            assert wire.write(unpacked) == attacked


def test_a_gradient_of_cubes() -> None:
    """The formula behind the golden messages, spelled once more: the first word of splitmix64 from seed 5."""
    first = 2.0 * (0x63033B0CA389C35A >> 11) / 2.0**53 - 1.0
    assert cubes(5)[0] == np.float32(first * first * first)
