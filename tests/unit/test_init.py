"""Initialisers: every value to the bit of the written-out definition, and what they refuse."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import tritter_accel as ta
from tests.reference import splitmix

SEEDS = [0, 1, 7, 8, 2**32, 2**63, 2**64 - 1]


def drawn(init: Any, *shapes: tuple[int, ...]) -> list[NDArray[np.float32]]:
    """The initial values of parameters of these shapes that share one initialiser."""
    tape = ta.Tape()
    for index, shape in enumerate(shapes):
        tape.parameter(f"p{index}", init, shape=shape)
    parameters = tape.seal().parameters()
    return [parameters[f"p{index}"] for index in range(len(shapes))]


def assert_bits(actual: NDArray[np.float32], expected: NDArray[np.float32]) -> None:
    assert actual.dtype == np.float32
    assert actual.shape == expected.shape
    np.testing.assert_array_equal(actual.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("std", [1.0, 0.02])
def test_normal(seed: int, std: float) -> None:
    shape = (13, 7)
    assert_bits(drawn(ta.init.normal(seed=seed, std=std), shape)[0], splitmix.Normal(seed, std).fill(shape))


def test_normal_has_deviation_one_by_default() -> None:
    assert_bits(drawn(ta.init.normal(seed=3), (50,))[0], splitmix.Normal(3, 1.0).fill((50,)))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("scale", [1.0, 0.125, 3.3])
def test_uniform(seed: int, scale: float) -> None:
    shape = (2, 3, 5)
    assert_bits(
        drawn(ta.init.uniform(seed=seed, scale=scale), shape)[0], splitmix.Uniform(seed, scale).fill(shape)
    )


@pytest.mark.parametrize("shape", [(30, 100), (100, 27), (1, 1), (3, 1)])
def test_xavier(shape: tuple[int, int]) -> None:
    assert_bits(drawn(ta.init.xavier(seed=7), shape)[0], splitmix.Xavier(7).fill(shape))


@pytest.mark.parametrize("shape", [(30, 100), (100, 27), (1, 1), (3, 1)])
def test_kaiming(shape: tuple[int, int]) -> None:
    assert_bits(drawn(ta.init.kaiming(seed=7), shape)[0], splitmix.Kaiming(7).fill(shape))


@pytest.mark.parametrize(
    ("ours", "wanted"),
    [
        (lambda: ta.init.xavier(seed=5), lambda: splitmix.Xavier(5)),
        (lambda: ta.init.kaiming(seed=5), lambda: splitmix.Kaiming(5)),
        (lambda: ta.init.normal(seed=5), lambda: splitmix.Normal(5)),
        (lambda: ta.init.uniform(seed=5, scale=2.0), lambda: splitmix.Uniform(5, 2.0)),
    ],
    ids=["xavier", "kaiming", "normal", "uniform"],
)
def test_one_stream_runs_on_through_the_tensors_of_one_initialiser(
    ours: Callable[[], Any], wanted: Callable[[], splitmix.Initialiser]
) -> None:
    shapes = [(6, 4), (4,), (4, 3), (3,)]
    reference = wanted()
    for actual, shape in zip(drawn(ours(), *shapes), shapes, strict=True):
        assert_bits(actual, reference.fill(shape))


@pytest.mark.parametrize("init", [ta.init.xavier, ta.init.kaiming], ids=["xavier", "kaiming"])
def test_biases_are_positive_zeros(init: Callable[..., Any]) -> None:
    assert_bits(drawn(init(seed=1), (9,))[0], np.zeros(9, dtype=np.float32))


def test_initialisers_of_one_tape_do_not_disturb_each_other() -> None:
    tape = ta.Tape()
    first, second, again = ta.init.normal(seed=1), ta.init.normal(seed=2), ta.init.normal(seed=1)
    for name, init in [("a", first), ("b", second), ("c", first), ("d", again)]:
        tape.parameter(name, init, shape=(5,))
    parameters = tape.seal().parameters()
    one, two = splitmix.Normal(1), splitmix.Normal(2)
    assert_bits(parameters["a"], one.fill((5,)))
    assert_bits(parameters["b"], two.fill((5,)))
    assert_bits(parameters["c"], one.fill((5,)))
    assert_bits(parameters["d"], splitmix.Normal(1).fill((5,)))


def test_a_network_gives_the_same_parameters_every_time() -> None:
    tape = ta.Tape()
    tape.parameter("w", ta.init.xavier(seed=3), shape=(4, 4))
    network = tape.seal()
    assert network.parameters() == network.parameters()


def test_zeros_and_constant() -> None:
    assert_bits(drawn(ta.init.zeros(), (2, 3))[0], np.zeros((2, 3), dtype=np.float32))
    assert_bits(drawn(ta.init.constant(0.1), (2, 3))[0], np.full((2, 3), 0.1, dtype=np.float32))
    assert_bits(drawn(ta.init.constant(-0.0), (3,))[0], np.full(3, -0.0, dtype=np.float32))


INITIALISERS: list[Callable[[Any], Any]] = [
    lambda seed: ta.init.normal(seed=seed),
    lambda seed: ta.init.uniform(seed=seed, scale=1.0),
    lambda seed: ta.init.xavier(seed=seed),
    lambda seed: ta.init.kaiming(seed=seed),
]


@pytest.mark.parametrize("make", INITIALISERS, ids=["normal", "uniform", "xavier", "kaiming"])
@pytest.mark.parametrize("seed", [-1, 2**64])
def test_a_seed_outside_u64_is_refused(make: Callable[[Any], Any], seed: int) -> None:
    with pytest.raises(ta.ArgumentError, match=re.escape(str(seed))) as caught:
        make(seed)
    assert caught.value.argument == "seed"


@pytest.mark.parametrize("make", INITIALISERS, ids=["normal", "uniform", "xavier", "kaiming"])
@pytest.mark.parametrize("seed", [1.0, "1", None])
def test_a_seed_that_is_no_integer_is_refused(make: Callable[[Any], Any], seed: Any) -> None:
    with pytest.raises(ta.ArgumentTypeError) as caught:
        make(seed)
    assert caught.value.argument == "seed"


def test_an_initialiser_says_what_it_is() -> None:
    text = repr(ta.init.normal(seed=8, std=0.5))
    assert "8" in text
    assert "0.5" in text
    assert "\n" not in text
