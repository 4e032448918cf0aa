"""Sealed networks, entries and runs: what a feed may be, what a run gives, and what it never changes."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import tritter_accel as ta

Feeds = dict[str, Any]


class Model:
    """logits = table[rows] @ weight + scale(x): a selection, an input, two branches beside the loss."""

    def __init__(self) -> None:
        self.tape = ta.Tape()
        self.table = self.tape.parameter("table", ta.init.normal(seed=1), shape=(5, 4))
        self.weight = self.tape.parameter("weight", ta.init.normal(seed=2), shape=(4, 3))
        self.rows = self.tape.selection("rows", vocabulary=5, shape=(ta.BATCH,))
        self.x = self.tape.input("x", shape=(ta.BATCH, 3))
        self.targets = self.tape.selection("targets", vocabulary=3, shape=(ta.BATCH,))
        self.hidden = self.table.gather(self.rows).tanh()
        self.logits = self.hidden @ self.weight + self.x
        self.loss = ta.nn.cross_entropy(self.logits, self.targets)
        self.other = self.tape.input("other", shape=(2,))
        self.branch = self.other.exp()
        self.network = self.tape.seal()
        self.parameters = self.network.parameters()
        self.entry = self.network.entry(self.loss)

    def expected(self, feeds: Feeds) -> tuple[float, dict[str, NDArray[np.float64]]]:
        """Loss and gradients in float64, derived by hand."""
        table, weight = (self.parameters[name].astype(np.float64) for name in ("table", "weight"))
        rows, targets = np.asarray(feeds["rows"], int), np.asarray(feeds["targets"], int)
        hidden = np.tanh(table[rows])
        logits = hidden @ weight + feeds["x"]
        probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        count = len(rows)
        loss = -np.log(probabilities[np.arange(count), targets]).mean()
        d_logits = (probabilities - np.eye(3)[targets]) / count
        d_table = np.zeros_like(table)
        np.add.at(d_table, rows, (d_logits @ weight.T) * (1 - hidden**2))
        return float(loss), {"table": d_table, "weight": hidden.T @ d_logits}


def feeds_of(batch: int) -> Feeds:
    generator = np.random.default_rng(batch)
    return {
        "rows": generator.integers(0, 5, batch),
        "x": generator.standard_normal((batch, 3)).astype(np.float32),
        "targets": generator.integers(0, 3, batch),
    }


@pytest.fixture(scope="module")
def model() -> Model:
    return Model()


def assert_runs(model: Model) -> None:
    """The entry still gives the right loss: a refusal spoilt nothing."""
    feeds = feeds_of(7)
    assert float(model.entry.run(model.parameters, feeds).loss) == pytest.approx(
        model.expected(feeds)[0], rel=1e-6
    )


# Runs


@pytest.mark.parametrize("batch", [1, 7, 64])
def test_one_network_serves_every_batch_size(batch: int, model: Model) -> None:
    feeds = feeds_of(batch)
    run = model.entry.run(model.parameters, feeds)
    loss, gradients = model.expected(feeds)
    assert float(run.loss) == pytest.approx(loss, rel=1e-6)
    backward = run.backward(model.loss)
    assert isinstance(backward, ta.Parameters)
    assert list(backward.names) == ["table", "weight"]
    for name, expected in gradients.items():
        np.testing.assert_allclose(backward[name], expected, rtol=0, atol=2e-6 * np.abs(expected).max())


def test_batch_sizes_may_alternate(model: Model) -> None:
    first = model.entry.run(model.parameters, feeds_of(64)).backward(model.loss)
    model.entry.run(model.parameters, feeds_of(1)).backward(model.loss)
    again = model.entry.run(model.parameters, feeds_of(64)).backward(model.loss)
    assert first.flat().tobytes() == again.flat().tobytes()


def test_the_mean_over_the_batch_divides_by_the_size_of_the_run() -> None:
    tape = ta.Tape()
    x = tape.input("x", shape=(ta.BATCH, 2))
    w = tape.parameter("w", ta.init.constant(2.0), shape=(2,))
    loss = (x * w.broadcast_to(ta.BATCH, 2)).mean()
    network = tape.seal()
    for batch in (1, 7, 64):
        array = np.arange(2 * batch, dtype=np.float32).reshape(batch, 2)
        run = network.entry(loss).run(network.parameters(), {"x": array})
        assert float(run.loss) == pytest.approx(2.0 * array.mean(dtype=np.float64), rel=1e-6)
        np.testing.assert_allclose(run.backward(loss)["w"], array.sum(axis=0) / array.size, rtol=1e-6)


def test_observed_values_come_with_the_run(model: Model) -> None:
    feeds = feeds_of(7)
    entry = model.network.entry(model.loss, observe=[model.logits, model.hidden])
    run = entry.run(model.parameters, feeds)
    hidden = np.tanh(model.parameters["table"].astype(np.float64)[feeds["rows"]])
    np.testing.assert_allclose(run[model.hidden], hidden, rtol=0, atol=1e-6)
    logits = hidden @ model.parameters["weight"].astype(np.float64) + feeds["x"]
    np.testing.assert_allclose(run[model.logits], logits, rtol=0, atol=5e-6)
    loss = run[model.loss]
    assert loss.shape == ()
    assert loss.dtype == np.float32
    assert float(loss) == float(run.loss)


def test_observing_changes_neither_loss_nor_gradient(model: Model) -> None:
    feeds = feeds_of(7)
    plain = model.entry.run(model.parameters, feeds)
    entry = model.network.entry(model.loss, observe=[model.hidden])
    observed = entry.run(model.parameters, feeds)
    assert float(plain.loss) == float(observed.loss)
    assert plain.backward().flat().tobytes() == observed.backward().flat().tobytes()


def test_only_the_ancestors_of_the_roots_are_fed_and_executed(model: Model) -> None:
    run = model.entry.run(model.parameters, feeds_of(3))  # without "other"
    with pytest.raises(ta.TapeError):
        run[model.branch]
    entry = model.network.entry(model.loss, observe=[model.branch])
    with pytest.raises(ta.TrainingError, match="other"):
        entry.run(model.parameters, feeds_of(3))
    other = np.array([0.0, 1.0], dtype=np.float32)
    np.testing.assert_allclose(
        entry.run(model.parameters, {**feeds_of(3), "other": other})[model.branch], np.exp(other), rtol=1e-6
    )


def test_a_run_belongs_to_its_feeds_and_parameters(model: Model) -> None:
    feeds = feeds_of(7)
    loss, gradients = model.expected(feeds)
    entry = model.network.entry(model.loss, observe=[model.logits])
    run = entry.run(model.parameters, feeds)
    logits = run[model.logits].copy()
    for array in feeds.values():
        array[:] = 0
    entry.run(model.parameters.scale(2.0), feeds)
    assert float(run.loss) == pytest.approx(loss, rel=1e-6)
    assert run[model.logits].tobytes() == logits.tobytes()
    np.testing.assert_allclose(run.backward()["weight"], gradients["weight"], rtol=0, atol=1e-6)


def test_writing_into_a_result_does_not_reach_the_run(model: Model) -> None:
    entry = model.network.entry(model.loss, observe=[model.hidden])
    run = entry.run(model.parameters, feeds_of(7))
    expected = run.backward().flat().copy()
    observed = run[model.hidden]
    if observed.flags.writeable:
        observed[:] = 100.0
    assert run.backward().flat().tobytes() == expected.tobytes()
    assert np.abs(run[model.hidden]).max() <= 1.0


def test_runs_of_several_python_threads_do_not_meet(model: Model) -> None:
    def gradient(batch: int) -> bytes:
        flat: NDArray[np.float32] = model.entry.run(model.parameters, feeds_of(batch)).backward().flat()
        return flat.tobytes()

    batches = [1, 7, 64, 3] * 8
    alone = [gradient(batch) for batch in batches]
    with ThreadPoolExecutor(max_workers=4) as pool:
        assert list(pool.map(gradient, batches)) == alone


def test_the_network_does_not_grow(model: Model) -> None:
    nodes = model.network.nodes
    for batch in (1, 2, 3):
        model.entry.run(model.parameters, feeds_of(batch)).backward()
    assert model.network.nodes == nodes == len(model.tape)


def test_the_network_lists_its_slots(model: Model) -> None:
    assert list(model.network.parameter_names) == ["table", "weight"]
    assert list(model.network.parameters().names) == ["table", "weight"]


# Feeds


def changed(**feeds: Any) -> Feeds:
    return {**feeds_of(7), **feeds}


FEEDS_REFUSED: dict[str, tuple[Callable[[], Feeds], Any, tuple[str, ...]]] = {
    "missing": (lambda: {k: v for k, v in feeds_of(7).items() if k != "targets"}, ValueError, ("targets",)),
    "unknown": (lambda: changed(nowhere=np.zeros(7)), ValueError, ("nowhere",)),
    "extent": (lambda: changed(x=np.zeros((7, 4), np.float32)), ta.ShapeError, ("x", "7, 4", "3")),
    "rank": (lambda: changed(rows=np.zeros((7, 1), np.int64)), ta.ShapeError, ("rows", "7, 1")),
    "scalar": (lambda: changed(x=np.zeros((), np.float32)), ta.ShapeError, ("x", "()", "3")),
    "two-batch-sizes": (lambda: changed(targets=np.zeros(6, np.int64)), ta.ShapeError, ("6", "7")),
    "float64-input": (lambda: changed(x=np.zeros((7, 3))), ta.ArrayError, ("x", "float64", "float32")),
    "integer-input": (lambda: changed(x=np.zeros((7, 3), int)), ta.ArrayError, ("x", "int64", "float32")),
    "byte-order": (lambda: changed(x=np.zeros((7, 3), ">f4")), ta.ArrayError, ("x",)),
    "layout": (lambda: changed(x=np.zeros((3, 7), np.float32).T), ta.ArrayError, ("x", "contiguous")),
    "float-selection": (lambda: changed(rows=np.zeros(7, np.float32)), ta.ArrayError, ("rows", "float32")),
    "bool-selection": (lambda: changed(rows=np.zeros(7, bool)), ta.ArrayError, ("rows", "bool")),
    "text": (lambda: changed(x="zeros"), TypeError, ("x",)),
    "none": (lambda: changed(rows=None), TypeError, ("rows",)),
    "index-too-large": (lambda: changed(rows=np.array([0, 1, 2, 3, 4, 5, 0])), ValueError, ("rows", "5")),
    "index-far-too-large": (lambda: changed(targets=np.full(7, 977)), ValueError, ("targets", "977", "3")),
    "index-negative": (lambda: changed(rows=np.full(7, -2, np.int8)), ValueError, ("rows", "-2", "5")),
    "index-beyond-64-bits": (
        lambda: changed(rows=np.full(7, 2**64 - 1, np.uint64)),
        ValueError,
        ("rows", str(2**64 - 1), "5"),
    ),
}


@pytest.mark.parametrize("name", FEEDS_REFUSED)
def test_a_wrong_feed_is_named_and_described(name: str, model: Model) -> None:
    make, error, words = FEEDS_REFUSED[name]
    with pytest.raises(error) as caught:
        model.entry.run(model.parameters, make())
    assert isinstance(caught.value, ta.TrainingError)
    for word in words:
        assert word in str(caught.value)
    assert_runs(model)


@pytest.mark.parametrize(
    "dtype", [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64]
)
def test_a_selection_takes_every_integer_dtype(dtype: Any, model: Model) -> None:
    feeds = feeds_of(7)
    expected = model.entry.run(model.parameters, feeds).backward().flat()
    narrow = {**feeds, "rows": feeds["rows"].astype(dtype), "targets": feeds["targets"].astype(dtype)}
    assert model.entry.run(model.parameters, narrow).backward().flat().tobytes() == expected.tobytes()


def test_read_only_feeds_are_fine(model: Model) -> None:
    feeds = feeds_of(7)
    for array in feeds.values():
        array.flags.writeable = False
    assert float(model.entry.run(model.parameters, feeds).loss) == pytest.approx(
        model.expected(feeds)[0], rel=1e-6
    )


def test_feeds_are_not_written_to(model: Model) -> None:
    feeds = feeds_of(7)
    model.entry.run(model.parameters, feeds).backward()
    for name, array in feeds_of(7).items():
        np.testing.assert_array_equal(feeds[name], array)


# Entries, and what belongs to whom


def test_parameters_of_another_network_are_refused(model: Model) -> None:
    tape = ta.Tape()
    tape.parameter("table", ta.init.zeros(), shape=(5, 4))
    foreign = tape.seal().parameters()
    with pytest.raises(ta.TapeError):
        model.entry.run(foreign, feeds_of(7))
    plain: Any = {"table": np.zeros((5, 4), np.float32)}
    with pytest.raises(TypeError):
        model.entry.run(plain, feeds_of(7))
    assert_runs(model)


def test_parameters_of_an_equal_network_are_welcome(model: Model) -> None:
    feeds = feeds_of(7)
    other = Model()
    expected = model.entry.run(model.parameters, feeds).backward().flat()
    assert model.entry.run(other.parameters, feeds).backward().flat().tobytes() == expected.tobytes()


def test_values_of_another_network_are_refused(model: Model) -> None:
    other = Model()
    with pytest.raises(ta.TapeError):
        model.network.entry(other.loss)
    with pytest.raises(ta.TapeError):
        model.network.entry(model.loss, observe=[other.hidden])
    run = model.entry.run(model.parameters, feeds_of(7))
    with pytest.raises(ta.TapeError):
        run[other.loss]
    with pytest.raises(ta.TapeError):
        run.backward(other.loss)
    text: Any = "loss"
    with pytest.raises(TypeError):
        model.network.entry(text)
    assert_runs(model)


def test_a_loss_that_is_no_scalar_is_refused(model: Model) -> None:
    with pytest.raises(ta.ShapeError, match="4"):
        model.network.entry(model.hidden)
    assert_runs(model)


def test_the_gradient_is_that_of_the_loss_of_the_entry() -> None:
    tape = ta.Tape()
    x = tape.parameter("x", ta.init.constant(3.0), shape=(2,))
    first, second = (x * x).sum(), x.mean()
    network = tape.seal()
    run = network.entry(first, observe=[second]).run(network.parameters(), {})
    with pytest.raises(ta.TapeError, match="loss"):
        run.backward(second)
    assert run.backward(first)["x"].tolist() == run.backward()["x"].tolist() == [6.0, 6.0]
    other = network.entry(second).run(network.parameters(), {})
    assert other.backward(second)["x"].tolist() == [0.5, 0.5]


def test_the_gradient_of_a_value_that_was_not_run_is_refused(model: Model) -> None:
    run = model.entry.run(model.parameters, feeds_of(7))
    with pytest.raises(ta.TapeError):
        run.backward(model.branch)


def test_a_nan_in_a_feed_reaches_the_loss(model: Model) -> None:
    x = np.zeros((7, 3), np.float32)
    x[3, 1] = np.nan
    run = model.entry.run(model.parameters, changed(x=x))
    assert np.isnan(float(run.loss))
    assert not run.backward().isfinite()


def test_a_sealed_network_has_no_attributes_to_set(model: Model) -> None:
    network: Any = model.network
    with pytest.raises(AttributeError):
        network.nodes = 0
    with pytest.raises(AttributeError):
        network.anything = 1
