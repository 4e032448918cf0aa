"""``tritter-accel train``: the golden run, its files, every option, and how it ends when it is stopped."""

from __future__ import annotations

import hashlib
import json
import math
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tritter_accel as ta
from tests.reference import names_network as reference
from tritter_accel.corpus import Corpus
from tritter_accel.names_network import NamesNetwork, Seeds

from .command import COMMAND, Done, call, environment, record, refusal, run, sampled, train

ROOT = Path(__file__).resolve().parents[2]
GOLDEN: dict[str, Any] = json.loads((ROOT / "tests" / "data" / "names_network.json").read_text())
posix = pytest.mark.skipif(os.name != "posix", reason="signals and terminals are those of POSIX")
FEW = ("--steps", 3)


@dataclass(frozen=True)
class Golden:
    done: Done
    record: dict[str, Any]
    folder: Path


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Golden:
    """The default run, with both files."""
    folder = tmp_path_factory.mktemp("golden")
    done = train("--json", folder / "run.json", "--plot", folder / "run.png", variables={})
    return Golden(done, json.loads((folder / "run.json").read_text("utf-8")), folder)


# The default run


def test_the_default_run_has_the_golden_losses(golden: Golden) -> None:
    losses = golden.record["losses"]
    assert len(losses) == 5000
    np.testing.assert_allclose(losses[:100], GOLDEN["losses_first_100"], rtol=0, atol=1e-4)
    np.testing.assert_allclose(golden.record["window_means"], GOLDEN["window_means_500"], rtol=0, atol=0.002)


def test_the_default_run_samples_the_golden_names(golden: Golden) -> None:
    assert sampled(golden.done) == GOLDEN["sampled_names"] == golden.record["samples"]


def test_the_record_holds_what_is_promised(golden: Golden) -> None:
    found = golden.record
    assert list(found) == [
        "corpus", "steps", "seconds", "steps_per_second", "losses", "window_means", "tape_nodes", "parameters",
        "parameters_sha256", "validation_loss", "exchange", "samples",
    ]  # fmt: skip
    assert found["corpus"]["names"] == GOLDEN["names"]
    assert found["corpus"]["samples"] == GOLDEN["samples"]
    assert found["corpus"]["vocabulary"] == 27
    assert found["corpus"]["uniform"] == pytest.approx(math.log(27), abs=1e-12)
    assert found["corpus"]["bigram_limit"] == pytest.approx(2.3915, abs=5e-5)
    assert found["steps"] == 5000
    assert found["steps_per_second"] == pytest.approx(5000 / found["seconds"])
    assert found["parameters"] == 6097
    assert found["tape_nodes"] == NamesNetwork(27).network.nodes
    assert found["validation_loss"] is None
    assert found["exchange"] == {
        "kind": "local", "plan": None, "ranks": 1, "workers": 8, "compress": "none", "quantize": "none",
        "error_feedback": False, "message_bytes": 0, "bytes_sent_per_step": 0,
        "dense_bytes_per_step": 2 * 7 * 4 * 6097 // 8, "reduction": None,
    }  # fmt: skip


def test_the_report_is_read_from_top_to_bottom(golden: Golden) -> None:
    text = golden.done.stdout
    places = [
        text.index(words)
        for words in (
            "corpus: 10,000 words, 70,549 samples, 27 tokens",
            "network: 6,097 parameters",
            "step      0  loss 3.5694  (uniform guessing costs 3.2958)",
            "step    500  rate 0.1    mean loss of the last 500: 2.54",
            "step   4500  rate 0.01   mean loss of the last 500: 2.16",
            "step   5000  rate 0.01   mean loss of the last 500: 2.14",
            "5,000 steps in ",
            "nodes on the tape: 18 before, 18 after",
            "0 bytes a step, float32 gradient 24,388 bytes",
            "uniform 3.2958",
            "bigram limit 2.3915",
            "bigram limit: 2.3915",
            "sampled names:\nhavie\n",
        )
    ]
    assert places == sorted(places)
    assert text.count("mean loss of the last") == 10


def test_the_chart_fits_a_terminal_and_goes_down(golden: Golden) -> None:
    lines = golden.done.stdout.splitlines()
    rows = [line for line in lines if line.endswith("│")]
    assert len(rows) >= 10
    assert max(map(len, lines)) <= 120
    assert {len(row) for row in rows} == {76}
    highest: dict[int, int] = {}  # the first row, by column, that the curve is in
    for height, row in enumerate(rows):
        for column, letter in enumerate(row):
            if "\u2800" < letter <= "\u28ff":
                highest.setdefault(column, height)
    assert len(highest) > 40
    heights = [highest[column] for column in sorted(highest)]
    assert heights == sorted(heights)
    assert heights[-1] > heights[0]


