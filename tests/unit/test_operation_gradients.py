"""Every operation of the tape: its value against float64 NumPy, its gradient against float64 central
differences.

Each case carries a NumPy form of its own, written in float64. The loss is that form's output weighted by a
fixed random array, so the gradient wanted is the slope of a float64 function in which the package takes no
part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import tritter_accel as ta

Float64 = NDArray[np.float64]
Shape = tuple[int, ...]
Record = Callable[..., ta.Value]
Forward = Callable[..., Any]

STEP = 1e-6
RELATIVE = 5e-6  # of the largest magnitude in play: some float32 roundings, never a wrong formula


# The test's own arithmetic


def slope(function: Callable[[Sequence[Float64]], float], arrays: Sequence[Float64], index: int) -> Float64:
    """Central differences of a scalar function by the elements of one of its arrays."""
    moved = [array.copy() for array in arrays]
    result = np.zeros_like(arrays[index])
    for place in np.ndindex(result.shape):
        centre = arrays[index][place]
        moved[index][place] = centre + STEP
        above = function(moved)
        moved[index][place] = centre - STEP
        below = function(moved)
        moved[index][place] = centre
        result[place] = (above - below) / (2 * STEP)
    return result


def lse(x: Float64, axis: int = -1, keepdims: bool = False) -> Any:
    return np.log(np.exp(x).sum(axis=axis, keepdims=keepdims))


def softmax(x: Float64, axis: int = -1) -> Float64:
    exponentials = np.exp(x)
    return np.asarray(exponentials / exponentials.sum(axis=axis, keepdims=True))


def cross_entropy(logits: Float64, weights: Any, mass: Any = None) -> float:
    """The definition: each row weighs `mass`, its target weights sum to one."""
    rows = np.ones(len(logits)) if mass is None else np.asarray(mass, dtype=np.float64)
    target = np.asarray(weights, dtype=np.float64) * rows[:, None]
    return float(((rows * lse(logits)).sum() - (target * logits).sum()) / rows.sum())


def one_hot(targets: Sequence[int], classes: int) -> Float64:
    return np.eye(classes)[list(targets)]


# Running a case through the package


@dataclass(frozen=True)
class Case:
    """One way to call one operation on parameters of these shapes, drawn from +-[low, high]."""

    name: str
    shapes: tuple[Shape, ...]
    record: Record
    forward: Forward
    low: float = 0.0
    high: float = 2.0
    positive: bool = False
    feeds: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    def arrays(self) -> list[NDArray[np.float32]]:
        generator = np.random.default_rng(sum(map(ord, self.name)))
        drawn = []
        for shape in self.shapes:
            sign = 1.0 if self.positive else generator.choice([-1.0, 1.0], shape)
            drawn.append(np.asarray(sign * generator.uniform(self.low, self.high, shape), dtype=np.float32))
        return drawn


def run_case(
    case: Case, arrays: Sequence[NDArray[np.float32]], weights: NDArray[np.float32]
) -> tuple[NDArray[np.float32], list[NDArray[np.float32]]]:
    """The operation's value and, for the loss sum(weights * value), the gradient of every parameter."""
    tape = ta.Tape()
    values = [tape.parameter(f"x{i}", ta.init.zeros(), shape=array.shape) for i, array in enumerate(arrays)]
    result = case.record(tape, *values)
    assert result.shape == weights.shape
    loss = (result * tape.constant(weights)).sum()
    network = tape.seal()
    parameters = network.parameters().replace({f"x{i}": array for i, array in enumerate(arrays)})
    run = network.entry(loss, observe=[result]).run(parameters, dict(case.feeds))
    gradients = run.backward(loss)
    return run[result], [gradients[f"x{i}"] for i in range(len(arrays))]


