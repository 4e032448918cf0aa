"""Gradients made small: projected by a matrix that both ends regenerate from a seed, then quantised if wanted.

:class:`GradientCompressor` projects a gradient of n values onto k = ratio * n dimensions and back. Its random matrix is
never stored or sent: seed, step and slot select a ChaCha8 keystream that decides every entry, so sender and receiver
only have to agree on three numbers. :class:`CompressedGradient` and :class:`TernaryCompressedGradient` are what
travels. :class:`TrainingConfig` sets ratio, seed, clipping and the options; its defaults are the reference, and
``scaling="unbiased"`` with a new ``step`` at every call is what training wants. Gradients under one matrix can share
the work of making it: :meth:`GradientCompressor.compress_many` within a call, a :class:`ProjectionPlan` from call to
call. :func:`gradient_norm` and :func:`clip_gradients` are the clipping that compression applies, on their own;
:func:`clip_gradients_` clips in place.

Every result has the same bits on every machine, at every number of threads and SIMD level. Formulas and error bounds:
``docs/numerics.md``.
"""

from __future__ import annotations

from ._core import (
    CompressedGradient,
    GradientAccumulator,
    GradientCompressor,
    ProjectionPlan,
    TernaryCompressedGradient,
    TrainingConfig,
    clip_gradients,
    clip_gradients_,
    gradient_norm,
)

__all__ = [
    "CompressedGradient",
    "GradientAccumulator",
    "GradientCompressor",
    "ProjectionPlan",
    "TernaryCompressedGradient",
    "TrainingConfig",
    "clip_gradients",
    "clip_gradients_",
    "gradient_norm",
]
