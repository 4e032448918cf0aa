"""Layers: their slots, their shapes, their values against NumPy, and what they refuse."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import tritter_accel as ta
from tests.reference import splitmix


def outputs_of(tape: ta.Tape, value: ta.Value, x: Any, replaced: dict[str, Any] | None = None) -> Any:
    """The value for the input x, after the named parameters were replaced."""
    loss = value.sum()
    network = tape.seal()
    parameters = network.parameters().replace(replaced or {})
    return network.entry(loss, observe=[value]).run(parameters, {"x": x})[value]


def test_linear_is_x_w_plus_b() -> None:
    tape = ta.Tape()
    layer = ta.nn.Linear(tape, "layer", 4, 3, init=ta.init.xavier(seed=5))
    y = layer(tape.input("x", shape=(ta.BATCH, 4)))
    assert y.shape == (ta.BATCH, 3)
    generator = np.random.default_rng(0)
    x = generator.standard_normal((6, 4)).astype(np.float32)
    bias = generator.standard_normal(3).astype(np.float32)
    weight = splitmix.Xavier(5).fill((4, 3)).astype(np.float64)
    actual = outputs_of(tape, y, x, {"layer.bias": bias})
    np.testing.assert_allclose(actual, x.astype(np.float64) @ weight + bias, rtol=0, atol=2e-6)


def test_linear_slots() -> None:
    tape = ta.Tape()
    ta.nn.Linear(tape, "one", 4, 3, init=ta.init.normal(seed=1))
    ta.nn.Linear(tape, "two", 3, 2, init=ta.init.normal(seed=2), bias=False)
    parameters = tape.seal().parameters()
    assert [(name, array.shape) for name, array in parameters.items()] == [
        ("one.weight", (4, 3)),
        ("one.bias", (3,)),
        ("two.weight", (3, 2)),
    ]


def test_linear_without_bias() -> None:
    tape = ta.Tape()
    layer = ta.nn.Linear(tape, "layer", 2, 2, init=ta.init.constant(3.0), bias=False)
    y = layer(tape.input("x", shape=(ta.BATCH, 2)))
    assert outputs_of(tape, y, np.array([[1, 2]], dtype=np.float32)).tolist() == [[9.0, 9.0]]


def test_a_layer_may_be_used_twice() -> None:
    tape = ta.Tape()
    layer = ta.nn.Linear(tape, "layer", 2, 2, init=ta.init.constant(1.0), bias=False)
    x = tape.input("x", shape=(ta.BATCH, 2))
    loss = layer(layer(x)).sum()
    network = tape.seal()
    run = network.entry(loss).run(network.parameters(), {"x": np.array([[1, 2]], dtype=np.float32)})
    assert float(run.loss) == 12.0
    # d/dW of sum(x W W): x^T 1 W^T + (x W)^T 1.
    assert run.backward(loss)["layer.weight"].tolist() == [[5.0, 5.0], [7.0, 7.0]]


@pytest.mark.parametrize(
    ("activation", "function"),
    [("tanh", np.tanh), ("relu", lambda v: np.maximum(v, 0))],
    ids=["tanh", "relu"],
)
def test_mlp_has_its_activation_between_layers_and_not_after_the_last(activation: str, function: Any) -> None:
    tape = ta.Tape()
    mlp = ta.nn.Mlp(tape, "mlp", [5, 7, 6, 2], activation=activation, init=ta.init.kaiming(seed=9))
    y = mlp(tape.input("x", shape=(ta.BATCH, 5)))
    assert y.shape == (ta.BATCH, 2)
    generator = np.random.default_rng(1)
    x = generator.standard_normal((8, 5)).astype(np.float32)
    reference = splitmix.Kaiming(9)
    replaced, wanted = {}, x.astype(np.float64)
    for index, (inputs, outputs) in enumerate([(5, 7), (7, 6), (6, 2)]):
        weight = reference.fill((inputs, outputs)).astype(np.float64)
        bias = generator.standard_normal(outputs).astype(np.float32)
        replaced[f"mlp.layer{index}.bias"] = bias
        wanted = wanted @ weight + bias
        if index < 2:
            wanted = function(wanted)
    assert wanted.min() < -0.5  # an activation after the last layer would show
    np.testing.assert_allclose(outputs_of(tape, y, x, replaced), wanted, rtol=0, atol=1e-5)


def test_mlp_slots_are_in_the_order_of_the_stream() -> None:
    tape = ta.Tape()
    ta.nn.Mlp(tape, "net", [3, 4, 2], activation="tanh", init=ta.init.xavier(seed=1))
    assert list(tape.seal().parameter_names) == [
        "net.layer0.weight",
        "net.layer0.bias",
        "net.layer1.weight",
        "net.layer1.bias",
    ]


def test_what_layers_refuse() -> None:
    tape = ta.Tape()
    layer = ta.nn.Linear(tape, "layer", 4, 3, init=ta.init.xavier(seed=5))
    x = tape.input("x", shape=(ta.BATCH, 5))
    nodes = len(tape)
    with pytest.raises(ta.ShapeError, match=r"(?s)(?=.*\b5\b)(?=.*4, 3)"):
        layer(x)
    with pytest.raises(ta.TapeError, match=re.escape("layer.weight")):
        ta.nn.Linear(tape, "layer", 4, 3, init=ta.init.xavier(seed=5))
    with pytest.raises(ta.TrainingError, match="gelu") as caught:
        ta.nn.Mlp(tape, "mlp", [4, 3], activation="gelu", init=ta.init.xavier(seed=1))
    assert "tanh" in str(caught.value)
    assert "relu" in str(caught.value)
    with pytest.raises(ta.ArgumentError, match="sizes"):
        ta.nn.Mlp(tape, "mlp", [4], activation="tanh", init=ta.init.xavier(seed=1))
    assert len(tape) == nodes


def test_cross_entropy_of_even_logits_is_the_log_of_the_classes() -> None:
    tape = ta.Tape()
    logits = tape.parameter("logits", ta.init.zeros(), shape=(4, 27))
    targets = tape.selection("targets", vocabulary=27, shape=(4,))
    loss = ta.nn.cross_entropy(logits, targets)
    network = tape.seal()
    run = network.entry(loss).run(network.parameters(), {"targets": np.array([0, 5, 26, 5])})
    assert float(run.loss) == pytest.approx(np.log(27.0), rel=1e-7)
    gradient = run.backward(loss)["logits"]
    np.testing.assert_allclose(
        gradient, (np.full((4, 27), 1 / 27) - np.eye(27)[[0, 5, 26, 5]]) / 4, atol=1e-8
    )


def test_cross_entropy_stays_finite_for_large_logits() -> None:
    tape = ta.Tape()
    logits = tape.input("x", shape=(ta.BATCH, 2))
    loss = ta.nn.cross_entropy(logits, tape.selection("targets", vocabulary=2, shape=(ta.BATCH,)))
    network = tape.seal()
    feeds = {"x": np.array([[1000, -1000], [-1000, -1000]], dtype=np.float32), "targets": np.array([1, 0])}
    run = network.entry(loss).run(network.parameters(), feeds)
    assert float(run.loss) == pytest.approx((2000.0 + np.log(2.0)) / 2, rel=1e-6)


def test_weight_targets_that_are_one_hot_are_a_selection() -> None:
    tape = ta.Tape()
    logits = tape.parameter("logits", ta.init.normal(seed=3), shape=(5, 4))
    chosen = tape.selection("chosen", vocabulary=4, shape=(5,))
    weights = tape.input("weights", shape=(5, 4))
    first, second = ta.nn.cross_entropy(logits, chosen), ta.nn.cross_entropy(logits, weights)
    network = tape.seal()
    picks = np.array([3, 0, 1, 1, 2])
    feeds = {"chosen": picks, "weights": np.eye(4, dtype=np.float32)[picks]}
    ours = network.entry(first, observe=[second]).run(network.parameters(), feeds)
    assert float(ours[second]) == pytest.approx(float(ours.loss), rel=1e-6)
    theirs = network.entry(second).run(network.parameters(), feeds_without(feeds, "chosen"))
    np.testing.assert_allclose(
        theirs.backward(second)["logits"], ours.backward(first)["logits"], rtol=0, atol=1e-7
    )


def feeds_without(feeds: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in feeds.items() if key != name}
