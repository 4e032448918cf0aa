"""Seeded gradient compression, and what a gradient goes through on its way there."""

from __future__ import annotations

from ._core import GradientAccumulator

__all__ = ["GradientAccumulator"]