def check(case: Case, arrays: Sequence[NDArray[np.float32]] | None = None) -> None:
    arrays = case.arrays() if arrays is None else arrays
    exact = [array.astype(np.float64) for array in arrays]
    expected = np.asarray(case.forward(*exact), dtype=np.float64)
    weights = np.asarray(np.random.default_rng(7).uniform(0.5, 1.5, expected.shape), dtype=np.float32)
    value, gradients = run_case(case, arrays, weights)

    assert value.dtype == np.float32
    assert value.shape == expected.shape
    largest = max(1.0, float(np.abs(expected).max()))
    np.testing.assert_allclose(value, expected, rtol=0, atol=RELATIVE * largest)

    def functional(moved: Sequence[Float64]) -> float:
        return float((weights.astype(np.float64) * case.forward(*moved)).sum())

    for index, gradient in enumerate(gradients):
        wanted = slope(functional, exact, index)
        assert gradient.dtype == np.float32
        assert gradient.shape == wanted.shape
        largest = max(1.0, float(np.abs(wanted).max()))
        np.testing.assert_allclose(
            gradient, wanted, rtol=0, atol=RELATIVE * largest, err_msg=f"gradient of x{index}"
        )


# The cases, an operation at a time


def elementwise(name: str, record: Record, forward: Forward, operands: int = 1, **bounds: Any) -> list[Case]:
    shapes: list[Shape] = [(), (1,), (17,), (3, 5), (2, 3, 4), (2, 1, 3, 2)]
    return [
        Case(
            f"{name}-{'x'.join(map(str, shape)) or 'scalar'}", (shape,) * operands, record, forward, **bounds
        )
        for shape in shapes
    ]


def tanh(x: Float64) -> Float64:
    return np.asarray(1 - 2 / (np.exp(2 * x) + 1))


def relu(x: Float64) -> Float64:
    return np.where(x > 0, x, 0.0)


BINARY = [
    *elementwise("add", lambda t, a, b: a + b, lambda a, b: a + b, 2),
    *elementwise("sub", lambda t, a, b: a - b, lambda a, b: a - b, 2),
    *elementwise("mul", lambda t, a, b: a * b, lambda a, b: a * b, 2),
    *elementwise("div", lambda t, a, b: a / b, lambda a, b: a / b, 2, low=0.5),
]
UNARY = [
    *elementwise("neg", lambda t, a: -a, lambda a: -a),
    *elementwise("tanh", lambda t, a: a.tanh(), tanh),
    *elementwise("tanh-wide", lambda t, a: a.tanh(), tanh, low=2.0, high=12.0),
    *elementwise("tanh-small", lambda t, a: a.tanh(), np.tanh, high=1e-2),
    *elementwise("relu", lambda t, a: a.relu(), relu, low=0.1),
    *elementwise("exp", lambda t, a: a.exp(), np.exp, high=3.0),
    *elementwise("log", lambda t, a: a.log(), np.log, low=0.1, high=9.0, positive=True),
    *elementwise("sqrt", lambda t, a: a.sqrt(), np.sqrt, low=0.1, high=9.0, positive=True),
]
SCALAR = [
    *elementwise("add-right", lambda t, a: a + 2.5, lambda a: a + 2.5),
    *elementwise("add-left", lambda t, a: 2.5 + a, lambda a: 2.5 + a),
    *elementwise("sub-right", lambda t, a: a - 2.5, lambda a: a - 2.5),
    *elementwise("sub-left", lambda t, a: 2.5 - a, lambda a: 2.5 - a),
    *elementwise("mul-right", lambda t, a: a * 2.5, lambda a: a * 2.5),
    *elementwise("mul-left", lambda t, a: 2.5 * a, lambda a: 2.5 * a),
    *elementwise("mul-integer", lambda t, a: 3 * a, lambda a: 3 * a),
    *elementwise("div-right", lambda t, a: a / 2.5, lambda a: a / 2.5),
    *elementwise("div-left", lambda t, a: 2.5 / a, lambda a: 2.5 / a, low=0.5),
    *elementwise("div-integer", lambda t, a: a / 4, lambda a: a / 4),
]
MATMUL = [
    Case(f"matmul-{n}x{k}x{m}", ((n, k), (k, m)), lambda t, a, b: a @ b, lambda a, b: a @ b)
    for n, k, m in [(1, 1, 1), (2, 3, 4), (5, 1, 7), (1, 9, 1), (8, 30, 17), (9, 16, 16), (3, 33, 35)]
] + [Case("matmul-method", ((2, 3), (3, 4)), lambda t, a, b: a.matmul(b), lambda a, b: a @ b)]


