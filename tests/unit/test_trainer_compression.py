"""A trainer whose shards send their gradients as messages: what arrives is what it steps by, and nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import tritter_accel as ta
from tests.thread_count import thread_count

ROWS, SHARDS, RATE = 24, 4, 0.1
RNG = np.random.default_rng(5)
DATA = {
    "x": RNG.standard_normal((ROWS, 30)).astype(np.float32),
    "y": RNG.standard_normal((ROWS, 20)).astype(np.float32),
}


def regression() -> tuple[ta.Entry, ta.Value, ta.Parameters]:
    tape = ta.Tape()
    layer = ta.nn.Linear(tape, "layer", 30, 20, init=ta.init.xavier(seed=3))
    error = layer(tape.input("x", shape=(ta.BATCH, 30))) - tape.input("y", shape=(ta.BATCH, 20))
    loss = (error * error).mean()
    network = tape.seal()
    return network.entry(loss), loss, network.parameters()


def trainer(**options: Any) -> ta.train.Trainer:
    entry, _, parameters = regression()
    return ta.train.Trainer(entry, parameters, DATA, batch_size=ROWS, shards=SHARDS, **options)


def compressor(**options: Any) -> ta.GradientCompressor:
    return ta.GradientCompressor(ta.TrainingConfig(0.25, 9, **options))


def by_hand(codec: ta.GradientCompressor, steps: int, *, feedback: bool) -> NDArray[np.float32]:
    """The parameters after some steps, every message made and read here."""
    entry, loss, parameters = regression()
    flat = parameters.flat().copy()
    residuals = np.zeros((SHARDS, flat.size), np.float32)
    rows = ROWS // SHARDS
    for step in range(steps):
        arrived = np.zeros_like(flat)
        for shard in range(SHARDS):
            part = {name: values[shard * rows : (shard + 1) * rows] for name, values in DATA.items()}
            gradient = entry.run(parameters, part).backward(loss).flat() * np.float32(rows)
            if feedback:
                gradient = gradient + residuals[shard]
            decoded = codec.decode(codec.encode(gradient, step=step, slot=shard))
            residuals[shard] = gradient - decoded
            arrived += decoded
        flat -= np.float32(RATE) * (arrived / np.float32(ROWS))
        sizes = np.cumsum([array.size for array in parameters.values()])[:-1]
        pieces = np.split(flat, sizes)
        parameters = ta.Parameters(
            {
                name: piece.reshape(array.shape)
                for (name, array), piece in zip(parameters.items(), pieces, strict=True)
            }
        )
    return flat


@pytest.mark.parametrize("feedback", [False, True])
@pytest.mark.parametrize("projection", ["none", "dense", "hadamard"])
def test_steps_are_those_of_messages_made_by_hand(projection: str, feedback: bool) -> None:
    """Without quantisation, since a digit on the edge would make a step of a rounding."""
    codec = compressor(projection=projection, scaling="contractive")
    trained = trainer(compressor=codec, error_feedback=feedback)
    trained.run(6, RATE)
    np.testing.assert_allclose(
        trained.parameters.flat(), by_hand(codec, 6, feedback=feedback), rtol=0, atol=2e-5
    )


@pytest.mark.parametrize("projection", ["none", "dense", "hadamard", "topk"])
@pytest.mark.parametrize("quantize", ["none", "bfloat16", "ternary", "sign", "levels2", "levels4"])
def test_bits_do_not_depend_on_threads_and_bytes_are_those_of_the_messages(
    projection: str, quantize: str
) -> None:
    codec = compressor(projection=projection, scaling="contractive", quantize=quantize)
    found = []
    for threads in (1, 2, 3):
        with thread_count(threads):
            trained = trainer(compressor=codec, error_feedback=True)
            losses = trained.run(5, RATE)
        found.append((losses.tobytes(), trained.parameters.flat().tobytes()))
        assert trained.bytes_sent == 5 * SHARDS * codec.message_bytes(620)
    assert found[0] == found[1] == found[2]


def test_sending_everything_changes_no_bit() -> None:
    plain, sent = trainer(), trainer(compressor=compressor(projection="none"))
    assert plain.run(5, RATE).tobytes() == sent.run(5, RATE).tobytes()
    assert plain.parameters.flat().tobytes() == sent.parameters.flat().tobytes()
    assert (plain.bytes_sent, sent.bytes_sent) == (0, 5 * SHARDS * (68 + 4 * 620))


def test_feedback_makes_up_for_what_a_thin_message_loses() -> None:
    codec = compressor(projection="topk", quantize="ternary", quantizer_scale="least_squares")
    with_it, without = trainer(compressor=codec, error_feedback=True), trainer(compressor=codec)
    full = trainer()
    losses = [float(one.run(400, RATE)[-1]) for one in (full, with_it, without)]
    assert losses[0] < losses[1] < losses[2]
    assert losses[1] - losses[0] < 0.25 * (losses[2] - losses[0])


def test_feedback_of_an_unbiased_compressor_or_of_none_is_refused() -> None:
    for options in (
        {"projection": "hadamard", "scaling": "unbiased"},
        {"projection": "dense", "scaling": "unbiased"},
        {"projection": "none", "quantize": "sign", "quantizer_scale": "unbiased"},
    ):
        trainer(compressor=compressor(**options))
        with pytest.raises(ta.ArgumentError, match="feeding it back diverges; choose contractive"):
            trainer(compressor=compressor(**options), error_feedback=True)
    with pytest.raises(ta.ArgumentError, match="pass compressor="):
        trainer(error_feedback=True)
    with pytest.raises(ta.ArgumentTypeError, match="error_feedback"):
        trainer(compressor=compressor(), error_feedback=1)
    with pytest.raises(ta.ArgumentTypeError, match="compressor"):
        trainer(compressor=ta.TrainingConfig())


@pytest.mark.parametrize("feedback", [False, True])
def test_a_step_that_is_not_finite_is_refused_and_changes_nothing(feedback: bool) -> None:
    codec = compressor(projection="hadamard", quantize="sign")
    trained = trainer(compressor=codec, error_feedback=feedback)
    trained.run(2, RATE)
    before = trained.parameters.flat().tobytes(), trained.step, trained.bytes_sent
    with pytest.raises(ta.NonFiniteError):
        trained.run(1000, 1e30)
    assert trained.step > before[1]
    entry, _, parameters = regression()
    poisoned = {**DATA, "x": DATA["x"].copy()}
    poisoned["x"][3, 4] = np.nan
    refused = ta.train.Trainer(
        entry, parameters, poisoned, batch_size=ROWS, shards=SHARDS, compressor=codec, error_feedback=feedback
    )
    with pytest.raises(ta.NonFiniteError):
        refused.run(1, RATE)
    assert refused.step == 0
    assert refused.bytes_sent == 0
    assert refused.parameters.flat().tobytes() == parameters.flat().tobytes()
