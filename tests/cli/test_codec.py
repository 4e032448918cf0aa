"""``tritter-accel compress``, ``decompress`` and ``inspect``."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import tritter_accel as ta

from .command import COMMAND, call, environment, refusal, run

DATA = Path(__file__).parent.parent / "data"
HOSTILE = sorted((DATA / "hostile").glob("*.bin"))
GOLDEN = sorted((DATA / "wire").glob("*.bin"))


@pytest.fixture
def gradient(tmp_path: Path) -> Path:
    path = tmp_path / "g.npy"
    np.save(path, np.random.default_rng(1).standard_normal((30, 400)).astype(np.float32))
    return path


@pytest.mark.parametrize(
    ("options", "settings", "call_ratio"),
    [
        ([], {"projection": "hadamard"}, None),
        (["--ratio", "0.25", "--quantize", "sign"], {"projection": "hadamard", "quantize": "sign"}, 0.25),
        (
            ["--projection", "topk", "--ratio", "0.01", "--quantize", "levels4", "--quantizer-block", "64"],
            {"projection": "topk", "quantize": "levels4", "quantizer_block": 64},
            0.01,
        ),
        (
            [
                "--projection",
                "dense",
                "--ratio",
                "0.01",
                "--scaling",
                "unbiased",
                "--clip",
                "3",
                "--seed",
                "9",
            ],
            {"projection": "dense", "scaling": "unbiased", "gradient_clipping": 3.0, "seed": 9},
            0.01,
        ),
        (
            ["--projection", "none", "--quantize", "ternary", "--quantizer-scale", "unbiased"],
            {"projection": "none", "quantize": "ternary", "quantizer_scale": "unbiased"},
            None,
        ),
    ],
)
def test_files_hold_what_encode_and_decode_give(
    gradient: Path, tmp_path: Path, options: list[str], settings: dict[str, Any], call_ratio: float | None
) -> None:
    packed, back = tmp_path / "g.ta", tmp_path / "back.npy"
    done = call("compress", gradient, "-o", packed, "--step", 3, "--slot", 1, *options)
    assert (done.returncode, done.stderr) == (0, "")
    config = ta.TrainingConfig(**{"scaling": "contractive", "quantizer_scale": "least_squares", **settings})
    compressor = ta.GradientCompressor(config)
    message = compressor.encode(np.load(gradient), call_ratio, step=3, slot=1)
    assert packed.read_bytes() == message
    assert f"{len(message):,} bytes of 48,000" in done.stdout

    done = call("decompress", packed, "-o", back)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{back}: 12,000 values of float32\n", "")
    found = np.load(back)
    assert found.dtype == np.float32
    assert found.tobytes() == compressor.decode(message).tobytes()

    done = call("inspect", packed, "--json")
    told = json.loads(done.stdout)
    for field in (
        "projection",
        "quantize",
        "ratio",
        "seed",
        "step",
        "slot",
        "compressed_dim",
        "quantizer_block",
    ):
        assert told[field] == getattr(message, field)
    assert told["message_bytes"] == len(message)
    assert told["bits_per_value"] == 8 * len(message) / 12_000
    lines = dict(line.split() for line in call("inspect", packed).stdout.splitlines())
    assert lines["projection"] == message.projection
    assert lines["step"] == "3"


def test_a_process_of_its_own_does_the_same(gradient: Path, tmp_path: Path) -> None:
    packed = tmp_path / "g.ta"
    done = run("compress", gradient, "-o", packed)
    assert (done.returncode, done.stderr) == (0, "")
    assert packed.read_bytes() == ta.GradientCompressor(
        ta.TrainingConfig(projection="hadamard", scaling="contractive")
    ).encode(np.load(gradient))


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_golden_messages_are_read(path: Path, tmp_path: Path) -> None:
    assert call("inspect", path).returncode == 0
    assert call("decompress", path, "-o", tmp_path / "x.npy").returncode == 0
    message = ta.wire.Message(path.read_bytes())
    config = ta.TrainingConfig(seed=message.seed)
    assert np.load(tmp_path / "x.npy").tobytes() == ta.GradientCompressor(config).decode(message).tobytes()


@pytest.mark.parametrize("path", HOSTILE, ids=lambda path: path.stem)
@pytest.mark.parametrize("command", ["inspect", "decompress"])
def test_hostile_messages_are_refused_in_one_line(command: str, path: Path, tmp_path: Path) -> None:
    output = tmp_path / "x.npy"
    said = refusal(command, path, *(["-o", output] if command == "decompress" else []))
    assert f"{path}: message field " in said
    assert not output.exists()


@pytest.mark.parametrize(
    ("array", "said"),
    [
        (np.ones(3), "wanted float32 in native byte order; save it after .astype(np.float32)"),
        (np.ones(3, ">f4"), "wanted float32 in native byte order"),
        (np.asfortranarray(np.ones((3, 4), np.float32)), "save np.ascontiguousarray of it"),
        (np.array(["a"]), "wanted float32"),
        (np.full(70, np.nan, np.float32), "value NaN at index 0 is not finite"),
    ],
)
def test_arrays_that_are_not_taken(array: NDArray[Any], said: str, tmp_path: Path) -> None:
    path, output = tmp_path / "a.npy", tmp_path / "a.ta"
    np.save(path, array)
    assert said in refusal("compress", path, "-o", output, "--projection", "none", "--quantize", "sign")
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "content", [b"", b"\x93NUMPY", b"words\n", b"PK\x03\x04", b"\x93NUMPY\x01\x00\x06\x00{'a':1"]
)
def test_files_that_are_no_arrays(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    path.write_bytes(content)
    assert f"{path} is no .npy file of numbers" in refusal("compress", path, "-o", tmp_path / "a.ta")


def npy(header: str, values: bytes, version: tuple[int, int] = (1, 0)) -> bytes:
    return (
        b"\x93NUMPY"
        + bytes(version)
        + len(header).to_bytes(2 * version[0], "little")
        + header.encode()
        + values
    )


def header(shape: str, descr: str = "'<f4'", fortran: str = "False") -> str:
    return f"{{'descr': {descr}, 'fortran_order': {fortran}, 'shape': {shape}, }}\n"


ONE = np.float32(1).tobytes()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (
            npy(header("(1099511627776,)"), ONE),
            "has 4 bytes of values, wanted 4,398,046,511,104 for the shape",
        ),
        (npy(header("(3,)"), 2 * ONE), "has 8 bytes of values, wanted 12"),
        (npy(header("(1,)"), 2 * ONE), "has 8 bytes of values, wanted 4"),
        (npy(header("(-2, -2)"), 4 * ONE), "a shape that no array has"),
        (npy(header("(-1,)"), 4 * ONE), "a shape that no array has"),
        (npy(header(f"({'9' * 4000}, {'9' * 4000})"), ONE), "a shape that no array has"),
        (npy(header("(1,)") + 20_000 * " ", ONE, (2, 0)), "is large"),
        (npy(header("(1,)"), ONE, (9, 0)), "(9, 0)"),
        (npy(header("(1,)", "5"), ONE), "is no .npy file of numbers"),
        (npy(header("(1,)", "['a']"), ONE), "is no .npy file of numbers"),
        (npy("(" * 5000, b""), "is no .npy file of numbers"),
        (npy("-" * 9000 + "1", b""), "is no .npy file of numbers (MemoryError"),
        (npy("{[]: 1}", b""), "is no .npy file of numbers"),
        (npy("__import__('os').getpid()", b""), "is no .npy file of numbers"),
    ],
    ids=lambda given: ascii(given)[:30],
)
def test_headers_that_lie(content: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    path.write_bytes(content)
    assert said in refusal("compress", path, "-o", tmp_path / "a.ta")
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("content", "count"),
    [
        (npy(header("()"), ONE), 1),
        (npy(header("(1L,)"), ONE), 1),  # written by Python 2
        (npy(header("(1,)") + " \n", ONE, (2, 0)), 1),  # the values at an odd place
        (npy(header("(1, 2, 1)", fortran="True"), 2 * ONE), 2),  # one order as well as the other
        (npy(header("(0, 5)", fortran="True"), b""), 0),
    ],
)
def test_uncommon_headers_are_read(content: bytes, count: int, tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    path.write_bytes(content)
    done = call("compress", path, "-o", tmp_path / "a.ta")
    assert (done.returncode, done.stderr) == (0, "")
    message = ta.wire.Message((tmp_path / "a.ta").read_bytes())
    np.testing.assert_allclose(ta.GradientCompressor().decode(message), np.ones(count), rtol=1e-6)


@pytest.mark.skipif(os.name != "posix", reason="signals are those of POSIX")
def test_an_interrupt_leaves_no_file(tmp_path: Path) -> None:
    path = tmp_path / "long.npy"
    np.save(path, np.ones(2_000_000, np.float32))  # minutes of the dense projection
    process = subprocess.Popen(
        [*COMMAND, "compress", path, "-o", tmp_path / "long.ta", "--projection", "dense"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    time.sleep(2)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=30) == ("", "tritter-accel compress: interrupted\n")
    assert process.returncode == 130
    assert list(tmp_path.iterdir()) == [path]


def test_arrays_of_objects_are_not_unpickled(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.array([{}], dtype=object), allow_pickle=True)
    assert "holds |O, wanted float32" in refusal("compress", path, "-o", tmp_path / "a.ta")


def test_options_that_do_not_fit(gradient: Path, tmp_path: Path) -> None:
    output = tmp_path / "a.ta"
    for options, said in [
        (["--ratio", "0"], "invalid compression ratio 0"),
        (["--ratio", "nan"], "invalid compression ratio"),
        (["--projection", "none", "--ratio", "0.5"], "projection none sends every value"),
        (["--projection", "topk", "--scaling", "unbiased"], "projection topk has not"),
        (["--quantizer-block", "63"], "wanted a multiple of 64"),
        (["--clip", "-1"], "gradient_clipping"),
        (["--step", str(2**32)], "too large"),
        (["--seed", "-1"], "too small"),
        (["--projection", "best"], "invalid choice"),
    ]:
        assert said in refusal("compress", gradient, "-o", output, *options), options
    assert not output.exists()


def test_files_that_cannot_be_read_or_written(gradient: Path, tmp_path: Path) -> None:
    assert "No such file" in refusal("compress", tmp_path / "none.npy", "-o", tmp_path / "a.ta")
    assert "No such file" in refusal("inspect", tmp_path / "none.ta")
    assert "no directory" in refusal("compress", gradient, "-o", tmp_path / "none" / "a.ta")
    assert "is the file that is read" in refusal("compress", gradient, "-o", gradient)
    link = tmp_path / "link.ta"
    link.symlink_to(gradient)
    assert "is the file that is read" in refusal("compress", gradient, "-o", link)
    assert "Is a directory" in refusal("inspect", tmp_path)
    assert "is a directory" in refusal("compress", gradient, "-o", tmp_path)
    assert np.load(gradient).shape == (30, 400)


def test_a_message_of_a_gradient_too_long_or_of_another_seed(gradient: Path, tmp_path: Path) -> None:
    packed, output = tmp_path / "g.ta", tmp_path / "x.npy"
    call("compress", gradient, "-o", packed)
    said = refusal("decompress", packed, "-o", output, "--max-values", 11_999)
    assert "12,000 values, more than --max-values 11,999" in said
    assert "seed mismatch" in refusal("decompress", packed, "-o", output, "--seed", 1)
    assert not output.exists()
    assert call("decompress", packed, "-o", output, "--max-values", 12_000, "--seed", 42).returncode == 0


def test_an_empty_array_comes_back(tmp_path: Path) -> None:
    path, packed, back = tmp_path / "a.npy", tmp_path / "a.ta", tmp_path / "b.npy"
    np.save(path, np.empty((0, 3), np.float32))
    assert call("compress", path, "-o", packed).returncode == 0
    assert "bits_per_value   -" in call("inspect", packed).stdout
    assert call("decompress", packed, "-o", back).returncode == 0
    assert np.load(back).shape == (0,)
