"""Float arrays as bits: hexadecimal text, and the one comparison that tests of exactness use."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

QUIET_NAN = 0x7FC00000


def from_hex(text: str) -> NDArray[np.float32]:
    """Concatenated 8-digit hexadecimal IEEE-754 bits as float32."""
    return np.array([int(text[i : i + 8], 16) for i in range(0, len(text), 8)], dtype=np.uint32).view(
        np.float32
    )


def bits(values: NDArray[Any]) -> NDArray[np.uint32]:
    """The bits of float32 values, every NaN as the one quiet NaN.

    Which sign and payload an addition gives to a NaN is the processor's choice; whether it is a NaN is not.
    """
    assert values.dtype == np.float32, values.dtype
    patterns = np.ascontiguousarray(values).view(np.uint32)
    return np.where(np.isnan(values), np.uint32(QUIET_NAN), patterns)


def assert_same_bits(actual: NDArray[Any], expected: NDArray[Any]) -> None:
    """Equal shapes and equal bits (so -0 is not 0); a failure names the first difference."""
    assert actual.shape == expected.shape, (actual.shape, expected.shape)
    different = np.flatnonzero(bits(actual).reshape(-1) != bits(expected).reshape(-1))
    if different.size:
        first = int(different[0])
        got, wanted = actual.reshape(-1)[first], expected.reshape(-1)[first]
        raise AssertionError(
            f"{different.size} of {actual.size} differ, first at {first}: got {got!r}, wanted {wanted!r}"
        )