def reductions(name: str, record: Callable[[ta.Value, Any, bool], ta.Value], forward: Any) -> list[Case]:
    def case(shape: Shape, axis: Any, keepdims: bool) -> Case:
        return Case(
            f"{name}-{shape}-{axis}-{'keep' if keepdims else 'drop'}",
            (shape,),
            lambda t, a: record(a, axis, keepdims),
            lambda a: forward(a, axis=axis, keepdims=keepdims),
        )

    places: list[tuple[Shape, Any]] = [
        ((), None), ((17,), None), ((17,), 0), ((3, 5), None), ((3, 5), 0), ((3, 5), 1), ((3, 5), -1),
        ((1, 4), 0), ((2, 3, 4), None), ((2, 3, 4), 0), ((2, 3, 4), 1), ((2, 3, 4), -1), ((2, 3, 4), (0, 2)),
        ((2, 3, 4), (1, -1)),
    ]  # fmt: skip
    return [case(shape, axis, keepdims) for shape, axis in places for keepdims in (False, True)]


REDUCTIONS = [
    *reductions("sum", lambda a, axis, keep: a.sum(axis=axis, keepdims=keep), np.sum),
    *reductions("mean", lambda a, axis, keep: a.mean(axis=axis, keepdims=keep), np.mean),
]


def reshape_to(start: Shape, *shape: int) -> Case:
    return Case(
        f"reshape-{start}-{shape}", (start,), lambda t, a: a.reshape(*shape), lambda a: a.reshape(shape)
    )


def transposed(start: Shape, *axes: int) -> Case:
    return Case(
        f"transpose-{start}-{axes or 'all'}",
        (start,),
        lambda t, a: a.transpose(*axes),
        lambda a: a.transpose(*axes),
    )


def broadcast(start: Shape, *shape: int) -> Case:
    return Case(
        f"broadcast-{start}-{shape}",
        (start,),
        lambda t, a: a.broadcast_to(*shape),
        lambda a: np.broadcast_to(a, shape),
    )


SHAPING = [
    reshape_to((6,), 2, 3),
    reshape_to((2, 3), 6),
    reshape_to((2, 3, 4), 4, 6),
    reshape_to((1,)),
    reshape_to((), 1, 1),
    reshape_to((2, 3, 4), 3, -1),
    Case("reshape-tuple", ((6,),), lambda t, a: a.reshape((3, 2)), lambda a: a.reshape(3, 2)),
    transposed((3, 5)),
    transposed((3, 5), 1, 0),
    transposed((3, 5), 0, 1),
    transposed((2, 3, 4)),
    transposed((2, 3, 4), 1, 0, 2),
    transposed((2, 3, 4), 2, 0, 1),
    transposed((2, 3, 4), 0, 2, 1),
    transposed((5,)),
    Case("transpose-property", ((3, 5),), lambda t, a: a.T, lambda a: a.T),
    broadcast((4,), 3, 4),
    broadcast((3, 1), 3, 4),
    broadcast((), 2, 3),
    broadcast((1,), 7),
    broadcast((2, 1, 3), 2, 4, 3),
    broadcast((1, 3), 5, 2, 3),
    broadcast((2, 3), 2, 3),
]


def gathered(table: Shape, indices: Any, dtype: Any = np.int64) -> Case:
    rows = np.asarray(indices, dtype=dtype)

    def record(tape: ta.Tape, a: ta.Value) -> ta.Value:
        return a.gather(tape.selection("rows", vocabulary=table[0], shape=rows.shape))

    return Case(
        f"gather-{table}-{rows.shape}-{rows.dtype}", (table,), record, lambda a: a[rows], feeds={"rows": rows}
    )


