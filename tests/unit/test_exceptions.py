"""The tree of exceptions: what each class is, what it carries, and that it survives a process boundary."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tritter_accel as ta
from tritter_accel import exceptions

BASES: dict[str, tuple[type[BaseException], ...]] = {
    "TrainingError": (Exception,),
    "InvalidRatioError": (ta.TrainingError, ValueError),
    "DimensionMismatchError": (ta.TrainingError, ValueError),
    "SeedMismatchError": (ta.TrainingError, ValueError),
    "ArgumentError": (ta.TrainingError, ValueError),
    "ArgumentTypeError": (ta.TrainingError, TypeError),
    "ArrayError": (ta.TrainingError, TypeError),
    "NonFiniteError": (ta.TrainingError, ArithmeticError),
    "TapeError": (ta.TrainingError, ValueError),
    "ShapeError": (ta.TapeError,),
    "CorpusError": (ta.TrainingError, ValueError),
    "WireError": (ta.TrainingError, ValueError),
    "AllocationError": (ta.TrainingError, MemoryError),
    "InternalError": (ta.TrainingError, RuntimeError),
}


@pytest.mark.parametrize("name", BASES)
def test_classes_and_their_bases(name: str) -> None:
    error = getattr(exceptions, name)
    assert getattr(ta, name) is error
    for base in BASES[name]:
        assert issubclass(error, base)
    assert error.__module__ == "tritter_accel.exceptions"
    assert error.__doc__


def test_no_public_exception_is_missing_from_this_table() -> None:
    assert set(exceptions.__all__) == set(BASES)


text: Any = "1"
float64: Any = np.ones(4)
ones = np.ones(4, dtype=np.float32)
poisoned = np.array([1.0, 2.0, math.inf], dtype=np.float32)


def decompress_with_another_seed() -> object:
    compressed = ta.GradientCompressor().compress(ones)
    return ta.GradientCompressor(ta.TrainingConfig(seed=7)).decompress(compressed)


def decompress_to_more_than_any_memory_holds() -> object:
    return ta.GradientCompressor().decompress(
        ta.CompressedGradient(np.ones(64, dtype=np.float32), 2**50, 42, 0.1)
    )


CASES: dict[str, tuple[Callable[[], object], dict[str, Any]]] = {
    "InvalidRatioError": (lambda: ta.TrainingConfig(1.5), {"ratio": 1.5}),
    "DimensionMismatchError": (
        lambda: ta.GradientAccumulator(4).accumulate(np.ones(3, dtype=np.float32)),
        {"expected": 4, "actual": 3},
    ),
    "SeedMismatchError": (decompress_with_another_seed, {"compress": 42, "decompress": 7}),
    "ArgumentError": (lambda: ta.TrainingConfig(seed=-1), {"argument": "seed"}),
    "ArgumentTypeError": (
        lambda: ta.TrainingConfig(seed=text),
        {"argument": "seed"},
    ),
    "ArrayError": (
        lambda: ta.gradient_norm(float64),
        {"argument": "gradients"},
    ),
    "NonFiniteError": (
        lambda: ta.GradientCompressor().compress_ternary(poisoned),
        {"argument": "gradients", "index": 2, "value": math.inf},
    ),
    "AllocationError": (decompress_to_more_than_any_memory_holds, {"bytes": 2**52}),
}


@pytest.mark.parametrize("name", CASES)
def test_attributes_and_classes_as_raised(name: str) -> None:
    call, attributes = CASES[name]
    with pytest.raises(ta.TrainingError) as caught:
        call()
    assert type(caught.value) is getattr(ta, name)
    assert {key: getattr(caught.value, key) for key in attributes} == attributes
    assert str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", CASES)
def test_pickle_and_copy_keep_message_and_attributes(name: str) -> None:
    call, attributes = CASES[name]
    with pytest.raises(ta.TrainingError) as caught:
        call()
    original = caught.value
    for twin in (pickle.loads(pickle.dumps(original)), copy.copy(original), copy.deepcopy(original)):
        assert type(twin) is type(original)
        assert str(twin) == str(original)
        assert {key: getattr(twin, key) for key in attributes} == attributes


@pytest.mark.parametrize(
    ("builtin", "names"),
    [
        (ValueError, ["InvalidRatioError", "DimensionMismatchError", "SeedMismatchError", "ArgumentError"]),
        (TypeError, ["ArgumentTypeError", "ArrayError"]),
        (ArithmeticError, ["NonFiniteError"]),
        (MemoryError, ["AllocationError"]),
    ],
)
def test_the_builtin_class_catches_them(builtin: type[Exception], names: list[str]) -> None:
    for name in names:
        with pytest.raises(builtin):
            CASES[name][0]()
