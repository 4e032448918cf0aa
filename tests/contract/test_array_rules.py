"""Which arrays every call takes, which it refuses, and that the mend it names works."""

from __future__ import annotations

import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import tritter_accel as ta

from .calls import ARRAY_ARGUMENTS, SIZE, ArrayArgument, buffer, outcome, values

every_array = pytest.mark.parametrize("row", ARRAY_ARGUMENTS, ids=str)
readers = pytest.mark.parametrize("row", [row for row in ARRAY_ARGUMENTS if not row.in_place], ids=str)
writers = pytest.mark.parametrize("row", [row for row in ARRAY_ARGUMENTS if row.in_place], ids=str)


def flat(result: Any) -> Any:
    """The outcome, with an array of any shape read flat."""
    return outcome(result.reshape(-1) if isinstance(result, np.ndarray) else result)


def expected(row: ArrayArgument) -> Any:
    return flat(row.result(values(SIZE, row.dtype)))


# What is taken


@every_array
@pytest.mark.parametrize("shape", [(2, 3, 4), (1, SIZE), (SIZE, 1), (4, 1, 6, 1)])
def test_any_shape_is_read_flat_in_c_order(row: ArrayArgument, shape: tuple[int, ...]) -> None:
    result = row.result(values(SIZE, row.dtype).reshape(shape))
    assert flat(result) == expected(row)
    if row.elementwise:
        assert result.shape == shape


@every_array
@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_one_element_of_any_shape(row: ArrayArgument, shape: tuple[int, ...]) -> None:
    one = values(1, row.dtype)
    result = row.result(one.copy().reshape(shape))
    assert flat(result) == flat(row.result(one))
    if row.elementwise:
        assert result.shape == shape


@every_array
@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 2, 2)])
def test_no_elements(row: ArrayArgument, shape: tuple[int, ...]) -> None:
    result = row.result(np.zeros(shape, dtype=row.dtype))
    if row.elementwise:
        assert result.shape == shape


@every_array
def test_a_contiguous_part_of_an_array(row: ArrayArgument) -> None:
    whole = np.concatenate([values(5, row.dtype), values(SIZE, row.dtype), values(7, row.dtype)])
    assert flat(row.result(whole[5 : 5 + SIZE])) == expected(row)
    np.testing.assert_array_equal(whole[:5], values(5, row.dtype))
    np.testing.assert_array_equal(whole[5 + SIZE :], values(7, row.dtype))


@readers
def test_a_read_only_array(row: ArrayArgument) -> None:
    read_only = values(SIZE, row.dtype)
    read_only.setflags(write=False)
    assert flat(row.result(read_only)) == expected(row)


@readers
def test_the_input_is_not_changed(row: ArrayArgument) -> None:
    given = values(SIZE, row.dtype)
    row.call(given)
    np.testing.assert_array_equal(given, values(SIZE, row.dtype))


@every_array
def test_memoryviews(row: ArrayArgument) -> None:
    assert flat(row.result(buffer(values(SIZE, row.dtype)))) == expected(row)


@every_array
def test_arrays_of_the_standard_library(row: ArrayArgument) -> None:
    code = {"float32": "f", "uint16": "H", "int8": "b"}[row.dtype]
    assert flat(row.result(array.array(code, values(SIZE, row.dtype).tobytes()))) == expected(row)


@every_array
def test_plain_subclasses(row: ArrayArgument) -> None:
    class Named(np.ndarray[Any, Any]):
        pass

    assert flat(row.result(values(SIZE, row.dtype).view(Named))) == expected(row)


class ByDlpack:
    """A tensor of a framework that NumPy only knows through DLPack."""

    def __init__(self, held: NDArray[Any]) -> None:
        self.held = held

    def __dlpack__(self, **options: Any) -> Any:
        return self.held.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.held.__dlpack_device__()


@readers
def test_tensors_by_dlpack(row: ArrayArgument) -> None:
    held = values(SIZE, row.dtype)
    assert flat(row.call(ByDlpack(held.reshape(2, 12)))) == flat(row.call(held.reshape(2, 12)))


@every_array
def test_tensors_of_torch(row: ArrayArgument) -> None:
    torch = pytest.importorskip("torch")
    if row.dtype == "uint16":
        pytest.skip("torch has no arithmetic type of that name")
    assert flat(row.result(torch.from_numpy(values(SIZE, row.dtype)))) == expected(row)


@readers
def test_tensors_of_jax(row: ArrayArgument) -> None:
    jax_numpy = pytest.importorskip("jax.numpy")
    assert flat(row.call(jax_numpy.asarray(values(SIZE, row.dtype)))) == expected(row)


def test_a_torch_tensor_that_requires_a_gradient_is_refused_with_the_mend() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(ta.ArrayError, match="detach"):
        ta.gradient_norm(torch.ones(3, requires_grad=True))


# What is refused


def unaligned(given: NDArray[Any]) -> NDArray[Any]:
    memory = np.zeros(given.nbytes + 1, dtype=np.uint8)
    moved = memory[1:].view(given.dtype)
    moved[:] = given
    return moved


@dataclass(frozen=True)
class Refused:
    """An array that is refused: how it is made, what the message says came, and the mend that it names."""

    id: str
    make: Callable[[NDArray[Any]], Any]
    came: str
    named: str = ""
    mend: Callable[[Any, str], Any] | None = None

    def __str__(self) -> str:
        return self.id


