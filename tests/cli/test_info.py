"""``tritter-accel info``, ``--version``, ``--help``, and a command line that says nothing of use."""

from __future__ import annotations

import platform
from pathlib import Path

import numpy as np
import pytest

import tritter_accel as ta

from .command import refusal, run


def test_info_says_what_the_installation_has() -> None:
    done = run("info", variables={"TRITTER_ACCEL_SIMD": "scalar", "TRITTER_ACCEL_NUM_THREADS": "3"})
    assert done.returncode == 0
    assert done.stderr == ""
    said = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
    assert said["tritter-accel"] == ta.__version__
    assert said["Python"].startswith(platform.python_version())
    assert said["NumPy"] == np.__version__
    assert done.stdout.count("SIMD level     scalar\n") == 1
    assert said["threads"] == "3"
    assert {"cli", "torch", "mpi", "bfloat16"} <= said.keys()


def test_info_names_the_install_line_of_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['plotext'] = None\n")
    done = run("info", variables={"PYTHONPATH": str(tmp_path)})
    assert done.returncode == 0
    assert 'missing plotext: pip install "tritter-accel[cli]"' in done.stdout


def test_version() -> None:
    done = run("--version")
    assert (done.returncode, done.stdout) == (0, f"tritter-accel {ta.__version__}\n")


@pytest.mark.parametrize("arguments", [("--help",), ("train", "--help"), ("info", "--help")])
def test_help_goes_to_standard_output(arguments: tuple[str, ...]) -> None:
    done = run(*arguments)
    assert done.returncode == 0
    assert done.stderr == ""
    assert done.stdout.startswith("usage: tritter-accel")


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ((), "COMMAND"),
        (("trian",), "trian"),
        (("train", "more"), "more"),
        (("train", "--step", "5"), "--step"),
        (("train", "--steps"), "--steps"),
        (("info", "--steps", "5"), "--steps"),
    ],
)
def test_a_command_line_without_meaning_is_refused(arguments: tuple[str, ...], word: str) -> None:
    line = refusal(*arguments)
    assert word in line
    assert "--help" in line
