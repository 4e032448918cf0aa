"""The NumPy reference of the names network against the golden values, so that it may judge the package.

The golden file was written by another program whose exp, ln and tanh came from the system library: initial
parameters hold to the bit, losses and gradients to rounding.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.reference import names_network as reference
from tests.reference.splitmix import Kaiming, Normal, SplitMix64, Uniform, Xavier

ROOT = Path(__file__).resolve().parents[2]
GOLDEN: dict[str, Any] = json.loads((ROOT / "tests" / "data" / "names_network.json").read_text())
CORPUS = ROOT / "python" / "tritter_accel" / "data" / "names.txt"
DTYPES = [np.float32, np.float64]

Samples = tuple[reference.Indices, reference.Indices]


@pytest.fixture(scope="module")
def samples() -> Samples:
    return reference.shuffled_samples(reference.read_names(CORPUS))


@pytest.mark.parametrize(
    ("seed", "words"),
    [
        # The published test vectors of splitmix64.
        (1234567, [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]),
        (0, [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F, 0xF88BB8A8724C81EC]),
    ],
)
def test_splitmix_gives_its_published_words(seed: int, words: list[int]) -> None:
    stream = SplitMix64(seed)
    assert [stream.next() for _ in words] == words


def test_the_distributions_have_their_moments() -> None:
    normal = Normal(seed=1, std=2.0).fill((20_000,)).astype(np.float64)
    assert abs(normal.mean()) < 0.05
    assert abs(normal.std() - 2.0) < 0.05
    uniform = Uniform(seed=2, scale=3.0).fill((20_000,)).astype(np.float64)
    assert uniform.min() >= -3.0
    assert uniform.max() < 3.0
    assert abs(uniform.std() - 3.0 / np.sqrt(3.0)) < 0.03
    xavier = Xavier(seed=3).fill((100, 200)).astype(np.float64)
    assert abs(np.abs(xavier).max() - np.sqrt(6.0 / 300.0)) < 1e-3
    kaiming = Kaiming(seed=4).fill((100, 200)).astype(np.float64)
    assert abs(kaiming.std() - np.sqrt(2.0 / 100.0)) < 3e-3


def test_the_corpus_is_the_golden_one() -> None:
    assert hashlib.sha256(CORPUS.read_bytes()).hexdigest() == GOLDEN["corpus_sha256"]
    assert len(reference.read_names(CORPUS)) == GOLDEN["names"]


def test_a_name_gives_one_sample_more_than_it_has_letters(samples: Samples) -> None:
    contexts, targets = reference.samples(["ab"])
    assert contexts.tolist() == [[0, 0, 0], [0, 0, 1], [0, 1, 2]]
    assert targets.tolist() == [1, 2, 0]
    assert samples[0].shape == (GOLDEN["samples"], 3)
    assert samples[1].shape == (GOLDEN["samples"],)


def test_the_shuffle_is_a_permutation() -> None:
    order = reference.shuffle_order(1000)
    assert sorted(order.tolist()) == list(range(1000))
    assert order.tolist() != list(range(1000))


@pytest.mark.parametrize("index", range(5), ids=reference.SLOTS)
def test_initial_parameters_are_golden_to_the_bit(index: int) -> None:
    golden = GOLDEN["parameters"][index]
    encoded = reference.initial_parameters()[reference.SLOTS[index]].astype(">f4").tobytes()
    assert len(encoded) == 4 * golden["count"]
    assert encoded[: 4 * 16].hex() == golden["first16"]
    assert encoded[-4 * 4 :].hex() == golden["last4"]
    assert hashlib.sha256(encoded).hexdigest() == golden["sha256_of_big_endian_f32_bytes"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_shard_losses_of_the_first_step_are_golden(dtype: type[np.floating[Any]], samples: Samples) -> None:
    leaves = reference.shards_of_batch(
        reference.initial_parameters(dtype), samples[0][:64], samples[1][:64], reference.SHARDS
    )
    losses = [float(leaf.loss) / leaf.mass for leaf in leaves]
    np.testing.assert_allclose(losses, GOLDEN["step0_shard_losses"], rtol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_first_gradient_is_golden(dtype: type[np.floating[Any]], samples: Samples) -> None:
    parameters = reference.initial_parameters(dtype)
    _, gradient = reference.batch_gradient(parameters, samples[0][:64], samples[1][:64])
    for slot, golden in zip(reference.SLOTS, GOLDEN["step0_gradient"], strict=True):
        values = gradient[slot].astype(np.float64).ravel()
        tolerance = 1e-6 * golden["l2"]
        assert np.linalg.norm(values) == pytest.approx(golden["l2"], abs=tolerance), slot
        assert values.sum() == pytest.approx(golden["sum"], abs=tolerance), slot
        np.testing.assert_allclose(values[:16], golden["first16"], rtol=0, atol=tolerance, err_msg=slot)


def test_the_gradient_is_the_slope_of_the_loss(samples: Samples) -> None:
    parameters = reference.initial_parameters(np.float64)
    contexts, targets = samples[0][:64], samples[1][:64]
    _, gradient = reference.batch_gradient(parameters, contexts, targets)
    generator = np.random.default_rng(5)
    for slot in reference.SLOTS:
        direction = generator.standard_normal(parameters[slot].shape)
        ends = []
        for sign in (-1.0, 1.0):
            moved = {**parameters, slot: parameters[slot] + sign * 1e-6 * direction}
            ends.append(float(reference.batch_gradient(moved, contexts, targets)[0]))
        slope = (ends[1] - ends[0]) / 2e-6
        assert slope == pytest.approx(float((gradient[slot] * direction).sum()), rel=1e-6, abs=1e-8), slot


@pytest.mark.parametrize("shards", [1, 2, 4, 8, 16, 64])
def test_the_partition_changes_only_the_rounding(shards: int, samples: Samples) -> None:
    parameters = reference.initial_parameters(np.float64)
    contexts, targets = samples[0][:64], samples[1][:64]
    loss, gradient = reference.batch_gradient(parameters, contexts, targets, shards)
    assert float(loss) == pytest.approx(GOLDEN["losses_first_100"][0], rel=1e-6)
    _, expected = reference.batch_gradient(parameters, contexts, targets)
    for slot in reference.SLOTS:
        np.testing.assert_allclose(gradient[slot], expected[slot], rtol=0, atol=1e-14)


def test_the_tree_adds_neighbours_and_carries_the_odd_one() -> None:
    def add(a: str, b: str) -> str:
        return f"({a}+{b})"

    assert reference.pairwise_tree(list("01234567"), add) == "(((0+1)+(2+3))+((4+5)+(6+7)))"
    assert reference.pairwise_tree(list("01234"), add) == "(((0+1)+(2+3))+4)"
    assert reference.pairwise_tree(list("0"), add) == "0"


def test_the_first_hundred_losses_are_golden(samples: Samples) -> None:
    _, losses = reference.train(reference.initial_parameters(), *samples, steps=100)
    assert losses.dtype == np.float32
    np.testing.assert_allclose(losses, GOLDEN["losses_first_100"], rtol=0, atol=2e-6)


def test_choosing_a_token_walks_down_the_probabilities() -> None:
    probabilities = [0.25, 0.0, 0.5, 0.25]
    assert [reference.choose(probabilities, unit) for unit in (0.0, 0.2499, 0.25, 0.74, 0.75, 0.9999)] == [
        0, 0, 2, 2, 3, 3,
    ]  # fmt: skip
    assert reference.choose([0.25, 0.25], 0.75) == 1


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_whole_run_is_golden_and_so_are_its_names(
    dtype: type[np.floating[Any]], samples: Samples
) -> None:
    parameters, losses = reference.train(reference.initial_parameters(dtype), *samples)
    np.testing.assert_allclose(losses[::100], GOLDEN["losses_every_100"], rtol=0, atol=2e-5)
    windows = losses.astype(np.float64).reshape(10, 500).mean(axis=1)
    np.testing.assert_allclose(
        windows, GOLDEN["window_means_500"], rtol=0, atol=6e-5
    )  # printed to four digits
    assert reference.sample_names(parameters) == GOLDEN["sampled_names"]