def test_files_are_written_beside_and_renamed(golden: Golden) -> None:
    assert sorted(path.name for path in golden.folder.iterdir()) == ["run.json", "run.png"]
    png = (golden.folder / "run.png").read_bytes()
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    assert png[-8:-4] == b"IEND"
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE((golden.folder / "run.json").stat().st_mode) == 0o666 & ~mask


@pytest.mark.parametrize(("threads", "level"), [("1", "avx2"), ("2", "avx2"), ("2", "scalar")])
def test_threads_and_simd_change_no_bit(threads: str, level: str, tmp_path: Path, golden: Golden) -> None:
    found = record(tmp_path, "--steps", 20, "--threads", threads, variables={"TRITTER_ACCEL_SIMD": level})
    wanted = record(tmp_path, "--steps", 20)
    assert found["losses"] == golden.record["losses"][:20]
    assert found["parameters_sha256"] == wanted["parameters_sha256"]
    assert found["samples"] == wanted["samples"]


def digest(parameters: ta.Parameters) -> str:
    encoded = b"".join(array.astype("<f4").tobytes() for array in parameters.values())
    return hashlib.sha256(encoded).hexdigest()


def test_the_digest_is_that_of_the_parameters(tmp_path: Path) -> None:
    """Written out: a step of the trainer by hand, float32 in little-endian order."""
    found = record(tmp_path, "--steps", 2)
    network = NamesNetwork(27)
    samples = Corpus.embedded().samples().shuffled(9)
    trainer = ta.train.Trainer(
        network.loss,
        network.network.parameters(),
        {"contexts": samples.contexts, "targets": samples.targets},
        batch_size=64,
        shards=8,
    )
    trainer.run(2, 0.1)
    assert found["parameters_sha256"] == digest(trainer.parameters)


# Options


def test_a_seed_gives_another_run_and_the_same_one_again(tmp_path: Path, golden: Golden) -> None:
    first = record(tmp_path, *FEW, "--seed", 1)
    again = record(tmp_path, *FEW, "--seed", 1)
    largest = record(tmp_path, *FEW, "--seed", 2**64 - 1)
    for key in ("losses", "parameters_sha256", "samples"):
        assert first[key] == again[key]
        assert first[key] != largest[key]
    assert first["losses"] != golden.record["losses"][:3]
    assert record(tmp_path, *FEW, "--seed", 0)["losses"] == golden.record["losses"][:3]


def test_the_held_out_loss_is_that_of_the_trained_parameters(tmp_path: Path) -> None:
    found = record(tmp_path, "--steps", 30, "--validation", 0.1)
    corpus = Corpus.embedded()
    kept, held = corpus.split(0.1, 9)
    assert (len(kept.words), len(held.words)) == (9000, 1000)
    assert not set(kept.words) & set(held.words)
    contexts, targets = reference.shuffled_samples(list(kept.words))
    trained, losses = reference.train(reference.initial_parameters(np.float64), contexts, targets, steps=30)
    np.testing.assert_allclose(found["losses"], losses, rtol=0, atol=1e-5)
    # By NumPy in float64, over the words that were held out.
    contexts, targets = reference.samples(list(held.words))
    embedding, weight0, bias0, weight1, bias1 = (trained[slot] for slot in reference.SLOTS)
    hidden = np.tanh(embedding[contexts].reshape(len(targets), -1) @ weight0 + bias0)
    logits = hidden @ weight1 + bias1
    shifted = logits - logits.max(axis=1, keepdims=True)
    expected = (np.log(np.exp(shifted).sum(axis=1)) - shifted[np.arange(len(targets)), targets]).mean()
    assert found["validation_loss"] == pytest.approx(expected, abs=1e-5)
    # The corpus is the whole one, whatever is held out of it.
    assert found["corpus"]["samples"] == GOLDEN["samples"]


def test_the_report_says_what_is_held_out() -> None:
    done = train(*FEW, "--validation", 0.25)
    assert "held out: 2,500 words; trained on 5" in done.stdout
    assert "held-out loss: " in done.stdout


