"""The hostile messages: `python -m tests.data.make_hostile` writes tests/data/hostile anew.

One file an attack. Each starts from a valid message and breaks one rule of the page, under a checksum that fits
unless the checksum is what it attacks; `index.json` says for each what it tries and which field a reader has to
name.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.reference import codec, wire
from tests.reference.wire import OFFSETS, Header, Message, Settings, patched
from tests.reference.wire_inputs import cubes

DIRECTORY = Path(__file__).parent / "hostile"
INDEX = DIRECTORY / "index.json"
PAYLOAD = wire.HEADER.size


@dataclass(frozen=True)
class Attack:
    """A message that has to be refused."""

    name: str
    message: bytes
    field: str  # the one that the error has to name
    about: str


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


def u64(value: int) -> bytes:
    return struct.pack("<Q", value)


def f32(value: float) -> bytes:
    return struct.pack("<f", value)


def encoded(n: int, settings: Settings) -> bytes:
    message = wire.encode(cubes(n), settings)
    header = wire.read(message).header
    assert (header.projection, header.quantize) == (settings.projection, settings.quantize)
    return message


PLAIN = encoded(99, Settings("none", "none"))
DENSE = encoded(99, Settings("dense", "none", ratio=0.5))
TRITS = encoded(99, Settings("dense", "ternary", ratio=0.5))
HADAMARD_TRITS = encoded(99, Settings("hadamard", "ternary", ratio=0.5))
SIGNS = encoded(99, Settings("none", "sign"))
LEVELS2 = encoded(99, Settings("none", "levels2"))
LEVELS4 = encoded(99, Settings("none", "levels4"))
BLOCKS = encoded(99, Settings("none", "ternary", quantizer_block=64))
TOPK = encoded(4196, Settings("topk", "none", ratio=0.002))  # 9 of the first chunk, 1 of the short last one
ODD_TOPK = encoded(4196, Settings("topk", "none", ratio=0.0022))  # 10 and 1: four bits of padding

# What a TernaryCompressedGradient that was made from its parts gives.
UNRECORDED = patched(TRITS, {OFFSETS["ratio"]: f32(0.0)})


def at(field: str, value: bytes) -> dict[int, bytes]:
    return {OFFSETS[field]: value}


def byte(message: bytes, offset: int) -> int:
    return message[offset]


def lengths() -> Iterator[Attack]:
    """Cut and grown files. Those cut or grown past the header keep the checksum's place in mind, not its value."""
    cuts = {"empty": 0, "in-magic": 3, "in-header": 40, "header-only": 64, "one-short-of-the-least": 67}
    for name, length in cuts.items():
        yield Attack(f"truncated-{name}", DENSE[:length], "length", f"the first {length} bytes")
    for name, length in {"at-least": 68, "in-payload": 200, "no-checksum": len(DENSE) - 4, "one": -1}.items():
        yield Attack(f"truncated-{name}", DENSE[:length], "length", "cut within payload or checksum")
    shorter = wire.seal(DENSE[: -4 - 4])
    yield Attack("truncated-resealed", shorter, "length", "a value cut away, and a checksum made anew")
    yield Attack("grown-by-a-byte", DENSE + b"\0", "length", "a byte after the checksum")
    yield Attack("grown-by-a-message", DENSE + DENSE, "length", "a second message behind the first")
    yield Attack("grown-resealed", wire.seal(DENSE[:-4] + bytes(4)), "length", "a value too many, resealed")
    empty = wire.encode(cubes(0), Settings())
    yield Attack("grown-nothing", wire.seal(empty[:-4] + bytes(4)), "length", "a value in an empty gradient")


def kinds() -> Iterator[Attack]:
    """Magic, version and the four codes."""
    yield Attack("magic-zero", patched(DENSE, at("magic", bytes(4))), "magic", "zeros")
    yield Attack("magic-lower-case", patched(DENSE, at("magic", b"trit")), "magic", "lower case")
    yield Attack("magic-reversed", patched(DENSE, at("magic", b"TIRT")), "magic", "big-endian")
    for version in (0, 2, 255):
        attacked = patched(DENSE, at("version", bytes([version])))
        yield Attack(f"version-{version}", attacked, "version", "an unknown version")
    for field, first_unknown in (("projection", 4), ("quantize", 6), ("scaling", 3), ("quantizer_scale", 3)):
        for code in (first_unknown, 255):
            attacked = patched(TRITS, at(field, bytes([code])))
            yield Attack(f"{field}-{code}", attacked, field, "a code that stands for nothing")
    yield Attack("scaling-unbiased-topk", patched(TOPK, at("scaling", b"\1")), "scaling", "no such form")
    for name, base in (("float32", DENSE), ("bfloat16", encoded(99, Settings("none", "bfloat16")))):
        for code in (1, 2):
            attacked = patched(base, at("quantizer_scale", bytes([code])))
            yield Attack(
                f"quantizer_scale-{code}-{name}", attacked, "quantizer_scale", "values without scale"
            )


