"""``--corpus``: every file of words trains, or is refused in one line that says why."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tritter_accel.corpus import Corpus

from .command import record, refusal, run, sampled, train

SMALL = ("--steps", 3, "--batch-size", 4)
NAMES = ["anna", "otto", "mia", "leo"]


def written(folder: Path, content: str | bytes) -> Path:
    path = folder / "words.txt"
    path.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)
    return path


def bigram_limit(words: list[str]) -> float:
    """By definition: the entropy of a letter given the one before, from the words alone."""
    pairs = Counter(pair for word in words for pair in zip(["", *word], [*word, ""], strict=True))
    before: Counter[str] = Counter()
    for (first, _), count in pairs.items():
        before[first] += count
    total = sum(pairs.values())
    return -math.fsum(count / total * math.log(count / before[first]) for (first, _), count in pairs.items())


PLAIN = "\n".join(NAMES) + "\n"
# The same words, whatever the lines look like.
SAME: dict[str, str | bytes] = {
    "without a last newline": PLAIN.rstrip("\n"),
    "CRLF": PLAIN.replace("\n", "\r\n"),
    "CR": PLAIN.replace("\n", "\r"),
    "byte order mark": b"\xef\xbb\xbf" + PLAIN.encode(),
    "blank lines": "\n\n" + PLAIN.replace("\n", "\n \t \n\n"),
    "space around": "  anna\t\n otto \n\u00a0mia\u3000\nleo   \n",
}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("plain")
    return record(folder, "--corpus", written(folder, PLAIN), *SMALL)


@pytest.mark.parametrize("form", SAME)
def test_the_form_of_the_lines_changes_nothing(form: str, tmp_path: Path, plain: dict[str, Any]) -> None:
    found = record(tmp_path, "--corpus", written(tmp_path, SAME[form]), *SMALL)
    for key in ("corpus", "losses", "parameters_sha256", "samples"):
        assert found[key] == plain[key], key


def test_the_counts_are_those_of_the_words(plain: dict[str, Any]) -> None:
    assert plain["corpus"]["names"] == 4
    assert plain["corpus"]["samples"] == 4 + 4 + 3 + 3 + 4
    assert plain["corpus"]["vocabulary"] == len(set("annaottomialeo")) + 1
    assert plain["corpus"]["uniform"] == pytest.approx(math.log(plain["corpus"]["vocabulary"]), abs=1e-12)
    assert plain["corpus"]["bigram_limit"] == pytest.approx(bigram_limit(NAMES), abs=1e-12)


TEXTS = {
    "beyond a to z": ["o'neil", "jean-luc", "r2d2", "x_y", "50%"],
    "a full stop": ["st.john", "a.b", "...", "j.r."],
    "upper case": ["Anna", "ANNA", "anna", "Otto"],
    "accents": ["zoë", "josé", "jose\u0301", "łukasz"],
    "Cyrillic": ["анна", "мария", "пётр"],
    "Greek and Hebrew": ["άννα", "מרים", "σοφία"],
    "Chinese": ["李明", "王芳", "张伟"],
    "Devanagari": ["प्रिया", "अमित"],
    "beyond the basic plane": ["𝒜𝓃𝓃𝒶", "😀😃", "𐍈𐌰"],
    "spaces inside": ["mary ann", "van der berg", "mary  lou"],
    "line separators of Unicode": ["a\u2028b", "c\u0085d".replace("\u0085", "\u2029")],
    "one letter": ["a", "a", "a", "a"],
    "one long word": ["abcdefghij" * 2000],
    "copies": ["anna"] * 20,
}


@pytest.mark.parametrize("script", TEXTS)
def test_any_script_trains(script: str, tmp_path: Path) -> None:
    words = TEXTS[script]
    found = record(tmp_path, "--corpus", written(tmp_path, "\n".join(words) + "\n"), *SMALL)
    alphabet = set("".join(words))
    assert found["corpus"]["names"] == len(words)
    assert found["corpus"]["samples"] == sum(map(len, words)) + len(words)
    assert found["corpus"]["vocabulary"] == len(alphabet) + 1
    assert found["corpus"]["bigram_limit"] == pytest.approx(bigram_limit(words), abs=1e-9)
    assert all(math.isfinite(loss) for loss in found["losses"])
    assert len(found["samples"]) == 10
    assert set("".join(found["samples"])) <= alphabet


def test_what_the_network_learns_is_what_the_file_says(tmp_path: Path) -> None:
    path = written(tmp_path, "ж\n" * 40)
    done = train("--corpus", path, "--steps", 200, "--batch-size", 16, "--lr", 0.5)
    assert sampled(done) == ["ж"] * 10


def test_one_word_needs_a_smaller_batch_and_the_line_says_which(tmp_path: Path) -> None:
    path = written(tmp_path, "anna\n")
    line = refusal("train", "--corpus", path)
    assert "5 samples of 1 word;" in line
    assert "--batch-size 5 or less" in line
    done = train("--corpus", path, "--batch-size", 5, "--steps", 2)
    assert "corpus: 1 word, 5 samples, 3 tokens" in done.stdout
    assert "5 shards" in done.stdout


REFUSED: dict[str, tuple[bytes, list[str]]] = {
    "empty": (b"", ["no words", "one a line"]),
    "blank": (b"\n  \n\r\n\t\n", ["no words", "one a line"]),
    "a byte order mark alone": (b"\xef\xbb\xbf", ["no words"]),
    "bytes": (bytes(range(128, 256)), ["not UTF-8", "0x80", "save it as UTF-8"]),
    "Latin-1": ("anna\nzoë\n".encode("latin-1"), ["not UTF-8", "byte 8 is 0xeb"]),
    "UTF-16": ("anna\n".encode("utf-16"), ["not UTF-8", "byte 1 is 0xff"]),
    "UTF-16 without a mark": ("anna\n".encode("utf-16-le"), ["line 1", r"'\x00'"]),
    "half a letter": ("zoë".encode()[:-1], ["not UTF-8"]),
    "surrogates": (b"\xed\xa0\x80", ["not UTF-8"]),
    "nulls": (b"an\x00na\n", ["line 1", r"'\x00'"]),
    "an escape sequence": (b"anna\n\n\x1b[2Jotto\n", ["line 3", r"'\x1b'"]),
    "a table": (b"anna\t12\n", ["line 1", r"'\t'", "one word a line"]),
}


@pytest.mark.parametrize("form", REFUSED)
def test_a_file_that_holds_no_words_is_refused(form: str, tmp_path: Path) -> None:
    content, words = REFUSED[form]
    path = written(tmp_path, content)
    line = refusal("train", "--corpus", path)
    assert str(path) in line
    for word in words:
        assert word in line


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    assert "No such file" in refusal("train", "--corpus", tmp_path / "missing.txt", variables={})
    assert "No such file" in refusal("train", "--corpus", tmp_path / "no" / "folder.txt")
    assert "irectory" in refusal("train", "--corpus", tmp_path)
    assert "too long" in refusal("train", "--corpus", "x" * 5000)
    assert "irectory" in refusal("train", "--corpus", "")


def test_the_words_held_out_are_not_trained_on() -> None:
    corpus = Corpus.of([*NAMES, "anna", "anna", "leo", "ida", "eva", "ute"])
    kept, held = corpus.split(0.5, 3)
    assert len(set(held.words)) == 4  # half of the seven different ones, to even
    assert not set(kept.words) & set(held.words)
    assert sorted(kept.words + held.words) == sorted(corpus.words)
    assert kept.alphabet == held.alphabet == corpus.alphabet


def test_a_terminal_that_cannot_show_the_letters_loses_no_run(tmp_path: Path) -> None:
    path = written(tmp_path, "анна\nмария\n")
    json_path = tmp_path / "record.json"
    done = run(
        "train", "--corpus", path, "--json", json_path, *SMALL, variables={"PYTHONIOENCODING": "ascii"}
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "no chart: the terminal's encoding is ascii" in done.stdout
    assert "\\u04" in done.stdout
    assert set("".join(json.loads(json_path.read_text("utf-8"))["samples"])) <= set("аннамария")


def test_the_embedded_corpus_is_the_one_named_in_its_note() -> None:
    corpus = Corpus.embedded()
    text = "".join(f"{word}\n" for word in corpus.words)
    digest = hashlib.sha256(text.encode()).hexdigest()
    assert digest == "74d663f85ae5a841454739115f4853e4fbb9030c440d53b1ab835e2402b63774"
    samples = corpus.samples()
    assert samples.bigram_limit(corpus.vocabulary) == pytest.approx(
        bigram_limit(list(corpus.words)), abs=1e-12
    )


@pytest.mark.parametrize("words", [[], ["a"], ["ab", "", "abcd"], ["ж😀", "é"], ["", ""]])
def test_samples_are_windows_and_what_follows(words: list[str]) -> None:
    corpus = Corpus.of(words)
    expected = []
    for word in words:
        tokens = [0, 0, 0, *(corpus.alphabet.index(letter) + 1 for letter in word), 0]
        expected += [(tokens[i : i + 3], tokens[i + 3]) for i in range(len(word) + 1)]
    samples = corpus.samples()
    assert samples.contexts.shape == (len(expected), 3)
    assert samples.contexts.dtype == samples.targets.dtype == np.int64
    assert list(zip(samples.contexts.tolist(), samples.targets.tolist(), strict=True)) == expected
