"""The splitmix64 generator and the initialisers, written out from their definition in Python integers and
floats.

Every value is computed in float64 and rounded to float32 once. This is the slow and obvious form that the
package is compared with; it never imports the package.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

MASK = (1 << 64) - 1
GOLDEN_GAMMA = 0x9E3779B97F4A7C15

Float32Array = NDArray[np.float32]


class SplitMix64:
    """splitmix64 started at the seed itself, without a warm-up."""

    def __init__(self, seed: int) -> None:
        self.state = seed & MASK

    def next(self) -> int:
        """The next 64-bit word."""
        self.state = (self.state + GOLDEN_GAMMA) & MASK
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        return z ^ (z >> 31)

    def unit(self) -> float:
        """A float64 in [0, 1): the upper 53 bits of the next word."""
        return (self.next() >> 11) / 9007199254740992.0

    def normal(self, std: float) -> float:
        """Box-Muller, cosine half only: the first unit gives the radius, the second the angle."""
        radius = math.sqrt(-2.0 * math.log(1.0 - self.unit()))
        angle = 2.0 * math.pi * self.unit()
        return radius * math.cos(angle) * std

    def uniform(self, scale: float) -> float:
        """Uniform in [-scale, scale)."""
        return (2.0 * self.unit() - 1.0) * scale


class Initialiser:
    """One stream that runs on through every tensor it fills, in the order in which it is asked."""

    def __init__(self, seed: int) -> None:
        self.stream = SplitMix64(seed)

    def draw(self, shape: Sequence[int]) -> list[float]:
        """The float64 values of one tensor, row-major."""
        raise NotImplementedError

    def fill(self, shape: Sequence[int]) -> Float32Array:
        """The next tensor of this stream, rounded once."""
        return np.array(self.draw(shape), dtype=np.float64).astype(np.float32).reshape(tuple(shape))


class Normal(Initialiser):
    """Normal of mean 0 and standard deviation `std`."""

    def __init__(self, seed: int, std: float = 1.0) -> None:
        super().__init__(seed)
        self.std = std

    def draw(self, shape: Sequence[int]) -> list[float]:
        return [self.stream.normal(self.std) for _ in range(math.prod(shape))]


class Uniform(Initialiser):
    """Uniform in [-scale, scale)."""

    def __init__(self, seed: int, scale: float) -> None:
        super().__init__(seed)
        self.scale = scale

    def draw(self, shape: Sequence[int]) -> list[float]:
        return [self.stream.uniform(self.scale) for _ in range(math.prod(shape))]


class Xavier(Initialiser):
    """Glorot's uniform for rank 2 [in, out]; rank 1 is zeros and draws nothing."""

    def draw(self, shape: Sequence[int]) -> list[float]:
        if len(shape) == 1:
            return [0.0] * shape[0]
        inputs, outputs = shape
        scale = math.sqrt(6.0 / (inputs + outputs))
        return [self.stream.uniform(scale) for _ in range(inputs * outputs)]


class Kaiming(Initialiser):
    """He's normal of deviation sqrt(2 / in) for rank 2 [in, out]; rank 1 is zeros and draws nothing."""

    def draw(self, shape: Sequence[int]) -> list[float]:
        if len(shape) == 1:
            return [0.0] * shape[0]
        inputs, outputs = shape
        std = math.sqrt(2.0 / inputs)
        return [self.stream.normal(std) for _ in range(inputs * outputs)]
