"""``tritter-accel compress``, ``decompress`` and ``inspect``: messages in files."""

from __future__ import annotations

import argparse
import json
import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from ._core import GradientCompressor, TrainingConfig
from .exceptions import ArgumentError, ArrayError, WireError
from .report import check_target, replaced
from .wire import Message

if TYPE_CHECKING:
    from numpy.typing import NDArray

    _Commands = argparse._SubParsersAction[Any]
    _Whole = Callable[[int, int], Callable[[str], int]]

__all__ = ["add_commands"]

LARGEST_RESULT = 2**31
"""Values that ``decompress`` writes without being asked: a short message may stand for a gradient of any length."""

LARGEST_COUNT = 2**61
"""Values whose bytes can be counted."""


def add_commands(commands: _Commands, whole: _Whole) -> None:
    """Add the three commands; `whole` makes the parser of a whole number between two."""
    word, long = whole(0, 2**32 - 1), whole(0, 2**64 - 1)

    compress = commands.add_parser(
        "compress", help="make a message of a float32 array", description="Make a message of a float32 array."
    )
    compress.add_argument("file", type=Path, metavar="FILE.npy", help="float32, of any shape, in C order")
    compress.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help="the message")
    compress.add_argument(
        "--projection",
        choices=["hadamard", "topk", "dense", "none"],
        default="hadamard",
        help="how it is brought down to fewer values (default: %(default)s)",
    )
    compress.add_argument("--ratio", type=float, help="values sent per value, 0 < ratio <= 1 (default: 0.1)")
    compress.add_argument(
        "--scaling",
        choices=["reference", "unbiased", "contractive"],
        default="contractive",
        help="no bias, or least error (default: %(default)s)",
    )
    compress.add_argument(
        "--quantize",
        choices=["none", "bfloat16", "ternary", "sign", "levels2", "levels4"],
        default="none",
        help="bits of a value: 32, 16, 1.6, 1, 2 or 4 (default: %(default)s)",
    )
    compress.add_argument(
        "--quantizer-scale",
        choices=["reference", "least_squares", "unbiased"],
        default="least_squares",
        help="how scales are chosen (default: %(default)s)",
    )
    compress.add_argument(
        "--quantizer-block", type=whole(1, 2**32 - 1), metavar="N", help="values per scale, a multiple of 64"
    )
    compress.add_argument("--clip", type=float, metavar="NORM", help="largest norm of what is compressed")
    compress.add_argument(
        "--seed", type=long, default=42, help="both ends need the same (default: %(default)s)"
    )
    compress.add_argument("--step", type=word, default=0, help="training step (default: %(default)s)")
    compress.add_argument(
        "--slot", type=word, default=0, help="which gradient of the step (default: %(default)s)"
    )
    compress.set_defaults(run=_compress)

    decompress = commands.add_parser(
        "decompress", help="make the array of a message", description="Make the array of a message."
    )
    decompress.add_argument("file", type=Path, metavar="FILE", help="a message")
    decompress.add_argument(
        "-o", "--output", type=Path, required=True, metavar="FILE.npy", help="the array: float32, one axis"
    )
    decompress.add_argument("--seed", type=long, help="refuse a message of another seed (default: take any)")
    decompress.add_argument(
        "--max-values",
        type=whole(0, 2**63 - 1),
        default=LARGEST_RESULT,
        metavar="N",
        help="refuse a message of a longer gradient (default: %(default)s)",
    )
    decompress.set_defaults(run=_decompress)

    inspect = commands.add_parser(
        "inspect", help="say what a message holds", description="Say what a message holds."
    )
    inspect.add_argument("file", type=Path, metavar="FILE", help="a message")
    inspect.add_argument("--json", action="store_true", help="print one JSON object")
    inspect.set_defaults(run=_inspect)


def _compress(options: argparse.Namespace) -> None:
    _check_output(options)
    values = _read_array(options.file)
    config = TrainingConfig(
        0.1 if options.ratio is None else options.ratio,
        options.seed,
        options.clip,
        projection=options.projection,
        scaling=options.scaling,
        quantize=options.quantize,
        quantizer_scale=options.quantizer_scale,
        quantizer_block=options.quantizer_block,
    )
    message = GradientCompressor(config).encode(values, options.ratio, step=options.step, slot=options.slot)
    with replaced(options.output) as beside:
        Path(beside).write_bytes(message)
    print(
        f"{options.output}: {len(message):,} bytes of {values.nbytes:,}, {_times(values.nbytes, len(message))}"
    )


