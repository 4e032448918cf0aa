"""The golden values of gradient compression, decoded; `data/training.json` says how they were made."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .floats import from_hex
from .splitmix import SplitMix64

Float32Array = NDArray[np.float32]

GOLDEN: dict[str, Any] = json.loads((Path(__file__).parent.parent / "data" / "training.json").read_text())


def generated_input(n: int, seed: int) -> Float32Array:
    """input(n, s) of the golden file: uniform in [-1, 1), rounded once."""
    generator = SplitMix64(seed)
    return np.array([generator.uniform(1.0) for _ in range(n)], dtype=np.float64).astype(np.float32)


def sequential_sum(values: Float32Array) -> float:
    """The float64 sum in index order, as the golden file sums."""
    return float(np.cumsum(values.astype(np.float64))[-1])


@dataclass(frozen=True)
class Projection:
    """One compression of the golden file, plain and ternary, and both ways back."""

    n: int
    k: int
    seed: int
    ratio: float
    clip: float | None
    gradients: Float32Array
    first_inputs: Float32Array
    compressed: Float32Array
    decompressed: Float32Array | None
    decompressed_first: Float32Array
    decompressed_last: Float32Array
    decompressed_sum: float
    scale: np.float32
    trits: NDArray[np.int8]
    ternary_decompressed_first: Float32Array
    ternary_decompressed_sum: float
    compression_ratio: np.float32

    @property
    def clips(self) -> bool:
        """Whether the norm of the input is above the limit, so that clipping changes it."""
        return self.clip is not None and float(np.linalg.norm(self.gradients)) > self.clip


def _projection(row: dict[str, Any]) -> Projection:
    return Projection(
        n=row["n"],
        k=row["k"],
        seed=int(row["seed"]),
        ratio=row["ratio"],
        clip=row["clip"],
        gradients=generated_input(row["n"], row["input_seed"]),
        first_inputs=from_hex(row["input_first8"]),
        compressed=from_hex(row["compressed"]),
        decompressed=from_hex(row["decompressed"]) if row["decompressed"] else None,
        decompressed_first=from_hex(row["decompressed_first64"]),
        decompressed_last=from_hex(row["decompressed_last64"]),
        decompressed_sum=row["decompressed_sum_f64"],
        scale=from_hex(row["scale_bits"])[0],
        trits=np.array(["-0+".index(sign) - 1 for sign in row["trits"]], dtype=np.int8),
        ternary_decompressed_first=from_hex(row["ternary_decompressed_first64"]),
        ternary_decompressed_sum=row["ternary_decompressed_sum_f64"],
        compression_ratio=np.float32(row["compression_ratio"]),
    )


PROJECTIONS = [_projection(row) for row in GOLDEN["projection"]]
PROJECTION_NAMES = [f"n{p.n}-k{p.k}-seed{p.seed}-clip{p.clip}" for p in PROJECTIONS]
