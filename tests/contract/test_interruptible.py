"""Ctrl-C stops a long call at once, and the package works afterwards."""

from __future__ import annotations

import os

import pytest

from .calls import LONG_CALLS
from .processes import run_python

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals are sent as POSIX does")

# 100 ms are promised; the rest is for a machine with other things to do.
CODE = """
    import os, signal, threading, time
    import numpy as np
    import tritter_accel as ta
    from tests.contract.calls import LONG_CALLS, digests

    call = LONG_CALLS[{name!r}]
    pressed = []

    def press() -> None:
        time.sleep(0.5)
        pressed.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    for _ in range({times}):
        thread = threading.Thread(target=press)
        thread.start()
        try:
            call()
        except KeyboardInterrupt:
            waited = time.monotonic() - pressed.pop()
            assert waited < 0.5, waited
        else:
            raise AssertionError("was not interrupted")
        thread.join()

    ones = np.ones(1000, dtype=np.float32)
    first = ta.GradientCompressor().compress(ones).data
    ta.set_num_threads(1)
    assert (ta.GradientCompressor().compress(ones).data == first).all()
    assert abs(ta.gradient_norm(np.ones(1_000_000, dtype=np.float32)) - 1000) < 1e-9
    print("worked")
"""


@pytest.mark.parametrize("threads", ["1", "2"])
@pytest.mark.parametrize("name", LONG_CALLS)
def test_an_interrupt_stops_the_call(name: str, threads: str) -> None:
    done = run_python(CODE.format(name=name, times=2), {"TRITTER_ACCEL_NUM_THREADS": threads})
    assert done.stdout.strip() == "worked"


def test_a_handler_of_the_user_runs_and_its_error_comes_out() -> None:
    code = """
        import signal
        from tests.contract.calls import LONG_CALLS

        def handler(*_):
            raise TimeoutError("from the handler")

        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        try:
            LONG_CALLS["compress"]()
        except TimeoutError as error:
            print(error)
    """
    assert run_python(code).stdout.strip() == "from the handler"


def test_a_handler_that_returns_does_not_stop_the_call() -> None:
    code = """
        import signal
        import numpy as np
        import tritter_accel as ta

        seen = []
        signal.signal(signal.SIGALRM, lambda *_: seen.append(1))
        signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
        gradients = np.ones(60_000, dtype=np.float32)
        compressed = ta.GradientCompressor().compress(gradients)
        signal.setitimer(signal.ITIMER_REAL, 0)
        assert len(compressed) == 6000 and seen, seen
        print("worked")
    """
    assert run_python(code).stdout.strip() == "worked"


def test_a_thread_that_computes_does_not_keep_the_process_from_ending() -> None:
    code = """
        import threading, time
        from tests.contract.calls import LONG_CALLS

        threading.Thread(target=LONG_CALLS["compress"], daemon=True).start()
        time.sleep(0.4)
        print("worked")
    """
    done = run_python(code, timeout=30)
    assert done.stdout.strip() == "worked"
    assert done.stderr == ""
