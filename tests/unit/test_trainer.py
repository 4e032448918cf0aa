"""The trainer: full-batch SGD in float64 is what it must equal, whatever the shards and the threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import tritter_accel as ta
from tests.reference.names_network import batch_start
from tests.thread_count import thread_count

Data = dict[str, NDArray[Any]]
Exact = dict[str, NDArray[np.float64]]
INPUTS, HIDDEN = 4, 6


class Regression:
    """mean((tanh(x W0 + b0) W1 + b1 - y)^2), and the same by hand."""

    def __init__(self, hidden: int = HIDDEN) -> None:
        self.tape = ta.Tape()
        mlp = ta.nn.Mlp(self.tape, "m", [INPUTS, hidden, 1], activation="tanh", init=ta.init.xavier(seed=3))
        x = self.tape.input("x", shape=(ta.BATCH, INPUTS))
        y = self.tape.input("y", shape=(ta.BATCH, 1))
        error = mlp(x) - y
        self.loss = (error * error).mean()
        self.network = self.tape.seal()
        self.parameters = self.network.parameters()
        self.entry = self.network.entry(self.loss)

    def trainer(self, data: Data, **options: Any) -> ta.train.Trainer:
        return ta.train.Trainer(self.entry, self.parameters, data, **options)


def gradient_by_hand(p: Exact, x: NDArray[Any], y: NDArray[Any]) -> tuple[float, Exact]:
    hidden = np.tanh(x @ p["m.layer0.weight"] + p["m.layer0.bias"])
    error = hidden @ p["m.layer1.weight"] + p["m.layer1.bias"] - y
    d_error = 2 * error / error.size
    d_hidden = (d_error @ p["m.layer1.weight"].T) * (1 - hidden**2)
    return float((error**2).mean()), {
        "m.layer0.weight": x.T @ d_hidden,
        "m.layer0.bias": d_hidden.sum(axis=0),
        "m.layer1.weight": hidden.T @ d_error,
        "m.layer1.bias": d_error.sum(axis=0),
    }


def train_by_hand(
    model: Regression, data: Data, steps: int, rate: float, batch: int, momentum: float = 0.0
) -> tuple[Exact, list[float]]:
    """Full-batch SGD in float64: velocity = momentum * velocity + gradient, parameter -= rate * velocity."""
    parameters = {name: array.astype(np.float64) for name, array in model.parameters.items()}
    velocity = {name: np.zeros_like(array) for name, array in parameters.items()}
    x, y = data["x"].astype(np.float64), data["y"].astype(np.float64)
    losses = []
    for step in range(steps):
        start = batch_start(step, len(x), batch) if len(x) > batch else 0
        loss, gradient = gradient_by_hand(parameters, x[start : start + batch], y[start : start + batch])
        losses.append(loss)
        for name in parameters:
            velocity[name] = momentum * velocity[name] + gradient[name]
            parameters[name] = parameters[name] - rate * velocity[name]
    return parameters, losses


def data_of(samples: int) -> Data:
    generator = np.random.default_rng(samples)
    x = generator.uniform(-1, 1, (samples, INPUTS)).astype(np.float32)
    return {"x": x, "y": np.sin(x.sum(axis=1, keepdims=True)).astype(np.float32)}


@pytest.fixture(scope="module")
def model() -> Regression:
    return Regression()


def assert_follows(
    trainer: ta.train.Trainer, losses: NDArray[np.float32], expected: tuple[Exact, list[float]]
) -> None:
    np.testing.assert_allclose(losses, expected[1], rtol=0, atol=1e-6)
    for name, array in expected[0].items():
        np.testing.assert_allclose(trainer.parameters[name], array, rtol=0, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize(
    ("batch", "shards"), [(16, 8), (16, 1), (10, 4), (10, 3), (7, 2), (13, 8), (9, 8), (5, 5), (1, 1)]
)
def test_any_partition_follows_the_full_batch(
    batch: int, shards: int, momentum: float, model: Regression
) -> None:
    data = data_of(37)
    trainer = model.trainer(data, batch_size=batch, shards=shards, momentum=momentum)
    losses = trainer.run(12, 0.05)
    assert losses.dtype == np.float32
    assert losses.shape == (12,)
    assert_follows(trainer, losses, train_by_hand(model, data, 12, 0.05, batch, momentum))


def test_the_partition_defaults_to_eight_shards_and_no_momentum(model: Regression) -> None:
    data = data_of(50)
    plain = model.trainer(data, batch_size=16)
    spelled = model.trainer(data, batch_size=16, shards=8, momentum=0.0)
    assert plain.run(5, 0.1).tobytes() == spelled.run(5, 0.1).tobytes()
    assert plain.parameters.flat().tobytes() == spelled.parameters.flat().tobytes()


def test_data_of_exactly_one_batch_is_used_whole_at_every_step(model: Regression) -> None:
    data = data_of(12)
    trainer = model.trainer(data, batch_size=12, shards=4)
    assert_follows(trainer, trainer.run(8, 0.05), train_by_hand(model, data, 8, 0.05, 12))


def test_the_loss_falls(model: Regression) -> None:
    losses = model.trainer(data_of(64), batch_size=32, momentum=0.9).run(300, 0.05)
    assert losses[-50:].mean() < 0.05 * losses[:5].mean()


def test_the_step_runs_on_between_calls_and_so_does_the_velocity(model: Regression) -> None:
    data = data_of(37)
    whole = model.trainer(data, batch_size=10, shards=4, momentum=0.9)
    expected = whole.run(9, 0.05)
    cut = model.trainer(data, batch_size=10, shards=4, momentum=0.9)
    assert cut.step == 0
    pieces = []
    for steps, after in [(1, 1), (0, 1), (5, 6), (3, 9)]:
        pieces.append(cut.run(steps, 0.05))
        assert len(pieces[-1]) == steps
        assert cut.step == after
    assert np.concatenate(pieces).tobytes() == expected.tobytes()
    assert cut.parameters == whole.parameters


def test_the_rate_may_change_between_calls(model: Regression) -> None:
    data = data_of(12)
    trainer = model.trainer(data, batch_size=12, shards=4)
    before = trainer.parameters
    trainer.run(3, 0.0)
    assert trainer.parameters == before
    losses = trainer.run(2, 0.05)
    assert_follows(trainer, losses, train_by_hand(model, data, 2, 0.05, 12))


def test_what_goes_in_and_what_came_out_stay_as_they_are(model: Regression) -> None:
    data = data_of(37)
    start = model.parameters.flat().copy()
    trainer = model.trainer(data, batch_size=10)
    first = trainer.parameters
    trainer.run(2, 0.1)
    second = trainer.parameters
    kept = second.flat().copy()
    trainer.run(2, 0.1)
    assert model.parameters.flat().tobytes() == first.flat().tobytes() == start.tobytes()
    assert second.flat().tobytes() == kept.tobytes() != trainer.parameters.flat().tobytes()
    assert list(second.names) == list(model.parameters.names)
    np.testing.assert_array_equal(data["x"], data_of(37)["x"])


@pytest.mark.parametrize(("batch", "shards"), [(64, 8), (50, 7), (48, 3)])
def test_the_number_of_threads_changes_no_bit(batch: int, shards: int) -> None:
    model = Regression(hidden=96)
    data = data_of(200)
    results = []
    for threads in (1, 2, 3):
        with thread_count(threads):
            trainer = model.trainer(data, batch_size=batch, shards=shards, momentum=0.5)
            losses = trainer.run(25, 0.05)
        results.append((losses.tobytes(), trainer.parameters.flat().tobytes()))
    assert results[0] == results[1] == results[2]


def test_the_trees_of_other_partitions_differ_only_in_rounding() -> None:
    model = Regression(hidden=96)
    data = data_of(200)
    ends = []
    for shards in (1, 4, 8):
        trainer = model.trainer(data, batch_size=64, shards=shards)
        trainer.run(25, 0.05)
        ends.append(trainer.parameters.flat())
    for end in ends[1:]:
        np.testing.assert_allclose(end, ends[0], rtol=0, atol=2e-6)
    # If a bit never differs, the shards are not what is being summed.
    assert any(end.tobytes() != ends[0].tobytes() for end in ends[1:])


def test_the_tape_does_not_grow(model: Regression) -> None:
    nodes = model.network.nodes
    model.trainer(data_of(37), batch_size=10).run(5, 0.1)
    assert model.network.nodes == nodes == len(model.tape)


# Selections as data


class Classifier:
    """cross_entropy(table[rows], targets)."""

    def __init__(self) -> None:
        tape = ta.Tape()
        table = tape.parameter("table", ta.init.normal(seed=1), shape=(5, 3))
        rows = tape.selection("rows", vocabulary=5, shape=(ta.BATCH,))
        targets = tape.selection("targets", vocabulary=3, shape=(ta.BATCH,))
        self.loss = ta.nn.cross_entropy(table.gather(rows), targets)
        self.network = tape.seal()
        self.entry = self.network.entry(self.loss)

    def trainer(self, data: Data, **options: Any) -> ta.train.Trainer:
        return ta.train.Trainer(self.entry, self.network.parameters(), data, **{"batch_size": 8, **options})


def classes(samples: int) -> Data:
    generator = np.random.default_rng(4)
    return {"rows": generator.integers(0, 5, samples), "targets": generator.integers(0, 3, samples)}


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.uint32, np.uint64])
def test_selections_may_be_of_any_integer_dtype(dtype: Any) -> None:
    model, data = Classifier(), classes(30)
    expected = model.trainer(data).run(10, 0.3)
    narrow = {name: array.astype(dtype) for name, array in data.items()}
    assert model.trainer(narrow).run(10, 0.3).tobytes() == expected.tobytes()


def test_read_only_data_is_fine() -> None:
    model, data = Classifier(), classes(30)
    for array in data.values():
        array.flags.writeable = False
    assert np.isfinite(model.trainer(data).run(3, 0.3)).all()


@pytest.mark.parametrize("shards", [1, 3, 8])
def test_a_shard_counts_by_the_mass_of_its_samples(shards: int) -> None:
    """Means of means would weigh a shard of small masses as much as one of large masses."""
    tape = ta.Tape()
    table = tape.parameter("table", ta.init.normal(seed=1), shape=(5, 3))
    rows = tape.selection("rows", vocabulary=5, shape=(ta.BATCH,))
    targets = tape.selection("targets", vocabulary=3, shape=(ta.BATCH,))
    mass = tape.input("mass", shape=(ta.BATCH,))
    loss = ta.nn.cross_entropy(table.gather(rows), targets, mass=mass)
    network = tape.seal()
    weights = np.random.default_rng(8).uniform(0.1, 4.0, 20).astype(np.float32)
    data = {**classes(20), "mass": weights}
    parameters = network.parameters()
    trainer = ta.train.Trainer(network.entry(loss), parameters, data, batch_size=20, shards=shards)
    losses = trainer.run(5, 0.3)

    exact, exact_mass = parameters["table"].astype(np.float64), weights.astype(np.float64)
    for actual in losses:
        logits = exact[data["rows"]]
        probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        each = -np.log(probabilities[np.arange(20), data["targets"]])
        assert float(actual) == pytest.approx((exact_mass * each).sum() / exact_mass.sum(), abs=1e-6)
        d_logits = exact_mass[:, None] * (probabilities - np.eye(3)[data["targets"]]) / exact_mass.sum()
        gradient = np.zeros_like(exact)
        np.add.at(gradient, data["rows"], d_logits)
        exact = exact - 0.3 * gradient
    np.testing.assert_allclose(trainer.parameters["table"], exact, rtol=0, atol=1e-6)


# What it refuses


ARGUMENTS_REFUSED: list[tuple[str, Any]] = [
    ("batch_size", 0),
    ("batch_size", -1),
    ("batch_size", 31),
    ("shards", 0),
    ("shards", -4),
    ("shards", 9),  # of a batch of eight
    ("momentum", -0.1),
    ("momentum", 1.0),
    ("momentum", float("nan")),
]


@pytest.mark.parametrize(("argument", "value"), ARGUMENTS_REFUSED)
def test_an_argument_without_meaning_is_named(argument: str, value: Any) -> None:
    with pytest.raises(ta.ArgumentError) as caught:
        Classifier().trainer(classes(30), **{argument: value})
    assert caught.value.argument == argument


@pytest.mark.parametrize(("argument", "value"), [("batch_size", 2.5), ("shards", "8"), ("momentum", "fast")])
def test_an_argument_of_another_type_is_named(argument: str, value: Any) -> None:
    with pytest.raises(ta.ArgumentTypeError) as caught:
        Classifier().trainer(classes(30), **{argument: value})
    assert caught.value.argument == argument


def test_steps_and_rate_are_checked_before_anything_happens() -> None:
    trainer = Classifier().trainer(classes(30))
    before = trainer.parameters
    fraction: Any = 1.5
    text: Any = "fast"
    with pytest.raises(ta.ArgumentError) as caught:
        trainer.run(-1, 0.1)
    assert caught.value.argument == "steps"
    with pytest.raises(ta.ArgumentTypeError) as wrong_type:
        trainer.run(fraction, 0.1)
    assert wrong_type.value.argument == "steps"
    with pytest.raises(ta.ArgumentError) as nan:
        trainer.run(1, float("nan"))
    assert nan.value.argument == "learning_rate"
    with pytest.raises(TypeError):
        trainer.run(1, text)
    assert trainer.step == 0
    assert trainer.parameters == before


def with_value(index: int, value: int) -> Data:
    data = classes(30)
    data["rows"][index] = value
    return data


DATA_REFUSED: dict[str, tuple[Callable[[], Data], Any, tuple[str, ...]]] = {
    "missing": (lambda: {"rows": classes(30)["rows"]}, ValueError, ("targets",)),
    "unknown": (lambda: {**classes(30), "nowhere": np.zeros(30, int)}, ValueError, ("nowhere",)),
    "lengths": (lambda: {**classes(30), "targets": np.zeros(29, int)}, ValueError, ("29", "30")),
    "rank": (lambda: {**classes(30), "targets": np.zeros((30, 1), int)}, ta.ShapeError, ("targets", "30, 1")),
    "dtype": (lambda: {**classes(30), "rows": np.zeros(30)}, ta.ArrayError, ("rows", "float64")),
    "index-too-large": (lambda: with_value(29, 77), ValueError, ("rows", "77", "5")),
    "index-negative": (lambda: with_value(0, -3), ValueError, ("rows", "-3", "5")),
}


@pytest.mark.parametrize("name", DATA_REFUSED)
def test_wrong_data_is_refused_before_the_first_step(name: str) -> None:
    make, error, words = DATA_REFUSED[name]
    with pytest.raises(error) as caught:
        Classifier().trainer(make())
    assert isinstance(caught.value, ta.TrainingError)
    for word in words:
        assert word in str(caught.value)


def test_parameters_of_another_network_are_refused(model: Regression) -> None:
    with pytest.raises(ta.TapeError):
        ta.train.Trainer(Classifier().entry, model.parameters, classes(30), batch_size=8)


def test_repr_is_one_line_with_the_step() -> None:
    trainer = Classifier().trainer(classes(30))
    trainer.run(3, 0.1)
    assert "\n" not in repr(trainer)
    assert "3" in repr(trainer)