@pytest.mark.parametrize("steps", [0, 1, 499, 500, 501])
def test_any_number_of_steps(steps: int, tmp_path: Path, golden: Golden) -> None:
    plot = tmp_path / "plot.png"
    path = tmp_path / "record.json"
    done = train("--steps", steps, "--json", path, "--plot", plot)
    found = json.loads(path.read_text())
    losses = golden.record["losses"][:steps]
    assert found["losses"] == losses
    means = [np.mean(losses[start : start + 500]) for start in range(0, steps, 500)]
    assert found["window_means"] == pytest.approx(means, abs=1e-12)
    assert done.stdout.count("mean loss of the last") == len(means)
    assert f"{steps:,} step{'s' * (steps != 1)} in " in done.stdout
    assert plot.read_bytes().startswith(b"\x89PNG")
    if steps == 0:
        network = NamesNetwork(27)
        assert found["parameters_sha256"] == digest(network.network.parameters())


def losses_by_hand(batch: int, shards: int, rates: list[float], momentum: float) -> list[float]:
    """The losses of a run by the trainer, a call a step."""
    network = NamesNetwork(27, Seeds())
    samples = Corpus.embedded().samples().shuffled(9)
    data = {"contexts": samples.contexts, "targets": samples.targets}
    trainer = ta.train.Trainer(
        network.loss, network.network.parameters(), data, batch_size=batch, shards=shards, momentum=momentum
    )
    return [float(trainer.run(1, rate)[0]) for rate in rates]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--lr", 0.5), (64, 8, [0.5] * 6, 0.0)),
        (("--lr", 0), (64, 8, [0.0] * 6, 0.0)),
        (("--lr-drop-at", 2), (64, 8, [0.1] * 2 + [0.1 / 10] * 4, 0.0)),
        (("--lr-drop-at", 0), (64, 8, [0.1 / 10] * 6, 0.0)),
        (("--lr-drop-at", 10**15), (64, 8, [0.1] * 6, 0.0)),
        (("--momentum", 0.9), (64, 8, [0.1] * 6, 0.9)),
        (("--batch-size", 5), (5, 5, [0.1] * 6, 0.0)),
        (("--batch-size", 1), (1, 1, [0.1] * 6, 0.0)),
        (("--batch-size", 70549), (70549, 8, [0.1] * 6, 0.0)),
        (("--shards", 64), (64, 64, [0.1] * 6, 0.0)),
        (("--shards", 3, "--threads", 2), (64, 3, [0.1] * 6, 0.0)),
        (("--threads", 2**40), (64, 8, [0.1] * 6, 0.0)),
    ],
)
def test_an_option_reaches_the_training(
    options: tuple[object, ...], expected: tuple[int, int, list[float], float], tmp_path: Path
) -> None:
    steps = 2 if 70549 in options else 6
    batch, shards, rates, momentum = expected
    found = record(tmp_path, "--steps", steps, *options)
    assert found["losses"] == losses_by_hand(batch, shards, rates[:steps], momentum)
    assert found["exchange"]["workers"] == shards


BAD_WHOLE = ["-1", "nan", "1.5", "many", "", "1e3", "9" * 5000, "0x10", str(2**64)]
BAD_NUMBER = ["-1", "nan", "inf", "-inf", "much", "", "1e300", "1e39"]
BAD_SHARE = [*BAD_NUMBER, "1", "1.5", "0.9999999999"]
BAD: dict[str, list[str]] = {
    "--steps": BAD_WHOLE,
    "--batch-size": [*BAD_WHOLE, "0", "70550", str(2**62)],
    "--shards": [*BAD_WHOLE, "0", "65", str(2**62)],
    "--threads": [*BAD_WHOLE, "0"],
    "--lr": BAD_NUMBER,
    "--lr-drop-at": BAD_WHOLE,
    "--momentum": BAD_SHARE,
    "--seed": BAD_WHOLE,
    "--validation": [*BAD_SHARE, "0.00001", "0.99999"],
    "--samples": BAD_WHOLE,
}


@pytest.mark.parametrize(("option", "value"), [(option, value) for option in BAD for value in BAD[option]])
def test_a_value_without_meaning_is_refused(option: str, value: str) -> None:
    line = refusal("train", *FEW, f"{option}={value}")
    assert option in line
    assert len(line) < 250


def test_a_rate_that_is_too_high_is_named() -> None:
    done = call("train", "--steps", 300, "--lr", 1e38)
    assert done.returncode == 2
    assert done.stderr.startswith(
        "tritter-accel train: error: the parameters or the loss are not finite from step "
    )
    assert "--lr below 1e+38" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert "sampled names:" not in done.stdout


