"""The bytes of compressed gradients: what is sent, and a parser that trusts nothing.

:func:`parse` gives what a message stands for. :class:`Message` is the bytes themselves, with the header's fields as
attributes: what :meth:`GradientCompressor.encode` returns. The format is ``docs/wire_format.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from . import _core

if TYPE_CHECKING:
    from typing import Any, Self, TypeAlias

    from numpy.typing import NDArray
    from typing_extensions import Buffer

    _Bytes: TypeAlias = Buffer | NDArray[Any]  # arrays are buffers to type checkers from Python 3.12 on alone

__all__ = ["Message", "parse"]


class Message(bytes):
    """A message: ``bytes`` that were checked, and what they say of themselves.

    Parameters
    ----------
    message : bytes or another object with a buffer
        Copied.

    Raises
    ------
    WireError
        If the bytes are no message; its ``field`` says where.

    Examples
    --------
    >>> import numpy as np
    >>> import tritter_accel as ta
    >>> config = ta.TrainingConfig(0.1, projection="hadamard", scaling="unbiased", quantize="sign")
    >>> message = ta.GradientCompressor(config).encode(np.ones(10_000, dtype=np.float32), step=3)
    >>> len(message), message.quantize, message.compressed_dim
    (197, 'sign', 1000)
    >>> ta.wire.Message(bytes(message)) == message
    True
    """

    _header: _core.MessageHeader

    def __new__(cls, message: _Bytes) -> Self:  # noqa: D102 - by the class
        header = _core.read_header(message)
        self = cls._checked(memoryview(message), header)  # type: ignore[arg-type]
        if not isinstance(message, bytes):
            # Another thread may have written to it since: what counts is what was copied.
            self._header = _core.read_header(self)
        return self

    @classmethod
    def _checked(cls, message: Buffer, header: _core.MessageHeader) -> Self:
        self = bytes.__new__(cls, message)
        self._header = header
        return self

    @classmethod
    def from_bytes(cls, message: _Bytes) -> Self:
        """The message in `message`, as the other classes have it."""
        return cls(message)

    def to_bytes(self) -> bytes:
        """The bytes alone, as the other classes have it."""
        return bytes(self)

    def __reduce__(self) -> tuple[type[Message], tuple[bytes]]:
        return type(self), (bytes(self),)

    @property
    def projection(self) -> Literal["none", "dense", "hadamard", "topk"]:
        """How the gradient was brought down to fewer values."""
        return self._header.projection

    @property
    def scaling(self) -> Literal["reference", "unbiased", "contractive"]:
        """Factor of both directions."""
        return self._header.scaling

    @property
    def quantize(self) -> Literal["none", "bfloat16", "ternary", "sign", "levels2", "levels4"]:
        """What became of the values."""
        return self._header.quantize

    @property
    def quantizer_scale(self) -> Literal["reference", "least_squares", "unbiased"]:
        """How scales were chosen."""
        return self._header.quantizer_scale

    @property
    def quantizer_block(self) -> int | None:
        """Values that share a scale, or None for all of them."""
        return self._header.quantizer_block

    @property
    def ratio(self) -> float | None:
        """The ratio that was asked for, or None where that is not known."""
        return self._header.ratio

    @property
    def original_dim(self) -> int:
        """Values of the gradient."""
        return self._header.original_dim

    @property
    def compressed_dim(self) -> int:
        """Values that were sent."""
        return self._header.compressed_dim

    @property
    def seed(self) -> int:
        """Seed of the compressor."""
        return self._header.seed

    @property
    def step(self) -> int:
        """Training step."""
        return self._header.step

    @property
    def slot(self) -> int:
        """Which of several gradients of the step."""
        return self._header.slot

    def __repr__(self) -> str:
        return (
            f"Message({len(self)} bytes, projection={self.projection!r}, scaling={self.scaling!r}, "
            f"quantize={self.quantize!r}, original_dim={self.original_dim}, compressed_dim={self.compressed_dim}, "
            f"seed={self.seed}, step={self.step}, slot={self.slot})"
        )

    __str__ = __repr__


def parse(message: _Bytes) -> _core.CompressedGradient | _core.TernaryCompressedGradient | Message:
    """What a message stands for, checked field by field before anything is made of it.

    Parameters
    ----------
    message : bytes or another object with a buffer

    Returns
    -------
    CompressedGradient
        For the dense and the Hadamard projection with float32 values.
    TernaryCompressedGradient
        For the same with trits of one scale.
    Message
        For everything else.

    Raises
    ------
    WireError
        If the bytes are no message; its ``field`` says where.
    """
    return _core.parse(message)
