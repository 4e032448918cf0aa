"""Messages at the boundary: what encode sends, what is taken as a buffer, and that nothing hostile gets through."""

from __future__ import annotations

import re
import resource
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import tritter_accel as ta
from tests.data import make_hostile, make_wire
from tests.reference import wire
from tests.reference.floats import assert_same_bits
from tests.reference.wire import OFFSETS, Message, RefusedError

Float32Array = NDArray[np.float32]

HOSTILE = make_hostile.load()
OTHER_LENGTH = (ta.DimensionMismatchError, ta.ArrayError)  # what out= of a wrong length is refused by
GOLDEN = {name: message for name, (_, message, _) in make_wire.load().items()}


def vector(n: int, seed: int = 0) -> Float32Array:
    return np.random.default_rng(seed).standard_normal(n).astype(np.float32)


def encoded(n: int, *, step: int = 0, slot: int = 0, **options: Any) -> Any:
    compressor = ta.GradientCompressor(ta.TrainingConfig(**options))
    return compressor.encode(vector(n), step=step, slot=slot)


# What encode sends


def test_a_message_is_bytes_that_say_what_they_are() -> None:
    message = encoded(
        1000,
        default_compression_ratio=0.25,
        seed=9,
        projection="hadamard",
        scaling="unbiased",
        quantize="levels4",
        quantizer_scale="unbiased",
        quantizer_block=128,
        step=3,
        slot=4,
    )
    assert isinstance(message, bytes)
    assert isinstance(message, ta.wire.Message)
    assert (message.projection, message.quantize, message.scaling) == ("hadamard", "levels4", "unbiased")
    assert (message.quantizer_scale, message.quantizer_block, message.ratio) == ("unbiased", 128, 0.25)
    assert (message.original_dim, message.compressed_dim) == (1000, 250)
    assert (message.seed, message.step, message.slot) == (9, 3, 4)
    assert len(message) == 68 + 2 * 4 + 64 + 61  # two scales, 128 and 122 digits of four bits


def test_one_scale_for_all_is_no_block() -> None:
    message = encoded(1000, projection="none", quantize="sign")
    assert message.quantizer_block is None
    assert (message.ratio, message.compressed_dim) == (1.0, 1000)


@pytest.mark.parametrize(
    ("n", "options"),
    [
        (0, {"projection": "dense"}),
        (15, {"projection": "dense"}),
        (1, {"projection": "topk"}),
        (1, {"projection": "none", "quantize": "sign"}),
        (100, {"projection": "topk", "default_compression_ratio": 1.0}),
    ],
    ids=str,
)
def test_what_would_be_longer_than_the_gradient_is_the_gradient(n: int, options: dict[str, Any]) -> None:
    message = encoded(n, seed=5, step=6, slot=7, **options)
    assert len(message) == 68 + 4 * n
    assert (message.projection, message.quantize, message.scaling) == ("none", "none", "reference")
    assert (message.quantizer_scale, message.quantizer_block, message.ratio) == ("reference", None, 1.0)
    assert (message.seed, message.step, message.slot) == (5, 6, 7)
    decoded = ta.GradientCompressor(ta.TrainingConfig(seed=5)).decode(message)
    assert_same_bits(decoded, vector(n))


def test_without_a_projection_there_is_no_ratio_to_give() -> None:
    compressor = ta.GradientCompressor(ta.TrainingConfig(projection="none", quantize="sign"))
    with pytest.raises(ta.ArgumentError) as caught:
        compressor.encode(vector(100), 0.5)
    assert caught.value.argument == "ratio"


def test_topk_has_no_unbiased_form() -> None:
    with pytest.raises(ta.ArgumentError):
        ta.TrainingConfig(projection="topk", scaling="unbiased")


@pytest.mark.parametrize("projection", ["none", "dense", "hadamard", "topk"])
@pytest.mark.parametrize("quantize", ["none", "bfloat16", "ternary", "sign", "levels2", "levels4"])
def test_what_is_not_finite_is_refused_as_digits_and_carried_as_values(
    projection: Any, quantize: Any
) -> None:
    compressor = ta.GradientCompressor(ta.TrainingConfig(0.5, projection=projection, quantize=quantize))
    for value in (np.nan, np.inf, -np.inf):
        values = vector(1000)
        values[77] = value
        if quantize in ("none", "bfloat16"):
            assert not np.isfinite(compressor.decode(compressor.encode(values))).all()
            continue
        with pytest.raises(ta.NonFiniteError) as caught:
            compressor.encode(values)
        assert caught.value.argument == "gradients"
        assert caught.value.index == 77