def test_quiet_prints_the_names_alone() -> None:
    done = train("--quiet", *FEW, "--samples", 4)
    lines = done.stdout.splitlines()
    assert lines[0] == "sampled names:"
    assert len(lines) == 5


def test_no_samples() -> None:
    assert train("--quiet", *FEW, "--samples", 0).stdout == ""
    assert "sampled names" not in train(*FEW, "--samples", 0).stdout


def test_samples_are_the_first_ones_of_more(tmp_path: Path) -> None:
    more = record(tmp_path, *FEW, "--samples", 25)["samples"]
    assert len(more) == 25
    assert record(tmp_path, *FEW, "--samples", 3)["samples"] == more[:3]


# Files


@pytest.mark.parametrize("option", ["--json", "--plot"])
def test_a_place_that_cannot_be_written_is_refused_before_training(option: str, tmp_path: Path) -> None:
    assert "is a directory" in refusal("train", option, tmp_path, variables={})
    assert "no directory" in refusal("train", option, tmp_path / "missing" / "file.png")
    assert "irectory" in refusal("train", option, "")
    file = tmp_path / "file"
    file.write_text("")
    line = refusal("train", option, file / "x.png")
    assert line.startswith(f"tritter-accel train: error: {option}: ")
    assert "too long" in refusal("train", option, tmp_path / ("x" * 300))
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    assert option in refusal("train", option, loop)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "loop"]


@posix
@pytest.mark.parametrize("option", ["--json", "--plot"])
def test_a_folder_without_permission_is_refused_before_training(option: str, tmp_path: Path) -> None:
    if os.geteuid() == 0:
        # Root may write everywhere but where the system has no files to give.
        folder = Path("/proc/self")
    else:
        folder = tmp_path / "locked"
        folder.mkdir(mode=0o500)
    line = refusal("train", option, folder / "file.png")
    assert line.startswith(f"tritter-accel train: error: {option}: ")


def test_two_files_of_one_name_are_refused(tmp_path: Path) -> None:
    both = tmp_path / "both.png"
    assert "name another" in refusal("train", "--json", both, "--plot", both)
    words = tmp_path / "words"
    words.write_text("anna\n")
    assert "name another" in refusal("train", "--json", tmp_path / "." / "words", "--corpus", words)
    assert words.read_text() == "anna\n"


def test_a_plot_that_would_be_no_png_is_refused(tmp_path: Path) -> None:
    assert "PNG" in refusal("train", "--plot", tmp_path / "plot.svg")


def test_a_record_replaces_the_one_before_and_follows_links(tmp_path: Path) -> None:
    target = tmp_path / "target.json"
    target.write_text("before")
    link = tmp_path / "link.json"
    link.symlink_to(target)
    train(*FEW, "--json", link)
    assert link.is_symlink()
    assert json.loads(target.read_text())["steps"] == 3
    assert len(list(tmp_path.iterdir())) == 2


@posix
def test_a_device_is_written_and_stays_one() -> None:
    before = os.stat(os.devnull)
    train(*FEW, "--json", os.devnull)
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)
    assert os.stat(os.devnull).st_ino == before.st_ino
    done = train("--quiet", *FEW, "--samples", 0, "--json", "/dev/stdout", variables={})
    assert json.loads(done.stdout)["steps"] == 3


# How it ends


