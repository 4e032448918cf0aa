"""The calls that the contract is checked on: a new call is one more line in a table here.

`ARRAY_ARGUMENTS` for the arrays that are read or changed, `OUT_ARGUMENTS` for those that are filled,
`MESSAGE_ARGUMENTS` for bytes, `SCALAR_ARGUMENTS` for everything else, `LONG_CALLS` for what Ctrl-C must stop,
`OBJECTS` for what pickles.
The tests beside this file hold each promise for every line.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

import tritter_accel as ta
from tritter_accel import mixed_precision as mp

SIZE = 24  # elements of the arrays that the tables are called with

COMPRESSOR = ta.GradientCompressor(ta.TrainingConfig(0.5, seed=3))
ROTATING = ta.GradientCompressor(
    ta.TrainingConfig(0.5, 3, projection="hadamard", quantize="levels4", quantizer_scale="unbiased")
)
PICKING = ta.GradientCompressor(
    ta.TrainingConfig(0.25, 3, projection="topk", quantize="ternary", quantizer_block=64)
)
ROUNDING = ta.GradientCompressor(ta.TrainingConfig(seed=3, projection="none", quantize="bfloat16"))
HADAMARD = ta.GradientCompressor(ta.TrainingConfig(0.5, 3, projection="hadamard"))


def values(size: int = SIZE, dtype: str = "float32") -> NDArray[Any]:
    """Some values of a type: normal ones, the bits of bfloat16 numbers, or trits."""
    normal = np.random.default_rng(size).standard_normal(size).astype(np.float32)
    if dtype == "uint16":
        return (normal.view(np.uint32) >> 16).astype(np.uint16)
    if dtype == "int8":
        return np.sign(np.round(normal)).astype(np.int8)
    return normal


def buffer(array: Any) -> memoryview:
    """The memory of an array, as an object that is none."""
    return memoryview(array)


def outcome(result: Any) -> Any:
    """Something to compare results by: exact, whatever the result is."""
    if isinstance(result, np.ndarray):
        return (str(result.dtype), result.shape, result.tobytes())
    if isinstance(result, bytes):
        return (repr(result), bytes(result))
    if isinstance(result, tuple | list):
        return [outcome(item) for item in result]
    if hasattr(result, "data") and hasattr(result, "original_dim"):
        return (repr(result), outcome(result.data))
    return repr(result)


def digest(result: Any) -> str:
    return hashlib.sha256(repr(outcome(result)).encode()).hexdigest()


def length(given: Any) -> int:
    """Elements of an array; what is none is handed over as if it were of the usual length."""
    return given.size if isinstance(given, np.ndarray) else SIZE


def accumulated(gradients: Any) -> Any:
    accumulator = ta.GradientAccumulator(length(gradients))
    accumulator.accumulate(gradients, 3.0)
    return accumulator.finite, accumulator.get_and_reset()


def bits_and_norm(array: Any, **options: Any) -> Any:
    bits, norm = mp.convert_to_bf16_with_norm(array, **options)
    return bits.reshape(-1), norm


def compressed(data: Any) -> ta.CompressedGradient:
    return ta.CompressedGradient(data, 50, 3, 0.5)


def ternary(data: Any) -> ta.TernaryCompressedGradient:
    return ta.TernaryCompressedGradient(data, 0.5, 50, length(data), 3)


def alone(gradients: Any) -> Any:
    """The only row of a matrix; what has no memory to show is handed over as it is."""
    if isinstance(gradients, np.ndarray):
        return np.atleast_1d(gradients)[np.newaxis]
    try:
        if hasattr(gradients, "__dlpack__"):
            return np.from_dlpack(gradients)[np.newaxis]
        memoryview(gradients)
    except Exception:
        return gradients
    return np.asarray(gradients)[np.newaxis]


def compressed_alone(gradients: Any) -> Any:
    return COMPRESSOR.compress_many(alone(gradients))[0]


def compressed_in_halves(gradients: Any, out: Any) -> Any:
    """`out`, or the projections of both halves of a gradient."""
    both = COMPRESSOR.compress_many(gradients.reshape(2, -1), out=out)
    return np.concatenate([half.data for half in both]) if out is None else out


def decompressed_alone(data: Any) -> Any:
    return COMPRESSOR.decompress_many([compressed(data)])[0]


def decompressed_twice(data: Any, out: Any) -> Any:
    """`out`, or what comes back, flat."""
    both = COMPRESSOR.decompress_many([compressed(data), compressed(-data)], out=out)
    return both.reshape(-1) if out is None else both


def planned(gradients: Any, out: Any = None) -> Any:
    return COMPRESSOR.plan(length(gradients), step=2).compress(gradients, out=out)


def planned_back(data: Any, out: Any = None) -> Any:
    """Back from 64 values, by a plan of 50."""
    return COMPRESSOR.plan(50, 0.5).decompress(compressed(data), out=out)


def encoded(gradients: Any, out: Any) -> Any:
    """As an array: without `out` it is a Message."""
    return (
        np.frombuffer(ROTATING.encode(gradients), np.uint8)
        if out is None
        else ROTATING.encode(gradients, out=out)
    )


def rotated(data: Any) -> ta.CompressedGradient:
    return ta.CompressedGradient(data, 2 * length(data), 3, 0.5, projection="hadamard", scaling="contractive")


def clipped_in_place(array: Any) -> None:
    mp.safe_clip(array, -0.5, 0.5)


def unscaled_in_place(array: Any) -> None:
    mp.LossScaler(1024.0).unscale_gradients(array)


def unscaled_and_checked_in_place(array: Any) -> None:
    mp.LossScaler(1024.0).unscale_and_check(array)


def clipped_to_a_norm_in_place(array: Any) -> None:
    ta.clip_gradients_(array, 0.5)


@dataclass(frozen=True)
class ArrayArgument:
    """One array argument: `call` takes the array and does the rest."""

    id: str
    argument: str
    call: Callable[[Any], Any]
    dtype: str = "float32"
    in_place: bool = False
    elementwise: bool = False  # the result has the shape of the argument
    dense: bool = False  # costs the square of the length: the dense projection

    def __str__(self) -> str:
        return self.id

    def result(self, array: Any) -> Any:
        """What comes out, to compare by: for calls that work in place, what became of the array."""
        result = self.call(array)
        if self.in_place:
            assert result is None
            # Tensors have another way out than NumPy's own protocol, which torch follows in part only.
            foreign = hasattr(array, "__dlpack__") and not isinstance(array, np.ndarray)
            result = np.array(np.from_dlpack(array) if foreign else array, copy=True)
        return result


ARRAY_ARGUMENTS = [
    ArrayArgument("convert_to_bf16", "values", mp.convert_to_bf16, elementwise=True),
    ArrayArgument(
        "convert_to_bf16_nearest",
        "values",
        lambda a: mp.convert_to_bf16(a, rounding="nearest_even"),
        elementwise=True,
    ),
    ArrayArgument(
        "convert_to_bf16_stochastic",
        "values",
        lambda a: mp.convert_to_bf16(a, rounding="stochastic", seed=7, step=2),
        elementwise=True,
    ),
    ArrayArgument("convert_to_bf16_with_norm", "values", bits_and_norm),
    ArrayArgument(
        "convert_to_bf16_with_norm_nearest",
        "values",
        lambda a: bits_and_norm(a, rounding="nearest_even"),
    ),
    ArrayArgument(
        "convert_to_bf16_with_norm_stochastic",
        "values",
        lambda a: bits_and_norm(a, rounding="stochastic", seed=7, step=2),
    ),
    ArrayArgument("convert_from_bf16", "bits", mp.convert_from_bf16, "uint16", elementwise=True),
    ArrayArgument("has_nan_or_inf", "values", mp.has_nan_or_inf),
    ArrayArgument("safe_clip", "values", clipped_in_place, in_place=True),
    ArrayArgument(
        "safe_clip_into_out",
        "values",
        lambda a: mp.safe_clip(a, -0.5, 0.5, out=np.empty(length(a), dtype=np.float32)),
    ),
    ArrayArgument("unscale_gradients", "gradients", unscaled_in_place, in_place=True),
    ArrayArgument(
        "unscale_gradients_into_out",
        "gradients",
        lambda a: mp.LossScaler(1024.0).unscale_gradients(a, out=np.empty(length(a), dtype=np.float32)),
    ),
    ArrayArgument("unscale_and_check", "gradients", unscaled_and_checked_in_place, in_place=True),
    ArrayArgument("check_overflow", "gradients", lambda a: mp.LossScaler().check_overflow(a)),
    ArrayArgument("accumulate", "gradients", accumulated),
    ArrayArgument("gradient_norm", "gradients", ta.gradient_norm),
    ArrayArgument("clip_gradients", "gradients", lambda a: ta.clip_gradients(a, 0.5), elementwise=True),
    ArrayArgument("clip_gradients_", "gradients", clipped_to_a_norm_in_place, in_place=True),
    ArrayArgument("compress", "gradients", COMPRESSOR.compress, dense=True),
    ArrayArgument("compress_ternary", "gradients", COMPRESSOR.compress_ternary, dense=True),
    ArrayArgument("encode", "gradients", COMPRESSOR.encode, dense=True),
    ArrayArgument("encode_hadamard", "gradients", ROTATING.encode),
    ArrayArgument("encode_topk", "gradients", PICKING.encode),
    ArrayArgument("encode_none", "gradients", ROUNDING.encode),
    ArrayArgument("compress_hadamard", "gradients", HADAMARD.compress),
    ArrayArgument("decompress_hadamard", "data", lambda a: HADAMARD.decompress(rotated(a))),
    ArrayArgument(
        "to_bytes",
        "data",
        lambda a: ta.CompressedGradient(a, length(a), 3, 1.0, projection="hadamard").to_bytes(),
    ),
    ArrayArgument("to_bytes_ternary", "data", lambda a: ternary(a).to_bytes(), "int8"),
    ArrayArgument("decompress", "data", lambda a: COMPRESSOR.decompress(compressed(a)), dense=True),
    ArrayArgument(
        "decompress_ternary", "data", lambda a: COMPRESSOR.decompress_ternary(ternary(a)), "int8", dense=True
    ),
    ArrayArgument("compress_many", "gradients", compressed_alone, dense=True),
    ArrayArgument("decompress_many", "data", decompressed_alone, dense=True),
    ArrayArgument("plan_compress", "gradients", planned, dense=True),
]


@dataclass(frozen=True)
class MessageArgument:
    """One argument of bytes: `call` takes them from any buffer."""

    id: str
    call: Callable[[Any], Any]
    make: Callable[[Any], bytes]  # a message of a gradient

    def __str__(self) -> str:
        return self.id

    def message(self, size: int = SIZE) -> bytes:
        return bytes(self.make(values(size)))


def plain(gradients: Any) -> bytes:
    return HADAMARD.compress(gradients).to_bytes()


def trits(gradients: Any) -> bytes:
    return HADAMARD.compress_ternary(gradients, slot=1).to_bytes()


MESSAGE_ARGUMENTS = [
    MessageArgument("decode_hadamard", ROTATING.decode, ROTATING.encode),
    MessageArgument("decode_topk", PICKING.decode, PICKING.encode),
    MessageArgument("decode_none", ROUNDING.decode, ROUNDING.encode),
    MessageArgument("parse_hadamard", ta.wire.parse, plain),
    MessageArgument("parse_ternary", ta.wire.parse, trits),
    MessageArgument("parse_topk", ta.wire.parse, PICKING.encode),
    MessageArgument("Message", ta.wire.Message, PICKING.encode),
    MessageArgument("Message.from_bytes", ta.wire.Message.from_bytes, ROUNDING.encode),
    MessageArgument("CompressedGradient.from_bytes", ta.CompressedGradient.from_bytes, plain),
    MessageArgument("TernaryCompressedGradient.from_bytes", ta.TernaryCompressedGradient.from_bytes, trits),
]


@dataclass(frozen=True)
class OutArgument:
    """One `out=`: `call` takes the input and `out`."""

    id: str
    call: Callable[[Any, Any], Any]
    dtype: str  # of out
    size: int = SIZE  # of out
    input_dtype: str | None = "float32"  # None where no input can overlap

    def __str__(self) -> str:
        return self.id

    def input(self) -> NDArray[Any]:
        return values(SIZE, self.input_dtype or "float32")


def mean_into(gradients: Any, out: Any) -> Any:
    accumulator = ta.GradientAccumulator(SIZE)
    accumulator.accumulate(gradients)
    return accumulator.get_and_reset(out=out)


def safely_clipped(array: Any, out: Any) -> Any:
    if out is not None:
        return mp.safe_clip(array, -0.5, 0.5, out=out)
    mp.safe_clip(array, -0.5, 0.5)
    return array


def unscaled(array: Any, out: Any) -> Any:
    if out is not None:
        return mp.LossScaler(1024.0).unscale_gradients(array, out=out)
    mp.LossScaler(1024.0).unscale_gradients(array)
    return array


def unscaled_and_checked(array: Any, out: Any) -> Any:
    assert mp.LossScaler(1024.0).unscale_and_check(array, out=out) is False
    return array if out is None else out


OUT_ARGUMENTS = [
    OutArgument("convert_to_bf16", lambda a, out: mp.convert_to_bf16(a, out=out), "uint16"),
    OutArgument(
        "convert_to_bf16_stochastic",
        lambda a, out: mp.convert_to_bf16(a, rounding="stochastic", out=out),
        "uint16",
    ),
    OutArgument(
        "convert_to_bf16_with_norm", lambda a, out: mp.convert_to_bf16_with_norm(a, out=out)[0], "uint16"
    ),
    OutArgument(
        "convert_to_bf16_with_norm_nearest",
        lambda a, out: mp.convert_to_bf16_with_norm(a, rounding="nearest_even", out=out)[0],
        "uint16",
    ),
    OutArgument("safe_clip", safely_clipped, "float32"),
    OutArgument("unscale_gradients", unscaled, "float32"),
    OutArgument("unscale_and_check", unscaled_and_checked, "float32"),
    OutArgument(
        "convert_from_bf16", lambda a, out: mp.convert_from_bf16(a, out=out), "float32", SIZE, "uint16"
    ),
    OutArgument("get_and_reset", mean_into, "float32", SIZE, None),
    OutArgument("clip_gradients", lambda a, out: ta.clip_gradients(a, 0.5, out=out), "float32"),
    OutArgument("compress", lambda a, out: COMPRESSOR.compress(a, out=out).data, "float32", 64),
    OutArgument("compress_ternary", lambda a, out: COMPRESSOR.compress_ternary(a, out=out).data, "int8", 64),
    OutArgument("decompress", lambda a, out: COMPRESSOR.decompress(compressed(a), out=out), "float32", 50),
    OutArgument("encode", encoded, "uint8", 68 + 4 + SIZE // 2),
    OutArgument(
        "decode",
        lambda a, out: ROUNDING.decode(ROUNDING.encode(np.resize(a, 50)), out=out),
        "float32",
        50,
        None,
    ),
    OutArgument("compress_many", compressed_in_halves, "float32", 128),
    OutArgument("decompress_many", decompressed_twice, "float32", 100),
    OutArgument("plan_compress", lambda a, out: planned(a, out).data, "float32", 64),
    OutArgument("plan_decompress", lambda a, out: planned_back(np.resize(a, 64), out), "float32", 50, None),
    OutArgument(
        "decompress_ternary",
        lambda a, out: COMPRESSOR.decompress_ternary(ternary(a), out=out),
        "float32",
        50,
        "int8",
    ),
]


@dataclass(frozen=True)
class ScalarArgument:
    """One argument that is no array: `call` takes its value."""

    id: str
    argument: str
    call: Callable[[Any], Any]
    good: tuple[Any, ...]
    wrong_values: tuple[Any, ...]
    error: type[Exception] = ta.ArgumentError  # for the wrong values
    wrong_types: tuple[Any, ...] = ("1", None, [1], 1j, object())

    def __str__(self) -> str:
        return f"{self.id}({self.argument})"


class Index:
    """A whole number that is no int."""

    def __index__(self) -> int:
        return 3


NAN, INF = float("nan"), float("inf")
BEYOND_U64 = (-1, 2**64, 2**100, -(2**70))
BEYOND_U32 = (-1, 2**32, 2**64, 2**100)
NO_WHOLE_NUMBERS = ("1", None, [1], 1j, 1.0, np.float32(1), object())
OPTIONAL = ("1", [1], 1j, object())  # wrong types where None is a default
WHOLE = (1, np.int64(1), np.uint8(1), Index())
REAL = (1, 1.0, np.float32(1), np.float64(1), np.int8(1))
RATIOS = (0.5, 1, np.float32(0.5), np.array(0.5))
NO_RATIOS = (0.0, -0.5, 1.5, NAN, INF, -INF, 1e300)
INPUT = values()
TRITS = values(SIZE, "int8")

SCALAR_ARGUMENTS = [
    ScalarArgument("f32_to_bf16", "x", mp.f32_to_bf16, REAL, ()),
    ScalarArgument(
        "bf16_to_f32", "bits", mp.bf16_to_f32, WHOLE, (-1, 2**16, 2**64), wrong_types=NO_WHOLE_NUMBERS
    ),
    ScalarArgument(
        "convert_to_bf16",
        "rounding",
        lambda x: mp.convert_to_bf16(INPUT, rounding=x),
        ("truncate", "nearest_even", "stochastic"),
        ("", "nearest", "TRUNCATE", "\ud800"),
        wrong_types=(None, 1, b"truncate", ["truncate"]),
    ),
    ScalarArgument(
        "convert_to_bf16",
        "seed",
        lambda x: mp.convert_to_bf16(INPUT, seed=x),
        (*WHOLE, 2**64 - 1),
        BEYOND_U64,
        wrong_types=NO_WHOLE_NUMBERS,
    ),
    ScalarArgument(
        "convert_to_bf16",
        "step",
        lambda x: mp.convert_to_bf16(INPUT, step=x),
        (*WHOLE, 2**32 - 1),
        BEYOND_U32,
        wrong_types=NO_WHOLE_NUMBERS,
    ),
    ScalarArgument(
        "convert_to_bf16_with_norm",
        "rounding",
        lambda x: mp.convert_to_bf16_with_norm(INPUT, rounding=x),
        ("truncate", "nearest_even", "stochastic"),
        ("", "nearest", "TRUNCATE", "\ud800"),
        wrong_types=(None, 1, b"truncate", ["truncate"]),
    ),
    ScalarArgument(
        "convert_to_bf16_with_norm",
        "seed",
        lambda x: mp.convert_to_bf16_with_norm(INPUT, seed=x),
        (*WHOLE, 2**64 - 1),
        BEYOND_U64,
        wrong_types=NO_WHOLE_NUMBERS,
    ),
    ScalarArgument(
        "convert_to_bf16_with_norm",
        "step",
        lambda x: mp.convert_to_bf16_with_norm(INPUT, step=x),
        (*WHOLE, 2**32 - 1),
        BEYOND_U32,
        wrong_types=NO_WHOLE_NUMBERS,
    ),
    ScalarArgument("safe_clip", "min", lambda x: mp.safe_clip(values(), x, 9.0), REAL, (NAN, INF, 10.0)),
    ScalarArgument("safe_clip", "max", lambda x: mp.safe_clip(values(), -9.0, x), (*REAL, INF), (NAN,)),
    ScalarArgument("LossScaler", "initial_scale", mp.LossScaler, REAL, (0, -1, NAN, INF, 1e30, 1e-30)),
    ScalarArgument(
        "LossScaler", "growth_factor", lambda x: mp.LossScaler(growth_factor=x), (2, 1.5), (1, 0, NAN, INF)
    ),
    ScalarArgument(
        "LossScaler",
        "backoff_factor",
        lambda x: mp.LossScaler(backoff_factor=x),
        (0.5,),
        (0, 1, -1, NAN, INF),
    ),
    ScalarArgument(
        "LossScaler",
        "growth_interval",
        lambda x: mp.LossScaler(growth_interval=x),
        WHOLE,
        (0, *BEYOND_U64),
        wrong_types=NO_WHOLE_NUMBERS,
    ),
    ScalarArgument("LossScaler", "min_scale", lambda x: mp.LossScaler(min_scale=x), REAL, (0, -1, NAN, INF)),
    ScalarArgument(
        "LossScaler", "max_scale", lambda x: mp.LossScaler(1.0, max_scale=x), REAL, (0, 0.5, NAN, INF)
    ),
    ScalarArgument("scale_loss", "loss", lambda x: mp.LossScaler().scale_loss(x), (*REAL, NAN, INF), ()),
    ScalarArgument(
        "update",
        "overflow",
        lambda x: mp.LossScaler().update(x),
        (True, False, np.True_),
        (),
        wrong_types=(None, 1, 0.0, "True"),
    ),
    ScalarArgument(
        "load_state_dict",
        "state_dict",
        lambda x: mp.LossScaler().load_state_dict(x),
        (mp.LossScaler().state_dict(),),
        ({}, {"scale": 1.0}),
        wrong_types=(None, 1, "scale"),
    ),
    ScalarArgument(
        "GradientAccumulator",
        "size",
        ta.GradientAccumulator,
        (*WHOLE, 0),
        BEYOND_U64,
        wrong_types=NO_WHOLE_NUMBERS,
    ),
    ScalarArgument(
        "accumulate",
        "mass",
        lambda x: ta.GradientAccumulator(SIZE).accumulate(INPUT, x),
        (*REAL, 0),
        (-1, NAN, INF, -INF),
    ),
    ScalarArgument("clip_gradients", "max_norm", lambda x: ta.clip_gradients(INPUT, x), REAL, (-1, NAN)),
    ScalarArgument("clip_gradients_", "max_norm", lambda x: ta.clip_gradients_(values(), x), REAL, (-1, NAN)),
    ScalarArgument(
        "TrainingConfig",
        "ratio",
        ta.TrainingConfig,
        RATIOS,
        NO_RATIOS,
        ta.InvalidRatioError,
        wrong_types=(),
    ),
    ScalarArgument(
        "TrainingConfig",
        "seed",
        lambda x: ta.TrainingConfig(seed=x),
        (*WHOLE, 2**64 - 1),
        BEYOND_U64,
        wrong_types=NO_WHOLE_NUMBERS,
    ),
    ScalarArgument(
        "TrainingConfig",
        "gradient_clipping",
        lambda x: ta.TrainingConfig(gradient_clipping=x),
        (*REAL, None),
        (-1, NAN),
        wrong_types=OPTIONAL,
    ),
    ScalarArgument(
        "TrainingConfig",
        "scaling",
        lambda x: ta.TrainingConfig(scaling=x),
        ("reference", "unbiased", "contractive"),
        ("", "biased"),
        wrong_types=(None, 1, b"reference"),
    ),
    ScalarArgument(
        "TrainingConfig",
        "quantizer_scale",
        lambda x: ta.TrainingConfig(quantizer_scale=x),
        ("reference", "unbiased", "least_squares"),
        ("", "most_squares"),
        wrong_types=(None, 1, b"reference"),
    ),
    ScalarArgument(
        "TrainingConfig",
        "projection",
        lambda x: ta.TrainingConfig(projection=x),
        ("dense", "hadamard", "topk", "none"),
        ("", "sparse"),
        wrong_types=(None, 1, b"dense"),
    ),
    ScalarArgument(
        "TrainingConfig",
        "quantize",
        lambda x: ta.TrainingConfig(quantize=x),
        ("none", "bfloat16", "ternary", "sign", "levels2", "levels4"),
        ("", "int8"),
        wrong_types=(None, 1, b"sign"),
    ),
    ScalarArgument(
        "TrainingConfig",
        "quantizer_block",
        lambda x: ta.TrainingConfig(quantizer_block=x),
        (64, np.int64(128), 2**32 - 64, None),
        (0, 1, 63, 65, *BEYOND_U32),
        wrong_types=("64", [1], 1j, 64.0, object()),
    ),
    ScalarArgument(
        "TrainingConfig",
        "scaling",
        lambda x: ta.TrainingConfig(projection="topk", scaling=x),
        ("reference", "contractive"),
        ("unbiased",),
        wrong_types=(),
    ),
    ScalarArgument(
        "encode", "ratio", lambda x: ROTATING.encode(INPUT, x), RATIOS, NO_RATIOS, ta.InvalidRatioError, ()
    ),
    ScalarArgument(
        "encode_none",
        "ratio",
        lambda x: ROUNDING.encode(INPUT, x),
        (1, 1.0, None),
        (0.5,),
        wrong_types=OPTIONAL,
    ),
    ScalarArgument(
        "encode",
        "step",
        lambda x: ROTATING.encode(INPUT, step=x),
        (*WHOLE, 2**32 - 1),
        BEYOND_U32,
        wrong_types=NO_WHOLE_NUMBERS,
    ),
    ScalarArgument(
        "encode",
        "slot",
        lambda x: ROTATING.encode(INPUT, slot=x),
        (*WHOLE, 2**32 - 1),
        BEYOND_U32,
        wrong_types=NO_WHOLE_NUMBERS,
    ),
    ScalarArgument(
        "message_bytes",
        "n",
        ROTATING.message_bytes,
        (*WHOLE, 0, 2**40),
        BEYOND_U64,
        wrong_types=NO_WHOLE_NUMBERS,
    ),
    ScalarArgument(
        "CompressedGradient",
        "projection",
        lambda x: ta.CompressedGradient(INPUT, SIZE, 3, 0.5, projection=x),
        ("dense", "hadamard"),
        ("", "topk", "none"),
        wrong_types=(None, 1),
    ),
    ScalarArgument(
        "TernaryCompressedGradient",
        "projection",
        lambda x: ta.TernaryCompressedGradient(TRITS, 1.0, SIZE, SIZE, 3, projection=x),
        ("dense", "hadamard"),
        ("", "topk", "none"),
        wrong_types=(None, 1),
    ),
    ScalarArgument(
        "TernaryCompressedGradient",
        "quantizer_scale",
        lambda x: ta.TernaryCompressedGradient(TRITS, 1.0, SIZE, SIZE, 3, quantizer_scale=x),
        ("reference", "least_squares", "unbiased"),
        ("", "mean"),
        wrong_types=(None, 1),
    ),
    ScalarArgument(
        "TernaryCompressedGradient",
        "ratio",
        lambda x: ta.TernaryCompressedGradient(TRITS, 1.0, SIZE, SIZE, 3, ratio=x),
        (*RATIOS, None),
        NO_RATIOS,
        ta.InvalidRatioError,
        (),
    ),
    ScalarArgument(
        "compress",
        "ratio",
        lambda x: COMPRESSOR.compress(INPUT, x),
        RATIOS,
        NO_RATIOS,
        ta.InvalidRatioError,
        (),
    ),
    ScalarArgument(
        "compress", "ratio", lambda x: COMPRESSOR.compress(INPUT, x), (None,), (), wrong_types=OPTIONAL
    ),
    ScalarArgument(
        "compress",
        "step",
        lambda x: COMPRESSOR.compress(INPUT, step=x),
        (*WHOLE, 2**32 - 1),
        BEYOND_U32,
        wrong_types=NO_WHOLE_NUMBERS,
    ),
    ScalarArgument(
        "compress",
        "slot",
        lambda x: COMPRESSOR.compress(INPUT, slot=x),
        (*WHOLE, 2**32 - 1),
        BEYOND_U32,
        wrong_types=NO_WHOLE_NUMBERS,
    ),
    ScalarArgument(
        "compress_ternary",
        "step",
        lambda x: COMPRESSOR.compress_ternary(INPUT, step=x),
        WHOLE,
        BEYOND_U32,
        wrong_types=NO_WHOLE_NUMBERS,
    ),
    ScalarArgument(
        "GradientCompressor",
        "config",
        ta.GradientCompressor,
        (ta.TrainingConfig(),),
        (),
        wrong_types=(1, "x", {}),
    ),
    ScalarArgument(
        "decompress",
        "compressed",
        COMPRESSOR.decompress,
        (compressed(values(64)),),
        (),
        wrong_types=(None, 1, INPUT, ternary(TRITS)),
    ),
    ScalarArgument(
        "decompress_ternary",
        "compressed",
        COMPRESSOR.decompress_ternary,
        (ternary(TRITS),),
        (),
        wrong_types=(None, 1, TRITS, compressed(INPUT)),
    ),
    ScalarArgument(
        "compress_many",
        "ratio",
        lambda x: COMPRESSOR.compress_many(INPUT[np.newaxis], x),
        RATIOS,
        NO_RATIOS,
        ta.InvalidRatioError,
        (),
    ),
    ScalarArgument(
        "compress_many",
        "step",
        lambda x: COMPRESSOR.compress_many(INPUT[np.newaxis], step=x),
        WHOLE,
        BEYOND_U32,
        wrong_types=NO_WHOLE_NUMBERS,
    ),
    ScalarArgument(
        "compress_many",
        "slot",
        lambda x: COMPRESSOR.compress_many(INPUT[np.newaxis], slot=x),
        WHOLE,
        BEYOND_U32,
        wrong_types=NO_WHOLE_NUMBERS,
    ),
    ScalarArgument(
        "decompress_many",
        "compressed",
        COMPRESSOR.decompress_many,
        ([], (), [compressed(INPUT)] * 2, (compressed(INPUT),)),
        (
            [compressed(INPUT), compressed(INPUT[1:])],
            [compressed(INPUT), ta.CompressedGradient(INPUT, 51, 3, 0.5)],
            [compressed(INPUT), ta.CompressedGradient(INPUT, 50, 3, 0.5, scaling="unbiased")],
        ),
        wrong_types=(None, 1, INPUT, compressed(INPUT), [INPUT], "x", [compressed(INPUT), None], {1: 2}),
    ),
    ScalarArgument("plan", "n", COMPRESSOR.plan, (*WHOLE, 0), BEYOND_U64, wrong_types=NO_WHOLE_NUMBERS),
    ScalarArgument(
        "plan",
        "ratio",
        lambda x: COMPRESSOR.plan(5, x),
        RATIOS,
        NO_RATIOS,
        ta.InvalidRatioError,
        (),
    ),
    ScalarArgument(
        "plan",
        "step",
        lambda x: COMPRESSOR.plan(5, step=x),
        WHOLE,
        BEYOND_U32,
        wrong_types=NO_WHOLE_NUMBERS,
    ),
    ScalarArgument(
        "plan",
        "slot",
        lambda x: COMPRESSOR.plan(5, slot=x),
        WHOLE,
        BEYOND_U32,
        wrong_types=NO_WHOLE_NUMBERS,
    ),
    ScalarArgument(
        "plan",
        "max_bytes",
        lambda x: COMPRESSOR.plan(5, max_bytes=x),
        (256, np.int64(256), 2**64 - 1),
        (0, 255, *BEYOND_U64),
        wrong_types=NO_WHOLE_NUMBERS,
    ),
    ScalarArgument(
        "ProjectionPlan",
        "compressor",
        lambda x: ta.ProjectionPlan(x, 5),
        (COMPRESSOR,),
        (),
        wrong_types=(None, 1, ta.TrainingConfig()),
    ),
    ScalarArgument(
        "plan_decompress",
        "compressed",
        COMPRESSOR.plan(50).decompress,
        (compressed(values(64)),),
        (ta.CompressedGradient(values(64), 50, 3, 0.5, step=1),),
        wrong_types=(None, 1, INPUT, ternary(TRITS)),
    ),
    ScalarArgument(
        "compressed_dim",
        "n",
        COMPRESSOR.compressed_dim,
        (*WHOLE, 0, 2**40),
        BEYOND_U64,
        wrong_types=NO_WHOLE_NUMBERS,
    ),
    ScalarArgument(
        "CompressedGradient",
        "original_dim",
        lambda x: ta.CompressedGradient(INPUT, x, 3, 0.5),
        WHOLE,
        BEYOND_U64,
        wrong_types=NO_WHOLE_NUMBERS,
    ),
    ScalarArgument(
        "CompressedGradient",
        "seed",
        lambda x: ta.CompressedGradient(INPUT, 5, x, 0.5),
        WHOLE,
        BEYOND_U64,
        wrong_types=NO_WHOLE_NUMBERS,
    ),
    ScalarArgument(
        "CompressedGradient",
        "scaling",
        lambda x: ta.CompressedGradient(INPUT, SIZE, 3, 0.5, scaling=x),
        ("reference", "unbiased", "contractive"),
        ("", "biased"),
        wrong_types=(None, 1),
    ),
    ScalarArgument(
        "CompressedGradient",
        "ratio",
        lambda x: ta.CompressedGradient(INPUT, SIZE, 3, x),
        RATIOS,
        NO_RATIOS,
        ta.InvalidRatioError,
        (),
    ),
    ScalarArgument(
        "CompressedGradient",
        "step",
        lambda x: ta.CompressedGradient(INPUT, SIZE, 3, 0.5, step=x),
        (*WHOLE, 2**32 - 1),
        BEYOND_U32,
        wrong_types=NO_WHOLE_NUMBERS,
    ),
    ScalarArgument(
        "TernaryCompressedGradient",
        "scaling",
        lambda x: ta.TernaryCompressedGradient(TRITS, 1.0, SIZE, SIZE, 3, scaling=x),
        ("reference", "unbiased", "contractive"),
        ("", "biased"),
        wrong_types=(None, 1),
    ),
    ScalarArgument(
        "TernaryCompressedGradient",
        "slot",
        lambda x: ta.TernaryCompressedGradient(TRITS, 1.0, SIZE, SIZE, 3, slot=x),
        (*WHOLE, 2**32 - 1),
        BEYOND_U32,
        wrong_types=NO_WHOLE_NUMBERS,
    ),
    ScalarArgument(
        "TernaryCompressedGradient",
        "scale",
        lambda x: ta.TernaryCompressedGradient(TRITS, x, 5, SIZE, 3),
        REAL,
        (NAN, INF),
    ),
    ScalarArgument(
        "set_num_threads",
        "threads",
        ta.set_num_threads,
        (),
        (0, *BEYOND_U64),
        wrong_types=NO_WHOLE_NUMBERS,
    ),
]

# Calls of a second or more at one thread, for Ctrl-C: the first is the reference's own, of some minutes.
MILLIONS = 2_000_000
LONG_CALLS: dict[str, Callable[[], Any]] = {
    "compress": lambda: ta.GradientCompressor().compress(values(MILLIONS)),
    "compress_ternary": lambda: ta.GradientCompressor().compress_ternary(values(MILLIONS)),
    "decompress": lambda: ta.GradientCompressor().decompress(
        ta.CompressedGradient(values(MILLIONS // 10), MILLIONS, 42, 0.1)
    ),
    "decompress_ternary": lambda: ta.GradientCompressor().decompress_ternary(
        ta.TernaryCompressedGradient(values(MILLIONS // 10, "int8"), 1.0, MILLIONS, MILLIONS // 10, 42)
    ),
    "compress_many": lambda: ta.GradientCompressor().compress_many(values(MILLIONS).reshape(2, -1)),
    "decompress_many": lambda: ta.GradientCompressor().decompress_many(
        [ta.CompressedGradient(values(MILLIONS // 10), MILLIONS, 42, 0.1)] * 2
    ),
    "encode": lambda: ta.GradientCompressor().encode(values(MILLIONS)),
    "decode": lambda: ta.GradientCompressor().decode(
        ta.CompressedGradient(values(MILLIONS // 10), MILLIONS, 42, 0.1).to_bytes()
    ),
    "plan": lambda: ta.GradientCompressor().plan(250_000, max_bytes=2**31),
}


def large_calls(size: int = 1_000_003) -> dict[str, Callable[[], Any]]:
    """Every call on arrays that the pool is used for; projections on shorter ones, which cost as much.

    The pool is used from 200 microseconds on: for the fastest pass, which counts 0.3 ns a value, above 666,667 values.
    """
    calls: dict[str, Callable[[], Any]] = {}
    for row in ARRAY_ARGUMENTS:
        long = values(20_011 if row.dense else size, row.dtype)
        calls[row.id] = partial(row.result, long)
    plan, small = COMPRESSOR.plan(10_003), ta.CompressedGradient(values(5_002), 10_003, 3, 0.5)
    calls["plan_decompress"] = partial(plan.decompress, small)
    for message in MESSAGE_ARGUMENTS:
        calls[message.id] = partial(message.call, message.message(size))
    return calls


def digests() -> dict[str, str]:
    """A fingerprint of the result of every call: the same on every machine, thread count and SIMD level."""
    return {name: digest(call()) for name, call in large_calls().items()}


def advanced_scaler() -> mp.LossScaler:
    scaler = mp.LossScaler(8.0, 3.0, 0.25, 5, min_scale=0.5, max_scale=1e6)
    for overflow in (True, False, False):
        scaler.update(overflow)
    return scaler


def filled_accumulator() -> ta.GradientAccumulator:
    accumulator = ta.GradientAccumulator(SIZE)
    accumulator.accumulate(values(), 2.5)
    return accumulator


def poisoned_accumulator() -> ta.GradientAccumulator:
    accumulator = filled_accumulator()
    accumulator.accumulate(np.where(values() > 1, INF, values()).astype(np.float32))
    return accumulator


# What pickles and copies, with how two of them are compared.
OBJECTS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "LossScaler": (advanced_scaler, lambda x: (repr(x), x.state_dict())),
    "GradientAccumulator": (filled_accumulator, lambda x: (repr(x), x.finite, outcome(x.get_and_reset()))),
    "poisoned GradientAccumulator": (
        poisoned_accumulator,
        lambda x: (repr(x), x.finite, outcome(x.get_and_reset())),
    ),
    "TrainingConfig": (
        lambda: ta.TrainingConfig(
            0.25,
            2**64 - 1,
            1.5,
            projection="topk",
            scaling="contractive",
            quantize="levels2",
            quantizer_scale="unbiased",
            quantizer_block=128,
        ),
        lambda x: (repr(x), x, hash(x)),
    ),
    "GradientCompressor": (
        lambda: ta.GradientCompressor(ta.TrainingConfig(0.25, 7)),
        lambda x: (repr(x), outcome(x.compress(INPUT))),
    ),
    "ProjectionPlan": (
        lambda: COMPRESSOR.plan(SIZE, 0.75, step=3, slot=4, max_bytes=1000),
        lambda x: (repr(x), x.max_bytes, outcome(x.compress(INPUT))),
    ),
    "CompressedGradient": (
        lambda: HADAMARD.compress(INPUT, step=3, slot=4),
        lambda x: (outcome(x), x.to_bytes()),
    ),
    "TernaryCompressedGradient": (
        lambda: ROTATING.compress_ternary(INPUT, 0.75, step=3, slot=4),
        lambda x: (outcome(x), x.to_bytes()),
    ),
    "Message": (
        lambda: PICKING.encode(values(5000), step=3),
        lambda x: (type(x), bytes(x), repr(x), vars(x).keys()),
    ),
    "ArgumentError": (lambda: ta.ArgumentError("argument seed: got -1", "seed"), lambda x: (str(x), vars(x))),
}