GATHER = [
    gathered((5, 3), [0, 4, 2]),
    gathered((5, 3), [1, 1, 1, 1]),
    gathered((5, 17), [[0, 1], [1, 4], [4, 4]], np.uint8),
    gathered((4, 1), [[[3], [0]], [[0], [2]]], np.int32),
    gathered((1, 6), [0, 0], np.uint64),
]

AXES: list[tuple[Shape, int]] = [
    ((7,), 0), ((7,), -1), ((3, 5), 0), ((3, 5), 1), ((3, 5), -1), ((2, 3, 4), 1), ((2, 3, 4), -1),
    ((2, 19), 1), ((3, 1), 1),
]  # fmt: skip


def normalised(shape: Shape, axis: int) -> list[Case]:
    label = f"{shape}-{axis}"
    return [
        Case(f"softmax-{label}", (shape,), lambda t, a: a.softmax(axis=axis), lambda a: softmax(a, axis)),
        Case(
            f"log_softmax-{label}",
            (shape,),
            lambda t, a: a.log_softmax(axis=axis),
            lambda a: a - lse(a, axis, keepdims=True),
        ),
        Case(f"logsumexp-{label}", (shape,), lambda t, a: a.logsumexp(axis=axis), lambda a: lse(a, axis)),
        Case(
            f"logsumexp-keep-{label}",
            (shape,),
            lambda t, a: a.logsumexp(axis=axis, keepdims=True),
            lambda a: lse(a, axis, keepdims=True),
        ),
    ]


NORMALISED = [case for shape, axis in AXES for case in normalised(shape, axis)] + [
    Case("softmax-default", ((2, 3, 4),), lambda t, a: a.softmax(), softmax),
    Case("log_softmax-default", ((3, 4),), lambda t, a: a.log_softmax(), lambda a: a - lse(a, keepdims=True)),
    Case("logsumexp-default", ((3, 4),), lambda t, a: a.logsumexp(), lse),
]

TARGETS = [2, 0, 3, 3, 1]
MASS = np.array([1.0, 0.5, 0.0, 2.0, 3.25], dtype=np.float32)
SOFT = softmax(np.random.default_rng(3).standard_normal((5, 4))).astype(np.float32)


def entropy_record(*, soft: bool, weighted: bool) -> Record:
    def record(tape: ta.Tape, logits: ta.Value) -> ta.Value:
        targets: Any = (
            tape.input("targets", shape=(5, 4))
            if soft
            else tape.selection("targets", vocabulary=4, shape=(5,))
        )
        mass = tape.input("mass", shape=(5,)) if weighted else None
        return ta.nn.cross_entropy(logits, targets, mass=mass)

    return record


def entropy(*, soft: bool, weighted: bool) -> Case:
    feeds: dict[str, NDArray[Any]] = {"targets": SOFT if soft else np.array(TARGETS)}
    if weighted:
        feeds["mass"] = MASS
    weights = SOFT.astype(np.float64) if soft else one_hot(TARGETS, 4)
    return Case(
        f"cross_entropy-{'weights' if soft else 'selection'}-{'mass' if weighted else 'even'}",
        ((5, 4),),
        entropy_record(soft=soft, weighted=weighted),
        lambda a: cross_entropy(a, weights, MASS if weighted else None),
        feeds=feeds,
    )


ENTROPY = [entropy(soft=soft, weighted=weighted) for soft in (False, True) for weighted in (False, True)] + [
    Case(
        "cross_entropy-constant-targets",
        ((5, 4),),
        lambda t, a: ta.nn.cross_entropy(a, t.constant(SOFT)),
        lambda a: cross_entropy(a, SOFT),
    ),
]

