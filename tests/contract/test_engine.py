"""The promises of the boundary, held for the training engine."""

from __future__ import annotations

import copy
import os
import pickle
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import tritter_accel as ta
from tests.thread_count import thread_count
from tritter_accel.train import Trainer

from .calls import digest
from .engine_calls import CLASSIFIER, ENGINE_ARGUMENTS, ENGINE_OBJECTS, RUN, Classifier, engine_results
from .processes import run_python
from .test_lock_released import ENOUGH, another_thread, progress

# Arguments

odd_arguments = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([0, 1, 2, 3, 4, 12, -1, -2, 2**40, 2**62, 2**63, 2**64, -(2**63), 10**400]),
    st.sampled_from([0.0, 0.5, -1.0, 1e-300, 1e300, float("nan"), float("inf"), -float("inf")]),
    st.sampled_from([np.float32(0.5), np.int64(-3), np.uint8(2), np.bool_(True), np.array(1.5, np.float32)]),
    st.sampled_from(["", "a", "x", "\x00", "normal", b"", b"ab", 1j, object(), Exception, np.ndarray, len]),
    st.sampled_from([(), [], {}, {1}, {"a": 1}, {1: 2}, ("a",), [None], [[1]], (1.5,)]),
    st.sampled_from(
        [(3,), (4, 3), (3, 4), [1, 0], (0, 0), (0, 1), (-1, 2), (12,), (2, 2, 3), (2**40, 2**40)]
    ),
    st.sampled_from([ta.BATCH, (ta.BATCH,), (ta.BATCH, ta.BATCH), (ta.BATCH, 3), (3, ta.BATCH)]),
    st.sampled_from([CLASSIFIER.loss, CLASSIFIER.probabilities, CLASSIFIER.entry, CLASSIFIER.network, RUN]),
    st.sampled_from([CLASSIFIER.parameters, CLASSIFIER.parameters * float("nan"), ta.init.zeros()]),
    st.sampled_from(
        [np.ones(3, np.float32), np.ones(0, np.float32), np.ones(3), np.arange(20), np.arange(3)]
    ),
)


@pytest.mark.parametrize("name", ENGINE_ARGUMENTS)
@settings(derandomize=True, deadline=None, max_examples=80)
@given(odd=odd_arguments)
def test_odd_arguments_end_in_a_result_or_an_error_of_the_package(name: str, odd: Any) -> None:
    message = ""
    try:
        ENGINE_ARGUMENTS[name](odd)
    except ta.InternalError:
        raise
    except ta.TrainingError as error:
        message = str(error)
    except TypeError as error:
        # Of the binding itself: an object of another class than the one that is asked for.
        assert "is not an instance of" in str(error)  # noqa: PT017 - any result is right but another error
    assert "\n" not in message


@pytest.mark.parametrize(
    "call",
    [
        lambda: ta.Tape(1),  # type: ignore[call-arg]
        lambda: ta.Tape().input("x"),  # type: ignore[call-arg]
        lambda: CLASSIFIER.loss.tanh(1),  # type: ignore[call-arg]
        lambda: CLASSIFIER.network.parameters(1),  # type: ignore[call-arg]
        lambda: CLASSIFIER.entry.run(),  # type: ignore[call-arg]
        lambda: CLASSIFIER.trainer().run(1),  # type: ignore[call-arg]
        lambda: Trainer(CLASSIFIER.entry, CLASSIFIER.parameters, CLASSIFIER.feeds),  # type: ignore[call-arg]
        lambda: ta.random.SplitMix64(),  # type: ignore[call-arg]
    ],
)
def test_a_wrong_number_of_arguments_is_a_type_error(call: Callable[[], Any]) -> None:
    with pytest.raises(TypeError, match="argument"):
        call()


@pytest.mark.parametrize("kind", [ta.Value, ta.Network, ta.Entry, ta.Run])
def test_what_only_calls_make_has_no_constructor(kind: Any) -> None:
    with pytest.raises(TypeError):
        kind()


# Pickling