def _decompress(options: argparse.Namespace) -> None:
    _check_output(options)
    message = _read_message(options.file)
    if message.original_dim > options.max_values:
        raise ArgumentError(
            f"{options.file}: the message stands for {message.original_dim:,} values, more than --max-values "
            f"{options.max_values:,}; pass more if you trust it",
            "max_values",
        )
    seed = message.seed if options.seed is None else options.seed
    values = GradientCompressor(TrainingConfig(seed=seed)).decode(message)
    with replaced(options.output) as beside, Path(beside).open("wb") as file:
        np.lib.format.write_array(file, values, allow_pickle=False)
    print(f"{options.output}: {_count(values.size)} of float32")


def _inspect(options: argparse.Namespace) -> None:
    message = _read_message(options.file)
    n = message.original_dim
    record: dict[str, Any] = {
        "projection": message.projection,
        "scaling": message.scaling,
        "quantize": message.quantize,
        "quantizer_scale": message.quantizer_scale,
        "quantizer_block": message.quantizer_block,
        "ratio": message.ratio,
        "original_dim": n,
        "compressed_dim": message.compressed_dim,
        "seed": message.seed,
        "step": message.step,
        "slot": message.slot,
        "message_bytes": len(message),
        "gradient_bytes": 4 * n,
        "bits_per_value": 8 * len(message) / n if n else None,
    }
    if options.json:
        print(json.dumps(record, indent=1))
        return
    for name, value in record.items():
        shown = "-" if value is None else f"{value:.4g}" if isinstance(value, float) else value
        print(f"{name:<16} {shown}")


def _check_output(options: argparse.Namespace) -> None:
    check_target(options.output)
    if options.output.resolve() == options.file.resolve():
        raise ArgumentError(f"-o: {options.output} is the file that is read; name another", "output")


def _read_message(path: Path) -> Message:
    try:
        return Message(path.read_bytes())
    except OSError as error:
        raise _unreadable(path, error) from error
    except WireError as error:
        raise WireError(f"{path}: {error}", error.field) from error


def _unreadable(path: Path, error: OSError) -> ArgumentError:
    return ArgumentError(f"{path}: {error.strerror or error}", "file")


def _read_array(path: Path) -> NDArray[np.float32]:
    """The values of an .npy file in C order, whatever its shape; nothing of it is believed before it is checked."""
    try:
        with path.open("rb") as file:
            shape, fortran_order, dtype = _read_header(path, file)
            if dtype != np.float32 or not dtype.isnative:
                mend = "save it after .astype(np.float32)"
                raise ArrayError(
                    f"{path} holds {dtype.str}, wanted float32 in native byte order; {mend}", "file"
                )
            if fortran_order and sum(length > 1 for length in shape) > 1:
                mend = "save np.ascontiguousarray of it"
                raise ArrayError(
                    f"{path} is in Fortran order, and values are read in C order; {mend}", "file"
                )
            content = file.read()
    except OSError as error:
        raise _unreadable(path, error) from error
    wanted = 4 * math.prod(shape)
    if len(content) != wanted:
        raise ArrayError(
            f"{path} has {len(content):,} bytes of values, wanted {wanted:,} for the shape {shape} in its header; "
            "write it again with np.save",
            "file",
        )
    return np.frombuffer(content, dtype=np.float32)


def _read_header(path: Path, file: BinaryIO) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether in Fortran order, and type; `file` stands at the values then."""
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python 2 wrote headers that are read all the same
            version = np.lib.format.read_magic(file)
            header = readers[version](file) if version in readers else None
    except OSError:
        raise
    except Exception as error:
        # NumPy evaluates the header, and lets out whatever comes of that.
        raise _no_array(path, str(error) or type(error).__name__) from error
    if header is None:
        raise _no_array(path, f"its version is {version}")
    shape = header[0]
    if min(shape, default=0) < 0 or math.prod(shape) > LARGEST_COUNT:
        raise _no_array(path, "its header has a shape that no array has")
    return header


def _no_array(path: Path, reason: str) -> ArrayError:
    return ArrayError(f"{path} is no .npy file of numbers ({reason}); write one with np.save", "file")


def _times(many: int, few: int) -> str:
    return f"{many / few:.1f} times smaller" if few < many else f"{few - many:,} more"


def _count(number: int) -> str:
    return f"{number:,} value{'' if number == 1 else 's'}"
