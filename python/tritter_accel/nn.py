"""Layers: parameters recorded together, and called on values.

Names follow the tree of layers: ``Mlp(tape, "mlp", ...)`` records ``mlp.layer0.weight``, ``mlp.layer0.bias`` and so on.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from ._core import Value, cross_entropy
from .engine import Tape
from .exceptions import ArgumentError, ArgumentTypeError, ShapeError
from .init import Initializer

__all__ = ["Linear", "Mlp", "cross_entropy"]

_ACTIVATIONS: dict[str, Callable[[Value], Value]] = {
    "tanh": Value.tanh,
    "relu": Value.relu,
    "identity": lambda value: value,
}


class Linear:
    """``y = x W + b``.

    Parameters
    ----------
    tape : Tape
        Where to record the parameters.
    name : str
        They are ``name.weight`` of shape (inputs, outputs) and ``name.bias`` of shape (outputs,).
    inputs, outputs : int
        Lengths of a row before and after.
    init : Initializer
        Fills the weight, then the bias.
    bias : bool, default True
        Whether there is a bias.
    """

    def __init__(
        self, tape: Tape, name: str, inputs: int, outputs: int, *, init: Initializer, bias: bool = True
    ) -> None:
        self.name = name
        self.weight = tape.parameter(f"{name}.weight", init, (inputs, outputs))
        self.bias = tape.parameter(f"{name}.bias", init, (outputs,)) if bias else None

    def __call__(self, rows: Value) -> Value:
        """Record the layer over `rows` of shape (rows, inputs)."""
        if not isinstance(rows, Value):
            came = type(rows).__name__
            message = (
                f"argument rows: got {came}, wanted a value of the tape; record arrays with tape.constant"
            )
            raise ArgumentTypeError(message, "rows")
        if len(rows.shape) != 2:
            raise ShapeError(
                f"{self.name}: rows of shape {rows.shape}, wanted (rows, inputs); call .reshape(...)"
            )
        product = rows @ self.weight
        return product if self.bias is None else product + self.bias.broadcast_to(product.shape)

    def __repr__(self) -> str:
        inputs, outputs = self.weight.shape
        return f"Linear({self.name}: {inputs} -> {outputs}{'' if self.bias else ', no bias'})"


class Mlp:
    """Linear layers with an activation between them, none behind the last.

    Parameters
    ----------
    tape : Tape
        Where to record the parameters.
    name : str
        Layer i is ``name.layer<i>``.
    sizes : sequence of int
        Lengths of a row: before the first layer, and after each.
    activation : {"tanh", "relu", "identity"} or callable
        Goes between the layers; a callable takes and returns a `Value`.
    init : Initializer
        One stream that fills all layers in order.
    """

    def __init__(
        self,
        tape: Tape,
        name: str,
        sizes: Sequence[int],
        *,
        activation: str | Callable[[Value], Value] = "tanh",
        init: Initializer,
    ) -> None:
        try:
            sizes = list(sizes)
        except TypeError:
            message = f"argument sizes: got {type(sizes).__name__}, wanted a sequence of lengths"
            raise ArgumentTypeError(message, "sizes") from None
        if len(sizes) < 2:
            raise ArgumentError(f"sizes: got {list(sizes)}, wanted at least two lengths", "sizes")
        if callable(activation):
            self._activation = activation
        elif isinstance(activation, str) and activation in _ACTIVATIONS:
            self._activation = _ACTIVATIONS[activation]
        else:
            known = ", ".join(repr(name) for name in _ACTIVATIONS)
            raise ArgumentError(
                f"activation: got {activation!r}, wanted one of {known}, or a callable", "activation"
            )
        self.name = name
        self.layers = [
            Linear(tape, f"{name}.layer{index}", inputs, outputs, init=init)
            for index, (inputs, outputs) in enumerate(itertools.pairwise(sizes))
        ]

    def __call__(self, rows: Value) -> Value:
        """Record the layers over `rows` of shape (rows, sizes[0])."""
        for layer in self.layers[:-1]:
            rows = self._activation(layer(rows))
        return self.layers[-1](rows)

    def __repr__(self) -> str:
        return f"Mlp({self.name}: {', '.join(repr(layer) for layer in self.layers)})"