@posix
@pytest.mark.parametrize("options", [(), ("--quiet",), ("--batch-size", "70549", "--shards", "1")])
def test_an_interrupt_ends_it_at_once_with_one_line(options: tuple[str, ...], tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*COMMAND, "train", "--steps", "100000000", "--json", str(tmp_path / "x.json"), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    assert process.stdout is not None
    if "--quiet" in options:
        time.sleep(2)
    else:
        while "network:" not in process.stdout.readline():
            pass
        time.sleep(0.3)
    pressed = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert time.monotonic() - pressed < 2
    assert process.returncode == 130
    assert errors == "tritter-accel train: interrupted\n"
    assert list(tmp_path.iterdir()) == []


@posix
@pytest.mark.parametrize("lines", [0, 1])
def test_a_reader_that_goes_away_makes_no_noise(lines: int) -> None:
    process = subprocess.Popen(
        [*COMMAND, "train", "--steps", "2000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    assert process.stdout is not None
    assert process.stderr is not None
    for _ in range(lines):
        assert process.stdout.readline().startswith("corpus:")
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait(timeout=30) == 1
    process.stderr.close()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device that is full is one of Linux")
def test_a_full_disk_is_told_in_one_line() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*COMMAND, "train", *map(str, FEW)],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr == "tritter-accel train: error: No space left on device\n"
    assert "No space left" in refusal_of_written("--json", "/dev/full")


def refusal_of_written(option: str, path: str) -> str:
    done = call("train", *FEW, option, path)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    return done.stderr


# Terminals and the libraries of the extra


def on_terminal(
    *arguments: object, variables: Mapping[str, str] | None = None, stdout: int | None = None
) -> tuple[int, str, str]:
    """Status, what the terminal shows, and what a pipe for standard output gets if there is one."""
    import pty

    own, other = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, "train", *map(str, arguments)],
        stdin=other,
        stdout=stdout or other,
        stderr=other,
        env=environment({"TERM": "xterm-256color", **(variables or {})}),
    )
    os.close(other)
    shown = b""
    while True:
        try:
            part = os.read(own, 65536)
        except OSError:  # the other side is closed
            break
        if not part:
            break
        shown += part
    os.close(own)
    piped = process.stdout.read().decode() if process.stdout else ""
    if process.stdout:
        process.stdout.close()
    return process.wait(timeout=30), shown.decode(), piped


@posix
def test_a_terminal_shows_a_bar_and_the_report() -> None:
    status, shown, _ = on_terminal("--steps", 1200)
    assert status == 0
    assert "training" in shown
    assert "/1200" in shown
    assert "\x1b[" in shown
    for words in ("corpus: 10,000 words", "step    500", "step   1200", "sampled names:"):
        assert words in shown, words
    # The bar is gone in the end, and the cursor is back.
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")
    assert shown.rindex("/1200") < shown.index("sampled names:")


@posix
def test_the_bar_keeps_off_standard_output() -> None:
    status, shown, piped = on_terminal("--steps", 1200, stdout=subprocess.PIPE)
    assert status == 0
    assert "/1200" in shown
    assert "step " not in shown
    assert "\x1b" not in piped
    for words in ("corpus: 10,000 words", "step    500", "step   1200", "sampled names:"):
        assert words in piped, words


@posix
def test_quiet_shows_no_bar() -> None:
    status, shown, _ = on_terminal("--steps", 600, "--quiet", "--samples", 2)
    assert status == 0
    assert "\x1b" not in shown
    assert len(shown.splitlines()) == 3