def as_type(given: Any, dtype: str) -> Any:
    return given.astype(dtype)


def as_contiguous(given: Any, _dtype: str) -> Any:
    return np.ascontiguousarray(given)


REFUSED = [
    Refused("float64", lambda a: a.astype(np.float64), "float64", ".astype(np.", as_type),
    Refused("float16", lambda a: a.astype(np.float16), "float16"),
    Refused("complex64", lambda a: a.astype(np.complex64), "complex64"),
    Refused("int64", lambda a: a.astype(np.int64), "int64"),
    Refused("bool", lambda a: a.astype(bool), "bool"),
    Refused("object", lambda a: a.astype(object), "object", ".astype(np.", as_type),
    Refused("text", lambda a: a.astype("S8"), "|S8"),
    Refused("structured", lambda a: a.astype([("x", "f4")]), "x"),
    Refused("strided", lambda a: np.repeat(a, 2)[::2], "strides", "np.ascontiguousarray(", as_contiguous),
    Refused("reversed", lambda a: a[::-1], "strides", "np.ascontiguousarray(", as_contiguous),
    Refused(
        "fortran",
        lambda a: np.asfortranarray(a.reshape(4, 6)),
        "strides",
        "np.ascontiguousarray(",
        as_contiguous,
    ),
    Refused("transposed", lambda a: a.reshape(4, 6).T, "strides", "np.ascontiguousarray(", as_contiguous),
    Refused("broadcast", lambda a: np.broadcast_to(a[:1], a.shape), "strides", "np.ascontiguousarray("),
    Refused("masked", lambda a: np.ma.masked_array(a), "masked", ".filled(", lambda a, _: a.filled(0)),
    Refused("list", lambda a: a.tolist(), "list", "np.asarray(", lambda a, dtype: np.asarray(a, dtype=dtype)),
    Refused("tuple", lambda a: tuple(a.tolist()), "tuple", "np.asarray("),
    Refused("None", lambda a: None, "None", "np.asarray("),
    Refused("float", lambda a: 1.5, "float", "np.asarray("),
    Refused("str", lambda a: "1.5", "str", "np.asarray("),
    Refused("bytes", lambda a: a.tobytes(), "S"),
    Refused("bytearray", lambda a: bytearray(a.tobytes()), "uint8"),
    Refused("type", lambda a: np.ndarray, "type", "np.asarray("),
]


def byte_swapped(given: NDArray[Any]) -> NDArray[Any]:
    return given.astype(given.dtype.newbyteorder())


WIDE_ONLY = [
    Refused("byte order", byte_swapped, ">", ".astype(np.", as_type),
    Refused("unaligned", unaligned, "aligned", ".copy()", lambda a, _: a.copy()),
]


@every_array
@pytest.mark.parametrize("refused", [*REFUSED, *WIDE_ONLY], ids=str)
def test_other_arrays_are_refused_by_name_with_a_mend_that_works(
    row: ArrayArgument, refused: Refused
) -> None:
    if refused in WIDE_ONLY and np.dtype(row.dtype).itemsize == 1:
        pytest.skip("a byte has no order and no alignment")
    given = refused.make(values(SIZE, row.dtype))
    with pytest.raises(ta.ArrayError) as caught:
        row.call(given)
    assert caught.value.argument == row.argument
    message = str(caught.value)
    assert message.startswith(f"argument {row.argument}: ")
    assert refused.came in message
    if row.dtype == "uint16" and refused.named == ".astype(np.":
        # Numbers cast to uint16 would not be the bits of those numbers.
        assert "convert_to_bf16" in message
    else:
        assert refused.named in message
    if refused.mend:
        row.call(refused.mend(given, row.dtype))


@writers
def test_an_array_that_cannot_be_written(row: ArrayArgument) -> None:
    read_only = values(SIZE, row.dtype)
    read_only.setflags(write=False)
    with pytest.raises(ta.ArrayError, match=rf"{row.argument}: is read-only.*\.copy\(\)") as caught:
        row.call(read_only)
    assert caught.value.argument == row.argument
    np.testing.assert_array_equal(read_only, values(SIZE, row.dtype))


class OnlyByCopy:
    """An object that can only give its values away as a copy."""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError("the values live elsewhere")
        return values()


@every_array
def test_objects_that_would_need_a_copy(row: ArrayArgument) -> None:
    with pytest.raises(ta.ArrayError, match="without a copy") as caught:
        row.call(OnlyByCopy())
    assert caught.value.argument == row.argument


class Interrupting:
    """An object whose export is interrupted by the user."""

    def __dlpack__(self, **_: Any) -> Any:
        raise KeyboardInterrupt

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


def test_an_interruption_while_an_array_is_looked_at_stays_one() -> None:
    with pytest.raises(KeyboardInterrupt):
        ta.gradient_norm(Interrupting())  # type: ignore[arg-type]


def test_bfloat16_arrays_of_ml_dtypes_are_taken_as_bits() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    numbers = np.array([[1.0, -2.5], [0.0, 3.0]], dtype=ml_dtypes.bfloat16)
    back = ta.mixed_precision.convert_from_bf16(numbers)
    np.testing.assert_array_equal(back, [[1.0, -2.5], [0.0, 3.0]])
    with pytest.raises(ta.ArrayError, match="C-contiguous"):
        ta.mixed_precision.convert_from_bf16(numbers.T)
