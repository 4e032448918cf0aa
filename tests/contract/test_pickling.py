"""Objects, functions and errors survive pickling and copying."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

import tritter_accel as ta
from tritter_accel import exceptions, mixed_precision

from .calls import OBJECTS

PROTOCOLS = range(2, pickle.HIGHEST_PROTOCOL + 1)


@pytest.mark.parametrize("name", OBJECTS)
def test_twins_by_pickle_are_equal(name: str) -> None:
    make, seen = OBJECTS[name]
    for protocol in PROTOCOLS:
        twin = pickle.loads(pickle.dumps(make(), protocol))
        assert type(twin) is type(make())
        assert seen(twin) == seen(make())


@pytest.mark.parametrize("name", OBJECTS)
@pytest.mark.parametrize("twin_of", [copy.copy, copy.deepcopy])
def test_twins_by_copy_are_equal_and_live_on_their_own(name: str, twin_of: Any) -> None:
    make, seen = OBJECTS[name]
    original = make()
    twin = twin_of(original)
    assert type(twin) is type(original)
    assert seen(twin) == seen(make())
    assert seen(original) == seen(make())  # `seen` may have emptied the twin


@pytest.mark.parametrize("name", OBJECTS)
def test_repr_is_one_line(name: str) -> None:
    text = repr(OBJECTS[name][0]())
    assert "\n" not in text
    assert text.startswith(f"{name.split()[-1]}(")


@pytest.mark.parametrize("function", [mixed_precision.convert_to_bf16, ta.gradient_norm, ta.set_num_threads])
def test_functions_pickle_by_reference(function: Any) -> None:
    assert pickle.loads(pickle.dumps(function)) is function


ATTRIBUTES: dict[str, tuple[Any, ...]] = {
    "InvalidRatioError": (1.5,),
    "DimensionMismatchError": (3, 4),
    "SeedMismatchError": (42, 7),
    "ArgumentError": ("seed",),
    "ArgumentTypeError": ("seed",),
    "ArrayError": ("gradients",),
    "NonFiniteError": ("gradients", 3, float("inf")),
    "AllocationError": (1 << 60,),
    "WireError": ("checksum",),
}


@pytest.mark.parametrize("name", exceptions.__all__)
def test_errors_keep_message_and_attributes(name: str) -> None:
    error = getattr(exceptions, name)("the message", *ATTRIBUTES.get(name, ()))
    twins = [pickle.loads(pickle.dumps(error, protocol)) for protocol in PROTOCOLS]
    for twin in [*twins, copy.copy(error), copy.deepcopy(error)]:
        assert type(twin) is type(error)
        assert str(twin) == "the message"
        assert vars(twin) == vars(error)
        assert twin.args == error.args


@pytest.mark.parametrize(
    "state",
    [
        (np.zeros(3, dtype=np.float32), 1.0, 1),
        (np.zeros(4), 1.0, 1),
        (np.zeros(4, dtype=np.float32), float("nan"), 1),
        (np.zeros(4, dtype=np.float32), 1.0, -1),
    ],
)
def test_a_state_that_is_none_is_refused_and_changes_nothing(state: Any) -> None:
    accumulator = ta.GradientAccumulator(4)
    accumulator.accumulate(np.ones(4, dtype=np.float32))
    with pytest.raises(ta.TrainingError):
        accumulator.__setstate__(state)
    assert (accumulator.count, accumulator.mass) == (1, 1.0)
    np.testing.assert_array_equal(accumulator.get_and_reset(), np.ones(4))