@pytest.fixture(scope="module")
def without_extra(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("blocked")
    blocked = "import sys\nfor name in ('rich', 'plotext', 'matplotlib'):\n    sys.modules[name] = None\n"
    (folder / "sitecustomize.py").write_text(blocked)
    return {"PYTHONPATH": str(folder)}


def test_without_the_extra_it_trains_and_says_what_is_missing(
    without_extra: dict[str, str], tmp_path: Path, golden: Golden
) -> None:
    path = tmp_path / "record.json"
    done = train("--steps", 20, "--json", path, variables=without_extra)
    assert json.loads(path.read_text())["losses"] == golden.record["losses"][:20]
    assert '(no chart: pip install "tritter-accel[cli]")' in done.stdout
    assert len(sampled(done)) == 10
    line = refusal("train", "--plot", tmp_path / "plot.png", variables=without_extra)
    assert '--plot needs matplotlib: pip install "tritter-accel[cli]"' in line


@posix
def test_without_the_extra_a_terminal_is_told_of_the_bar(without_extra: dict[str, str]) -> None:
    status, shown, _ = on_terminal(*FEW, variables=without_extra)
    assert status == 0
    assert '(no progress bar: pip install "tritter-accel[cli]")' in shown
    assert "sampled names:" in shown


def test_the_module_is_the_command() -> None:
    done = run("train", "--quiet", *FEW)
    assert done.returncode == 0
    assert sys.executable in COMMAND


# The exchange of gradients


def written(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return found


@pytest.mark.parametrize(
    ("options", "settings", "ratio"),
    [
        (["--compress", "bf16"], {"projection": "none", "quantize": "bfloat16"}, None),
        (["--quantize", "levels4"], {"projection": "none", "quantize": "levels4"}, None),
        (["--compress", "dense", "--ratio", "0.02"], {"projection": "dense"}, 0.02),
        (["--compress", "hadamard"], {"projection": "hadamard"}, None),
        (
            ["--compress", "hadamard", "--ratio", "1", "--quantize", "sign", "--error-feedback"],
            {"projection": "hadamard", "quantize": "sign"},
            1.0,
        ),
        (
            ["--compress", "topk", "--ratio", "0.0055", "--quantize", "ternary", "--error-feedback"],
            {"projection": "topk", "quantize": "ternary"},
            0.0055,
        ),
        (
            ["--compress", "hadamard", "--quantize", "levels2"],
            {"projection": "hadamard", "quantize": "levels2"},
            None,
        ),
    ],
)
def test_byte_counts_are_those_of_the_messages(
    options: list[str], settings: dict[str, Any], ratio: float | None, tmp_path: Path
) -> None:
    done = train(*FEW, *options, "--json", tmp_path / "run.json")
    exchange = written(tmp_path / "run.json")["exchange"]
    message = ta.GradientCompressor(ta.TrainingConfig(**settings)).message_bytes(6097, ratio)
    dense = 2 * 7 * 4 * 6097 // 8
    assert exchange == {
        "kind": "local", "plan": "gather", "ranks": 1, "workers": 8,
        "compress": options[1] if options[0] == "--compress" else "none",
        "quantize": options[options.index("--quantize") + 1] if "--quantize" in options else "none",
        "error_feedback": "--error-feedback" in options,
        "message_bytes": message, "bytes_sent_per_step": 7 * message, "dense_bytes_per_step": dense,
        "reduction": dense / (7 * message),
    }  # fmt: skip
    said = done.stdout.replace("\n", " ")
    assert (
        f"messages of {message:,} bytes, float32 gradient 24,388 bytes, {24_388 / message:.1f} times more"
        in said
    )
    assert (
        f"{7 * message:,} bytes a step and worker, float32 {dense:,}, {dense / 7 / message:.1f} times more"
        in said
    )


def test_compressed_runs_have_the_same_bits_for_every_number_of_threads(tmp_path: Path) -> None:
    found = set()
    for threads in (1, 2, 3):
        path = tmp_path / f"{threads}.json"
        train(
            "--steps",
            20,
            "--threads",
            threads,
            "--compress",
            "hadamard",
            "--quantize",
            "sign",
            "--json",
            path,
        )
        found.add((written(path)["parameters_sha256"], tuple(written(path)["losses"])))
    assert len(found) == 1


def test_compression_with_feedback_trains_nearly_as_well(golden: Golden, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    train(
        "--compress", "hadamard", "--ratio", 0.1, "--quantize", "ternary", "--error-feedback", "--json", path,
    )  # fmt: skip
    found = written(path)
    assert found["exchange"]["message_bytes"] == 68 + 4 + 64 + 58
    assert found["window_means"][-1] < golden.record["window_means"][-1] + 0.02


def test_options_of_the_exchange_that_do_not_fit() -> None:
    for options, said in [
        (["--ratio", "0.1"], "--ratio: every value is sent with --compress none"),
        (["--compress", "bf16", "--ratio", "0.1"], "--ratio: every value is sent"),
        (["--compress", "bf16", "--quantize", "sign"], "--quantize: values are bfloat16"),
        (["--error-feedback"], "--error-feedback: nothing is lost"),
        (["--compress", "hadamard", "--ratio", "0"], "invalid compression ratio 0"),
        (["--compress", "hadamard", "--ratio", "1.5"], "invalid compression ratio 1.5"),
        (["--compress", "best"], "invalid choice"),
        (["--quantize", "bfloat16"], "invalid choice"),
    ]:
        assert said in refusal("train", *FEW, *options), options


def test_a_compressed_run_that_diverges_says_so() -> None:
    said = refusal(
        "train", "--steps", 50, "--lr", "1e38", "--compress", "hadamard", "--quantize", "sign", "--quiet"
    )
    assert "pass a --lr below 1e+38" in said


def test_no_steps_send_nothing() -> None:
    assert (
        "exchange: hadamard (8 shards in one process): nothing sent"
        in train("--steps", 0, "--compress", "hadamard").stdout
    )


def test_one_shard_has_nobody_to_send_to(tmp_path: Path) -> None:
    train(*FEW, "--shards", 1, "--compress", "hadamard", "--json", tmp_path / "run.json")
    exchange = written(tmp_path / "run.json")["exchange"]
    assert (exchange["bytes_sent_per_step"], exchange["reduction"]) == (0, None)
    assert exchange["message_bytes"] == 68 + 4 * 610
