"""Data-parallel training: many steps in one call, the same bits for every number of threads."""

from __future__ import annotations

from ._core import Trainer

__all__ = ["Trainer"]
