"""Recording: shapes are known at once, misuse raises at the line that is wrong and leaves the tape usable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tritter_accel as ta


class Bench:
    """A tape with one value of each kind."""

    def __init__(self) -> None:
        self.tape = ta.Tape()
        self.a = self.tape.parameter("a", ta.init.constant(2.0), shape=(2, 3))
        self.b = self.tape.parameter("b", ta.init.constant(3.0), shape=(3, 2))
        self.bias = self.tape.parameter("bias", ta.init.zeros(), shape=(3,))
        self.vector = self.tape.input("vector", shape=(ta.BATCH,))
        self.rows = self.tape.selection("rows", vocabulary=2, shape=(ta.BATCH,))
        self.square = self.tape.parameter("square", ta.init.zeros(), shape=(4, 4))
        self.total = self.b.sum()
        self.column = self.vector.reshape(ta.BATCH, 1)
        self.many = self.tape.selection("many", vocabulary=5, shape=(4,))


def assert_still_usable(bench: Bench, nodes: int) -> None:
    """After a refusal: no node more than before, and what is recorded next trains as it should."""
    assert len(bench.tape) == nodes
    loss = (bench.a @ bench.b).sum()
    network = bench.tape.seal()
    run = network.entry(loss).run(network.parameters(), {})
    assert float(run.loss) == 4 * 3 * 2.0 * 3.0
    assert run.backward(loss)["a"].tolist() == [[6.0] * 3] * 2


def test_values_know_their_shapes_while_recording() -> None:
    bench = Bench()
    batch = ta.BATCH
    table = bench.a.gather(bench.rows)
    assert bench.a.shape == (2, 3)
    assert bench.vector.shape == (batch,)
    assert table.shape == (batch, 3)
    assert bench.b.gather(bench.tape.selection("two", vocabulary=3, shape=(batch, 4))).shape == (batch, 4, 2)
    assert (table @ bench.b).shape == (batch, 2)
    assert table.T.shape == (3, batch)
    assert (table.T @ table).shape == (3, 3)
    assert table.sum().shape == ()
    assert table.sum(axis=0).shape == (3,)
    assert table.mean(axis=1).shape == (batch,)
    assert table.mean(axis=1, keepdims=True).shape == (batch, 1)
    assert table.reshape(batch, 3, 1).shape == (batch, 3, 1)
    assert table.softmax().shape == (batch, 3)
    assert table.log_softmax(axis=0).shape == (batch, 3)
    assert table.logsumexp().shape == (batch,)
    assert table.logsumexp(axis=0, keepdims=True).shape == (1, 3)
    assert bench.vector.reshape(batch, 1).broadcast_to(batch, 4).shape == (batch, 4)
    assert bench.bias.broadcast_to(batch, 3).shape == (batch, 3)
    assert ta.nn.cross_entropy(table, bench.tape.selection("t", vocabulary=3, shape=(batch,))).shape == ()


def test_every_recorded_operation_is_a_node() -> None:
    tape = ta.Tape()
    assert len(tape) == 0
    x = tape.parameter("x", ta.init.zeros(), shape=(3,))
    assert len(tape) == 1
    y = x.tanh()
    assert len(tape) == 2
    _ = y + x
    assert len(tape) == 3


SHAPES_REFUSED: dict[str, tuple[Callable[[Bench], Any], tuple[str, ...]]] = {
    "add": (lambda t: t.a + t.b, ("2, 3", "3, 2")),
    "sub": (lambda t: t.a - t.b, ("2, 3", "3, 2")),
    "mul": (lambda t: t.a * t.b, ("2, 3", "3, 2")),
    "div": (lambda t: t.a / t.b, ("2, 3", "3, 2")),
    "add-does-not-broadcast": (lambda t: t.a + t.bias, ("2, 3", "3")),
    "add-of-a-scalar-value": (lambda t: t.a + t.total, ("2, 3", "()")),
    "add-of-batch-and-number": (lambda t: t.vector + t.bias, ("3",)),
    "matmul": (lambda t: t.a @ t.a, ("2, 3",)),
    "matmul-inner": (lambda t: t.b @ t.b, ("3, 2",)),
    "matmul-of-rank-1": (lambda t: t.a @ t.bias, ("2, 3", "3")),
    "matmul-inner-batch": (lambda t: t.a @ t.column, ("2, 3",)),
    "reshape": (lambda t: t.a.reshape(4, 2), ("2, 3", "4, 2")),
    "reshape-rest": (lambda t: t.a.reshape(4, -1), ("2, 3", "4")),
    "reshape-batch-away": (lambda t: t.vector.reshape(7), ("7",)),
    "broadcast": (lambda t: t.a.broadcast_to(4, 3), ("2, 3", "4, 3")),
    "broadcast-to-fewer-axes": (lambda t: t.a.broadcast_to(3), ("2, 3",)),
    "broadcast-of-batch": (lambda t: t.vector.broadcast_to(5), ("5",)),
    "gather-from-rank-1": (lambda t: t.bias.gather(t.rows), ("3",)),
    "cross-entropy-of-rank-1": (lambda t: ta.nn.cross_entropy(t.bias, t.rows), ("3",)),
    "cross-entropy-rows": (lambda t: ta.nn.cross_entropy(t.a, t.many), ("2, 3", "4")),
    "cross-entropy-weights": (lambda t: ta.nn.cross_entropy(t.a, t.b), ("2, 3", "3, 2")),
    "cross-entropy-mass": (
        lambda t: ta.nn.cross_entropy(t.a, t.a, mass=t.bias),
        ("2, 3", "3"),
    ),
}


@pytest.mark.parametrize("name", SHAPES_REFUSED)
def test_shapes_that_do_not_fit_are_both_named(name: str) -> None:
    record, words = SHAPES_REFUSED[name]
    bench = Bench()
    nodes = len(bench.tape)
    with pytest.raises(ta.ShapeError) as caught:
        record(bench)
    for word in words:
        assert word in str(caught.value)
    assert_still_usable(bench, nodes)


REFUSED: dict[str, tuple[Callable[[Bench], Any], tuple[str, ...]]] = {
    "axis-too-large": (lambda t: t.a.sum(axis=2), ("2",)),
    "axis-too-small": (lambda t: t.a.mean(axis=-3), ("-3",)),
    "axis-of-softmax": (lambda t: t.a.softmax(axis=5), ("5",)),
    "axis-of-log-softmax": (lambda t: t.a.log_softmax(axis=5), ("5",)),
    "axis-of-logsumexp": (lambda t: t.a.logsumexp(axis=-5), ("-5",)),
    "axis-twice": (lambda t: t.a.sum(axis=(0, 0)), ("0",)),
    "transpose-misses-an-axis": (lambda t: t.a.transpose(0), ("0",)),
    "transpose-repeats-an-axis": (lambda t: t.a.transpose(1, 1), ("1",)),
    "transpose-beyond": (lambda t: t.a.transpose(0, 2), ("2",)),
    "reshape-two-rests": (lambda t: t.a.reshape(-1, -1), ("-1",)),
    "reshape-negative": (lambda t: t.a.reshape(-2, 3), ("-2",)),
    "gather-vocabulary": (lambda t: t.a.gather(t.many), ("5", "2")),
    "cross-entropy-vocabulary": (lambda t: ta.nn.cross_entropy(t.square, t.many), ("5", "4")),
    "parameter-twice": (lambda t: t.tape.parameter("a", ta.init.zeros(), shape=(1,)), ("a",)),
    "input-twice": (lambda t: t.tape.input("vector", shape=(1,)), ("vector",)),
    "selection-twice": (lambda t: t.tape.selection("rows", vocabulary=2, shape=(1,)), ("rows",)),
    "input-named-as-a-selection": (lambda t: t.tape.input("rows", shape=(1,)), ("rows",)),
    "parameter-with-batch-axis": (
        lambda t: t.tape.parameter("c", ta.init.zeros(), shape=(ta.BATCH, 2)),
        ("c",),
    ),
    "negative-extent": (lambda t: t.tape.input("c", shape=(-3,)), ("-3",)),
    "vocabulary-zero": (lambda t: t.tape.selection("c", vocabulary=0, shape=(1,)), ("vocabulary", "0")),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_meaning_is_refused(name: str) -> None:
    record, words = REFUSED[name]
    bench = Bench()
    nodes = len(bench.tape)
    with pytest.raises(ta.TrainingError) as caught:
        record(bench)
    assert isinstance(caught.value, ValueError)
    for word in words:
        assert word in str(caught.value)
    assert_still_usable(bench, nodes)


# The bench is Any here: what the types forbid is what is tried.
TYPES_REFUSED: dict[str, Callable[[Any], Any]] = {
    "text-operand": lambda t: t.a + "1",
    "none-operand": lambda t: None * t.a,
    "list-operand": lambda t: t.a - [1.0],
    "array-operand": lambda t: t.a * np.ones((2, 3), dtype=np.float32),
    "array-operand-left": lambda t: np.ones((2, 3), dtype=np.float32) * t.a,
    "array-matmul-left": lambda t: np.ones((2, 2), dtype=np.float32) @ t.a,
    "selection-operand": lambda t: t.vector + t.rows,
    "gather-by-a-value": lambda t: t.a.gather(t.vector),
    "gather-by-an-array": lambda t: t.a.gather(np.array([0, 1])),
    "initialiser-missing": lambda t: t.tape.parameter("c", None, shape=(1,)),
    "shape-of-text": lambda t: t.tape.input("c", shape="ab"),
    "shape-of-floats": lambda t: t.tape.input("c", shape=(1.5,)),
    "name-no-text": lambda t: t.tape.input(3, shape=(1,)),
    "constant-of-float64": lambda t: t.tape.constant(np.ones(3)),
    "constant-of-integers": lambda t: t.tape.constant(np.ones(3, dtype=np.int64)),
    "constant-not-contiguous": lambda t: t.tape.constant(np.ones((2, 3), dtype=np.float32).T),
}


@pytest.mark.parametrize("name", TYPES_REFUSED)
def test_what_is_no_operand_is_refused(name: str) -> None:
    bench = Bench()
    nodes = len(bench.tape)
    with pytest.raises((TypeError, ta.TapeError)):
        TYPES_REFUSED[name](bench)
    assert_still_usable(bench, nodes)


def test_a_constant_of_another_dtype_names_the_mend() -> None:
    doubles: Any = np.ones(3)
    with pytest.raises(ta.ArrayError, match="float64") as caught:
        ta.Tape().constant(doubles)
    assert "float32" in str(caught.value)
    with pytest.raises(ta.ArrayError, match="ascontiguousarray"):
        ta.Tape().constant(np.ones((2, 3), dtype=np.float32).T)


def test_a_constant_does_not_follow_its_array() -> None:
    tape = ta.Tape()
    array = np.ones(3, dtype=np.float32)
    loss = (tape.parameter("x", ta.init.constant(1.0), shape=(3,)) * tape.constant(array)).sum()
    array[:] = 100.0
    network = tape.seal()
    assert float(network.entry(loss).run(network.parameters(), {}).loss) == 3.0


FOREIGN: dict[str, Callable[[ta.Value, ta.Value, Any], Any]] = {
    "add": lambda ours, theirs, rows: ours + theirs,
    "sub": lambda ours, theirs, rows: ours - theirs,
    "mul": lambda ours, theirs, rows: theirs * ours,
    "div": lambda ours, theirs, rows: ours / theirs,
    "matmul": lambda ours, theirs, rows: ours @ theirs,
    "gather": lambda ours, theirs, rows: ours.gather(rows),
    "cross-entropy-targets": lambda ours, theirs, rows: ta.nn.cross_entropy(ours, rows),
    "cross-entropy-weights": lambda ours, theirs, rows: ta.nn.cross_entropy(ours, theirs),
    "cross-entropy-mass": lambda ours, theirs, rows: ta.nn.cross_entropy(ours, ours, mass=theirs.sum(axis=1)),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_values_of_another_tape_are_refused(name: str) -> None:
    tape, other = ta.Tape(), ta.Tape()
    ours = tape.parameter("x", ta.init.constant(2.0), shape=(2, 2))
    theirs = other.parameter("x", ta.init.constant(2.0), shape=(2, 2))
    rows = other.selection("rows", vocabulary=2, shape=(2,))
    with pytest.raises(ta.TapeError, match="tape"):
        FOREIGN[name](ours, theirs, rows)
    assert len(tape) == 1
    loss = (ours * ours).sum()
    network = tape.seal()
    assert float(network.entry(loss).run(network.parameters(), {}).loss) == 16.0


SEALED: dict[str, Callable[[Bench], Any]] = {
    "operation": lambda t: t.a.tanh(),
    "binary": lambda t: t.a + t.a,
    "scalar": lambda t: 2.0 * t.a,
    "reshape": lambda t: t.a.reshape(6),
    "gather": lambda t: t.a.gather(t.rows),
    "parameter": lambda t: t.tape.parameter("c", ta.init.zeros(), shape=(1,)),
    "input": lambda t: t.tape.input("c", shape=(1,)),
    "selection": lambda t: t.tape.selection("c", vocabulary=2, shape=(1,)),
    "constant": lambda t: t.tape.constant(np.ones(1, dtype=np.float32)),
    "cross-entropy": lambda t: ta.nn.cross_entropy(t.a, t.a),
    "linear": lambda t: ta.nn.Linear(t.tape, "c", 2, 2, init=ta.init.xavier(seed=1)),
}


@pytest.mark.parametrize("name", SEALED)
def test_nothing_is_recorded_on_a_sealed_tape(name: str) -> None:
    bench = Bench()
    loss = (bench.a * bench.a).sum()
    network = bench.tape.seal()
    nodes = network.nodes
    with pytest.raises(ta.TapeError, match="sealed"):
        SEALED[name](bench)
    assert network.nodes == nodes == len(bench.tape)
    assert float(network.entry(loss).run(network.parameters(), {}).loss) == 24.0


def test_reprs_are_one_line_and_say_what_matters() -> None:
    bench = Bench()
    assert "2, 3" in repr(bench.a)
    assert str(len(bench.tape)) in repr(bench.tape)
    network = bench.tape.seal()
    for thing in (bench.tape, bench.a, bench.rows, network):
        assert "\n" not in repr(thing)
    assert str(network.nodes) in repr(network)


def test_a_value_is_no_number_and_no_sequence() -> None:
    value: Any = Bench().a
    with pytest.raises(TypeError):
        len(value)
    with pytest.raises(TypeError):
        float(value)
    with pytest.raises(TypeError):
        iter(value)


def test_tapes_do_not_share_anything() -> None:
    first, second = ta.Tape(), ta.Tape()
    first.parameter("w", ta.init.constant(1.0), shape=(2,))
    second.parameter("w", ta.init.constant(2.0), shape=(3,))
    assert first.seal().parameters()["w"].tolist() == [1.0, 1.0]
    assert second.seal().parameters()["w"].tolist() == [2.0, 2.0, 2.0]
