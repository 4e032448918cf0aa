"""Messages of the package against the reference on inputs that nobody chose by hand, compared byte by byte.

Encoding gives the reference's bytes, decoding its bits, parsing what the header says. The sign and payload of a NaN
that comes out of arithmetic are the processor's choice, so values with one are compared as values.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

import tritter_accel as ta
from tests.data import make_wire
from tests.reference import codec, compression, wire
from tests.reference.floats import assert_same_bits
from tests.reference.wire import Header, Message, Settings
from tests.reference.wire_inputs import INPUTS
from tests.thread_count import thread_count

Float32Array = NDArray[np.float32]

SETTINGS = settings(
    derandomize=True,
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
GOLDEN = make_wire.load()
LENGTHS = [0, 1, 2, 5, 31, 63, 64, 65, 100, 127, 1000, 2047, 4095, 4096, 4097, 4160, 8192, 8193, 10000]
SPECIAL = [
    0.0,
    -0.0,
    1e-45,
    -1e-45,
    1.1754942e-38,
    3.4028235e38,
    -3.4028235e38,
    math.inf,
    -math.inf,
    math.nan,
]
MOST_ENTRIES = 1_000_000  # of the dense matrix: what the slow form does in a moment

seeds = st.one_of(st.sampled_from([0, 1, 42, 2**32, 2**63, 2**64 - 1]), st.integers(0, 2**64 - 1))
words_32 = st.one_of(st.sampled_from([0, 1, 2**31, 2**32 - 1]), st.integers(0, 2**32 - 1))
threads = st.sampled_from([1, 2, 3])
lengths = st.one_of(st.sampled_from(LENGTHS), st.integers(0, 3000))
blocks = st.sampled_from([None, None, 64, 128, 320, 4096, 2**32 - 64])


@st.composite
def gradients(draw: st.DrawFn, *, finite: bool = False) -> Float32Array:
    """Short ones anything; long ones random, of one magnitude or of many, with special values put in."""
    n = draw(lengths)
    special = SPECIAL[:7] if finite else SPECIAL
    if n <= 65 and draw(st.booleans()):
        elements = st.floats(width=32, allow_nan=not finite, allow_infinity=not finite)
        return draw(hnp.arrays(np.float32, n, elements=elements))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    magnitude = draw(st.sampled_from([1e-40, 1e-12, 1e-3, 1.0, 1e6, 1e30]))
    values: Float32Array = (rng.standard_normal(n) * magnitude).astype(np.float32)
    form = draw(st.sampled_from(["normal", "ties", "sparse", "heavy"]))
    if form == "ties":
        values = (np.sign(values) * np.float32(magnitude)).astype(np.float32)
    elif form == "sparse":
        values = np.where(rng.random(n) < 0.05, values, np.float32(0.0)).astype(np.float32)
    elif form == "heavy":
        values = (values * rng.standard_normal(n).astype(np.float32) ** 5).astype(np.float32)
    if n:
        places = st.tuples(st.integers(0, n - 1), st.sampled_from(special))
        for index, value in draw(st.lists(places, max_size=3)):
            values[index] = value
    return values


@st.composite
def ratios(draw: st.DrawFn, n: int, projection: codec.Projection) -> float:
    """Any float32 ratio; with the dense matrix only what keeps it small."""
    most = MOST_ENTRIES / max(n, 1) ** 2 if projection == "dense" else 1.0
    top = float(np.float32(min(1.0, most)))
    return draw(st.one_of(st.just(top), st.floats(float(np.float32(1e-6)), top, width=32)))


@st.composite
def many_settings(draw: st.DrawFn, n: int) -> Settings:
    """Every combination that a config takes."""
    projection = draw(st.sampled_from(codec.PROJECTIONS))
    quantize = draw(st.sampled_from(codec.QUANTIZES))
    scalings = [s for s in wire.SCALINGS if projection != "topk" or s != "unbiased"]
    scaled = quantize in codec.SCALED
    return Settings(
        projection=projection,
        quantize=quantize,
        scaling=draw(st.sampled_from(scalings)),
        quantizer_scale=draw(st.sampled_from(wire.QUANTIZER_SCALES)) if scaled else "reference",
        quantizer_block=draw(blocks) if scaled else None,
        ratio=draw(ratios(n, projection)),
        seed=draw(seeds),
        gradient_clipping=draw(st.sampled_from([None, None, 0.5, 1e-3])),
    )


def compressor(many: Settings) -> ta.GradientCompressor:
    """The package under the same settings."""
    config = ta.TrainingConfig(
        many.ratio,
        many.seed,
        many.gradient_clipping,
        projection=many.projection,
        scaling=many.scaling,
        quantize=many.quantize,
        quantizer_scale=many.quantizer_scale,
        quantizer_block=many.quantizer_block,
    )
    return ta.GradientCompressor(config)


def assert_same_message(actual: bytes, expected: bytes) -> None:
    """Equal bytes; where arithmetic has made a NaN, equal headers and values."""
    if bytes(actual) == expected:
        return
    got, wanted = wire.read(bytes(actual)), wire.read(expected)
    assert got.header == wanted.header
    values = wire.sent_values(wanted)
    assert wanted.header.projection in ("dense", "hadamard")
    assert np.isnan(values).any(), "other bytes"
    assert_same_bits(wire.sent_values(got), values)


# Encoding


@given(data=st.data(), step=words_32, slot=words_32, threads=threads)
@settings(SETTINGS, max_examples=400)
def test_encode(data: st.DataObject, step: int, slot: int, threads: int) -> None:
    values = data.draw(gradients())
    many = data.draw(many_settings(values.size))
    before = values.copy()
    try:
        expected = wire.encode(values, many, step=step, slot=slot)
    except codec.NotFiniteError:
        with thread_count(threads), pytest.raises(ta.NonFiniteError):
            compressor(many).encode(values, step=step, slot=slot)
        return
    with thread_count(threads):
        message = compressor(many).encode(values, step=step, slot=slot)
    assert_same_message(message, expected)
    np.testing.assert_array_equal(values.view(np.uint32), before.view(np.uint32))


@given(data=st.data(), step=words_32, threads=threads)
@settings(SETTINGS, max_examples=200)
def test_finite_gradients_encode(data: st.DataObject, step: int, threads: int) -> None:
    """The same without what is refused, so that digits of every kind are seen."""
    values = data.draw(gradients(finite=True))
    many = replace(data.draw(many_settings(values.size)), gradient_clipping=1.0)
    expected = wire.encode(values, many, step=step)
    with thread_count(threads):
        assert_same_message(compressor(many).encode(values, step=step), expected)


@given(data=st.data(), ratio=st.floats(float(np.float32(1e-3)), 1, width=32))
@SETTINGS
def test_a_ratio_of_the_call_goes_before_the_one_of_the_config(data: st.DataObject, ratio: float) -> None:
    n = data.draw(st.sampled_from([1, 64, 500, 1000]))
    values = np.random.default_rng(n).standard_normal(n).astype(np.float32)
    many = data.draw(many_settings(n))
    if many.projection == "none" and ratio != 1:
        with pytest.raises(ta.ArgumentError, match="ratio"):
            compressor(many).encode(values, ratio)
    elif many.projection != "none":
        assert compressor(many).encode(values, ratio) == wire.encode(values, replace(many, ratio=ratio))
    assert compressor(many).encode(values, None) == wire.encode(values, many)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("projection", ["none", "hadamard", "topk"])
@pytest.mark.parametrize("quantize", codec.QUANTIZES)
def test_work_that_is_worth_several_threads(
    projection: codec.Projection, quantize: codec.Quantize, threads: int
) -> None:
    """The sizes above stay on one thread, where a second one would only cost; these do not."""
    n = 150_011
    values = np.random.default_rng(n).standard_normal(n).astype(np.float32)
    many = Settings(
        projection, quantize, quantizer_block=320 if quantize in codec.SCALED else None, ratio=0.1
    )
    expected = reference_of_large_work(many, n)
    with thread_count(threads):
        message = compressor(many).encode(values, step=3, slot=1)
        restored = compressor(many).decode(message)
    assert bytes(message) == expected[0]
    assert_same_bits(restored, expected[1])


LARGE_WORK: dict[Settings, tuple[bytes, Float32Array]] = {}


def reference_of_large_work(many: Settings, n: int) -> tuple[bytes, Float32Array]:
    """Computed once for all thread counts."""
    if many not in LARGE_WORK:
        values = np.random.default_rng(n).standard_normal(n).astype(np.float32)
        message = wire.encode(values, many, step=3, slot=1)
        LARGE_WORK[many] = message, wire.decode(message)
    return LARGE_WORK[many]


# Decoding


@st.composite
def messages(draw: st.DrawFn) -> Message:
    """Anything that the page allows, whether or not `encode` would send it: any values, digits and scales."""
    n = draw(lengths)
    many = draw(many_settings(n))
    header = wire.header_of(n, many, draw(words_32), draw(words_32))
    recordable = header.projection in ("dense", "hadamard") and header.quantize == "ternary"
    if recordable and draw(st.booleans()):
        k = draw(st.integers(0, min(n, 300) if header.projection == "hadamard" else 300))
        header = replace(header, ratio=None, compressed_dim=k, quantizer_block=None)
    k = header.compressed_dim
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    message = Message(header)
    if header.projection == "topk":
        assert header.ratio is not None
        indices: list[int] = []
        for m in codec.topk_chunks(n):
            indices += sorted(rng.choice(m, codec.topk_dim(m, header.ratio), replace=False))
        message = replace(message, indices=np.array(indices, dtype=np.uint16))
    if header.quantize == "none":
        return replace(message, values=anything(draw, rng, k))
    if header.quantize == "bfloat16":
        return replace(message, halves=compression.bf16_truncate(anything(draw, rng, k)))
    base, _ = codec.BASE_AND_PLANES[header.quantize]
    count = len(codec.scale_blocks(k, header.quantizer_block))
    magnitude = draw(st.sampled_from([0.0, 1e-45, 1e-40, 1.0, 1e38]))
    scales = np.abs(rng.standard_normal(count) * magnitude).astype(np.float32)
    scales = np.where(np.isfinite(scales), scales, np.float32(1.0))
    return replace(message, scales=scales, digits=rng.integers(0, base, k).astype(np.uint8))


def anything(draw: st.DrawFn, rng: np.random.Generator, k: int) -> Float32Array:
    """Random values, or random bits, or both."""
    if draw(st.booleans()):
        return rng.integers(0, 2**32, k, dtype=np.uint32).view(np.float32)
    values = rng.standard_normal(k).astype(np.float32)
    if k:
        for index, value in draw(
            st.lists(st.tuples(st.integers(0, k - 1), st.sampled_from(SPECIAL)), max_size=3)
        ):
            values[index] = value
    return values


@given(message=messages(), threads=threads)
@example(message=Message(Header("hadamard", "ternary", "unbiased", "reference", None, 100, 0)), threads=1)
@settings(SETTINGS, max_examples=400)
def test_decode(message: Message, threads: int) -> None:
    packed = wire.write(message)
    assert wire.write(wire.read(packed)) == packed
    expected = wire.restore(message)
    decoder = ta.GradientCompressor(ta.TrainingConfig(seed=message.header.seed))
    with thread_count(threads):
        decoded = decoder.decode(packed)
        out = np.full(message.header.original_dim, 99, dtype=np.float32)
        into = decoder.decode(packed, out=out)
    assert np.shares_memory(into, out) or not out.size
    assert_same_bits(decoded, expected)
    assert_same_bits(out, expected)
    if message.header.projection in (
        "none",
        "topk",
    ):  # nothing is computed with them: every bit of a NaN stays
        np.testing.assert_array_equal(decoded.view(np.uint32), expected.view(np.uint32))


# Parsing


SHARED = ["projection", "scaling", "ratio", "original_dim", "compressed_dim", "seed", "step", "slot"]
OWN = ["quantize", "quantizer_scale", "quantizer_block"]


def check_attributes(parsed: Any, header: Header) -> None:
    """What an object says is what the header says."""
    assert type(parsed).__name__ == wire.kind_of(header)
    assert {name: getattr(parsed, name) for name in SHARED} == {
        name: getattr(header, name) for name in SHARED
    }
    if isinstance(parsed, ta.wire.Message):
        assert {name: getattr(parsed, name) for name in OWN} == {name: getattr(header, name) for name in OWN}


@given(message=messages())
@settings(SETTINGS, max_examples=200)
def test_parse(message: Message) -> None:
    packed = wire.write(message)
    parsed = ta.wire.parse(packed)
    check_attributes(parsed, message.header)
    if isinstance(parsed, ta.wire.Message):
        assert bytes(parsed) == packed
        return
    assert parsed.to_bytes() == packed
    assert type(parsed).from_bytes(packed).to_bytes() == packed
    if isinstance(parsed, ta.CompressedGradient):
        np.testing.assert_array_equal(parsed.data.view(np.uint32), message.values.view(np.uint32))
    else:
        np.testing.assert_array_equal(parsed.data, message.digits.astype(np.int8) - 1)
        assert message.scales.size == 0 or np.float32(parsed.scale) == message.scales[0]


@given(message=messages())
@settings(SETTINGS, max_examples=100)
def test_a_message_of_every_kind_is_a_message(message: Message) -> None:
    packed = wire.write(message)
    whole = ta.wire.Message.from_bytes(packed)
    assert isinstance(whole, bytes)
    assert whole == packed
    assert {name: getattr(whole, name) for name in SHARED + OWN} == {
        name: getattr(message.header, name) for name in SHARED + OWN
    }


@given(
    data=st.data(),
    projection=st.sampled_from(["dense", "hadamard"]),
    scaling=st.sampled_from(wire.SCALINGS),
    scale=st.sampled_from(wire.QUANTIZER_SCALES),
    seed=seeds,
    step=words_32,
)
@SETTINGS
def test_to_bytes_of_what_was_compressed(
    data: st.DataObject,
    projection: codec.Projection,
    scaling: compression.Scaling,
    scale: compression.QuantizerScale,
    seed: int,
    step: int,
) -> None:
    """The kind stays what it is even where the gradient would be shorter."""
    n = data.draw(lengths)
    values = np.random.default_rng(n).standard_normal(n).astype(np.float32)
    many = Settings(projection, "ternary", scaling, scale, None, data.draw(ratios(n, projection)), seed)
    header = wire.header_of(n, many, step, 7)
    compress = compression.compress if projection == "dense" else codec.hadamard_compress
    y = compress(values, header.compressed_dim, seed=seed, step=step, slot=7, scaling=scaling)

    plain = replace(header, quantize="none", quantizer_scale="reference")
    compressed = compressor(many).compress(values, step=step, slot=7)
    assert compressed.projection == projection
    assert compressed.to_bytes() == wire.write(Message(plain, values=y))

    scales, digits = codec.quantise(y, "ternary", scale, None)
    ternary = compressor(many).compress_ternary(values, step=step, slot=7)
    assert ternary.projection == projection
    assert ternary.ratio == header.ratio
    assert ternary.to_bytes() == wire.write(Message(header, scales=scales, digits=digits))


@given(
    n=lengths,
    k=st.integers(1, 300),
    scale=st.floats(0, float(np.float32(1e30)), width=32),
    scaling=st.sampled_from(wire.SCALINGS),
    seed=seeds,
    step=words_32,
)
@SETTINGS
def test_to_bytes_of_what_was_made_from_its_parts(
    n: int, k: int, scale: float, scaling: compression.Scaling, seed: int, step: int
) -> None:
    trits = np.random.default_rng(k).integers(-1, 2, k).astype(np.int8)
    ternary = ta.TernaryCompressedGradient(trits, abs(scale), n, k, seed, step=step, slot=2, scaling=scaling)
    assert ternary.ratio is None
    header = Header("dense", "ternary", scaling, "reference", None, n, k, seed, step, 2)
    scales = np.array([abs(scale)], dtype=np.float32)
    expected = wire.write(Message(header, scales=scales, digits=(trits + 1).astype(np.uint8)))
    assert ternary.to_bytes() == expected
    assert ta.TernaryCompressedGradient.from_bytes(expected).ratio is None


# The golden files


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_messages(name: str) -> None:
    golden, message, _ = GOLDEN[name]
    gradients = INPUTS[golden.input](golden.n)
    made = compressor(golden.settings).encode(gradients, step=golden.step, slot=golden.slot)
    assert bytes(made) == message
    header = wire.read(message).header
    check_attributes(ta.wire.parse(message), header)
    decoded = compressor(golden.settings).decode(message)
    np.testing.assert_array_equal(decoded.view(np.uint32), wire.decode(message).view(np.uint32))


OF_A_PROCESS = """
import hashlib, sys
import tritter_accel as ta
from tests.data import make_wire
from tests.parity.test_wire_reference import compressor
from tests.reference.wire_inputs import INPUTS

ta.set_num_threads(int(sys.argv[1]))
for name, (golden, message, row) in make_wire.load().items():
    codec = compressor(golden.settings)
    made = codec.encode(INPUTS[golden.input](golden.n), step=golden.step, slot=golden.slot)
    assert bytes(made) == message, name
    assert hashlib.sha256(codec.decode(message).tobytes()).hexdigest() == row["decoded"], name
print(ta.simd_level())
"""


@pytest.mark.parametrize(("level", "threads"), [("scalar", 1), ("scalar", 3), ("avx2", 2), ("avx512", 1)])
def test_golden_messages_do_not_depend_on_simd_level_or_threads(level: str, threads: int) -> None:
    environment = {**os.environ, "TRITTER_ACCEL_SIMD": level}
    command = [sys.executable, "-c", OF_A_PROCESS, str(threads)]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