# What is taken


BUFFERS: dict[str, Callable[[bytes], Any]] = {
    "bytes": bytes,
    "bytearray": bytearray,
    "memoryview": memoryview,
    "read-only memoryview": lambda message: memoryview(bytearray(message)).toreadonly(),
    "array": lambda message: np.frombuffer(message, dtype=np.uint8),
    "unaligned": lambda message: memoryview(b"\0" + message)[1:],
}


@pytest.mark.parametrize("form", BUFFERS)
def test_any_buffer_is_taken(form: str) -> None:
    values = vector(1000)
    compressor = ta.GradientCompressor()
    message = bytes(compressor.compress(values).to_bytes())
    buffer = BUFFERS[form](message)
    expected = wire.decode(message)
    assert_same_bits(compressor.decode(buffer), expected)
    assert ta.wire.parse(buffer).to_bytes() == message
    assert ta.CompressedGradient.from_bytes(buffer).to_bytes() == message
    assert ta.wire.Message.from_bytes(buffer) == message


def test_a_parsed_message_owns_its_bytes() -> None:
    message = bytearray(encoded(1000, projection="topk"))
    parsed = ta.wire.parse(message)
    compressed = ta.CompressedGradient.from_bytes(ta.GradientCompressor().compress(vector(1000)).to_bytes())
    before = parsed.to_bytes(), compressed.to_bytes()
    message[:] = bytes(len(message))
    assert (parsed.to_bytes(), compressed.to_bytes()) == before


@pytest.mark.parametrize("wrong", [None, 1, "TRIT", [84, 82], 1.5], ids=repr)
def test_what_is_no_buffer_is_refused(wrong: Any) -> None:
    for call in (ta.wire.parse, ta.GradientCompressor().decode):
        with pytest.raises((ta.ArgumentTypeError, ta.ArrayError)):
            call(wrong)


def test_out_is_filled_and_returned() -> None:
    compressor = ta.GradientCompressor(ta.TrainingConfig(projection="hadamard", quantize="sign"))
    message = compressor.encode(vector(1000))
    out = np.full(1000, 99, dtype=np.float32)
    assert np.shares_memory(compressor.decode(message, out=out), out)
    assert_same_bits(out, wire.decode(bytes(message)))


@pytest.mark.parametrize("length", [0, 999, 1001])
def test_out_of_another_length_is_refused_and_stays(length: int) -> None:
    compressor = ta.GradientCompressor()
    out = np.full(length, 99, dtype=np.float32)
    with pytest.raises(OTHER_LENGTH):
        compressor.decode(compressor.encode(vector(1000)), out=out)
    assert (out == 99).all()


# What is refused


def test_wire_error_is_an_error_of_this_package_and_a_value_error() -> None:
    assert issubclass(ta.WireError, ta.TrainingError)
    assert issubclass(ta.WireError, ValueError)


def names_the_field(error: BaseException, field: str) -> bool:
    return re.search(rf"\b{re.escape(field)}\b", str(error)) is not None


@pytest.mark.parametrize("attack", HOSTILE, ids=lambda attack: attack.name)
def test_hostile_messages_are_refused_for_what_they_attack(attack: make_hostile.Attack) -> None:
    for take in (ta.wire.parse, ta.wire.Message.from_bytes, ta.GradientCompressor().decode):
        with pytest.raises(ta.WireError) as caught:
            take(attack.message)
        assert names_the_field(caught.value, attack.field), (attack.field, str(caught.value))
    for kind in (ta.CompressedGradient, ta.TernaryCompressedGradient):
        with pytest.raises(ta.WireError):
            kind.from_bytes(attack.message)
    out = np.full(99, 7, dtype=np.float32)
    with pytest.raises(ta.WireError):
        ta.GradientCompressor().decode(attack.message, out=out)
    assert (out == 7).all()


@pytest.mark.parametrize("field", ["version", "projection", "quantize", "scaling", "quantizer_scale"])
def test_an_unknown_version_or_kind_says_which(field: str) -> None:
    for code in (77, 255):
        with pytest.raises(ta.WireError, match=rf"\b{code}\b"):
            ta.wire.parse(wire.patched(make_hostile.TRITS, {OFFSETS[field]: bytes([code])}))


