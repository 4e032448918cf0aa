"""The names network in NumPy, from its definition alone: data, initial parameters, gradient, training,
sampling.

A character model with a window of three tokens: embedding [27, 10], a hidden layer of 100 tanh units, 27
logits. A step runs eight shards of eight samples, each with its own forward and backward, and sums
(gradient, mass) in the pairwise tree ((0+1)+(2+3))+((4+5)+(6+7)); the total is divided by the total mass
once. Everything works in the dtype of the parameters that come in, float32 or float64. It never imports the
package that it judges.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from .splitmix import Normal, SplitMix64, Xavier

Array = NDArray[Any]
Indices = NDArray[np.int64]
Parameters = dict[str, Array]
Total = TypeVar("Total")

WINDOW = 3
VOCABULARY = 27
EMBEDDING = 10
HIDDEN = 100
BATCH = 64
SHARDS = 8
STEPS = 5_000
DROP_AT = 4_000
SLOTS = ("embedding", "layer0.weight", "layer0.bias", "layer1.weight", "layer1.bias")
LETTERS = ".abcdefghijklmnopqrstuvwxyz"


# Data


def read_names(path: Path) -> list[str]:
    """The names of a corpus file, in the file's order."""
    return path.read_text(encoding="ascii").split()


def samples(names: Sequence[str]) -> tuple[Indices, Indices]:
    """Windows [count, 3] and next tokens [count] in corpus order: a name of n letters gives n + 1 of them."""
    contexts: list[list[int]] = []
    targets: list[int] = []
    for name in names:
        window = [0] * WINDOW
        for letter in name + ".":
            token = LETTERS.index(letter)
            contexts.append(window)
            targets.append(token)
            window = [*window[1:], token]
    return np.array(contexts, dtype=np.int64), np.array(targets, dtype=np.int64)


def shuffle_order(count: int, seed: int = 9) -> Indices:
    """Fisher-Yates from the top: `order[i]` is the sample that stands at place i afterwards."""
    stream = SplitMix64(seed)
    order = list(range(count))
    for i in range(count - 1, 0, -1):
        j = math.floor(stream.unit() * (i + 1))
        order[i], order[j] = order[j], order[i]
    return np.array(order, dtype=np.int64)


def shuffled_samples(names: Sequence[str], seed: int = 9) -> tuple[Indices, Indices]:
    """The samples in training order."""
    contexts, targets = samples(names)
    order = shuffle_order(len(targets), seed)
    return contexts[order], targets[order]


def batch_start(step: int, count: int, batch: int = BATCH) -> int:
    """Where the batch of a step begins in the shuffled samples."""
    return (batch * step) % (count - batch)


# Network


def initial_parameters(dtype: type[np.floating[Any]] = np.float32) -> Parameters:
    """The five tensors; float64 holds the same float32 values, so that both variants start at one point."""
    embedding = Normal(seed=8, std=1.0)
    layers = Xavier(seed=7)
    shapes = {
        "layer0.weight": (WINDOW * EMBEDDING, HIDDEN),
        "layer0.bias": (HIDDEN,),
        "layer1.weight": (HIDDEN, VOCABULARY),
        "layer1.bias": (VOCABULARY,),
    }
    parameters: Parameters = {"embedding": embedding.fill((VOCABULARY, EMBEDDING)).astype(dtype)}
    for slot, shape in shapes.items():
        parameters[slot] = layers.fill(shape).astype(dtype)
    return parameters


def logits(parameters: Parameters, contexts: Indices) -> tuple[Array, Array, Array]:
    """The layer inputs [..., B, 30] and [..., B, 100], and the logits [..., B, 27]."""
    inputs = parameters["embedding"][contexts].reshape(*contexts.shape[:-1], WINDOW * EMBEDDING)
    hidden = np.tanh(inputs @ parameters["layer0.weight"] + parameters["layer0.bias"])
    return inputs, hidden, hidden @ parameters["layer1.weight"] + parameters["layer1.bias"]


def softmax(values: Array) -> Array:
    """Max-shifted softmax over the last axis."""
    exponentials = np.exp(values - values.max(axis=-1, keepdims=True))
    return np.asarray(exponentials / exponentials.sum(axis=-1, keepdims=True))


def logsumexp(values: Array) -> Array:
    """Max-shifted logsumexp over the last axis."""
    peak = values.max(axis=-1)
    return np.asarray(peak + np.log(np.exp(values - peak[..., None]).sum(axis=-1)))