def reserved() -> Iterator[Attack]:
    """Bytes that have to be 0."""
    for offset in (9, 10, 11, 52, 53, 54, 55):
        for value in (1, 128):
            attacked = patched(DENSE, {offset: bytes([value])})
            yield Attack(f"reserved-{offset}-{value}", attacked, "reserved", "a reserved byte that is not 0")


def ratios() -> Iterator[Attack]:
    """Ratios outside (0, 1], and the ones that have to be recorded."""
    bad = {
        "nan": b"\0\0\xc0\x7f",
        "negative-nan": b"\1\0\xc0\xff",
        "signalling-nan": b"\1\0\x80\x7f",
        "inf": f32(float("inf")),
        "negative-inf": f32(float("-inf")),
        "negative": f32(-0.5),
        "smallest-negative": u32(0x80000001),
        "above-one": u32(0x3F800001),
        "two": f32(2.0),
        "minus-zero": f32(-0.0),
    }
    for name, value in bad.items():
        yield Attack(f"ratio-{name}", patched(TRITS, at("ratio", value)), "ratio", "no ratio")
    zero = at("ratio", f32(0.0))
    for name, base in (("none", PLAIN), ("dense-float32", DENSE), ("topk", TOPK), ("signs", SIGNS)):
        yield Attack(f"ratio-unrecorded-{name}", patched(base, zero), "ratio", "has to be recorded here")
    yield Attack("ratio-half-none", patched(PLAIN, at("ratio", f32(0.5))), "ratio", "1 without a projection")
    topk_trits = encoded(4196, Settings("topk", "ternary", ratio=0.01))
    yield Attack("ratio-unrecorded-topk-trits", patched(topk_trits, zero), "ratio", "has to be recorded here")


def quantizer_blocks() -> Iterator[Attack]:
    """Blocks that are no multiple of 64, or where there is no scale."""
    for value in (1, 63, 65, 96, 2**32 - 1):
        attacked = patched(BLOCKS, at("quantizer_block", u32(value)))
        yield Attack(f"quantizer_block-{value}", attacked, "quantizer_block", "no multiple of 64")
    for name, base in (("float32", DENSE), ("bfloat16", encoded(99, Settings("none", "bfloat16")))):
        attacked = patched(base, at("quantizer_block", u32(64)))
        yield Attack(f"quantizer_block-{name}", attacked, "quantizer_block", "values without scale")
    attacked = patched(UNRECORDED, at("quantizer_block", u32(64)))
    yield Attack("quantizer_block-unrecorded", attacked, "quantizer_block", "0 where no ratio is recorded")


def dims() -> Iterator[Attack]:
    """n and k that do not fit one another, or whose sizes fit by overflow alone."""
    k_of_dense, n = wire.read(DENSE).header.compressed_dim, 99
    for value in (0, 1, k_of_dense - 1, k_of_dense + 1, 2**32, 2**62, 2**63, 2**64 - 1):
        attacked = patched(DENSE, at("compressed_dim", u64(value)))
        yield Attack(f"k-{value}", attacked, "compressed_dim", "k does not fit n and the ratio")
    for value in (n - 1, n + 1, 2**62 + n, 2**63, 2**64 - 1):
        attacked = patched(PLAIN, at("original_dim", u64(value)))
        yield Attack(f"n-{value}-plain", attacked, "compressed_dim", "n does not fit k")
    for value in (1000, 2**32, 2**63, 2**64 - 1):
        attacked = patched(DENSE, at("original_dim", u64(value)))
        yield Attack(f"n-{value}-dense", attacked, "compressed_dim", "n does not fit k and the ratio")

    def header(base: bytes, n: int, k: int, ratio: float) -> bytes:
        changes = {**at("original_dim", u64(n)), **at("compressed_dim", u64(k)), **at("ratio", f32(ratio))}
        return patched(base, changes)

    most = 2**64 - 1
    about = "ceil(f32(n) * ratio) is 2^64, which is no k"
    yield Attack("n-largest-wrapped-k", header(DENSE, most, 64, 1.0), "compressed_dim", about)
    yield Attack("n-largest-saturated-k", header(DENSE, most, most, 1.0), "compressed_dim", about)
    about = "n + 4095 overflows"
    yield Attack("n-largest-topk-k-0", header(TOPK, most, 0, 1.0), "compressed_dim", about)
    huge = 2**62 + 99
    about = "4 k wraps around to the bytes that are there"
    yield Attack("k-wraps-plain", header(PLAIN, huge, huge, 1.0), "payload length", about)
    halves = encoded(99, Settings("none", "bfloat16"))
    about = "2 k wraps around to the bytes that are there"
    yield Attack("k-wraps-halves", header(halves, 2**63 + 99, 2**63 + 99, 1.0), "payload length", about)
    whole = wire.write(
        Message(
            Header("topk", "none", "reference", "reference", 1.0, 96, 96),
            indices=np.arange(96, dtype=np.uint16),
            values=cubes(96),
        )
    )
    about = "12 k and 4 k wrap around to the bytes that are there"
    yield Attack("k-wraps-topk", header(whole, 2**62 + 96, 2**62 + 96, 1.0), "payload length", about)
    about = "any k may stand beside a ratio that is not recorded, but not without its bytes"
    for value in (0, 1, 2**32, 2**63, most - 1, most):
        attacked = patched(UNRECORDED, at("compressed_dim", u64(value)))
        yield Attack(f"k-{value}-unrecorded", attacked, "payload length", about)
    about = "at most n with hadamard"
    for value in (100, most):
        changes = {**at("ratio", f32(0.0)), **at("compressed_dim", u64(value))}
        attacked = patched(HADAMARD_TRITS, changes)
        yield Attack(f"k-{value}-hadamard-unrecorded", attacked, "compressed_dim", about)
    many = patched(BLOCKS, {**at("original_dim", u64(most)), **at("compressed_dim", u64(most))})
    yield Attack("k-largest-in-blocks", many, "payload length", "the number of scale blocks overflows")

    about = "an empty gradient has no values"
    for name, base in (("plain", PLAIN), ("signs", SIGNS), ("hadamard", HADAMARD_TRITS), ("topk", TOPK)):
        attacked = patched(base, at("original_dim", u64(0)))
        yield Attack(f"n-0-{name}", attacked, "compressed_dim", about)
    nothing = patched(DENSE, {**at("original_dim", u64(0)), **at("compressed_dim", u64(0))})
    yield Attack("n-0-k-0-dense", nothing, "compressed_dim", "64 with dense")


