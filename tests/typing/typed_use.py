"""The public API as a typed program uses it. Checked by mypy --strict, never run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, assert_type

import numpy as np
from numpy.typing import NDArray

import tritter_accel as ta
from tritter_accel import (
    cli,
    compression,
    corpus,
    engine,
    exceptions,
    init,
    mixed_precision,
    nn,
    random,
    train,
    wire,
)

Floats = NDArray[np.float32]


def process(threads: int) -> None:
    ta.set_num_threads(threads)
    assert_type(ta.get_num_threads(), int)
    assert_type(ta.simd_level(), str)
    assert_type(ta.__version__, str)


def compressed(gradients: Floats) -> Floats:
    config = ta.TrainingConfig(
        0.1, 42, None, projection="dense", scaling="unbiased", quantizer_scale="unbiased"
    )
    config = config.with_compression_ratio(0.5).with_seed(np.int64(7)).with_gradient_clipping(1.0)
    assert_type(config.gradient_clipping, float | None)
    assert_type(config.scaling, Literal["reference", "unbiased", "contractive"])
    assert_type(config == config, bool)
    compressor = ta.GradientCompressor(config)
    assert_type(compressor.config, ta.TrainingConfig)
    assert_type(compressor.compressed_dim(100, 0.1), int)
    small = compressor.compress(gradients, 0.25, step=1, slot=2, out=np.empty(64, dtype=np.float32))
    assert_type(small, ta.CompressedGradient)
    assert_type((small.data, small.ratio, small.seed, len(small)), tuple[Floats, float, int, int])
    trits = compressor.compress_ternary(gradients, step=1)
    assert_type(trits, ta.TernaryCompressedGradient)
    assert_type((trits.data, trits.scale), tuple[NDArray[np.int8], float])
    assert_type(trits.compression_ratio(), float)
    assert_type(compressor.decompress_ternary(trits), Floats)
    many = compressor.compress_many(
        gradients[np.newaxis], 0.25, step=1, slot=2, out=np.empty((1, 64), np.float32)
    )
    assert_type(many, list[ta.CompressedGradient])
    assert_type(compressor.decompress_many(many, out=gradients[np.newaxis]), Floats)
    plan = compressor.plan(gradients.size, 0.25, step=np.int64(1), slot=2, max_bytes=1 << 20)
    assert_type(plan, ta.ProjectionPlan)
    assert_type(
        (plan.nbytes, plan.original_dim, plan.compressed_dim, plan.max_bytes), tuple[int, int, int, int]
    )
    assert_type((plan.seed, plan.step, plan.slot, plan.ratio), tuple[int, int, int, float])
    plan = compression.ProjectionPlan(plan.compressor, 100)
    assert_type(plan.decompress(plan.compress(gradients)), Floats)
    accumulator = compression.GradientAccumulator(gradients.size)
    accumulator.accumulate(gradients, 2.0)
    assert_type((accumulator.count, accumulator.mass, accumulator.size), tuple[int, float, int])
    assert_type(accumulator.finite, bool)
    mean = accumulator.get_and_reset()
    assert_type(ta.gradient_norm(mean), float)
    assert_type(ta.clip_gradients(mean, 1.0, out=gradients), Floats)
    assert_type(ta.clip_gradients_(mean, 1.0), float)
    return compressor.decompress(small)


def sent(gradients: Floats, received: bytearray) -> Floats:
    config = ta.TrainingConfig(
        projection="hadamard", quantize="levels4", quantizer_scale="unbiased", quantizer_block=np.int64(128)
    )
    assert_type(config.projection, Literal["dense", "hadamard", "topk", "none"])
    assert_type(config.quantize, Literal["none", "bfloat16", "ternary", "sign", "levels2", "levels4"])
    assert_type(config.quantizer_scale, Literal["reference", "least_squares", "unbiased"])
    assert_type(config.quantizer_block, int | None)
    compressor = ta.GradientCompressor(config)
    message = compressor.encode(gradients, 0.5, step=1, slot=2)
    assert_type(message, wire.Message)
    assert_type((message.ratio, message.seed, message.quantizer_block), tuple[float | None, int, int | None])
    assert_type(message.to_bytes(), bytes)
    assert_type(compressor.message_bytes(gradients.size, 0.5), int)
    out = np.empty(compressor.message_bytes(gradients.size, 0.5), np.uint8)
    assert_type(compressor.encode(gradients, 0.5, out=out), NDArray[np.uint8])
    parsed = wire.parse(memoryview(received))
    assert_type(parsed, ta.CompressedGradient | ta.TernaryCompressedGradient | wire.Message)
    if isinstance(parsed, wire.Message):
        assert_type(parsed.projection, Literal["none", "dense", "hadamard", "topk"])
    elif isinstance(parsed, ta.TernaryCompressedGradient):
        assert_type((parsed.ratio, parsed.to_bytes()), tuple[float | None, bytes])
    else:
        assert_type((parsed.projection, parsed.to_bytes()), tuple[Literal["dense", "hadamard"], bytes])
    assert_type(wire.Message.from_bytes(received), wire.Message)
    assert_type(ta.CompressedGradient.from_bytes(received), ta.CompressedGradient)
    assert_type(ta.TernaryCompressedGradient.from_bytes(out), ta.TernaryCompressedGradient)
    assert_type(compressor.decode(out), Floats)
    return compressor.decode(message, out=gradients)


def narrowed(values: Floats) -> Floats:
    bits = mixed_precision.convert_to_bf16(values, rounding="stochastic", seed=1, step=2)
    assert_type(bits, NDArray[np.uint16])
    assert_type(mixed_precision.as_bfloat16(bits), NDArray[Any])
    assert_type(mixed_precision.f32_to_bf16(1.0), int)
    assert_type(mixed_precision.bf16_to_f32(16256), float)
    assert_type(mixed_precision.has_nan_or_inf(values), bool)
    both = mixed_precision.convert_to_bf16_with_norm(values, rounding="nearest_even", out=bits)
    assert_type(both, tuple[NDArray[np.uint16], float])
    mixed_precision.safe_clip(values, -1.0, 1)
    assert_type(mixed_precision.safe_clip(values, -1.0, 1, out=np.empty_like(values)), Floats)
    scaler = mixed_precision.LossScaler(65536.0, growth_interval=100, min_scale=1.0)
    assert_type(scaler.scale_loss(0.5), float)
    scaler.unscale_gradients(values)
    assert_type(scaler.unscale_gradients(values, out=np.empty_like(values)), Floats)
    assert_type(scaler.unscale_and_check(values), bool)
    assert_type(scaler.unscale_and_check(values, out=np.empty_like(values)), bool)
    scaler.update(scaler.check_overflow(values))
    scaler.load_state_dict(scaler.state_dict())
    return mixed_precision.convert_from_bf16(bits)


def recorded() -> tuple[engine.Network, engine.Value, engine.Value]:
    tape = ta.Tape()
    initializers: list[init.Initializer] = [
        init.normal(1),
        init.normal(1, 0.5),
        init.uniform(2, 0.1),
        init.xavier(3),
        init.kaiming(4),
        init.zeros(),
        init.constant(1.0),
    ]
    table = tape.parameter("table", initializers[0], (27, 10))
    contexts = tape.selection("contexts", vocabulary=27, shape=(ta.BATCH, 3))
    weights = tape.input("weights", shape=(ta.BATCH,))
    targets = tape.selection("targets", 27, ta.BATCH)
    fixed = tape.constant(np.ones((1, 27), dtype=np.float32))
    assert_type(table.shape, tuple[int | ta.BatchAxis, ...])
    rows = table.gather(contexts).reshape(ta.BATCH, 30)
    linear = nn.Linear(tape, "linear", 30, 27, init=initializers[3], bias=False)
    mlp = nn.Mlp(
        tape, "mlp", [30, 100, 27], activation=lambda value: value.tanh().relu(), init=initializers[3]
    )
    logits = mlp(rows) + linear(rows) * 0.5 - 1.0 / (fixed.exp() + np.float32(1)) + (-fixed)
    loss = nn.cross_entropy(logits, targets, mass=weights)
    assert_type(loss, ta.Value)
    assert_type(logits.softmax(axis=1).log().sum(axis=(0, 1), keepdims=False).sqrt().mean(), ta.Value)
    assert_type(logits.log_softmax(), ta.Value)
    assert_type(logits.logsumexp(axis=-1, keepdims=True), ta.Value)
    assert_type((rows @ linear.weight).T.transpose(1, 0), ta.Value)
    assert_type(rows.matmul(linear.weight).broadcast_to((ta.BATCH, 27)), ta.Value)
    assert_type(len(tape), int)
    return tape.seal(), loss, logits


def trained(feeds: Mapping[str, NDArray[Any]]) -> Floats:
    network, loss, logits = recorded()
    assert_type(
        (network.nodes, network.feed_names, network.parameter_names), tuple[int, list[str], list[str]]
    )
    entry = network.entry(loss, observe=[logits])
    assert_type((entry.loss, entry.observed), tuple[ta.Value | None, list[ta.Value]])
    table = network.parameters()
    run = entry.run(table, feeds)
    assert_type((run.loss, float(run)), tuple[float, float])
    assert_type(run[logits], Floats)
    gradient = run.backward(loss)
    assert_type(gradient, ta.Parameters)
    descend: Callable[[Floats, Floats], Floats] = lambda p, g: p - np.float32(0.1) * g  # noqa: E731 - its type
    table = table.step(gradient, descend)
    table = (table - gradient * 0.1 + 1.0) / 2 + (-gradient).scale(0.5)
    table = table.map(lambda array: np.tanh(array)).zip(gradient, lambda a, b: a * b)
    table = table.replace({name: array * np.float32(2) for name, array in table.items()})
    assert_type((table.norm(), table.isfinite(), len(table)), tuple[float, bool, int])
    assert_type((table.names, table.shapes), tuple[list[str], list[tuple[int, ...]]])
    assert_type(list(table), list[str])
    assert_type(table["table"], Floats)
    table = engine.Parameters({"table": table["table"]})
    trainer = train.Trainer(entry, network.parameters(), feeds, batch_size=64, shards=8, momentum=0.9)
    losses = trainer.run(100, learning_rate=0.1)
    assert_type((trainer.step, trainer.parameters), tuple[int, ta.Parameters])
    return losses


def drawn(seed: int) -> NDArray[np.int64]:
    stream = random.SplitMix64(seed)
    assert_type(stream.unit(), float)
    return stream.permutation(10)


def read(path: Path) -> corpus.Samples:
    words = corpus.Corpus.read(path)
    kept, _ = words.split(0.1, seed=9)
    samples = kept.samples().shuffled(9)
    assert_type(samples.bigram_limit(words.vocabulary), float)
    return samples


def told(call: Callable[[], object]) -> str:
    try:
        call()
    except exceptions.DimensionMismatchError as error:
        return f"{assert_type(error.expected, int)} {assert_type(error.actual, int)}"
    except exceptions.SeedMismatchError as error:
        return f"{assert_type(error.compress, int)} {assert_type(error.decompress, int)}"
    except exceptions.NonFiniteError as error:
        return f"{assert_type(error.argument, str)} {assert_type(error.index, int)} {assert_type(error.value, float)}"
    except (ta.ArgumentError, ta.ArgumentTypeError, ta.ArrayError) as error:
        return error.argument
    except ta.WireError as error:
        return assert_type(error.field, str)
    except ta.InvalidRatioError as error:
        return f"{assert_type(error.ratio, float)}"
    except ta.AllocationError as error:
        return f"{assert_type(error.bytes, int)}"
    except (ta.ShapeError, ta.TapeError, ta.CorpusError, ta.InternalError, ta.TrainingError) as error:
        return str(error)
    return ""


def commanded() -> int:
    return cli.main(["train", "--steps", "10"])