def test_a_message_of_another_kind_is_refused_by_its_class() -> None:
    values = vector(1000)
    plain = ta.GradientCompressor().compress(values).to_bytes()
    trits = ta.GradientCompressor().compress_ternary(values).to_bytes()
    signs = encoded(1000, projection="none", quantize="sign")
    blocks = encoded(1000, quantize="ternary", quantizer_block=64)
    for message in (trits, signs, blocks):
        with pytest.raises(ta.WireError):
            ta.CompressedGradient.from_bytes(message)
    for message in (plain, signs, blocks):
        with pytest.raises(ta.WireError):
            ta.TernaryCompressedGradient.from_bytes(message)


def test_refusing_takes_no_memory() -> None:
    for attack in HOSTILE:  # whatever a first error loads is loaded
        with pytest.raises(ta.WireError):
            ta.wire.parse(attack.message)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(20):
        for attack in HOSTILE:
            with pytest.raises(ta.WireError):
                ta.wire.parse(attack.message)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 32 * 1024  # KiB


# Random damage

BASES = [
    message
    for message in GOLDEN.values()
    if len(message) <= 1200 and wire.read(message).header.original_dim <= 5000
]
DAMAGES = 6000


def damage(body: bytearray, chance: Random) -> None:
    """A bit or a byte changed, a cut, bytes put in, a piece of another message, or another number in a field."""
    # Half of it in the header, which is where it means something.
    place = chance.randrange(64 if chance.random() < 0.5 else len(body) + 1)
    kind = chance.choice(["bit", "byte", "byte", "cut", "grow", "splice", "number", "number"])
    if kind == "bit":
        body[place : place + 1] = bytes([byte ^ 1 << chance.randrange(8) for byte in body[place : place + 1]])
    elif kind == "byte":
        body[place : place + 1] = bytes([chance.choice([0, 1, 2, 3, 4, 127, 128, 242, 243, 255])])
    elif kind == "cut":
        del body[place:]
    elif kind == "grow":
        body[place:place] = chance.randbytes(chance.randrange(1, 9))
    elif kind == "splice":
        end = place + chance.randrange(1, 65)
        body[place:end] = chance.choice(BASES)[place:end]
    else:
        name = chance.choice(["original_dim", "compressed_dim", "seed", "payload length"])
        number = chance.choice([0, 1, 63, 64, 65, 4096, 2**32, 2**62 + 64, 2**63, 2**64 - 1])
        body[OFFSETS[name] : OFFSETS[name] + 8] = number.to_bytes(8, "little")


def damaged(chance: Random) -> Iterator[tuple[bytes, int]]:
    """Damaged messages, most of them under a checksum that fits, and the n of what they come from."""
    for _ in range(DAMAGES):
        base = chance.choice(BASES)
        body = bytearray(base[:-4])
        for _ in range(chance.randrange(1, 4)):
            damage(body, chance)
        checksum = wire.seal(bytes(body))[-4:] if chance.random() < 0.8 else base[-4:]
        yield bytes(body) + checksum, wire.read(base).header.original_dim


def read(message: bytes) -> tuple[Message | None, str]:
    """What the reference makes of it: a message, or the field for which it is refused."""
    try:
        return wire.read(message), ""
    except RefusedError as refused:
        return None, refused.field


@pytest.mark.parametrize("seed", range(4))
def test_damaged_messages_are_refused_or_are_other_messages(seed: int) -> None:
    """As the reference has it: the same are refused, with the same field, and the others decode to the same bits."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    taken = 0
    for message, n in damaged(Random(seed)):
        expected, field = read(message)
        if expected is None:
            with pytest.raises(ta.WireError) as caught:
                ta.wire.parse(message)
            assert names_the_field(caught.value, field), (field, str(caught.value))
            continue
        header = expected.header
        parsed = ta.wire.parse(message)
        assert (bytes(parsed) if isinstance(parsed, ta.wire.Message) else parsed.to_bytes()) == message
        compressor = ta.GradientCompressor(ta.TrainingConfig(seed=header.seed))
        out = np.full(n, 99, dtype=np.float32)
        if header.original_dim != n:
            with pytest.raises(OTHER_LENGTH):
                compressor.decode(message, out=out)
            assert (out == 99).all()
            continue
        compressor.decode(message, out=out)
        assert_same_bits(out, wire.restore(expected))
        taken += 1
    assert taken > DAMAGES // 50
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024  # KiB
