"""Seeded gradient compression and reproducible data-parallel training, with a Rust core.

Two halves that meet in the exchange of gradients: :mod:`tritter_accel.compression` makes gradient traffic small with
projections that both ends regenerate from a seed, and the engine (:class:`Tape`, :mod:`tritter_accel.nn`,
:mod:`tritter_accel.train`) trains small networks to the same bits on every machine and with every number of threads.
"""

from __future__ import annotations

from . import compression, engine, exceptions, init, mixed_precision, nn, random, train
from ._core import __version__, get_num_threads, set_num_threads, simd_level
from .compression import *  # noqa: F403
from .engine import *  # noqa: F403
from .exceptions import *  # noqa: F403

__all__ = [
    "__version__",
    "compression",
    "engine",
    "exceptions",
    "get_num_threads",
    "init",
    "mixed_precision",
    "nn",
    "random",
    "set_num_threads",
    "simd_level",
    "train",
]
__all__ += compression.__all__
__all__ += engine.__all__
__all__ += exceptions.__all__
