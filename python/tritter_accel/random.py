"""The small seeded generator behind shuffles and sampling, the same on every platform."""

from __future__ import annotations

from ._core import SplitMix64

__all__ = ["SplitMix64"]
