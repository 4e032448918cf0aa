"""The golden messages: `python -m tests.data.make_wire` writes tests/data/wire anew.

One file a message, made by the reference in tests/reference from the formulas in tests/reference/wire_inputs.py.
`index.json` says for each what it was made from, what its header holds, and the SHA-256 of the float32 it decodes
to. The bytes are those of version 1: a change here is a new version of the format.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from tests.reference import wire
from tests.reference.codec import PROJECTIONS, QUANTIZES, SCALED
from tests.reference.splitmix import SplitMix64
from tests.reference.wire import Settings
from tests.reference.wire_inputs import INPUTS

DIRECTORY = Path(__file__).parent / "wire"
INDEX = DIRECTORY / "index.json"

T = TypeVar("T")


@dataclass(frozen=True)
class Golden:
    """What a message is made from."""

    n: int
    settings: Settings
    input: str = "cubes"
    step: int = 0
    slot: int = 0

    def message(self) -> bytes:
        """Its bytes."""
        gradients = INPUTS[self.input](self.n)
        return wire.encode(gradients, self.settings, step=self.step, slot=self.slot)

    def name(self) -> str:
        """Its file's name."""
        settings = self.settings
        parts: list[str] = [settings.projection, settings.quantize]
        if settings.quantizer_block is not None:
            parts.append(f"block{settings.quantizer_block}")
        if settings.scaling != "reference":
            parts.append(settings.scaling)
        if settings.quantizer_scale != "reference":
            parts.append(f"{settings.quantizer_scale}_scale")
        if settings.gradient_clipping is not None:
            parts.append("clipped")
        if settings.projection != "none":
            parts.append(f"ratio{settings.ratio:g}")
        if self.input != "cubes":
            parts.append(self.input)
        return "-".join([*parts, f"n{self.n}"]) + ".bin"


def every_kind() -> Iterator[Golden]:
    """Every projection with every quantiser, one scale and several, over short, odd and chunk-crossing lengths."""
    draw = SplitMix64(1)

    def one_of(choices: Sequence[T]) -> T:
        return choices[draw.next() % len(choices)]

    for projection in PROJECTIONS:
        scalings = [s for s in wire.SCALINGS if projection != "topk" or s != "unbiased"]
        for quantize in QUANTIZES:
            scaled = quantize in SCALED
            for several in (False, True) if scaled else (False,):
                for lengths in ((63, 64, 65, 100), (1000, 4096, 4097, 10000) if scaled else (1000, 2049)):
                    n = one_of(lengths)
                    settings = Settings(
                        projection=projection,
                        quantize=quantize,
                        scaling=one_of(scalings),
                        quantizer_scale=one_of(wire.QUANTIZER_SCALES) if scaled else "reference",
                        quantizer_block=one_of((64, 128, 320)) if several else None,
                        ratio=one_of((0.03, 0.1)) if n > 1000 else one_of((0.05, 0.1, 0.5, 0.75)),
                        seed=one_of((42, 0, 7, 2**32, 2**64 - 1)),
                    )
                    yield Golden(n, settings, step=one_of((0, 1, 2**32 - 1)), slot=one_of((0, 3, 2**32 - 1)))


def every_length() -> Iterator[Golden]:
    """Every length that a layout turns on, with every projection."""
    for projection in PROJECTIONS:
        for n in (0, 1, 5, 63, 64, 65, 100, 4096, 4097, 10000):
            ratio = 0.01 if projection == "dense" else 0.25
            yield Golden(
                n, Settings(projection, "ternary", quantizer_scale="least_squares", ratio=ratio, seed=n)
            )


def corners() -> Iterator[Golden]:
    """Ties, zeros, subnormals, clipping, what is not finite, and blocks of which no row is sent."""
    for quantize in SCALED:
        for scale in wire.QUANTIZER_SCALES:
            for name in ("zeros", "equal", "subnormal"):
                settings = Settings("none", quantize, quantizer_scale=scale, quantizer_block=64)
                yield Golden(200, settings, name)
    for projection in PROJECTIONS:
        settings = Settings(projection, "sign", ratio=0.1, gradient_clipping=0.5, seed=1)
        yield Golden(3000, settings, step=9)
    for projection in ("none", "topk"):
        for quantize in ("none", "bfloat16"):
            yield Golden(300, Settings(projection, quantize, ratio=0.05), "special")
    yield Golden(300, Settings("topk", "ternary", ratio=0.1), "equal")
    yield Golden(12345, Settings("topk", "levels4", quantizer_block=64, ratio=1e-6))
    yield Golden(8192, Settings("hadamard", "levels2", "unbiased", ratio=0.02))
    yield Golden(300001, Settings("hadamard", "none", ratio=1e-6))
    yield Golden(300001, Settings("hadamard", "ternary", "unbiased", "unbiased", ratio=1e-6, seed=3))
    yield Golden(2000, Settings("none", "sign", quantizer_block=2**32 - 64))


def all_golden() -> dict[str, Golden]:
    """By file name."""
    found: dict[str, Golden] = {}
    for golden in (*every_kind(), *every_length(), *corners()):
        assert found.setdefault(golden.name(), golden) == golden, golden
    return found


def entry(golden: Golden, message: bytes) -> dict[str, Any]:
    """The row of the index; settings and header leave out what is the default of `Settings` and 0."""
    defaults = asdict(Settings())
    settings = asdict(golden.settings)
    return {
        "input": golden.input,
        "n": golden.n,
        "settings": {name: value for name, value in settings.items() if value != defaults[name]},
        "step": golden.step,
        "slot": golden.slot,
        "header": {name: value for name, value in asdict(wire.read(message).header).items() if value},
        "decoded": hashlib.sha256(wire.decode(message).astype("<f4").tobytes()).hexdigest(),
    }


def load() -> dict[str, tuple[Golden, bytes, dict[str, Any]]]:
    """By file name: what each message is made from, its bytes and its row, as the files have them."""
    rows: dict[str, dict[str, Any]] = json.loads(INDEX.read_text())
    return {
        name: (
            Golden(row["n"], Settings(**row["settings"]), row["input"], row["step"], row["slot"]),
            (DIRECTORY / name).read_bytes(),
            row,
        )
        for name, row in rows.items()
    }


def main() -> None:
    """Write the directory anew."""
    DIRECTORY.mkdir(exist_ok=True)
    for old in DIRECTORY.iterdir():
        old.unlink()
    index: dict[str, dict[str, Any]] = {}
    for name, golden in all_golden().items():
        message = golden.message()
        (DIRECTORY / name).write_bytes(message)
        index[name] = entry(golden, message)
    rows = [f"{json.dumps(name)}: {json.dumps(row)}" for name, row in sorted(index.items())]
    INDEX.write_text("{\n" + ",\n".join(rows) + "\n}\n")


if __name__ == "__main__":
    main()