COMPOSED = [
    Case("square", ((3, 4),), lambda t, a: a * a, lambda a: a * a),
    Case("doubled", ((3, 4),), lambda t, a: a + a, lambda a: 2 * a),
    Case("cancelled", ((3, 4),), lambda t, a: a - a, lambda a: 0 * a),
    Case("ratio-with-itself", ((5,),), lambda t, a: a / a, lambda a: a / a, low=0.5),
    Case("gram", ((3, 4),), lambda t, a: a @ a.T, lambda a: a @ a.T),
    Case("matrix-square", ((4, 4),), lambda t, a: a @ a, lambda a: a @ a),
    Case("diamond", ((6,),), lambda t, a: a.tanh() * a.exp() + a, lambda a: np.tanh(a) * np.exp(a) + a),
    Case(
        "affine",
        ((3, 4), (4, 5), (5,)),
        lambda t, x, w, b: x @ w + b.broadcast_to(3, 5),
        lambda x, w, b: x @ w + b,
    ),
    Case(
        "standardised",
        ((3, 8),),
        lambda t, a: (
            (a - a.mean(axis=1, keepdims=True).broadcast_to(3, 8))
            / ((a * a).mean(axis=1, keepdims=True) + 0.5).sqrt().broadcast_to(3, 8)
        ),
        lambda a: (a - a.mean(axis=1, keepdims=True)) / np.sqrt((a * a).mean(axis=1, keepdims=True) + 0.5),
    ),
]


def named(cases: Sequence[Case]) -> pytest.MarkDecorator:
    assert len({case.name for case in cases}) == len(cases)
    return pytest.mark.parametrize("case", cases, ids=[case.name.replace(" ", "") for case in cases])


@named(BINARY)
def test_binary_operation(case: Case) -> None:
    check(case)


@named(UNARY)
def test_unary_operation(case: Case) -> None:
    check(case)


@named(SCALAR)
def test_python_scalar_operand(case: Case) -> None:
    check(case)


@named(MATMUL)
def test_matmul(case: Case) -> None:
    check(case)


@named(REDUCTIONS)
def test_reduction(case: Case) -> None:
    check(case)


@named(SHAPING)
def test_change_of_shape(case: Case) -> None:
    check(case)


@named(GATHER)
def test_gather(case: Case) -> None:
    check(case)


@named(NORMALISED)
def test_softmax_family(case: Case) -> None:
    check(case)


@named(ENTROPY)
def test_cross_entropy(case: Case) -> None:
    check(case)


@named(COMPOSED)
def test_values_used_more_than_once_accumulate(case: Case) -> None:
    check(case)


# Sizes that no list foresees


LENGTHS = st.integers(min_value=1, max_value=70)
EXTENTS = st.integers(min_value=1, max_value=20)