def payload_lengths() -> Iterator[Attack]:
    """A payload length that is not the one that the header decides."""
    for name, base in (("float32", DENSE), ("trits", TRITS)):
        p = len(base) - wire.SMALLEST_MESSAGE
        for lie, value in (
            ("0", 0),
            ("less", p - 1),
            ("more", p + 1),
            ("largest", 2**64 - 1),
            ("wrapped", 2**64 - 68),
        ):
            attacked = patched(base, at("payload length", u64(value)))
            yield Attack(f"payload-length-{lie}-{name}", attacked, "payload length", "a length that lies")
    grown = patched(wire.seal(DENSE[:-4] + b"\0"), at("payload length", u64(len(DENSE) - 68 + 1)))
    yield Attack(
        "payload-length-and-payload", grown, "payload length", "a byte more, and a length that says so"
    )


def checksums() -> Iterator[Attack]:
    """Checksums that do not fit."""
    body, good = DENSE[:-4], struct.unpack("<I", DENSE[-4:])[0]
    wrong = {
        "zero": bytes(4),
        "one-bit": u32(good ^ 1),
        "big-endian": struct.pack(">I", good),
        "inverted": u32(good ^ 0xFFFFFFFF),
        "of-the-payload": u32(zlib.crc32(body[PAYLOAD:])),
        "adler": u32(zlib.adler32(body)),
    }
    for name, checksum in wrong.items():
        yield Attack(f"checksum-{name}", body + checksum, "checksum", "a checksum that does not fit")
    for name, offset in (("seed", OFFSETS["seed"]), ("step", OFFSETS["step"]), ("payload", PAYLOAD + 9)):
        flipped = bytearray(DENSE)
        flipped[offset] ^= 0x10
        yield Attack(f"checksum-flipped-{name}", bytes(flipped), "checksum", "a bit flipped on the way")


def indices() -> Iterator[Attack]:
    """Indices that do not ascend, or lie beyond their chunk."""
    message = wire.read(TOPK)
    assert message.indices.size == 10

    def with_indices(changes: dict[int, int]) -> bytes:
        changed = message.indices.copy()
        for place, index in changes.items():
            changed[place] = index
        return wire.write(Message(message.header, indices=changed, values=message.values))

    first, second, last = (int(message.indices[i]) for i in (0, 1, 8))
    yield Attack("indices-descending", with_indices({0: second, 1: first}), "indices", "two exchanged")
    yield Attack("indices-repeated", with_indices({1: first}), "indices", "one twice")
    yield Attack("indices-repeated-last", with_indices({7: last}), "indices", "the last of a chunk twice")
    yield Attack("indices-beyond-100", with_indices({9: 100}), "indices", "the short last chunk holds 100")
    yield Attack("indices-beyond-4095", with_indices({9: 4095}), "indices", "the short last chunk holds 100")
    zeros = patched(TOPK, {PAYLOAD: bytes(15)})
    yield Attack("indices-all-zero", zeros, "indices", "one place for all")
    size = codec.packed_indices_size(11)
    for bit in (4, 7):
        offset = PAYLOAD + size - 1
        attacked = patched(ODD_TOPK, {offset: bytes([byte(ODD_TOPK, offset) | 1 << bit])})
        yield Attack(f"indices-padding-bit-{bit}", attacked, "indices", "a bit beyond the last index")


