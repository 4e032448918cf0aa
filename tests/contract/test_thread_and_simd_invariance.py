"""The same bits at every number of threads and every SIMD level, and the variables that set them."""

from __future__ import annotations

import json
import os
import sys

import pytest

import tritter_accel as ta
from tests.thread_count import thread_count

from .calls import digests
from .processes import run_python

DIGESTS = """
    import json
    import tritter_accel as ta
    from tests.contract.calls import digests
    print(json.dumps([ta.simd_level(), ta.get_num_threads(), digests()]))
"""
CALLS_ON_ONE_THREAD = """
    import time
    from pathlib import Path
    import tritter_accel as ta
    from tests.contract.calls import ARRAY_ARGUMENTS, large_calls

    def named(task: Path) -> bool:
        try:
            return (task / "comm").read_text().startswith("tritter-accel")
        except OSError:  # it ended
            return False

    def threads() -> int:
        return sum(map(named, Path("/proc/self/task").iterdir()))

    calls = large_calls()
    for row in ARRAY_ARGUMENTS:
        # Another number ends the pool, and the first call that needs one starts it.
        ta.set_num_threads(1)
        while threads():
            time.sleep(0.001)
        ta.set_num_threads(2)
        calls[row.id]()
        # A thread has its name a little after it was started.
        end = time.monotonic() + 2
        while threads() < 2 and time.monotonic() < end:
            time.sleep(0.001)
        if threads() < 2:
            print(row.id)
"""
LEVELS = ["scalar", "avx2", "avx512"]


@pytest.fixture(scope="module")
def expected() -> dict[str, str]:
    with thread_count(1):
        return digests()


@pytest.mark.parametrize("threads", [2, 3])
def test_bits_do_not_depend_on_the_threads(threads: int, expected: dict[str, str]) -> None:
    with thread_count(threads):
        assert digests() == expected


@pytest.mark.skipif(sys.platform != "linux", reason="reads the names of threads in /proc")
def test_the_threads_take_part_in_these_calls() -> None:
    """Without them the test above would compare one thread with itself."""
    assert run_python(CALLS_ON_ONE_THREAD).stdout.split() == []


@pytest.mark.parametrize("level", LEVELS)
def test_bits_do_not_depend_on_the_simd_level(level: str, expected: dict[str, str]) -> None:
    done = run_python(DIGESTS, {"TRITTER_ACCEL_SIMD": level, "TRITTER_ACCEL_NUM_THREADS": "2"})
    used, threads, found = json.loads(done.stdout)
    assert threads == 2
    assert found == expected
    # The variable is a cap: a CPU without that level uses the widest it has.
    assert LEVELS.index(used) <= LEVELS.index(level)


def test_without_a_cap_the_widest_level_is_used() -> None:
    widest = run_python("import tritter_accel as ta; print(ta.simd_level())").stdout.strip()
    capped = run_python(
        "import tritter_accel as ta; print(ta.simd_level())", {"TRITTER_ACCEL_SIMD": LEVELS[-1]}
    ).stdout.strip()
    assert widest == capped


@pytest.mark.parametrize("word", ["avx3", "AVX2", " scalar", "0"])
def test_a_misspelt_level_is_told_at_import(word: str) -> None:
    done = run_python("import tritter_accel", {"TRITTER_ACCEL_SIMD": word}, check=False)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("tritter_accel.exceptions.ArgumentError: argument TRITTER_ACCEL_SIMD: ")
    assert "scalar, avx2 or avx512" in last


def test_an_empty_level_is_none() -> None:
    run_python("import tritter_accel", {"TRITTER_ACCEL_SIMD": ""})


CORES = os.cpu_count() or 1


@pytest.mark.parametrize(
    ("environment", "threads"),
    [
        ({"TRITTER_ACCEL_NUM_THREADS": "3", "RAYON_NUM_THREADS": "4", "OMP_NUM_THREADS": "5"}, 3),
        ({"RAYON_NUM_THREADS": "4", "OMP_NUM_THREADS": "5"}, 4),
        ({"TRITTER_ACCEL_NUM_THREADS": "3", "OMP_NUM_THREADS": "5"}, 3),
        ({"OMP_NUM_THREADS": "5"}, 5),
        ({"OMP_NUM_THREADS": "5,2"}, 5),
        ({"TRITTER_ACCEL_NUM_THREADS": "0", "RAYON_NUM_THREADS": "4"}, 4),
        ({"TRITTER_ACCEL_NUM_THREADS": "many", "RAYON_NUM_THREADS": ""}, None),
        ({"TRITTER_ACCEL_NUM_THREADS": "-2"}, None),
        ({"TRITTER_ACCEL_NUM_THREADS": "1000000"}, 512),
        ({}, None),
    ],
)
def test_the_variables_for_threads_and_their_order(environment: dict[str, str], threads: int | None) -> None:
    code = "import tritter_accel as ta; print(ta.get_num_threads())"
    used = int(run_python(code, environment).stdout)
    # A container's quota may leave fewer cores than the machine has.
    assert 1 <= used <= CORES if threads is None else used == threads


def test_set_num_threads_goes_before_the_variables() -> None:
    code = "import tritter_accel as ta; ta.set_num_threads(2); print(ta.get_num_threads())"
    assert run_python(code, {"TRITTER_ACCEL_NUM_THREADS": "3"}).stdout.strip() == "2"


def test_more_threads_than_there_can_be_are_clamped() -> None:
    with thread_count(1):
        ta.set_num_threads(10**6)
        assert ta.get_num_threads() == 512
