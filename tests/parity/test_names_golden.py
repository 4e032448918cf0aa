"""The package trains the names network to the golden values, step by step and through the trainer.

Initial parameters hold to the bit. Losses and gradients hold to a tolerance, for the golden program took
exp, ln and tanh from the system library. A loop written out by hand over shards must give the trainer's
very bits, because the partition and the tree are part of the definition.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import tritter_accel as ta
from tests.reference import names_network as reference
from tests.reference.splitmix import SplitMix64
from tests.thread_count import thread_count

ROOT = Path(__file__).resolve().parents[2]
GOLDEN: dict[str, Any] = json.loads((ROOT / "tests" / "data" / "names_network.json").read_text())
CORPUS = ROOT / "python" / "tritter_accel" / "data" / "names.txt"
SLOTS = ["embedding", "mlp.layer0.weight", "mlp.layer0.bias", "mlp.layer1.weight", "mlp.layer1.bias"]
BATCH, SHARDS, SHARD = 64, 8, 8

Data = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Names:
    """The network as a user writes it down."""

    tape: ta.Tape
    network: ta.Network
    loss: ta.Value
    probabilities: ta.Value

    @property
    def entry(self) -> ta.Entry:
        return self.network.entry(self.loss)

    def trainer(self, data: Data) -> ta.train.Trainer:
        return ta.train.Trainer(self.entry, self.network.parameters(), data, batch_size=BATCH, shards=SHARDS)


def names_network() -> Names:
    tape = ta.Tape()
    embedding = tape.parameter("embedding", ta.init.normal(seed=8, std=1.0), shape=(27, 10))
    mlp = ta.nn.Mlp(tape, "mlp", [30, 100, 27], activation="tanh", init=ta.init.xavier(seed=7))
    contexts = tape.selection("contexts", vocabulary=27, shape=(ta.BATCH, 3))
    targets = tape.selection("targets", vocabulary=27, shape=(ta.BATCH,))
    logits = mlp(embedding.gather(contexts).reshape(ta.BATCH, 30))
    loss = ta.nn.cross_entropy(logits, targets)
    probabilities = logits.softmax(axis=1)
    return Names(tape, tape.seal(), loss, probabilities)


@pytest.fixture(scope="module")
def names() -> Names:
    return names_network()


@pytest.fixture(scope="module")
def data() -> Data:
    contexts, targets = reference.shuffled_samples(reference.read_names(CORPUS))
    return {"contexts": contexts, "targets": targets}


@dataclass(frozen=True)
class Trained:
    losses: NDArray[np.float32]
    parameters: ta.Parameters
    nodes: tuple[int, int]


@pytest.fixture(scope="module")
def trained(names: Names, data: Data) -> Trained:
    """The whole run: 4,000 steps at 0.1 and 1,000 at 0.01."""
    trainer = names.trainer(data)
    losses = np.concatenate([trainer.run(4000, 0.1), trainer.run(1000, 0.01)])
    assert trainer.step == 5000
    return Trained(losses, trainer.parameters, (len(names.tape), names.network.nodes))


def shard_feeds(data: Data, step: int) -> list[Data]:
    """The feeds of each shard of the batch at a step."""
    start = reference.batch_start(step, len(data["targets"]))
    places = range(start, start + BATCH, SHARD)
    return [{name: array[place : place + SHARD] for name, array in data.items()} for place in places]


def shard_runs(names: Names, parameters: ta.Parameters, feeds: list[Data]) -> tuple[Any, ta.Parameters]:
    """Mean loss and mean gradient of a batch: a run a shard, summed in the tree, losses in float64."""
    losses, gradients = [], []
    for feed in feeds:
        run = names.entry.run(parameters, feed)
        losses.append(float(run.loss) * SHARD)
        gradients.append(run.backward(names.loss) * float(SHARD))
    total = reference.pairwise_tree(losses, lambda a, b: a + b)
    gradient = reference.pairwise_tree(gradients, lambda a, b: a + b)
    return np.float32(total / BATCH), gradient.map(lambda g: g / np.float32(BATCH))


@pytest.mark.parametrize("index", range(5), ids=SLOTS)
def test_initial_parameters_are_golden_to_the_bit(index: int, names: Names) -> None:
    parameters = names.network.parameters()
    assert list(parameters.names) == SLOTS
    golden = GOLDEN["parameters"][index]
    values = parameters[SLOTS[index]]
    encoded = values.astype(">f4").tobytes()
    assert values.size == golden["count"]
    assert encoded[: 4 * 16].hex() == golden["first16"]
    assert encoded[-4 * 4 :].hex() == golden["last4"]
    assert hashlib.sha256(encoded).hexdigest() == golden["sha256_of_big_endian_f32_bytes"]


def test_shard_losses_of_the_first_step_are_golden(names: Names, data: Data) -> None:
    parameters = names.network.parameters()
    losses = [float(names.entry.run(parameters, feeds).loss) for feeds in shard_feeds(data, 0)]
    np.testing.assert_allclose(losses, GOLDEN["step0_shard_losses"], rtol=1e-5)


def test_each_shard_has_the_gradient_of_the_reference(names: Names, data: Data) -> None:
    parameters = names.network.parameters()
    exact = reference.initial_parameters(np.float64)
    for feeds in shard_feeds(data, 0):
        gradient = names.entry.run(parameters, feeds).backward(names.loss)
        sums = reference.shard_sums(exact, feeds["contexts"], feeds["targets"])
        for slot, wanted in zip(SLOTS, reference.SLOTS, strict=True):
            expected = sums.gradient[wanted] / SHARD
            difference = np.linalg.norm(gradient[slot] - expected)
            assert difference <= 1e-6 * np.linalg.norm(expected), slot


def test_the_gradient_of_the_first_step_is_golden(names: Names, data: Data) -> None:
    loss, gradient = shard_runs(names, names.network.parameters(), shard_feeds(data, 0))
    assert float(loss) == pytest.approx(GOLDEN["losses_first_100"][0], rel=1e-5)
    for slot, golden in zip(SLOTS, GOLDEN["step0_gradient"], strict=True):
        values = gradient[slot].astype(np.float64).ravel()
        tolerance = 1e-5 * golden["l2"]
        assert np.linalg.norm(values) == pytest.approx(golden["l2"], abs=tolerance), slot
        assert values.sum() == pytest.approx(golden["sum"], abs=tolerance), slot
        np.testing.assert_allclose(values[:16], golden["first16"], rtol=0, atol=tolerance, err_msg=slot)


def test_one_run_of_the_whole_batch_is_the_mean_of_its_shards(names: Names, data: Data) -> None:
    parameters = names.network.parameters()
    whole = names.entry.run(parameters, {name: array[:BATCH] for name, array in data.items()})
    _, expected = shard_runs(names, parameters, shard_feeds(data, 0))
    assert float(whole.loss) == pytest.approx(GOLDEN["losses_first_100"][0], rel=1e-5)
    difference = whole.backward(names.loss) - expected
    assert difference.norm() <= 1e-6 * expected.norm()


def test_the_first_hundred_losses_are_golden(trained: Trained) -> None:
    np.testing.assert_allclose(trained.losses[:100], GOLDEN["losses_first_100"], rtol=0, atol=1e-4)


def test_losses_along_the_run_are_golden(trained: Trained) -> None:
    assert trained.losses.dtype == np.float32
    assert trained.losses.shape == (5000,)
    # The reference's float32 and float64 runs stay within 1e-6 of each other: nothing here is chaotic.
    np.testing.assert_allclose(trained.losses[::100], GOLDEN["losses_every_100"], rtol=0, atol=1e-4)
    windows = trained.losses.astype(np.float64).reshape(10, 500).mean(axis=1)
    np.testing.assert_allclose(windows, GOLDEN["window_means_500"], rtol=0, atol=0.002)


def test_the_tape_does_not_grow_while_training(trained: Trained) -> None:
    fresh = names_network()
    assert trained.nodes == (len(fresh.tape), fresh.network.nodes)


def descended(
    rate: np.float32, parameter: NDArray[np.float32], gradient: NDArray[np.float32]
) -> NDArray[np.float32]:
    return parameter - rate * gradient


def test_a_loop_written_by_hand_gives_the_bits_of_the_trainer(names: Names, data: Data) -> None:
    trainer = names.trainer(data)
    parameters = names.network.parameters()
    for step in range(6):
        rate = 0.1 if step < 4 else 0.01
        trained_losses = trainer.run(1, rate)
        loss, gradient = shard_runs(names, parameters, shard_feeds(data, step))
        parameters = parameters.step(gradient, partial(descended, np.float32(rate)))
        assert trained_losses.tobytes() == loss.tobytes(), step
        for slot in SLOTS:
            assert trainer.parameters[slot].tobytes() == parameters[slot].tobytes(), (step, slot)


@pytest.mark.parametrize("threads", [1, 2, 3, 5])
def test_the_number_of_threads_changes_no_bit(
    threads: int, names: Names, data: Data, trained: Trained
) -> None:
    with thread_count(threads):
        trainer = names.trainer(data)
        losses = trainer.run(200, 0.1)
    assert losses.tobytes() == trained.losses[:200].tobytes()


def test_runs_may_be_cut_anywhere(names: Names, data: Data, trained: Trained) -> None:
    trainer = names.trainer(data)
    losses = np.concatenate([trainer.run(steps, 0.1) for steps in (1, 0, 36, 63)])
    assert trainer.step == 100
    assert losses.tobytes() == trained.losses[:100].tobytes()


def test_the_trainer_follows_the_reference_for_a_hundred_steps(names: Names, data: Data) -> None:
    trainer = names.trainer(data)
    trainer.run(100, 0.1)
    expected, _ = reference.train(
        reference.initial_parameters(np.float64), data["contexts"], data["targets"], steps=100
    )
    for slot, wanted in zip(SLOTS, reference.SLOTS, strict=True):
        np.testing.assert_allclose(
            trainer.parameters[slot], expected[wanted], rtol=0, atol=2e-6, err_msg=slot
        )


def test_the_sampled_names_are_golden(names: Names, trained: Trained) -> None:
    # Of the 77 draws the nearest to a boundary is 2.8e-4 away from it, so rounding cannot change a name.
    entry = names.network.entry(names.loss, observe=[names.probabilities])
    stream = SplitMix64(7)
    sampled: list[str] = []
    for _ in range(len(GOLDEN["sampled_names"])):
        window, letters = [0, 0, 0], ""
        while True:
            feeds = {"contexts": np.array([window]), "targets": np.zeros(1, dtype=np.int64)}
            row = entry.run(trained.parameters, feeds)[names.probabilities][0]
            token = reference.choose(row.tolist(), stream.unit())
            if token == 0:
                break
            letters += reference.LETTERS[token]
            window = [*window[1:], token]
        sampled.append(letters)
    assert sampled == GOLDEN["sampled_names"]