@pytest.mark.parametrize("name", ENGINE_OBJECTS)
@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_twins_by_pickle_are_equal(name: str, protocol: int) -> None:
    make, seen = ENGINE_OBJECTS[name]
    twin = pickle.loads(pickle.dumps(make(), protocol))
    assert type(twin) is type(make())
    assert seen(twin) == seen(make())


@pytest.mark.parametrize("name", ENGINE_OBJECTS)
@pytest.mark.parametrize("twin_of", [copy.copy, copy.deepcopy])
def test_twins_by_copy_are_equal_and_live_on_their_own(name: str, twin_of: Any) -> None:
    make, seen = ENGINE_OBJECTS[name]
    original = make()
    twin = twin_of(original)
    assert seen(twin) == seen(make())
    assert seen(original) == seen(make())


def test_a_pickled_run_gives_the_same_bits_in_another_process() -> None:
    held = pickle.dumps((CLASSIFIER.entry, CLASSIFIER.parameters, CLASSIFIER.feeds))
    code = f"""
        import pickle
        from tests.contract.calls import digest
        entry, parameters, feeds = pickle.loads(bytes.fromhex("{held.hex()}"))
        run = entry.run(parameters, feeds)
        print(digest([run.loss, *(run[value] for value in entry.observed), run.backward(entry.loss).flat()]))
    """
    assert run_python(code).stdout.strip() == digest(CLASSIFIER.outcome())


@pytest.mark.parametrize(
    "make",
    [lambda: CLASSIFIER.tape, ta.Tape, lambda: RUN, CLASSIFIER.trainer, lambda: ta.Tape().input("x", (1,))],
)
@pytest.mark.parametrize("twin_of", [pickle.dumps, copy.copy, copy.deepcopy])
def test_what_lives_refuses_to_be_copied(make: Callable[[], Any], twin_of: Callable[[Any], Any]) -> None:
    with pytest.raises(ta.TapeError, match="pickle"):
        twin_of(make())


