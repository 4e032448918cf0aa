"""Long calls leave the interpreter to other threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from tests.thread_count import thread_count

from .calls import ARRAY_ARGUMENTS, MESSAGE_ARGUMENTS, ArrayArgument, MessageArgument, values

TICK = 0.0001  # the shortest call here takes some milliseconds, and lets through 24 or more at its best
ENOUGH = 8  # a call that keeps the lock lets through two at most: one before it starts, one when it ends
ATTEMPTS = 100


class Clock:
    """Another thread of Python: counts up as often as it gets the interpreter."""

    ticks = 0


@contextmanager
def another_thread() -> Iterator[Clock]:
    clock, stop = Clock(), threading.Event()

    def count() -> None:
        while not stop.is_set():
            clock.ticks += 1
            time.sleep(TICK)

    thread = threading.Thread(target=count)
    thread.start()
    try:
        yield clock
    finally:
        stop.set()
        thread.join()


def progress(clock: Clock, call: Callable[[], Any]) -> int:
    """The most that another thread got done during one call."""
    best = 0
    for _ in range(ATTEMPTS):
        before = clock.ticks
        call()
        best = max(best, clock.ticks - before)
        if best >= ENOUGH:
            break
    return best


@pytest.mark.parametrize("row", ARRAY_ARGUMENTS, ids=str)
@pytest.mark.parametrize("threads", [1, 2])
def test_another_thread_gets_on_during_a_call(row: ArrayArgument, threads: int) -> None:
    long = values(30_000 if row.dense else 20_000_000, row.dtype)
    with another_thread() as clock, thread_count(threads):
        assert progress(clock, lambda: row.call(long)) >= ENOUGH


@pytest.mark.parametrize("row", MESSAGE_ARGUMENTS, ids=str)
def test_another_thread_gets_on_while_a_message_is_read(row: MessageArgument) -> None:
    long = row.message(20_000_000)
    with another_thread() as clock, thread_count(1):
        assert progress(clock, lambda: row.call(long)) >= ENOUGH


def test_the_measure_itself_sees_a_call_that_keeps_the_lock() -> None:
    """Sorting a list never lets go of the interpreter."""
    numbers = np.random.default_rng(0).random(300_000).tolist()
    with another_thread() as clock:
        gained = []
        for _ in range(5):
            before = clock.ticks
            sorted(numbers)
            gained.append(clock.ticks - before)
    assert min(gained) < ENOUGH
