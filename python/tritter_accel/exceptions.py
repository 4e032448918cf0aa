"""Every error this package raises, one class a kind, all below :class:`TrainingError`.

Each class also derives from the built-in exception of its nature, so ``except ValueError`` keeps working. The
values a message speaks of are attributes. All of them pickle.
"""

from __future__ import annotations

__all__ = [
    "AllocationError",
    "ArgumentError",
    "ArgumentTypeError",
    "ArrayError",
    "CorpusError",
    "DimensionMismatchError",
    "InternalError",
    "InvalidRatioError",
    "NonFiniteError",
    "SeedMismatchError",
    "ShapeError",
    "TapeError",
    "TrainingError",
    "WireError",
]


class TrainingError(Exception):
    """Any error of this package."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class InvalidRatioError(TrainingError, ValueError):
    """A compression ratio outside (0, 1].

    Attributes
    ----------
    ratio : float
        The ratio that came, rounded to float32.
    """

    def __init__(self, message: str, ratio: float) -> None:
        super().__init__(message, ratio)
        self.ratio = ratio


class DimensionMismatchError(TrainingError, ValueError):
    """Two lengths that had to be equal.

    Attributes
    ----------
    expected, actual : int
        The length that was wanted, and the one that came.
    """

    def __init__(self, message: str, expected: int, actual: int) -> None:
        super().__init__(message, expected, actual)
        self.expected = expected
        self.actual = actual


class SeedMismatchError(TrainingError, ValueError):
    """A gradient compressed under one seed met a compressor with another.

    Attributes
    ----------
    compress, decompress : int
        Seed carried by the compressed gradient, and seed of the compressor.
    """

    def __init__(self, message: str, compress: int, decompress: int) -> None:
        super().__init__(message, compress, decompress)
        self.compress = compress
        self.decompress = decompress


class _NamedArgumentError(TrainingError):
    def __init__(self, message: str, argument: str) -> None:
        super().__init__(message, argument)
        self.argument = argument


class ArgumentError(_NamedArgumentError, ValueError):
    """An argument of the right type whose value has no meaning.

    Attributes
    ----------
    argument : str
        Its name.
    """


class ArgumentTypeError(_NamedArgumentError, TypeError):
    """An argument of a type that cannot be taken.

    Attributes
    ----------
    argument : str
        Its name.
    """


class ArrayError(_NamedArgumentError, TypeError):
    """An array of another type, byte order or memory layout than the call takes; the message names the mend.

    Attributes
    ----------
    argument : str
        Its name.
    """


class NonFiniteError(TrainingError, ArithmeticError):
    """A NaN or an infinity where it would poison the result.

    Attributes
    ----------
    argument : str
        Name of the array.
    index : int
        Flat index of the first such value.
    value : float
        The value.
    """

    def __init__(self, message: str, argument: str, index: int, value: float) -> None:
        super().__init__(message, argument, index, value)
        self.argument = argument
        self.index = index
        self.value = value


class TapeError(TrainingError, ValueError):
    """A step of recording or running a network that has no meaning."""


class ShapeError(TapeError):
    """Shapes that do not fit together; the message names them."""


class CorpusError(TrainingError, ValueError):
    """A file of words that cannot be trained on."""


class AllocationError(TrainingError, MemoryError):
    """A result that would not fit in memory.

    Attributes
    ----------
    bytes : int
        The size that was refused.
    """

    def __init__(self, message: str, bytes: int) -> None:  # noqa: A002 - the attribute's name
        super().__init__(message, bytes)
        self.bytes = bytes


class InternalError(TrainingError, RuntimeError):
    """A fault of this package, never of its user; please report it."""


class WireError(TrainingError, ValueError):
    """Bytes that are no message: damaged, forged, or of a version that this package does not know.

    Attributes
    ----------
    field : str
        The field of ``docs/wire_format.md`` that cannot be right.
    """

    def __init__(self, message: str, field: str) -> None:
        super().__init__(message, field)
        self.field = field