@settings(derandomize=True, deadline=None, max_examples=25)
@given(length=LENGTHS, seed=st.integers(min_value=0, max_value=2**32 - 1))
def test_elementwise_operations_at_every_length(length: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    a, b = (
        np.asarray(generator.uniform(0.2, 2.0, length) * generator.choice([-1, 1], length), dtype=np.float32)
        for _ in range(2)
    )
    check(
        Case(
            "mixed",
            ((length,), (length,)),
            lambda t, x, y: x.tanh() * y - (x / y).relu() + (-y).exp() - (x * x).log() * (y * y).sqrt(),
            lambda x, y: tanh(x) * y - relu(x / y) + np.exp(-y) - np.log(x * x) * np.sqrt(y * y),
        ),
        [a, b],
    )


@settings(derandomize=True, deadline=None, max_examples=25)
@given(rows=EXTENTS, inner=EXTENTS, columns=EXTENTS, seed=st.integers(min_value=0, max_value=2**32 - 1))
def test_matmul_at_every_extent(rows: int, inner: int, columns: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    a = generator.standard_normal((rows, inner)).astype(np.float32)
    b = generator.standard_normal((inner, columns)).astype(np.float32)
    check(Case("matmul", (a.shape, b.shape), lambda t, x, y: x @ y, lambda x, y: x @ y), [a, b])


@settings(derandomize=True, deadline=None, max_examples=25)
@given(
    shape=st.lists(st.integers(min_value=1, max_value=5), min_size=1, max_size=4),
    pick=st.randoms(use_true_random=False),
)
def test_transposes_and_partial_sums_of_any_rank(shape: list[int], pick: Any) -> None:
    axes = list(range(len(shape)))
    pick.shuffle(axes)
    axis = pick.randrange(len(shape))
    a = np.asarray(np.random.default_rng(len(shape)).standard_normal(shape), dtype=np.float32)
    check(
        Case(
            "transpose-sum",
            (tuple(shape),),
            lambda t, x: x.transpose(*axes).sum(axis=axis),
            lambda x: x.transpose(*axes).sum(axis=axis),
        ),
        [a],
    )


# Points where a formula is a choice


def value_and_slope(record: Callable[[ta.Value], ta.Value], values: Sequence[float]) -> tuple[Any, Any]:
    """The elementwise operation's value and derivative at each of `values`."""
    array = np.array(values, dtype=np.float32)
    ones = np.ones_like(array)
    case = Case("point", (array.shape,), lambda t, a: record(a), lambda a: a)
    value, gradients = run_case(case, [array], ones)
    return value, gradients[0]


def test_relu_has_slope_zero_at_zero_of_either_sign() -> None:
    value, gradient = value_and_slope(lambda a: a.relu(), [0.0, -0.0, 1e-38, -1e-38])
    assert value.tolist() == [0.0, 0.0, np.float32(1e-38), 0.0]
    assert gradient.tolist() == [0.0, 0.0, 1.0, 0.0]


def test_relu_lets_nan_through() -> None:
    value, _ = value_and_slope(lambda a: a.relu(), [np.nan, np.inf, -np.inf])
    assert np.isnan(value[0])
    assert value[1:].tolist() == [np.inf, 0.0]


def test_negative_zero_keeps_its_sign() -> None:
    negated, slope_of_neg = value_and_slope(lambda a: -a, [0.0, -0.0])
    assert np.signbit(negated).tolist() == [True, False]
    assert slope_of_neg.tolist() == [-1.0, -1.0]
    odd, slope_of_tanh = value_and_slope(lambda a: a.tanh(), [0.0, -0.0])
    assert np.signbit(odd).tolist() == [False, True]
    assert slope_of_tanh.tolist() == [1.0, 1.0]
    root, _ = value_and_slope(lambda a: a.sqrt(), [0.0, -0.0])
    assert np.signbit(root).tolist() == [False, True]
    scaled, _ = value_and_slope(lambda a: a * 3.0, [0.0, -0.0])
    assert np.signbit(scaled).tolist() == [False, True]


def test_exponential_and_logarithm_at_their_ends() -> None:
    value, gradient = value_and_slope(lambda a: a.exp(), [-np.inf, -200.0, 0.0, -0.0, 200.0, np.inf, np.nan])
    np.testing.assert_array_equal(value, [0, 0, 1, 1, np.inf, np.inf, np.nan])
    np.testing.assert_array_equal(gradient, value)
    value, _ = value_and_slope(lambda a: a.log(), [0.0, -0.0, 1.0, np.inf, -1.0, np.nan])
    np.testing.assert_array_equal(value, [-np.inf, -np.inf, 0, np.inf, np.nan, np.nan])
    value, gradient = value_and_slope(lambda a: a.tanh(), [-np.inf, -50.0, 50.0, np.inf, np.nan])
    np.testing.assert_array_equal(value, [-1, -1, 1, 1, np.nan])
    np.testing.assert_array_equal(gradient[:4], np.zeros(4, dtype=np.float32))
    value, _ = value_and_slope(lambda a: a.sqrt(), [np.inf, -1.0, np.nan])
    np.testing.assert_array_equal(value, [np.inf, np.nan, np.nan])


def test_division_by_zero_follows_ieee() -> None:
    value, _ = value_and_slope(lambda a: 1.0 / a, [0.0, -0.0, np.inf])
    np.testing.assert_array_equal(value, [np.inf, -np.inf, 0.0])


LARGE = np.array([[1e4, 1e4 - 1, -1e4], [-1e4, -1e4, -1e4], [-np.inf, 0.0, 1.0]], dtype=np.float32)
LARGE_SHIFTED = LARGE.astype(np.float64) - LARGE.max(axis=1, keepdims=True)


def far_from_zero(record: Record, weights: NDArray[np.float32]) -> tuple[Any, Any]:
    """Value and gradient of an operation over the rows of LARGE."""
    value, gradients = run_case(Case("large", (LARGE.shape,), record, lambda a: a), [LARGE], weights)
    return value, gradients[0]


def test_softmax_is_shifted_by_the_maximum() -> None:
    value, gradient = far_from_zero(lambda t, a: a.softmax(axis=1), np.ones_like(LARGE))
    np.testing.assert_allclose(value, softmax(LARGE_SHIFTED), rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(gradient, np.zeros_like(LARGE), rtol=0, atol=1e-6)


def test_log_softmax_keeps_its_precision_far_from_zero() -> None:
    # (x - max) - log(sum): x - logsumexp would carry the rounding of a logsumexp of 1e4.
    value, _ = far_from_zero(lambda t, a: a.log_softmax(axis=1), np.ones_like(LARGE))
    expected = LARGE_SHIFTED - lse(LARGE_SHIFTED, keepdims=True)
    np.testing.assert_allclose(value, expected, rtol=1e-6, atol=1e-6)


def test_logsumexp_is_shifted_by_the_maximum() -> None:
    value, gradient = far_from_zero(lambda t, a: a.logsumexp(axis=1), np.ones(3, dtype=np.float32))
    np.testing.assert_allclose(value, LARGE.max(axis=1) + lse(LARGE_SHIFTED), rtol=1e-6)
    # exp(x - logsumexp) is a fair way to this gradient, and carries that rounding.
    np.testing.assert_allclose(gradient, softmax(LARGE_SHIFTED), rtol=0, atol=1e4 * 2**-23)


def test_a_sample_of_mass_zero_is_as_if_it_were_not_there() -> None:
    logits = np.random.default_rng(11).standard_normal((5, 4)).astype(np.float32)
    case = entropy(soft=False, weighted=True)
    keep = [i for i in range(5) if i != 2]
    assert MASS[2] == 0
    value, gradients = run_case(case, [logits], np.ones((), dtype=np.float32))
    expected = cross_entropy(logits[keep].astype(np.float64), one_hot(TARGETS, 4)[keep], MASS[keep])
    assert float(value) == pytest.approx(expected, rel=1e-6)
    assert gradients[0][2].tolist() == [0.0] * 4


def test_a_parameter_outside_the_loss_has_gradient_zero() -> None:
    tape = ta.Tape()
    used = tape.parameter("used", ta.init.constant(3.0), shape=(2,))
    unused = tape.parameter("unused", ta.init.constant(5.0), shape=(2, 3))
    apart = unused.tanh()
    loss = (used * used).sum()
    network = tape.seal()
    for entry in (network.entry(loss), network.entry(loss, observe=[apart])):
        gradients = entry.run(network.parameters(), {}).backward(loss)
        assert list(gradients.names) == ["used", "unused"]
        assert gradients["used"].tolist() == [6.0, 6.0]
        assert gradients["unused"].tolist() == [[0.0] * 3] * 2
        assert not np.signbit(gradients["unused"]).any()


def test_a_table_row_that_no_index_names_has_gradient_zero() -> None:
    case = gathered((5, 3), [1, 1, 4])
    table = np.ones((5, 3), dtype=np.float32)
    weights = np.arange(9, dtype=np.float32).reshape(3, 3)
    _, gradients = run_case(case, [table], weights)
    expected = np.zeros((5, 3))
    np.add.at(expected, [1, 1, 4], weights)
    assert gradients[0].tolist() == expected.tolist()


def test_backward_of_the_same_run_is_the_same_every_time() -> None:
    tape = ta.Tape()
    x = tape.parameter("x", ta.init.normal(seed=1), shape=(4, 4))
    loss = (x @ x.tanh()).sum()
    network = tape.seal()
    run = network.entry(loss).run(network.parameters(), {})
    first, second = run.backward(loss), run.backward()
    assert first["x"].tobytes() == second["x"].tobytes()
