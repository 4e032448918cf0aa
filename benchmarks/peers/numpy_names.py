"""The peer: the names network as one plain NumPy loop, a batch of 64 in one forward and backward, float32.

What somebody writes who knows NumPy and wants the network trained: no shards, no tape, arrays reused only
where NumPy offers it for nothing. Data and initial parameters are the reference's, so the losses can be
compared with `tests/data/names_network.json`; only the training loop is timed.

    python -m benchmarks.peers.numpy_names [steps]
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tests.reference.names_network import (
    BATCH,
    EMBEDDING,
    STEPS,
    VOCABULARY,
    WINDOW,
    batch_start,
    initial_parameters,
    learning_rate,
    read_names,
    shuffled_samples,
)

CORPUS = Path(__file__).resolve().parents[2] / "python" / "tritter_accel" / "data" / "names.txt"


def run(steps: int = STEPS) -> tuple[float, NDArray[np.float32]]:
    """Train for `steps`; the seconds that the loop took and the loss of every step."""
    contexts, targets = shuffled_samples(read_names(CORPUS))
    parameters = initial_parameters(np.float32)
    table = parameters["embedding"]
    weight0, bias0 = parameters["layer0.weight"], parameters["layer0.bias"]
    weight1, bias1 = parameters["layer1.weight"], parameters["layer1.bias"]
    losses = np.empty(steps, dtype=np.float32)
    rows = np.arange(BATCH)
    eye = np.eye(VOCABULARY, dtype=np.float32)

    started = time.perf_counter()
    for step in range(steps):
        start = batch_start(step, len(targets))
        x, y = contexts[start : start + BATCH], targets[start : start + BATCH]

        inputs = table[x].reshape(BATCH, WINDOW * EMBEDDING)
        hidden = np.tanh(inputs @ weight0 + bias0)
        scores = hidden @ weight1 + bias1
        scores -= scores.max(axis=1, keepdims=True)
        exponentials = np.exp(scores)
        sums = exponentials.sum(axis=1, keepdims=True)
        losses[step] = (np.log(sums[:, 0]) - scores[rows, y]).mean()

        d_scores = exponentials / sums
        d_scores[rows, y] -= 1
        d_scores /= BATCH
        d_hidden = (d_scores @ weight1.T) * (1 - hidden * hidden)
        d_inputs = d_hidden @ weight0.T
        d_table = eye[x.reshape(-1)].T @ d_inputs.reshape(-1, EMBEDDING)  # faster than np.add.at

        rate = np.float32(learning_rate(step))
        weight1 -= rate * (hidden.T @ d_scores)
        bias1 -= rate * d_scores.sum(axis=0)
        weight0 -= rate * (inputs.T @ d_hidden)
        bias0 -= rate * d_hidden.sum(axis=0)
        table -= rate * d_table
    return time.perf_counter() - started, losses


if __name__ == "__main__":
    count = int(sys.argv[1]) if len(sys.argv) > 1 else STEPS
    seconds, losses = run(count)
    print(f"{count} steps in {seconds:.3f} s, {count / seconds:.0f} steps/s, last loss {losses[-1]:.4f}")
