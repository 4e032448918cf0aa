"""The names network: a character-level perceptron that learns which letter comes next.

Three tokens are embedded in ten numbers each, go through a hidden layer of 100 tanh units, and give the logits of the
next token (Bengio et al. 2003 in its smallest form).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from . import init, nn
from .corpus import WINDOW, Corpus, Samples
from .engine import BATCH, Entry, Network, Parameters, Tape
from .random import SplitMix64

__all__ = ["NamesNetwork", "Seeds"]

EMBEDDING = 10
HIDDEN = 100
LONGEST_SAMPLE = 100
"""Letters after which a sampled word is cut: a network that never ends a word must not sample for ever."""


@dataclass(frozen=True)
class Seeds:
    """The four streams of a run."""

    embedding: int = 8
    layers: int = 7
    shuffle: int = 9
    sampling: int = 7

    @classmethod
    def shifted(cls, shift: int) -> Seeds:
        """The pinned seeds with `shift` added, modulo 2**64."""
        pinned = cls()
        fields = (pinned.embedding, pinned.layers, pinned.shuffle, pinned.sampling)
        return cls(*((seed + shift) % 2**64 for seed in fields))


class NamesNetwork:
    """The sealed network with its two entries: the loss, and the probabilities of the next token.

    Parameters
    ----------
    vocabulary : int
        How many tokens there are.
    seeds : Seeds
        Of the embedding (normal, deviation 1) and of the layers (Xavier).
    """

    network: Network
    loss: Entry
    next_token: Entry

    def __init__(self, vocabulary: int, seeds: Seeds | None = None) -> None:
        seeds = seeds or Seeds()
        tape = Tape()
        embedding = tape.parameter("embedding", init.normal(seeds.embedding), (vocabulary, EMBEDDING))
        sizes = [WINDOW * EMBEDDING, HIDDEN, vocabulary]
        mlp = nn.Mlp(tape, "mlp", sizes, activation="tanh", init=init.xavier(seeds.layers))
        contexts = tape.selection("contexts", vocabulary, (BATCH, WINDOW))
        targets = tape.selection("targets", vocabulary, (BATCH,))
        logits = mlp(embedding.gather(contexts).reshape(BATCH, WINDOW * EMBEDDING))
        loss = nn.cross_entropy(logits, targets)
        self._probabilities = logits.softmax(axis=1)
        self.network = tape.seal()
        self.loss = self.network.entry(loss)
        self.next_token = self.network.entry(observe=[self._probabilities])

    def mean_loss(self, parameters: Parameters, samples: Samples) -> float:
        """The mean cross entropy over samples, in nats."""
        return self.loss.run(parameters, {"contexts": samples.contexts, "targets": samples.targets}).loss

    def sample(self, parameters: Parameters, corpus: Corpus, count: int, seed: int) -> list[str]:
        """Words drawn letter by letter from one splitmix64 stream.

        A draw t in [0, 1) takes the first token whose probability p exceeds it, else goes on with t - p.
        """
        stream = SplitMix64(seed)
        words = []
        for _ in range(count):
            window = [0] * WINDOW
            word = ""
            while len(word) < LONGEST_SAMPLE:
                run = self.next_token.run(parameters, {"contexts": np.array([window])})
                token = _draw(stream.unit(), run[self._probabilities][0].tolist())
                if token == 0:
                    break
                word += corpus.alphabet[token - 1]
                window = [*window[1:], token]
            words.append(word)
        return words


def _draw(t: float, probabilities: list[float]) -> int:
    for token, probability in enumerate(probabilities):
        if t < probability:
            return token
        t -= probability
    # Rounding can leave a rest: it belongs to the last token.
    return len(probabilities) - 1
