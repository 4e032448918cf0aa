"""The command, in a process of its own as a shell starts it, or inside this one where only its words are looked at.

A process takes half a second to start, and there are hundreds of runs here: those that need no process of their own
call the same `main`. An exception that it lets out fails the test.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import tritter_accel as ta
from tests.thread_count import thread_count
from tritter_accel.cli import main

COMMAND = [sys.executable, "-m", "tritter_accel.cli"]
VARIABLES = ("TRITTER_ACCEL_NUM_THREADS", "RAYON_NUM_THREADS", "OMP_NUM_THREADS", "TRITTER_ACCEL_SIMD")

Done = subprocess.CompletedProcess[str]


def environment(variables: Mapping[str, str] | None = None) -> dict[str, str]:
    inherited = {key: value for key, value in os.environ.items() if key not in VARIABLES}
    return {**inherited, "PYTHONIOENCODING": "utf-8", "COLUMNS": "80", **(variables or {})}


def run(*arguments: object, variables: Mapping[str, str] | None = None) -> Done:
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=False,
        env=environment(variables),
    )


def call(*arguments: object) -> Done:
    """The same inside this process."""
    given = [str(argument) for argument in arguments]
    out, errors = io.StringIO(), io.StringIO()
    with thread_count(ta.get_num_threads()), redirect_stdout(out), redirect_stderr(errors):
        try:
            status: Any = main(given)
        except SystemExit as exit_:
            status = exit_.code
    return subprocess.CompletedProcess(given, status, out.getvalue(), errors.getvalue())


def train(*arguments: object, variables: Mapping[str, str] | None = None) -> Done:
    """A run that must end well, and say nothing where errors are said: a process if it needs variables."""
    done = (
        run("train", *arguments, variables=variables) if variables is not None else call("train", *arguments)
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done


def record(folder: Path, *arguments: object, variables: Mapping[str, str] | None = None) -> dict[str, Any]:
    """What a run writes with ``--json``."""
    path = folder / "record.json"
    train("--json", path, *arguments, variables=variables)
    read: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return read


def refusal(*arguments: object, variables: Mapping[str, str] | None = None) -> str:
    """The one line that a run with bad input ends in, with exit status 2 and before any training."""
    done = run(*arguments, variables=variables) if variables is not None else call(*arguments)
    assert done.returncode == 2, (done.returncode, done.stderr)
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("tritter-accel")
    assert ": error: " in lines[0]
    assert "step " not in done.stdout
    return lines[0]


def sampled(done: Done) -> list[str]:
    lines = done.stdout.splitlines()
    return lines[lines.index("sampled names:") + 1 :]
