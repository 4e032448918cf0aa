"""A forked child computes: the threads it did not inherit are built anew."""

from __future__ import annotations

import os

import pytest

from .processes import run_python

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")

# Newer Pythons warn of any fork beside threads; the point here is that this one is safe.
PREPARATION = """
import os, sys, threading, time, warnings
import numpy as np
import tritter_accel as ta
from tests.contract.calls import ROTATING, digest, values

warnings.simplefilter("ignore", DeprecationWarning)
ta.set_num_threads(2)
long = values(1_000_003)
short = values(3001)

def compute():
    halves = ta.mixed_precision.convert_to_bf16(long, rounding="stochastic", seed=1)
    message = ROTATING.encode(long)
    back = ROTATING.decode(message)
    return digest([halves, ta.gradient_norm(long), ta.GradientCompressor().compress(short).data, message, back])

def child_agrees(expected):
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, compute().encode())
        os._exit(0)
    os.close(writer)
    deadline = time.monotonic() + 30
    while (ended := os.waitpid(child, os.WNOHANG))[0] == 0:
        if time.monotonic() > deadline:
            os.kill(child, 9)
            raise AssertionError("the child hangs")
        time.sleep(0.01)
    assert ended[1] == 0, ended
    with os.fdopen(reader) as told:
        assert told.read() == expected
"""


def run(code: str) -> None:
    done = run_python(PREPARATION + code + "\nprint('worked')")
    assert done.stdout.strip() == "worked"


def test_fork_after_the_pool_was_used() -> None:
    run("expected = compute(); child_agrees(expected); assert compute() == expected; child_agrees(expected)")


def test_fork_before_the_pool_was_used() -> None:
    run("child_agrees(compute())\n")
    run("""
child = os.fork()
if child == 0:
    compute()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
compute()
""")


def test_a_child_of_a_child() -> None:
    run("""
expected = compute()
child = os.fork()
if child == 0:
    assert compute() == expected
    child_agrees(expected)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
""")


def test_fork_while_another_thread_computes() -> None:
    run("""
expected = compute()
stop = threading.Event()
def go_on():
    while not stop.is_set():
        ta.mixed_precision.convert_to_bf16(long, rounding="stochastic", seed=2)
threads = [threading.Thread(target=go_on) for _ in range(2)]
[thread.start() for thread in threads]
for _ in range(10):
    child_agrees(expected)
stop.set()
[thread.join() for thread in threads]
assert compute() == expected
""")


def test_fork_while_another_thread_changes_the_number_of_threads() -> None:
    run("""
expected = compute()
stop = threading.Event()
def go_on():
    while not stop.is_set():
        ta.set_num_threads(1)
        ta.set_num_threads(2)
        ta.gradient_norm(long)
thread = threading.Thread(target=go_on)
thread.start()
for _ in range(10):
    child_agrees(expected)
stop.set()
thread.join()
""")


def test_a_child_may_set_its_own_threads() -> None:
    run("""
expected = compute()
child = os.fork()
if child == 0:
    for threads in (1, 3, 2):
        ta.set_num_threads(threads)
        assert compute() == expected
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert ta.get_num_threads() == 2
""")


def test_worker_processes_by_fork() -> None:
    run("""
import multiprocessing
expected = compute()
def work(_):
    return compute()
context = multiprocessing.get_context("fork")
with context.Pool(2) as pool:
    assert pool.map(work, range(4)) == [expected] * 4
assert compute() == expected
""")
