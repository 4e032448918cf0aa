"""Running a piece of a test at a given thread count, and leaving the count as it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import tritter_accel as ta


@contextmanager
def thread_count(threads: int) -> Iterator[None]:
    """`threads` inside the block, the former count after it."""
    before = ta.get_num_threads()
    ta.set_num_threads(threads)
    try:
        yield
    finally:
        ta.set_num_threads(before)
