"""Pieces of Python in processes of their own, for what is decided once in a process or ends it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

ROOT = Path(__file__).parents[2]
VARIABLES = ("TRITTER_ACCEL_NUM_THREADS", "RAYON_NUM_THREADS", "OMP_NUM_THREADS", "TRITTER_ACCEL_SIMD")


def run_python(
    code: str, environment: dict[str, str] | None = None, *, timeout: float = 120, check: bool = True
) -> subprocess.CompletedProcess[str]:
    """Runs `code` from the root of the repository, with those of the package's variables that are given."""
    inherited = {key: value for key, value in os.environ.items() if key not in VARIABLES}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", dedent(code)],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        cwd=ROOT,
        env={**inherited, "PYTHONPATH": str(ROOT), **(environment or {})},
    )
    if check:
        assert done.returncode == 0, done.stderr
    return done
