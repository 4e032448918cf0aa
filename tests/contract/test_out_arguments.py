"""`out=`: filled and returned, and refused before anything is written."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import tritter_accel as ta

from .calls import OUT_ARGUMENTS, OutArgument, buffer, outcome
from .processes import run_python

every_out = pytest.mark.parametrize("row", OUT_ARGUMENTS, ids=str)


def filled(row: OutArgument, size: int | None = None, dtype: str | None = None) -> NDArray[Any]:
    return np.full(row.size if size is None else size, 7, dtype=dtype or row.dtype)


@every_out
def test_out_is_filled_and_returned(row: OutArgument) -> None:
    out = filled(row)
    result = row.call(row.input(), out)
    assert result is out
    assert outcome(out) == outcome(row.call(row.input(), None))


@every_out
def test_out_of_another_shape_and_the_same_length_is_filled_flat(row: OutArgument) -> None:
    out = filled(row).reshape(2, -1)
    assert row.call(row.input(), out) is out
    assert out.shape == (2, row.size // 2)
    np.testing.assert_array_equal(out.reshape(-1), row.call(row.input(), None).reshape(-1))


@every_out
def test_out_can_be_a_buffer(row: OutArgument) -> None:
    out = filled(row)
    view = buffer(out)
    assert row.call(row.input(), view) is view
    assert outcome(out) == outcome(row.call(row.input(), None))


@every_out
@pytest.mark.parametrize("change", [-1, 1, -1000])
def test_out_of_another_length(row: OutArgument, change: int) -> None:
    out = filled(row, max(row.size + change, 0))
    with pytest.raises(ta.DimensionMismatchError) as caught:
        row.call(row.input(), out)
    assert (caught.value.expected, caught.value.actual) == (row.size, out.size)
    assert (out == 7).all()


def read_only(out: NDArray[Any]) -> NDArray[Any]:
    out.setflags(write=False)
    return out


OTHERS: dict[str, Callable[[NDArray[Any]], Any]] = {
    "float64": lambda out: out.astype(np.float64),
    "int64": lambda out: out.astype(np.int64),
    "strided": lambda out: np.repeat(out, 2)[::2],
    "fortran": lambda out: np.asfortranarray(out.reshape(2, -1)),
    "read-only": read_only,
    "read-only buffer": lambda out: buffer(out).toreadonly(),
    "list": lambda out: out.tolist(),
    "number": lambda out: 7,
    "masked": np.ma.masked_array,
}


@every_out
@pytest.mark.parametrize("other", OTHERS)
def test_another_out_is_refused_and_not_written(row: OutArgument, other: str) -> None:
    out = OTHERS[other](filled(row))
    with pytest.raises(ta.ArrayError, match=r"^argument out: ") as caught:
        row.call(row.input(), out)
    assert caught.value.argument == "out"
    assert (np.asarray(out) == 7).all()
    if other in {"float64", "int64", "strided", "fortran"}:
        # A converted copy would be filled and lost.
        assert f"np.empty(size, dtype=np.{row.dtype})" in str(caught.value)


@pytest.mark.parametrize("row", [row for row in OUT_ARGUMENTS if row.input_dtype], ids=str)
@pytest.mark.parametrize("shift", [0, 8, -8])
def test_out_that_overlaps_the_input(row: OutArgument, shift: int) -> None:
    given = row.input()
    out_bytes = row.size * np.dtype(row.dtype).itemsize
    memory = np.zeros(2 * (given.nbytes + out_bytes) + 16, dtype=np.uint8)
    start = out_bytes + 8
    inside = memory[start : start + given.nbytes].view(given.dtype)
    inside[:] = given
    # From shortly before the input's last byte, or over its start.
    first = start + given.nbytes - 8 + shift if shift > 0 else start - out_bytes + 8 + shift
    first -= first % 8
    out = memory[first : first + out_bytes].view(row.dtype)
    if not np.shares_memory(inside, out):
        assert shift
        row.call(inside, out)  # side by side is no overlap
        return
    with pytest.raises(ta.ArrayError, match=r"^argument out: overlaps an input"):
        row.call(inside, out)
    np.testing.assert_array_equal(inside, given)


def test_out_can_be_the_neighbour_of_the_input() -> None:
    memory = np.ones(20, dtype=np.float32)
    assert (ta.clip_gradients(memory[:10], 0.5, out=memory[10:]) < 1).all()
    assert (memory[:10] == 1).all()


PROTECTED = """
    import ctypes, mmap, resource
    import numpy as np
    import tritter_accel as ta

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    memory = mmap.mmap(-1, 1 << 22)
    gradients = np.frombuffer(memory, dtype=np.float32)
    gradients[:] = 0.001
    norm = ta.gradient_norm(gradients)
    address = ctypes.c_void_p(gradients.ctypes.data)
    assert ctypes.CDLL(None).mprotect(address, ctypes.c_size_t(1 << 22), mmap.PROT_READ) == 0
    assert gradients.flags.writeable
    assert ta.clip_gradients_(gradients, {limit}) == norm
    print("read")
"""


@pytest.mark.skipif(os.name != "posix", reason="memory is protected as POSIX does")
@pytest.mark.parametrize(("limit", "written"), [("norm * 1.001", False), ("norm / 2", True)])
def test_a_gradient_that_is_short_enough_is_not_written_in_place(limit: str, written: bool) -> None:
    """Not even with the values it has: a write to memory that is protected ends the process."""
    done = run_python(PROTECTED.format(limit=limit), check=False)
    if written:
        assert done.returncode < 0
    else:
        assert (done.returncode, done.stdout.strip()) == (0, "read"), done.stderr
