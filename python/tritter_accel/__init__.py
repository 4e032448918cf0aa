"""Seeded gradient compression and reproducible data-parallel training, with a Rust core.

Two halves that meet in the exchange of gradients: :mod:`tritter_accel.compression` makes gradient traffic small with
projections that both ends regenerate from a seed, and the engine (:class:`Tape`, :mod:`tritter_accel.nn`,
:mod:`tritter_accel.train`) trains small networks to the same bits on every machine and with every number of threads.
"""

from __future__ import annotations

from . import compression, engine, exceptions, init, mixed_precision, nn, random, train, wire
from ._core import __version__, get_num_threads, set_num_threads, simd_level
from .compression import (
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
from .engine import (
    BATCH,
    BatchAxis,
    Entry,
    Network,
    Parameters,
    Run,
    Tape,
    Value,
)
from .exceptions import (
    AllocationError,
    ArgumentError,
    ArgumentTypeError,
    ArrayError,
    CorpusError,
    DimensionMismatchError,
    InternalError,
    InvalidRatioError,
    NonFiniteError,
    SeedMismatchError,
    ShapeError,
    TapeError,
    TrainingError,
    WireError,
)

__all__ = [
    "BATCH",
    "AllocationError",
    "ArgumentError",
    "ArgumentTypeError",
    "ArrayError",
    "BatchAxis",
    "CompressedGradient",
    "CorpusError",
    "DimensionMismatchError",
    "Entry",
    "GradientAccumulator",
    "GradientCompressor",
    "InternalError",
    "InvalidRatioError",
    "Network",
    "NonFiniteError",
    "Parameters",
    "ProjectionPlan",
    "Run",
    "SeedMismatchError",
    "ShapeError",
    "Tape",
    "TapeError",
    "TernaryCompressedGradient",
    "TrainingConfig",
    "TrainingError",
    "Value",
    "WireError",
    "__version__",
    "clip_gradients",
    "clip_gradients_",
    "compression",
    "engine",
    "exceptions",
    "get_num_threads",
    "gradient_norm",
    "init",
    "mixed_precision",
    "nn",
    "random",
    "set_num_threads",
    "simd_level",
    "train",
    "wire",
]
