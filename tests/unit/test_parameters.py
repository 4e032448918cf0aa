"""The Parameters table: its order, its algebra against NumPy, its immutability, its copies."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import tritter_accel as ta

SHAPES: dict[str, tuple[int, ...]] = {"matrix": (3, 5), "vector": (7,), "cube": (2, 2, 3), "one": (1,)}

Arrays = dict[str, NDArray[np.float32]]


def random_arrays(seed: int) -> Arrays:
    generator = np.random.default_rng(seed)
    return {name: generator.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}


def table(arrays: Arrays) -> ta.Parameters:
    tape = ta.Tape()
    for name, array in arrays.items():
        tape.parameter(name, ta.init.zeros(), shape=array.shape)
    return tape.seal().parameters().replace(arrays)


def assert_equals(parameters: ta.Parameters, arrays: Arrays) -> None:
    assert list(parameters.names) == list(arrays)
    for name, array in arrays.items():
        assert parameters[name].dtype == np.float32
        assert parameters[name].shape == array.shape
        np.testing.assert_array_equal(parameters[name], array, err_msg=name)


A, B = random_arrays(1), random_arrays(2)


def test_the_order_is_that_of_the_slots() -> None:
    parameters = table(A)
    assert list(parameters.names) == list(SHAPES)
    assert [name for name, _ in parameters.items()] == list(SHAPES)
    assert len(parameters) == len(SHAPES)
    for name, array in parameters.items():
        np.testing.assert_array_equal(array, A[name])
        assert array.shape == SHAPES[name]


def test_shapes_are_listed_by_slot() -> None:
    assert [tuple(shape) for shape in table(A).shapes] == list(SHAPES.values())


def test_flat_is_all_slots_one_after_the_other() -> None:
    flat = table(A).flat()
    assert flat.dtype == np.float32
    np.testing.assert_array_equal(flat, np.concatenate([array.ravel() for array in A.values()]))


@pytest.mark.parametrize(
    "operation",
    [
        lambda a, b: a + b,
        lambda a, b: a - b,
        lambda a, b: a * b,
        lambda a, b: b + a * a - b,
    ],
    ids=["add", "sub", "mul", "compound"],
)
def test_algebra_of_two_tables_is_that_of_their_arrays(operation: Callable[[Any, Any], Any]) -> None:
    assert_equals(operation(table(A), table(B)), {name: operation(A[name], B[name]) for name in SHAPES})


@pytest.mark.parametrize("scalar", [2.5, -0.1, 3, 0.0])
@pytest.mark.parametrize(
    "operation",
    [
        lambda a, s: a + s,
        lambda a, s: s + a,
        lambda a, s: a - s,
        lambda a, s: s - a,
        lambda a, s: a * s,
        lambda a, s: s * a,
    ],
    ids=["add", "radd", "sub", "rsub", "mul", "rmul"],
)
def test_algebra_with_a_scalar_is_that_of_the_arrays(
    operation: Callable[[Any, Any], Any], scalar: float
) -> None:
    expected = {name: operation(A[name], np.float32(scalar)) for name in SHAPES}
    assert_equals(operation(table(A), scalar), expected)


def test_scale_multiplies_every_slot() -> None:
    assert_equals(table(A).scale(0.1), {name: A[name] * np.float32(0.1) for name in SHAPES})


def test_map_zip_and_step_call_the_function_once_for_every_slot_in_order() -> None:
    seen: list[tuple[int, ...]] = []

    def square(p: NDArray[np.float32]) -> NDArray[np.float32]:
        seen.append(p.shape)
        return np.asarray(p * p)

    assert_equals(table(A).map(square), {name: A[name] ** 2 for name in SHAPES})
    assert seen == list(SHAPES.values())
    assert_equals(table(A).zip(table(B), np.maximum), {name: np.maximum(A[name], B[name]) for name in SHAPES})
    stepped = table(A).step(table(B), lambda p, g: p - 0.1 * g)
    assert_equals(stepped, {name: A[name] - np.float32(0.1) * B[name] for name in SHAPES})


@settings(derandomize=True, deadline=None, max_examples=20)
@given(size=st.integers(min_value=1, max_value=9000), seed=st.integers(min_value=0, max_value=2**32 - 1))
def test_the_norm_is_euclidean_and_summed_in_float64(size: int, seed: int) -> None:
    values = np.random.default_rng(seed).standard_normal(size).astype(np.float32) * np.float32(1e3)
    parameters = table({"w": values, "b": values[:1]})
    exact = math.sqrt(math.fsum(float(v) ** 2 for v in [*values.tolist(), float(values[0])]))
    norm = parameters.norm()
    assert isinstance(norm, float)
    assert norm == pytest.approx(exact, rel=1e-12)


def test_the_norm_does_not_stick_where_float32_sums_do() -> None:
    values = np.full(1 << 20, 100.0, dtype=np.float32)
    values[0] = 1e6
    exact = math.sqrt(1e12 + ((1 << 20) - 1) * 1e4)
    assert table({"w": values}).norm() == pytest.approx(exact, rel=1e-12)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_isfinite_sees_one_bad_value_in_the_last_slot(bad: float) -> None:
    parameters = table(A)
    assert parameters.isfinite() is True
    assert parameters.replace({"one": np.array([bad], dtype=np.float32)}).isfinite() is False


def test_replace_gives_a_new_table() -> None:
    parameters = table(A)
    other = parameters.replace({"vector": B["vector"]})
    assert_equals(other, {**A, "vector": B["vector"]})
    assert_equals(parameters, A)


def test_replace_does_not_keep_the_array_it_was_given() -> None:
    array = np.ones(7, dtype=np.float32)
    parameters = table(A).replace({"vector": array})
    array[:] = 5.0
    assert parameters["vector"].tolist() == [1.0] * 7


def test_what_replace_refuses() -> None:
    parameters = table(A)
    with pytest.raises(ta.TrainingError, match="nowhere"):
        parameters.replace({"nowhere": np.ones(1, dtype=np.float32)})
    with pytest.raises(ta.ShapeError, match=r"(?s)(?=.*5, 3)(?=.*3, 5)") as caught:
        parameters.replace({"matrix": np.ones((5, 3), dtype=np.float32)})
    assert "matrix" in str(caught.value)
    doubles: Any = np.ones(7)
    with pytest.raises(ta.ArrayError, match="float64"):
        parameters.replace({"vector": doubles})
    with pytest.raises(ta.ArrayError, match="contiguous"):
        parameters.replace({"matrix": np.ones((5, 3), dtype=np.float32).T})
    assert_equals(parameters, A)


def test_an_unknown_name_is_a_key_error_or_names_the_slot() -> None:
    with pytest.raises((KeyError, ta.TrainingError), match="nowhere"):
        table(A)["nowhere"]


def test_the_views_are_read_only() -> None:
    parameters = table(A)
    for view in [parameters["matrix"], dict(parameters.items())["matrix"]]:
        assert not view.flags.writeable
        with pytest.raises(ValueError, match="read-only"):
            view[0, 0] = 1.0
        with pytest.raises(ValueError, match="WRITEABLE"):
            view.flags.writeable = True
    assert_equals(parameters, A)


def test_a_function_cannot_write_into_the_table() -> None:
    parameters = table(A)

    def in_place(p: NDArray[np.float32]) -> NDArray[np.float32]:
        p += 1
        return p

    with pytest.raises(ValueError, match="read-only"):
        parameters.map(in_place)
    with pytest.raises(ValueError, match="read-only"):
        parameters.step(table(B), lambda p, g: np.add(p, g, out=g))
    assert_equals(parameters, A)


def test_a_view_outlives_its_table() -> None:
    view = table(A)["matrix"]
    np.testing.assert_array_equal(view, A["matrix"])


def test_attributes_and_items_cannot_be_assigned() -> None:
    parameters: Any = table(A)
    with pytest.raises(TypeError):
        parameters["matrix"] = A["matrix"]
    with pytest.raises(AttributeError):
        parameters.names = ["other"]


def test_a_function_must_return_what_came_in() -> None:
    parameters = table(A)
    with pytest.raises(ta.ShapeError, match=r"(?s)(?=.*15)(?=.*3, 5)"):
        parameters.map(lambda p: p.ravel())
    with pytest.raises(ta.ArrayError, match="float64"):
        parameters.map(lambda p: p.astype(np.float64))
    with pytest.raises(RuntimeError, match="from the function"):
        parameters.map(raising)
    assert_equals(parameters, A)


def raising(p: NDArray[np.float32]) -> NDArray[np.float32]:
    raise RuntimeError("from the function")


def test_tables_of_other_slots_do_not_mix() -> None:
    parameters = table(A)
    reshaped = table({**A, "vector": np.zeros(8, dtype=np.float32)})
    renamed = table({("bias" if name == "vector" else name): array for name, array in A.items()})
    shorter = table({"matrix": A["matrix"]})
    for other in (reshaped, renamed, shorter):
        with pytest.raises(ta.TapeError):
            parameters + other
        with pytest.raises(ta.TapeError):
            parameters.zip(other, np.maximum)
        with pytest.raises(ta.TapeError):
            parameters.step(other, lambda p, g: p - g)
    with pytest.raises(ta.ShapeError, match=r"(?s)(?=.*\b7\b)(?=.*\b8\b)"):
        parameters - reshaped
    text: Any = "text"
    with pytest.raises(TypeError):
        parameters + text


def test_equality_is_by_names_and_values() -> None:
    assert table(A) == table({name: array.copy() for name, array in A.items()})
    assert table(A) != table(B)
    assert table(A) != table({"matrix": A["matrix"]})
    assert table(A) != "text"


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_pickle_keeps_every_bit(protocol: int) -> None:
    arrays = {**A, "one": np.array([-0.0], dtype=np.float32)}
    restored = pickle.loads(pickle.dumps(table(arrays), protocol=protocol))
    assert isinstance(restored, ta.Parameters)
    assert restored == table(arrays)
    for name, array in arrays.items():
        assert restored[name].tobytes() == array.tobytes()
        assert not restored[name].flags.writeable


def test_copies_are_equal() -> None:
    parameters = table(A)
    assert copy.copy(parameters) == parameters
    assert copy.deepcopy(parameters) == parameters


def test_repr_is_one_line_with_the_slots_and_the_size() -> None:
    text = repr(table(A))
    assert text.startswith("Parameters")
    assert "\n" not in text
    assert "matrix" in text or str(sum(array.size for array in A.values())) in text