@dataclass(frozen=True)
class Sums:
    """Loss and gradient summed over samples, and how many: a shard, a stack of shards, or a subtree."""

    loss: Array
    gradient: Parameters
    mass: int

    def __add__(self, other: Sums) -> Sums:
        gradient = {slot: self.gradient[slot] + other.gradient[slot] for slot in SLOTS}
        return Sums(self.loss + other.loss, gradient, self.mass + other.mass)

    def __getitem__(self, index: int) -> Sums:
        """One shard of a stack."""
        return Sums(self.loss[index], {slot: self.gradient[slot][index] for slot in SLOTS}, self.mass)


def shard_sums(parameters: Parameters, contexts: Indices, targets: Indices) -> Sums:
    """Summed cross entropy and the gradient of that sum, layer by layer.

    `contexts` [..., B, 3] and `targets` [..., B]: a leading axis stacks shards, each computed for itself.
    """
    inputs, hidden, scores = logits(parameters, contexts)
    ones = np.eye(VOCABULARY, dtype=scores.dtype)
    loss = (logsumexp(scores) - (scores * ones[targets]).sum(axis=-1)).sum(axis=-1)
    d_scores = softmax(scores) - ones[targets]
    d_hidden = (d_scores @ parameters["layer1.weight"].T) * (1 - hidden * hidden)
    d_rows = d_hidden @ parameters["layer0.weight"].T
    tokens = contexts.reshape(*contexts.shape[:-2], -1)
    d_rows = d_rows.reshape(*tokens.shape, EMBEDDING)
    gradient = {
        "embedding": ones[tokens].swapaxes(-1, -2) @ d_rows,
        "layer0.weight": inputs.swapaxes(-1, -2) @ d_hidden,
        "layer0.bias": d_hidden.sum(axis=-2),
        "layer1.weight": hidden.swapaxes(-1, -2) @ d_scores,
        "layer1.bias": d_scores.sum(axis=-2),
    }
    return Sums(loss, gradient, targets.shape[-1])


def pairwise_tree(leaves: Sequence[Total], add: Callable[[Total, Total], Total]) -> Total:
    """Neighbours added level by level; an odd one is carried up: ((0+1)+(2+3))+((4+5)+(6+7)) for eight."""
    level = list(leaves)
    while len(level) > 1:
        pairs = [add(level[i], level[i + 1]) for i in range(0, len(level) - 1, 2)]
        level = pairs + level[2 * len(pairs) :]
    return level[0]


def shards_of_batch(
    parameters: Parameters, contexts: Indices, targets: Indices, shards: int = SHARDS
) -> list[Sums]:
    """The sums of each of `shards` equal shards of a batch."""
    stack = shard_sums(parameters, contexts.reshape(shards, -1, WINDOW), targets.reshape(shards, -1))
    return [stack[index] for index in range(shards)]


def batch_gradient(
    parameters: Parameters, contexts: Indices, targets: Indices, shards: int = SHARDS
) -> tuple[Array, Parameters]:
    """Mean loss and mean gradient of a batch: the tree over the shards, divided once by the mass."""
    leaves = shards_of_batch(parameters, contexts, targets, shards)
    total = pairwise_tree(leaves, Sums.__add__)
    mass = total.loss.dtype.type(total.mass)
    return total.loss / mass, {slot: value / mass for slot, value in total.gradient.items()}


def learning_rate(step: int) -> float:
    """0.1, then 0.01 from step 4000."""
    return 0.1 if step < DROP_AT else 0.01


def train(
    parameters: Parameters, contexts: Indices, targets: Indices, steps: int = STEPS
) -> tuple[Parameters, Array]:
    """Plain SGD; the parameters after `steps` and the loss of every step. The input is left as it is."""
    current = dict(parameters)
    losses = np.empty(steps, dtype=current["embedding"].dtype)
    for step in range(steps):
        start = batch_start(step, len(targets))
        window = slice(start, start + BATCH)
        losses[step], gradient = batch_gradient(current, contexts[window], targets[window])
        rate = losses.dtype.type(learning_rate(step))
        current = {slot: current[slot] - rate * gradient[slot] for slot in SLOTS}
    return current, losses


# Sampling


def choose(probabilities: Sequence[float], unit: float) -> int:
    """The first token with t < p, else t -= p; the last token if rounding leaves a rest."""
    remaining = unit
    for token, probability in enumerate(probabilities):
        if remaining < probability:
            return token
        remaining -= probability
    return len(probabilities) - 1


def sample_names(parameters: Parameters, count: int = 10, seed: int = 7) -> list[str]:
    """Names drawn token by token until '.', one stream through all of them."""
    stream = SplitMix64(seed)
    names: list[str] = []
    for _ in range(count):
        window = [0] * WINDOW
        letters: list[str] = []
        while True:
            _, _, scores = logits(parameters, np.array([window], dtype=np.int64))
            token = choose(softmax(scores)[0].tolist(), stream.unit())
            if token == 0:
                break
            letters.append(LETTERS[token])
            window = [*window[1:], token]
        names.append("".join(letters))
    return names
