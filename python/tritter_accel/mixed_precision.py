"""bfloat16 conversion, loss scaling, and guards against values that are not finite.

bfloat16 is the upper half of a float32: the same range, 8 bits of precision. NumPy has no type for it, so its
bits travel as ``uint16``; where ``ml_dtypes`` is installed, :func:`as_bfloat16` shows them as numbers without
a copy. Every result is the same to the bit for every number of threads and on every machine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ._core import (
    LossScaler,
    bf16_to_f32,
    convert_from_bf16,
    convert_to_bf16,
    convert_to_bf16_with_norm,
    f32_to_bf16,
    has_nan_or_inf,
    safe_clip,
)
from .exceptions import ArrayError

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "LossScaler",
    "as_bfloat16",
    "bf16_to_f32",
    "convert_from_bf16",
    "convert_to_bf16",
    "convert_to_bf16_with_norm",
    "f32_to_bf16",
    "has_nan_or_inf",
    "safe_clip",
]


def as_bfloat16(bits: NDArray[np.uint16]) -> NDArray[Any]:
    """Show bfloat16 bits as numbers, without a copy.

    Parameters
    ----------
    bits : array of uint16, any shape
        What :func:`convert_to_bf16` returned.

    Returns
    -------
    array of ml_dtypes.bfloat16
        A view of the same memory.

    Raises
    ------
    ArrayError
        For anything but an array of uint16.
    ModuleNotFoundError
        Where ``ml_dtypes`` is not installed.

    Examples
    --------
    >>> import numpy as np
    >>> from tritter_accel import mixed_precision
    >>> bits = mixed_precision.convert_to_bf16(np.array([1.0, 2.5], dtype=np.float32))
    >>> mixed_precision.as_bfloat16(bits)
    array([1, 2.5], dtype=bfloat16)
    """
    if not isinstance(bits, np.ndarray) or bits.dtype != np.uint16:
        came = f"an array of {bits.dtype}" if isinstance(bits, np.ndarray) else type(bits).__name__
        message = f"argument bits: got {came}, wanted an array of uint16; convert_to_bf16 makes one"
        raise ArrayError(message, "bits")
    try:
        import ml_dtypes
    except ModuleNotFoundError as cause:
        message = "as_bfloat16 shows bits with ml_dtypes, which is not installed; pip install ml_dtypes"
        raise ModuleNotFoundError(message, name="ml_dtypes") from cause
    return bits.view(ml_dtypes.bfloat16)
