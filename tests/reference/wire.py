"""The wire format in NumPy, from its page alone: a writer, a strict reader, and the whole way from a gradient to
bytes and back.

`write` puts down what it is given, so that messages that break a rule can be made with it; `read` checks every rule
in the order of the page and raises `RefusedError`, which names the field. Slow and obvious, never shipped; it never
imports the package it judges.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, field, replace
from typing import TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from . import codec, compression
from .codec import PROJECTIONS, QUANTIZES, SCALED, Digits, Indices, Projection, Quantize
from .compression import Float32Array, QuantizerScale, Scaling

SCALINGS: tuple[Scaling, ...] = get_args(Scaling)
QUANTIZER_SCALES: tuple[QuantizerScale, ...] = get_args(QuantizerScale)

MAGIC = b"TRIT"
VERSION = 1
HEADER = struct.Struct("<4sBBBBB3sfQQQIIIIQ")
CHECKSUM = struct.Struct("<I")
SMALLEST_MESSAGE = HEADER.size + CHECKSUM.size

# Where each field of the header starts, for tests that break one.
OFFSETS = {
    "magic": 0,
    "version": 4,
    "projection": 5,
    "quantize": 6,
    "scaling": 7,
    "quantizer_scale": 8,
    "reserved": 9,
    "ratio": 12,
    "original_dim": 16,
    "compressed_dim": 24,
    "seed": 32,
    "step": 40,
    "slot": 44,
    "quantizer_block": 48,
    "reserved 2": 52,
    "payload length": 56,
}

Name = TypeVar("Name", bound=str)


class RefusedError(Exception):
    """A message that breaks a rule; `field` is the one that it breaks."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


@dataclass(frozen=True)
class Header:
    """The fields that decide what the payload is."""

    projection: Projection
    quantize: Quantize
    scaling: Scaling
    quantizer_scale: QuantizerScale
    ratio: float | None  # a float32; None is not recorded
    original_dim: int
    compressed_dim: int
    seed: int = 42
    step: int = 0
    slot: int = 0
    quantizer_block: int | None = None


@dataclass(frozen=True)
class Message:
    """A header and its payload, unpacked. What a kind does not have is empty."""

    header: Header
    indices: Indices = field(default_factory=lambda: np.zeros(0, dtype=np.uint16))
    scales: Float32Array = field(default_factory=lambda: np.zeros(0, dtype=np.float32))
    values: Float32Array = field(default_factory=lambda: np.zeros(0, dtype=np.float32))  # quantize none
    halves: NDArray[np.uint16] = field(default_factory=lambda: np.zeros(0, dtype=np.uint16))  # bfloat16
    digits: Digits = field(default_factory=lambda: np.zeros(0, dtype=np.uint8))


def payload_length(header: Header) -> int:
    """What the header decides: indices, scales and values, in bytes. Python integers do not overflow."""
    k = header.compressed_dim
    indices = codec.packed_indices_size(k) if header.projection == "topk" else 0
    if header.quantize == "none":
        return indices + 4 * k
    if header.quantize == "bfloat16":
        return indices + 2 * k
    block = header.quantizer_block or k
    whole, rest = divmod(k, block) if k else (0, 0)
    scales = 4 * (whole + (rest > 0))
    values = whole * codec.packed_size(block, header.quantize) + codec.packed_size(rest, header.quantize)
    return indices + scales + values


# Writing


def seal(body: bytes) -> bytes:
    """The body and its checksum."""
    return body + CHECKSUM.pack(zlib.crc32(body))


def write(message: Message) -> bytes:
    """The bytes of a message, as it is."""
    header = message.header
    payload = write_payload(message)
    packed = HEADER.pack(
        MAGIC,
        VERSION,
        PROJECTIONS.index(header.projection),
        QUANTIZES.index(header.quantize),
        SCALINGS.index(header.scaling),
        QUANTIZER_SCALES.index(header.quantizer_scale),
        bytes(3),
        0.0 if header.ratio is None else header.ratio,
        header.original_dim,
        header.compressed_dim,
        header.seed,
        header.step,
        header.slot,
        header.quantizer_block or 0,
        0,
        len(payload),
    )
    return seal(packed + payload)


def write_payload(message: Message) -> bytes:
    """Indices, then scales, then values."""
    quantize = message.header.quantize
    parts = [codec.pack_indices(message.indices), message.scales.astype("<f4").tobytes()]
    parts += [message.values.astype("<f4").tobytes(), message.halves.astype("<u2").tobytes()]
    first = 0
    for m in codec.scale_blocks(message.digits.size, message.header.quantizer_block):
        parts.append(codec.pack(message.digits[first : first + m], quantize).tobytes())
        first += m
    return b"".join(parts)


# Reading


