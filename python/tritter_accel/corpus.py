"""Words and their samples: what the names network is trained on.

A word gives one sample more than it has letters: a window of the three tokens before, and the next one. Token 0 marks
the end of a word and fills windows before its start; the letters follow in the order of their code points.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import numpy as np
import numpy.typing as npt

from .exceptions import CorpusError
from .random import SplitMix64

__all__ = ["WINDOW", "Corpus", "Samples"]

WINDOW = 3
"""Tokens that the next one is predicted from."""


@dataclass(frozen=True)
class Samples:
    """Windows and the tokens that follow them.

    Attributes
    ----------
    contexts : ndarray of int64, shape (samples, 3)
    targets : ndarray of int64, shape (samples,)
    """

    contexts: npt.NDArray[np.int64]
    targets: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.targets)

    def shuffled(self, seed: int) -> Samples:
        """The same samples in the order that Fisher and Yates give from the splitmix64 stream of `seed`."""
        order = SplitMix64(seed).permutation(len(self))
        return Samples(self.contexts[order], self.targets[order])

    def bigram_limit(self, vocabulary: int) -> float:
        """The least mean cross entropy of any model that sees one token back, in nats.

        The entropy of a token given the one before it, by the counts of these samples.
        """
        counts = np.zeros((vocabulary, vocabulary))
        np.add.at(counts, (self.contexts[:, -1], self.targets), 1)
        rows = np.broadcast_to(counts.sum(axis=1, keepdims=True), counts.shape)
        seen = counts > 0
        return float(-(counts[seen] * np.log(counts[seen] / rows[seen])).sum() / len(self))


@dataclass(frozen=True)
class Corpus:
    """Words over an alphabet.

    Attributes
    ----------
    words : tuple of str
    alphabet : tuple of str
        The letters that occur, in the order of their code points; letter i is token i + 1.
    """

    words: tuple[str, ...]
    alphabet: tuple[str, ...]

    @classmethod
    def of(cls, words: Sequence[str]) -> Corpus:
        """The corpus of these words, with the alphabet that they use."""
        return cls(tuple(words), tuple(sorted(set("".join(words)))))

    @classmethod
    def embedded(cls) -> Corpus:
        """The 10,000 most frequent US baby names, see ``data/PROVENANCE.md``."""
        text = resources.files(__package__).joinpath("data", "names.txt").read_text(encoding="utf-8")
        return cls.of(text.split())

    @classmethod
    def read(cls, path: str | Path) -> Corpus:
        """The words of a UTF-8 text file, one a line.

        Space around a word and blank lines are passed over; any other character is a letter, but for control
        characters, which no text has and a terminal would obey when they are sampled.

        Raises
        ------
        CorpusError
            If the file cannot be read, is not UTF-8 text, holds a control character or no word.
        """
        try:
            text = Path(path).read_text(encoding="utf-8-sig")
        except OSError as error:
            raise CorpusError(f"{path}: {error.strerror or error}") from error
        except UnicodeDecodeError as error:
            raise CorpusError(
                f"{path}: not UTF-8 text (byte {error.start + 1} is {error.object[error.start]:#04x}); save it as UTF-8"
            ) from error
        except ValueError as error:
            raise CorpusError(f"{path}: {error}") from error
        # Not splitlines(), which also cuts at characters that a word may hold.
        words = []
        for number, line in enumerate(text.split("\n"), start=1):
            if not (word := line.strip()):
                continue
            if control := next((letter for letter in word if unicodedata.category(letter) == "Cc"), None):
                raise CorpusError(
                    f"{path}: line {number} holds the control character {control!r}; wanted text, one word a line"
                )
            words.append(word)
        if not words:
            raise CorpusError(f"{path}: no words; wanted one a line")
        return cls.of(words)

    @property
    def vocabulary(self) -> int:
        """How many tokens there are: the letters and the end of a word."""
        return len(self.alphabet) + 1

    def samples(self) -> Samples:
        """The samples of all words, in order."""
        tokens = np.searchsorted(_code_points(self.alphabet), _code_points(self.words)) + 1
        lengths = np.array([len(word) for word in self.words], dtype=np.int64)
        # The letters of all words, a 0 behind each word.
        targets = np.insert(tokens, np.cumsum(lengths), 0)
        starts = np.cumsum(lengths + 1) - (lengths + 1)
        place = np.arange(len(targets)) - np.repeat(starts, lengths + 1)
        contexts = np.zeros((len(targets), WINDOW), dtype=np.int64)
        for back in range(1, WINDOW + 1):
            contexts[back:, -back] = targets[:-back]
            contexts[place < back, -back] = 0
        return Samples(contexts, targets)

    def split(self, fraction: float, seed: int) -> tuple[Corpus, Corpus]:
        """The corpus without ``round(fraction * words)`` of its different words, and one of those.

        Both keep the alphabet of the whole. A word that comes several times is on one side with all of its copies.
        """
        different = list(dict.fromkeys(self.words))
        held = round(fraction * len(different))
        out = {different[index] for index in SplitMix64(seed).permutation(len(different))[:held].tolist()}
        kept = tuple(word for word in self.words if word not in out)
        rest = tuple(word for word in self.words if word in out)
        return Corpus(kept, self.alphabet), Corpus(rest, self.alphabet)


def _code_points(texts: Sequence[str]) -> npt.NDArray[np.uint32]:
    return np.frombuffer("".join(texts).encode("utf-32-le"), dtype="<u4")
