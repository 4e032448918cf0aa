"""Initial values of parameters, seeded and the same bits on every platform.

An initialiser is a stream (splitmix64): one that fills several tensors runs on through them in the order they are
recorded, so a second parameter from the same initialiser gets other values than the first.
"""

from __future__ import annotations

from ._core import Initializer

__all__ = ["Initializer", "constant", "kaiming", "normal", "uniform", "xavier", "zeros"]


def normal(seed: int, std: float = 1.0) -> Initializer:
    """Normal values with mean 0 and deviation `std`.

    Box and Muller 1958: ``sqrt(-2 ln(1 - u)) cos(2 pi v)`` with two uniform values u, v of [0, 1) a value, in float64,
    times `std`, rounded once.
    """
    return Initializer("normal", std, seed)


def uniform(seed: int, scale: float) -> Initializer:
    """Uniform values of [-scale, scale): ``(2 u - 1) scale`` in float64, rounded once."""
    return Initializer("uniform", scale, seed)


def xavier(seed: int) -> Initializer:
    """Glorot and Bengio 2010: matrices (inputs, outputs) uniform of scale ``sqrt(6 / (inputs + outputs))``.

    Vectors are zeros, and draw nothing.
    """
    return Initializer("xavier", 0.0, seed)


def kaiming(seed: int) -> Initializer:
    """He et al. 2015: matrices (inputs, outputs) normal of deviation ``sqrt(2 / inputs)``.

    Vectors are zeros, and draw nothing.
    """
    return Initializer("kaiming", 0.0, seed)


def zeros() -> Initializer:
    """Zeros."""
    return constant(0.0)


def constant(value: float) -> Initializer:
    """Every value `value`, rounded to float32."""
    return Initializer("constant", value, 0)
