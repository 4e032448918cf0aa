"""How much the energy that a Hadamard projection keeps varies over steps, for several choices of rows and of the tail.

``python -m scripts.compare_row_choices`` prints the numbers of ``docs/decisions/hadamard.md``: mean and standard
deviation of the kept energy, over the share k/n that theory keeps.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

import tritter_accel as ta

Values = NDArray[np.float64]

STEPS, N, RATIO, BLOCK = 600, 10_007, 0.1, 4096


def walsh_hadamard(x: Values) -> Values:
    """The orthonormal transform of a power of two of values."""
    stride = 1
    while stride < x.size:
        pairs = x.reshape(-1, 2, stride)
        x = np.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], axis=1).reshape(-1)
        stride *= 2
    rotated: Values = x / np.sqrt(x.size)
    return rotated


def shapes(n: int) -> dict[str, Values]:
    """Gradients of energy 1."""
    rng = np.random.default_rng(0)
    last, spikes = np.zeros(n), np.zeros(n)
    last[-1] = 1
    spikes[[100, 100 + BLOCK // 2]] = 1
    every = {
        "Gaussian": rng.standard_normal(n),
        "heavy-tailed": rng.standard_t(2, n),
        "constant": np.ones(n),
        "two spikes, 2048 apart": spikes,
        "last value": last,
    }
    return {name: values / np.linalg.norm(values) for name, values in every.items()}


def package(values: Values) -> Values:
    """What this package keeps, step by step."""
    compressor = ta.GradientCompressor(ta.TrainingConfig(RATIO, projection="hadamard", scaling="contractive"))
    gradient = values.astype(np.float32)
    kept = [compressor.compress(gradient, step=step).data.astype(np.float64) for step in range(STEPS)]
    return np.array([np.sum(one**2) for one in kept]) * N / compressor.compressed_dim(N)


def in_blocks(
    lengths: list[int], rows: Callable[[np.random.Generator, int, int], NDArray[np.int64]]
) -> Callable[[Values], Values]:
    """Signs and a transform for each block, of whose rows `rows` chooses some."""

    def kept(values: Values) -> Values:
        rng = np.random.default_rng(1)
        share, found = RATIO, []
        for _ in range(STEPS):
            shift, start, energy = rng.random(), 0, 0.0
            for length in lengths:
                end = start + length
                count = int(share * end + shift) - int(share * start + shift)
                z = walsh_hadamard(values[start:end] * rng.choice([-1.0, 1.0], length))
                energy += float(np.sum(z[rows(rng, length, count)] ** 2))
                start = end
            found.append(energy / share)
        return np.array(found)

    return kept


def at_random(rng: np.random.Generator, length: int, count: int) -> NDArray[np.int64]:
    """Some rows."""
    return rng.permutation(length)[:count]


def in_a_range(rng: np.random.Generator, length: int, count: int) -> NDArray[np.int64]:
    """Neighbouring rows."""
    return (int(rng.integers(length)) + np.arange(count)) % length


def main() -> None:
    """Print the table."""
    rest, tail = N % BLOCK, [BLOCK] * (N // BLOCK)
    powers = [1 << bit for bit in reversed(range(12)) if rest >> bit & 1]
    choices = {
        "as it is": package,
        "a range of rows": in_blocks(tail + powers, in_a_range),
        "a tail of powers of two": in_blocks(tail + powers, at_random),
    }
    print(f"{STEPS} steps, n = {N:,}, ratio {RATIO}: kept energy over k/n, mean and standard deviation")
    for shape, values in shapes(N).items():
        cells = [
            f"{name} {kept.mean():.2f} ± {kept.std():.2f}"
            for name, kept in ((name, choice(values)) for name, choice in choices.items())
        ]
        print(f"{shape:<24} {'   '.join(cells)}")


if __name__ == "__main__":
    main()