@pytest.mark.parametrize("name", ["Network", "Entry", "Value"])
def test_pickles_that_were_damaged_are_refused(name: str) -> None:
    held = bytearray(pickle.dumps(ENGINE_OBJECTS[name][0](), 2))
    for place in range(40, len(held), max(1, len(held) // 400)):
        broken = bytes(held[:place]) + bytes([held[place] ^ 0x55]) + bytes(held[place + 1 :])
        try:
            repr(pickle.loads(broken))
        except ta.InternalError:
            raise
        except Exception:  # noqa: BLE001, S110, PERF203, RUF100 - pickle's own errors are many
            pass


# Views


def views() -> list[NDArray[Any]]:
    table = CLASSIFIER.parameters
    gradient = RUN.backward()
    return [
        table.flat(),
        *table.values(),
        table["mlp.layer0.weight"],
        gradient.flat(),
        *dict(gradient.items()).values(),
    ]


def test_nothing_makes_a_view_of_parameters_writable() -> None:
    before = CLASSIFIER.parameters.flat().tobytes()
    for view in views():
        with pytest.raises(ValueError, match="read-only"):
            view[...] = 0
        for part in (view, view[:1], view.reshape(-1), view.T, view.view(np.uint32)):
            with pytest.raises(ValueError, match="WRITEABLE"):
                part.setflags(write=True)
            assert memoryview(part.data).readonly
    assert CLASSIFIER.parameters.flat().tobytes() == before


def test_results_of_a_run_and_a_trainer_are_the_callers_own() -> None:
    RUN[CLASSIFIER.probabilities][...] = 7
    assert RUN[CLASSIFIER.probabilities].max() <= 1
    trainer = CLASSIFIER.trainer()
    trainer.run(1, 0.1)[...] = 7
    table = trainer.parameters
    before = table.flat().tobytes()
    trainer.run(1, 0.1)
    assert table.flat().tobytes() == before


# Threads, SIMD levels, fork


@pytest.fixture(scope="module")
def expected() -> str:
    with thread_count(1):
        return digest(list(engine_results().items()))


@pytest.mark.parametrize("threads", [2, 3])
def test_bits_do_not_depend_on_the_threads(threads: int, expected: str) -> None:
    with thread_count(threads):
        assert digest(list(engine_results().items())) == expected


@pytest.mark.parametrize("level", ["scalar", "avx2", "avx512"])
def test_bits_do_not_depend_on_the_simd_level(level: str, expected: str) -> None:
    code = """
        from tests.contract.calls import digest
        from tests.contract.engine_calls import engine_results
        print(digest(list(engine_results().items())))
    """
    variables = {"TRITTER_ACCEL_SIMD": level, "TRITTER_ACCEL_NUM_THREADS": "2"}
    assert run_python(code, variables).stdout.strip() == expected


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_fork_after_training() -> None:
    code = """
        import os, warnings
        import tritter_accel as ta
        from tests.contract.calls import digest
        from tests.contract.engine_calls import Classifier, engine_results

        warnings.simplefilter("ignore", DeprecationWarning)
        ta.set_num_threads(2)
        expected = digest(list(engine_results().items()))
        trainer = Classifier(64, 128, 512).trainer(batch_size=256, shards=8)
        trainer.run(3, 0.1)
        child = os.fork()
        if child == 0:
            assert trainer.step == 3
            assert digest(list(engine_results().items())) == expected
            trainer.run(2, 0.1)
            os._exit(0 if trainer.step == 5 else 3)
        assert os.waitpid(child, 0)[1] == 0
        trainer.run(2, 0.1)
        assert digest(list(engine_results().items())) == expected
        print("worked")
    """
    assert run_python(code).stdout.strip() == "worked"


# The interpreter lock and Ctrl-C


LONG = Classifier(128, 256, 4096)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    "call",
    [LONG.run, lambda: LONG.run().backward(), lambda: LONG.trainer(batch_size=1024, shards=8).run(5, 0.01)],
    ids=["run", "backward", "trainer"],
)
def test_another_thread_gets_on_during_a_call(call: Callable[[], Any], threads: int) -> None:
    with another_thread() as clock, thread_count(threads):
        assert progress(clock, call) >= ENOUGH


def test_a_trainer_that_runs_says_so_to_other_threads() -> None:
    trainer = LONG.trainer(batch_size=1024, shards=8)
    thread = threading.Thread(target=trainer.run, args=(20, 0.01))
    thread.start()
    refused = 0
    while thread.is_alive():
        try:
            trainer.step  # noqa: B018
        except ta.TapeError:
            refused += 1
    thread.join()
    assert refused
    assert trainer.step == 20


@pytest.mark.skipif(os.name != "posix", reason="signals are sent as POSIX does")
@pytest.mark.parametrize("threads", ["1", "2"])
@pytest.mark.parametrize("small", [True, False])
def test_an_interrupt_stops_a_trainer_at_a_whole_step(threads: str, small: bool) -> None:
    code = f"""
        import os, signal, threading, time
        from tests.contract.engine_calls import Classifier

        network = Classifier(7, 11, 40) if {small} else Classifier(128, 256, 2048)
        options = dict(batch_size=32, shards=4) if {small} else dict(batch_size=2000, shards=8)
        trainer = network.trainer(**options)
        pressed = []

        def press():
            time.sleep(0.4)
            pressed.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGINT)

        thread = threading.Thread(target=press)
        thread.start()
        try:
            trainer.run(100_000_000, 1e-4)
        except KeyboardInterrupt:
            waited = time.monotonic() - pressed.pop()
            assert waited < 0.5, waited
        else:
            raise AssertionError("was not interrupted")
        thread.join()
        made = trainer.step
        assert made > 0
        twin = network.trainer(**options)
        twin.run(made, 1e-4)
        assert twin.parameters == trainer.parameters
        assert (twin.run(3, 1e-4) == trainer.run(3, 1e-4)).all()
        assert twin.parameters == trainer.parameters
        print("worked")
    """
    done = run_python(code, {"TRITTER_ACCEL_NUM_THREADS": threads})
    assert done.stdout.strip() == "worked"