def read(message: bytes) -> Message:
    """The message, or `RefusedError` with the first field, in the order of the page, that breaks a rule."""
    if len(message) < SMALLEST_MESSAGE:
        raise RefusedError("length", f"got {len(message)} bytes, wanted at least {SMALLEST_MESSAGE}")
    (
        magic,
        version,
        projection_code,
        quantize_code,
        scaling_code,
        quantizer_scale_code,
        reserved,
        ratio,
        n,
        k,
        seed,
        step,
        slot,
        quantizer_block,
        reserved_2,
        p,
    ) = HEADER.unpack_from(message)
    _check(magic == MAGIC, "magic", f"got {magic!r}, wanted {MAGIC!r}")
    _check(version == VERSION, "version", f"got {version}, wanted {VERSION}")

    projection = _name(PROJECTIONS, projection_code, "projection")
    quantize = _name(QUANTIZES, quantize_code, "quantize")
    scaling = _name(SCALINGS, scaling_code, "scaling")
    _check(projection != "topk" or scaling != "unbiased", "scaling", "topk has no unbiased form")
    quantizer_scale = _name(QUANTIZER_SCALES, quantizer_scale_code, "quantizer_scale")
    scaled = quantize in SCALED
    _check(scaled or quantizer_scale_code == 0, "quantizer_scale", f"{quantize} has no scale")
    _check(reserved == bytes(3) and reserved_2 == 0, "reserved", "wanted 0")

    recorded = message[OFFSETS["ratio"] : OFFSETS["ratio"] + 4] != bytes(4)
    if recorded:
        _check(0 < ratio <= 1, "ratio", f"got {ratio}, wanted one above 0 and at most 1")
        _check(projection != "none" or ratio == 1, "ratio", f"got {ratio}, wanted 1 without a projection")
    else:
        may_lack = projection in ("dense", "hadamard") and quantize == "ternary"
        _check(may_lack, "ratio", f"has to be recorded for {projection} and {quantize}")
    if not scaled:
        _check(quantizer_block == 0, "quantizer_block", f"{quantize} has no scale")
    _check(quantizer_block % 64 == 0, "quantizer_block", f"got {quantizer_block}, wanted a multiple of 64")
    _check(recorded or quantizer_block == 0, "quantizer_block", "wanted 0 where the ratio is not recorded")

    if recorded:
        wanted = codec.compressed_dim(projection, n, ratio)
        _check(k == wanted, "compressed_dim", f"got {k}, wanted {wanted}")
    elif projection == "hadamard":
        _check(k <= n, "compressed_dim", f"got {k}, wanted at most {n}")

    header = Header(
        projection,
        quantize,
        scaling,
        quantizer_scale,
        ratio if recorded else None,
        n,
        k,
        seed,
        step,
        slot,
        quantizer_block or None,
    )
    decided = payload_length(header)
    _check(p == decided, "payload length", f"got {p}, wanted {decided}")
    whole = SMALLEST_MESSAGE + p
    _check(len(message) == whole, "length", f"got {len(message)} bytes, wanted {whole}")
    body, checksum = message[: -CHECKSUM.size], message[-CHECKSUM.size :]
    _check(CHECKSUM.pack(zlib.crc32(body)) == checksum, "checksum", f"got {checksum.hex()}")
    return _read_payload(header, body[HEADER.size :])


def _check(holds: bool, field: str, message: str) -> None:
    if not holds:
        raise RefusedError(field, message)


def _name(names: tuple[Name, ...], code: int, field: str) -> Name:
    if code >= len(names):
        raise RefusedError(field, f"got {code}, wanted one of {dict(enumerate(names))}")
    return names[code]


def _read_payload(header: Header, payload: bytes) -> Message:
    k, quantize = header.compressed_dim, header.quantize
    message = Message(header)
    if header.projection == "topk":
        assert header.ratio is not None
        size = codec.packed_indices_size(k)
        indices, clean = codec.unpack_indices(payload[:size], k)
        payload = payload[size:]
        _check_indices(indices, header.original_dim, header.ratio)
        _check(clean, "indices", "the bits beyond the last one have to be 0")
        message = replace(message, indices=indices)
    if quantize == "none":
        return replace(message, values=np.frombuffer(payload, dtype="<f4").astype(np.float32))
    if quantize == "bfloat16":
        return replace(message, halves=np.frombuffer(payload, dtype="<u2").astype(np.uint16))

    blocks = codec.scale_blocks(k, header.quantizer_block)
    scales = np.frombuffer(payload[: 4 * len(blocks)], dtype="<f4").astype(np.float32)
    payload = payload[4 * len(blocks) :]
    _check(bool(np.isfinite(scales).all()), "scales", "have to be finite")
    _check(not np.signbit(scales).any(), "scales", "have to be without a sign")
    parts: list[Digits] = [np.zeros(0, dtype=np.uint8)]
    for m in blocks:
        size = codec.packed_size(m, quantize)
        digits, clean = codec.unpack(np.frombuffer(payload[:size], dtype=np.uint8), m, quantize)
        _check(clean, "digits", "a byte of trits is at most 242, and digits beyond the last one are 0")
        parts.append(digits)
        payload = payload[size:]
    assert not payload
    return replace(message, scales=scales, digits=np.concatenate(parts))