def scales() -> Iterator[Attack]:
    """Scales that are not finite, or have a sign."""
    bad = {
        "nan": b"\0\0\xc0\x7f",
        "signalling-nan": b"\1\0\x80\x7f",
        "inf": f32(float("inf")),
        "negative-inf": f32(float("-inf")),
        "negative": f32(-1.0),
        "minus-zero": f32(-0.0),
        "smallest-negative": u32(0x80000001),
    }
    for name, value in bad.items():
        yield Attack(f"scale-{name}", patched(TRITS, {PAYLOAD: value}), "scales", "no scale")
    yield Attack("scale-nan-unrecorded", patched(UNRECORDED, {PAYLOAD: bad["nan"]}), "scales", "no scale")
    for name in ("inf", "minus-zero"):
        attacked = patched(BLOCKS, {PAYLOAD + 4: bad[name]})
        yield Attack(f"scale-{name}-second-block", attacked, "scales", "no scale")
    for name, base in (("sign", SIGNS), ("levels2", LEVELS2), ("levels4", LEVELS4)):
        yield Attack(
            f"scale-negative-{name}", patched(base, {PAYLOAD: bad["negative"]}), "scales", "no scale"
        )


def digits() -> Iterator[Attack]:
    """Bytes that no trits make, and digits beyond the last one that are not 0."""
    for value in range(243, 256):
        attacked = patched(TRITS, {PAYLOAD + 4: bytes([value])})
        yield Attack(f"trits-{value}", attacked, "digits", "five trits make at most 242")
    last = len(TRITS) - 5
    yield Attack("trits-255-last", patched(TRITS, {last: b"\xff"}), "digits", "five trits make at most 242")
    # 99 digits: the last byte's highest plane lies beyond the end.
    for name, base, planes, unit in (
        ("sign", SIGNS, 8, 128),
        ("levels2", LEVELS2, 4, 64),
        ("levels4", LEVELS4, 2, 16),
    ):
        assert codec.BASE_AND_PLANES[wire.read(base).header.quantize][1] == planes
        offset = len(base) - 5
        attacked = patched(base, {offset: bytes([byte(base, offset) + unit])})
        yield Attack(f"padding-{name}", attacked, "digits", "a digit beyond the end that is not 0")
    trits = encoded(99, Settings("none", "ternary"))
    first_block = PAYLOAD + 8 + 13 - 1
    for name, base, offset in (("ternary", trits, len(trits) - 5), ("first-block", BLOCKS, first_block)):
        for digit in (1, 2):
            attacked = patched(base, {offset: bytes([byte(base, offset) + 81 * digit])})
            yield Attack(f"padding-{name}-{digit}", attacked, "digits", "a trit beyond the end that is not 0")
    # 99 signs in 13 bytes: five bytes hold a digit beyond the end.
    offset = len(SIGNS) - 5 - 4
    attacked = patched(SIGNS, {offset: bytes([byte(SIGNS, offset) + 128])})
    yield Attack("padding-sign-first", attacked, "digits", "a digit beyond the end that is not 0")


def attacks() -> list[Attack]:
    """All of them."""
    return [
        *lengths(),
        *kinds(),
        *reserved(),
        *ratios(),
        *quantizer_blocks(),
        *dims(),
        *payload_lengths(),
        *checksums(),
        *indices(),
        *scales(),
        *digits(),
    ]


def load() -> list[Attack]:
    """All of them, as the files have them."""
    rows: dict[str, dict[str, str]] = json.loads(INDEX.read_text())
    return [
        Attack(name.removesuffix(".bin"), (DIRECTORY / name).read_bytes(), row["field"], row["about"])
        for name, row in rows.items()
    ]


def main() -> None:
    """Write the directory anew."""
    DIRECTORY.mkdir(exist_ok=True)
    for old in DIRECTORY.iterdir():
        old.unlink()
    index: dict[str, dict[str, str]] = {}
    for attack in attacks():
        name = f"{attack.name}.bin"
        assert name not in index, name
        (DIRECTORY / name).write_bytes(attack.message)
        index[name] = {"field": attack.field, "about": attack.about}
    rows = [f"{json.dumps(name)}: {json.dumps(row)}" for name, row in sorted(index.items())]
    INDEX.write_text("{\n" + ",\n".join(rows) + "\n}\n")


if __name__ == "__main__":
    main()
