"""No sequence of wrong arguments ends in anything but a result or one of the package's own errors."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tritter_accel as ta

from .calls import (
    ARRAY_ARGUMENTS,
    COMPRESSOR,
    MESSAGE_ARGUMENTS,
    OUT_ARGUMENTS,
    ROTATING,
    SCALAR_ARGUMENTS,
    values,
)

# No lengths between a thousand and a million million: what fits in memory would be computed.
NUMBERS = [0, 1, 2, 63, 64, 65, 1000, -1, 2**40, 2**62, 2**63, 2**64 - 1, 2**64, -(2**63), 10**400]
FLOATS = [0.0, -0.0, 0.5, 1.0, 1.5, -1.0, 1e-45, 1e-300, 1e300, float("nan"), float("inf"), -float("inf")]
DTYPES = [
    "f2",
    "f4",
    ">f4",
    "f8",
    "g",
    "F",
    "?",
    "b",
    "B",
    "h",
    "H",
    ">H",
    "i4",
    "i8",
    "u8",
    "O",
    "S3",
    "U2",
    "M8[s]",
]


class Hostile:
    """Every protocol that a number or an array could be read by, failing."""

    def _fail(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("no")

    __index__ = __int__ = __float__ = __len__ = __iter__ = __bool__ = __dlpack__ = __array__ = _fail


def arrays() -> st.SearchStrategy[Any]:
    def build(dtype: str, shape: tuple[int, ...], form: int) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            array = (
                np.resize(values(7) * 100, shape).astype(dtype)
                if dtype != "M8[s]"
                else np.zeros(shape, dtype)
            )
        return [array, array.T, array[..., ::-1] if array.ndim else array, np.ma.masked_array(array)][form]

    shapes = st.sampled_from([(), (0,), (1,), (7,), (24,), (50,), (64,), (2, 3, 4), (0, 5), (1, 1, 1)])
    return st.builds(build, st.sampled_from(DTYPES), shapes, st.integers(0, 3))


odd_values = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from(NUMBERS),
    st.sampled_from(FLOATS),
    st.sampled_from([np.float32(0.5), np.int64(-3), np.float64("nan"), np.str_("dense"), np.bool_(True)]),
    st.sampled_from(
        ["", "dense", "reference", "stochastic", "\x00", "\ud800", b"", b"abcd", 1j, (), [], {}, {1}]
    ),
    st.sampled_from([object(), Hostile(), Exception, np.ndarray, len, memoryview(b"1234"), bytearray(8)]),
    arrays(),
)

# Constructors and functions with all of their arguments odd at once.
MANY: dict[str, Callable[..., Any]] = {
    "TrainingConfig": lambda a, b, c, d: ta.TrainingConfig(a, b, c, scaling=d),
    "CompressedGradient": lambda a, b, c, d: COMPRESSOR.decompress(ta.CompressedGradient(a, b, 3, d, step=c)),
    "TernaryCompressedGradient": lambda a, b, c, d: COMPRESSOR.decompress_ternary(
        ta.TernaryCompressedGradient(a, b, c, d, 3)
    ),
    "TrainingConfig.quantizer": lambda a, b, c, d: ta.TrainingConfig(
        projection=a, quantize=b, quantizer_scale=c, quantizer_block=d
    ),
    "CompressedGradient.to_bytes": lambda a, b, c, d: ta.CompressedGradient(
        a, b, 3, 0.5, projection=c, scaling=d
    ).to_bytes(),
    "TernaryCompressedGradient.to_bytes": lambda a, b, c, d: ta.TernaryCompressedGradient(
        values(24, "int8"), a, b, 24, 3, quantizer_scale=c, ratio=d
    ).to_bytes(),
    "encode": lambda a, b, c, d: ROTATING.encode(a, b, step=c, out=d),
    "decode": lambda a, b, c, d: ROTATING.decode(a, out=b),
    "message_bytes": lambda a, b, c, d: ROTATING.message_bytes(a, b),
    "compress": lambda a, b, c, d: COMPRESSOR.compress(a, b, step=c, slot=d),
    "compress_ternary": lambda a, b, c, d: COMPRESSOR.compress_ternary(a, b, step=c, out=d),
    "compress_many": lambda a, b, c, d: COMPRESSOR.compress_many(a, b, step=c, out=d),
    "decompress_many": lambda a, b, c, d: COMPRESSOR.decompress_many([a, b, c], out=d),
    "plan": lambda a, b, c, d: COMPRESSOR.plan(a, b, step=c, max_bytes=d),
    "ProjectionPlan": lambda a, b, c, d: ta.ProjectionPlan(a, b, c, slot=d),
    "convert_to_bf16": lambda a, b, c, d: ta.mixed_precision.convert_to_bf16(a, rounding=b, seed=c, out=d),
    "convert_to_bf16_with_norm": lambda a, b, c, d: ta.mixed_precision.convert_to_bf16_with_norm(
        a, rounding=b, step=c, out=d
    ),
    "LossScaler": ta.mixed_precision.LossScaler,
    "unscale_gradients": lambda a, b, c, d: ta.mixed_precision.LossScaler().unscale_gradients(a, out=b),
    "unscale_and_check": lambda a, b, c, d: ta.mixed_precision.LossScaler().unscale_and_check(a, out=b),
    "load_state_dict": lambda a, b, c, d: ta.mixed_precision.LossScaler().load_state_dict(
        {
            **ta.mixed_precision.LossScaler().state_dict(),
            "scale": a,
            "growth_interval": b,
            "max_scale": c,
            "x": d,
        }
    ),
    "accumulator": lambda a, b, c, d: ta.GradientAccumulator(7).__setstate__((a, b, c)),
    "safe_clip": lambda a, b, c, d: ta.mixed_precision.safe_clip(a, b, c, out=d),
    "clip_gradients": lambda a, b, c, d: ta.clip_gradients(a, b, out=c),
    "clip_gradients_": lambda a, b, c, d: ta.clip_gradients_(a, b),
}


def only_our_errors(call: Callable[..., Any], *arguments: Any) -> None:
    threads = ta.get_num_threads()
    try:
        with np.errstate(all="ignore"):
            call(*arguments)
    except ta.InternalError:
        raise
    except ta.TrainingError as error:
        if "\n" in str(error):
            raise AssertionError("a message of more than a line") from error
    finally:
        ta.set_num_threads(threads)


@pytest.mark.parametrize("row", ARRAY_ARGUMENTS, ids=str)
@settings(derandomize=True, deadline=None, max_examples=60)
@given(odd=st.one_of(odd_values, arrays()))
def test_odd_arrays(row: Any, odd: Any) -> None:
    only_our_errors(row.call, odd)


@pytest.mark.parametrize("row", OUT_ARGUMENTS, ids=str)
@settings(derandomize=True, deadline=None, max_examples=40)
@given(odd=st.one_of(odd_values, arrays()))
def test_odd_outs(row: Any, odd: Any) -> None:
    only_our_errors(lambda out: row.call(row.input(), out), odd)


@pytest.mark.parametrize("row", SCALAR_ARGUMENTS, ids=str)
@settings(derandomize=True, deadline=None, max_examples=60)
@given(odd=odd_values)
def test_odd_scalars(row: Any, odd: Any) -> None:
    only_our_errors(row.call, odd)


@pytest.mark.parametrize("row", MESSAGE_ARGUMENTS, ids=str)
@settings(derandomize=True, deadline=None, max_examples=60)
@given(odd=st.one_of(odd_values, arrays(), st.binary(max_size=100)))
def test_odd_messages(row: Any, odd: Any) -> None:
    only_our_errors(row.call, odd)


@pytest.mark.parametrize("name", MANY)
@settings(derandomize=True, deadline=None, max_examples=150)
@given(odd=st.tuples(odd_values, odd_values, odd_values, odd_values))
def test_many_odd_arguments(name: str, odd: tuple[Any, ...]) -> None:
    only_our_errors(MANY[name], *odd)


def test_sizes_that_no_memory_holds() -> None:
    for size in (2**47, 2**58, 2**61, 2**62, 2**63, 2**64 - 1):
        with pytest.raises(ta.AllocationError):
            ta.GradientAccumulator(size)
        with pytest.raises(ta.AllocationError):
            COMPRESSOR.decompress(ta.CompressedGradient(values(64), size, 3, 0.5))