def _check_indices(indices: Indices, n: int, ratio: float) -> None:
    """Ascending within a chunk, and below its length."""
    first = 0
    for m in codec.topk_chunks(n):
        count = codec.topk_dim(m, ratio)
        of_chunk = [int(index) for index in indices[first : first + count]]
        _check(of_chunk == sorted(set(of_chunk)), "indices", "have to ascend within a chunk")
        _check(of_chunk[-1] < m, "indices", f"have to be below the chunk's length, {m}")
        first += count


# From a gradient to bytes, and back


@dataclass(frozen=True)
class Settings:
    """What a compressor is told; `ratio` has no meaning without a projection.

    `ratio` and `gradient_clipping` are rounded to float32, as a config keeps them.
    """

    projection: Projection = "dense"
    quantize: Quantize = "none"
    scaling: Scaling = "reference"
    quantizer_scale: QuantizerScale = "reference"
    quantizer_block: int | None = None
    ratio: float = 0.1
    seed: int = 42
    gradient_clipping: float | None = None


def encode(gradients: Float32Array, settings: Settings, *, step: int = 0, slot: int = 0) -> bytes:
    """The message of a gradient; the gradient itself where the message would have been longer."""
    n = gradients.size
    if settings.gradient_clipping is not None:
        if not np.isfinite(gradients).all():
            raise codec.NotFiniteError("a gradient that is clipped")
        gradients = compression.clip(gradients, float(np.float32(settings.gradient_clipping)))
    header = header_of(n, settings, step, slot)
    if payload_length(header) > 4 * n:
        return write(Message(plain_header(n, settings.seed, step, slot), values=gradients))
    scaled = header.quantize in SCALED
    if scaled and not np.isfinite(gradients).all():
        raise codec.NotFiniteError("a gradient that is quantised")
    assert header.ratio is not None
    message = Message(header)
    if header.projection == "none":
        sent = gradients
    elif header.projection == "topk":
        indices, sent = codec.topk_compress(gradients, header.ratio)
        message = replace(message, indices=indices)
    else:
        compress = compression.compress if header.projection == "dense" else codec.hadamard_compress
        sent = compress(
            gradients,
            header.compressed_dim,
            seed=header.seed,
            step=step,
            slot=slot,
            scaling=header.scaling,
        )
    if header.quantize == "none":
        return write(replace(message, values=sent))
    if header.quantize == "bfloat16":
        return write(replace(message, halves=compression.bf16_nearest_even(sent)))
    scales, digits = codec.quantise(sent, header.quantize, header.quantizer_scale, header.quantizer_block)
    return write(replace(message, scales=scales, digits=digits))


def header_of(n: int, settings: Settings, step: int, slot: int) -> Header:
    """The header of n values under these settings, before it is known whether they are worth it."""
    ratio = 1.0 if settings.projection == "none" else float(np.float32(settings.ratio))
    scaled = settings.quantize in SCALED
    return Header(
        projection=settings.projection,
        quantize=settings.quantize,
        scaling=settings.scaling,
        quantizer_scale=settings.quantizer_scale if scaled else "reference",
        ratio=ratio,
        original_dim=n,
        compressed_dim=codec.compressed_dim(settings.projection, n, ratio),
        seed=settings.seed,
        step=step,
        slot=slot,
        quantizer_block=settings.quantizer_block if scaled else None,
    )


def plain_header(n: int, seed: int, step: int, slot: int) -> Header:
    """The header of a gradient that is sent as it is."""
    return Header("none", "none", "reference", "reference", 1.0, n, n, seed, step, slot)


def decode(message: bytes) -> Float32Array:
    """The gradient that a message stands for."""
    return restore(read(message))


def restore(message: Message) -> Float32Array:
    """The gradient that an unpacked message stands for."""
    header = message.header
    values = sent_values(message)
    n = header.original_dim
    if header.projection == "none":
        return values
    if header.projection == "topk":
        assert header.ratio is not None
        return codec.topk_decompress(message.indices, values, n, header.ratio)
    decompress = compression.decompress if header.projection == "dense" else codec.hadamard_decompress
    return decompress(values, n, seed=header.seed, step=header.step, slot=header.slot, scaling=header.scaling)


def sent_values(message: Message) -> Float32Array:
    """The k values before the projection's way back."""
    header = message.header
    if header.quantize == "none":
        return message.values
    if header.quantize == "bfloat16":
        return compression.bf16_to_f32(message.halves)
    return codec.dequantise(message.scales, message.digits, header.quantize, header.quantizer_block)


def patched(message: bytes, changes: dict[int, bytes]) -> bytes:
    """The message with bytes replaced at offsets, under a checksum that fits."""
    body = bytearray(message[: -CHECKSUM.size])
    for offset, replacement in changes.items():
        body[offset : offset + len(replacement)] = replacement
    return seal(bytes(body))


def kind_of(header: Header) -> str:
    """The name of the class that `parse` gives for a header."""
    if header.projection in ("dense", "hadamard"):
        if header.quantize == "none":
            return "CompressedGradient"
        if header.quantize == "ternary" and header.quantizer_block is None:
            return "TernaryCompressedGradient"
    return "Message"
