"""Ours beside its peers, in one run on one machine: ``make bench``, or ``python -m benchmarks GROUP``.

Every row is a ratio of best times, since the machine's clock and load are not ours. The table goes to
``docs/benchmarks.md``.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "docs" / "benchmarks.md"
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"


@dataclass(frozen=True)
class Row:
    """One comparison: seconds of both sides."""

    work: str
    peer: str
    peer_seconds: float
    our_seconds: float

    def markdown(self) -> str:
        """A row of the table."""
        ratio = self.peer_seconds / self.our_seconds
        return f"| {self.work} | {self.peer} | {_time(self.peer_seconds)} | {_time(self.our_seconds)} | {ratio:.1f}x |"


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1e3 * seconds:.1f} ms"


def best(run: Callable[[], object], times: int) -> float:
    """The least of some timings of `run`, in seconds."""
    seconds = []
    for _ in range(times):
        began = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def names() -> Iterator[Row]:
    """5,000 steps of the names network, interleaved with the NumPy loop in one process."""
    import tritter_accel as ta
    from benchmarks.peers import numpy_names
    from tritter_accel.corpus import Corpus
    from tritter_accel.names_network import NamesNetwork, Seeds

    corpus = Corpus.embedded()
    samples = corpus.samples().shuffled(Seeds().shuffle)
    network = NamesNetwork(corpus.vocabulary)

    def ours() -> float:
        data = {"contexts": samples.contexts, "targets": samples.targets}
        start = network.network.parameters()
        trainer = ta.train.Trainer(network.loss, start, data, batch_size=64, shards=8)
        began = time.perf_counter()
        trainer.run(4000, 0.1)
        trainer.run(1000, 0.01)
        return time.perf_counter() - began

    threads = ta.get_num_threads()
    for count in (1, threads):
        ta.set_num_threads(count)
        pairs = [(numpy_names.run(5000)[0], ours()) for _ in range(3)]
        peer, own = (min(times) for times in zip(*pairs, strict=True))
        yield Row(
            f"names network, 5,000 steps, {count} thread{'s'[: count > 1]}", "NumPy, full batch", peer, own
        )
        if count == threads:
            break
    ta.set_num_threads(threads)


def dense() -> Iterator[Row]:
    """The dense projection on one thread against the plain loop over rand_chacha, and against scikit-learn."""
    import numpy as np

    import tritter_accel as ta

    level = ta.simd_level()
    command = ["cargo", "bench", "--quiet", "-p", "tritter-core", "--bench", "dense", "--"]
    pattern = f"(plain loop|{level})/(100|999|1000)$"
    subprocess.run([*command, "--noplot", pattern], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    for direction in ("compress", "decompress"):
        for k in (100, 999, 1000):
            seconds = [
                json.loads(
                    (
                        target / "criterion" / f"dense {direction}" / name / str(k) / "new/estimates.json"
                    ).read_text()
                )["median"]["point_estimate"]
                / 1e9
                for name in ("plain loop", level)
            ]
            yield Row(
                f"dense {direction}, 2^24 entries, k = {k}, {level}", "plain loop, rand_chacha", *seconds
            )

    from sklearn.random_projection import SparseRandomProjection

    n, k = 100_000, 1_000
    gradient = np.random.default_rng(0).standard_normal(n).astype(np.float32)
    compressor = ta.GradientCompressor(ta.TrainingConfig(k / n))
    ta.set_num_threads(1)
    ours = best(lambda: compressor.compress(gradient), 3)
    projection = SparseRandomProjection(n_components=k, density=0.32, random_state=0)
    peer = best(lambda: projection.fit_transform(gradient[None, :]), 2)
    yield Row(
        "dense compress, n = 100,000, k = 1,000, 1 thread", "scikit-learn SparseRandomProjection", peer, ours
    )


def shared() -> Iterator[Row]:
    """What sharing the dense matrix gains: several gradients in a call, a matrix that is kept, two threads."""
    for k in (1_000, 100):
        yield from _shared(100_000, k)


def _shared(n: int, k: int) -> Iterator[Row]:
    import numpy as np

    import tritter_accel as ta

    gradients = np.random.default_rng(0).standard_normal((8, n)).astype(np.float32)
    compressor = ta.GradientCompressor(ta.TrainingConfig(k / n))
    compressed, plan = compressor.compress_many(gradients), compressor.plan(n)
    threads = ta.get_num_threads()

    def compress() -> object:
        return compressor.compress(gradients[0])

    def decompress() -> object:
        return compressor.decompress(compressed[0])

    def seconds(call: Callable[[], object], count: int = 1) -> float:
        ta.set_num_threads(count)
        return best(call, 9)

    each = [seconds(lambda: [compressor.compress(one) for one in gradients])]
    each.append(seconds(lambda: [compressor.decompress(one) for one in compressed]))
    many = [seconds(lambda: compressor.compress_many(gradients))]
    many.append(seconds(lambda: compressor.decompress_many(compressed)))
    alone = [seconds(compress), seconds(decompress)]
    planned = [seconds(lambda: plan.compress(gradients[0])), seconds(lambda: plan.decompress(compressed[0]))]
    size = f"n = {n:,}, k = {k:,}"
    for index, name in enumerate(("compress", "decompress")):
        eight = f"{name}_many, 8 gradients, {size}, 1 thread"
        yield Row(eight, f"ours, 8 calls of {name}", each[index], many[index])
        yield Row(f"{name} under a plan, {size}, 1 thread", f"ours, {name}", alone[index], planned[index])
    if threads > 1:
        for call in (compress, decompress):
            work = f"dense {call.__name__}, {size}, 2 threads"
            yield Row(work, "ours, 1 thread", seconds(call), seconds(call, 2))
    ta.set_num_threads(threads)


def codec() -> Iterator[Row]:
    """Messages of a long gradient, on one thread, beside a copy of it and beside other libraries."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from fht_cpu import fht

    import tritter_accel as ta

    n = 25_000_000
    gradient = np.random.default_rng(0).standard_normal(n, dtype=np.float32)
    result = np.empty_like(gradient)
    ta.set_num_threads(1)

    def copy() -> None:
        np.copyto(result, gradient)

    def codec_of(**options: Any) -> ta.GradientCompressor:
        return ta.GradientCompressor(ta.TrainingConfig(0.1, **options))

    size = "25e6 floats, 1 thread"
    for quantize in ("none", "sign"):
        rotating = codec_of(projection="hadamard", scaling="contractive", quantize=quantize)
        message = np.empty(rotating.message_bytes(n), np.uint8)
        encode, decode = (
            partial(rotating.encode, gradient, out=message),
            partial(rotating.decode, message, out=result),
        )
        what = f"hadamard, ratio 0.1, {quantize}"
        yield Row(f"encode {what}, {size}", "copy of the gradient", *pair(copy, encode, 5))
        yield Row(f"decode {what}, {size}", "copy of the gradient", *pair(copy, decode, 5))

    whole = n // 4096 * 4096
    blocks, rotated = gradient[:whole].reshape(-1, 4096), result[:whole]
    orthonormal = codec_of(projection="hadamard", scaling="contractive")
    rotate = partial(orthonormal.compress, blocks, 1.0, out=rotated)
    yield Row(
        "signs and transform of blocks of 4096, 25e6 floats, 1 thread",
        "fht-cpu, transform alone",
        *pair(partial(fht, blocks, out=rotated.reshape(-1, 4096), num_threads=1), rotate, 3),
    )

    ternary = codec_of(projection="none", quantize="ternary", quantizer_scale="least_squares")
    message = np.empty(ternary.message_bytes(n), np.uint8)

    def jax_ternary(values: Any) -> Any:
        magnitudes = jnp.abs(values)
        threshold = 0.777 * magnitudes.mean()
        kept = magnitudes > threshold
        scale = jnp.where(kept, magnitudes, 0).sum() / kept.sum()
        digits = (1 + jnp.sign(values) * kept).astype(jnp.uint8).reshape(-1, 5)
        return scale, digits @ jnp.array([1, 3, 9, 27, 81], jnp.uint8)

    def numpy_ternary() -> object:
        magnitudes = np.abs(gradient)
        kept = magnitudes > np.float32(0.777) * magnitudes.mean()
        scale = magnitudes[kept].mean()
        digits = (1 + np.sign(gradient) * kept).astype(np.uint8).reshape(-1, 5)
        return scale, digits @ np.array([1, 3, 9, 27, 81], np.uint8)

    jitted, on_device = jax.jit(jax_ternary), jnp.asarray(gradient)
    encode = partial(ternary.encode, gradient, out=message)
    work = f"ternary, scale and 5-trit pack, {size}"
    yield Row(work, "jax.jit", *pair(lambda: jax.block_until_ready(jitted(on_device)), encode, 5))
    yield Row(work, "NumPy", *pair(numpy_ternary, encode, 2))

    for ratio in (0.0055, 0.1):
        picking = codec_of(projection="topk", quantize="ternary", quantizer_scale="least_squares")
        kept = picking.compressed_dim(4096, ratio)
        message = np.empty(picking.message_bytes(whole, ratio), np.uint8)
        encode = partial(picking.encode, blocks, ratio, out=message)

        def partition(kept: int = kept) -> object:
            places = np.argpartition(-np.abs(blocks), kept, axis=1)[:, :kept]
            return np.take_along_axis(blocks, places, axis=1)

        yield Row(
            f"top-k, ratio {ratio}, ternary, {size}", "NumPy, argpartition alone", *pair(partition, encode, 2)
        )

    million, back = gradient[:1_000_000], result[:1_000_000]
    rotating = codec_of(projection="hadamard", scaling="contractive")

    def there_and_back() -> None:
        rotating.decode(rotating.encode(million), out=back)

    yield Row(
        "1e6 floats, hadamard, ratio 0.1, to bytes and back, 1 thread",
        "copy of the gradient",
        *pair(partial(np.copyto, back, million), there_and_back, 9),
    )


def pair(peer: Callable[[], object], ours: Callable[[], object], times: int) -> tuple[float, float]:
    """Best times of both, in turns, so that what else the machine does meets both."""
    peer(), ours()
    seconds = [(best(peer, 1), best(ours, 1)) for _ in range(times)]
    return min(one for one, _ in seconds), min(one for _, one in seconds)


def passes() -> Iterator[Row]:
    """Passes over a long gradient that do several things in one read, beside NumPy, torch and our own single calls."""
    import numpy as np

    import tritter_accel as ta

    gradient = np.random.default_rng(0).standard_normal(25_000_000).astype(np.float32)
    ta.set_num_threads(1)
    # Close to 1, so that the same array can be divided over and over.
    scaler = ta.mixed_precision.LossScaler(1 + 2.0**-23)
    scale = np.float32(scaler.scale)

    def divided_by_numpy() -> bool:
        np.divide(gradient, scale, out=gradient)
        return bool(np.isfinite(gradient).all())

    def divided_by_two_calls() -> None:
        scaler.check_overflow(gradient)
        scaler.unscale_gradients(gradient)

    divided = partial(scaler.unscale_and_check, gradient)
    work = "unscale and check, 25e6 floats, 1 thread"
    yield Row(work, "NumPy, divide and isfinite", *pair(divided_by_numpy, divided, 9))
    yield Row(work, "ours, in two calls", *pair(divided_by_two_calls, divided, 9))

    accumulator, total = ta.GradientAccumulator(gradient.size), np.zeros_like(gradient)

    def added_by_numpy() -> bool:
        np.add(total, gradient, out=total)
        return bool(np.isfinite(total).all())

    added = partial(accumulator.accumulate, gradient)
    work = "accumulate and check, 25e6 floats, 1 thread"
    yield Row(work, "NumPy, add and isfinite", *pair(added_by_numpy, added, 9))

    bits = np.zeros(gradient.size, np.uint16)
    nearest = partial(ta.mixed_precision.convert_to_bf16, gradient, rounding="nearest_even", out=bits)
    fused = partial(ta.mixed_precision.convert_to_bf16_with_norm, gradient, rounding="nearest_even", out=bits)

    def three_calls() -> object:
        return ta.mixed_precision.has_nan_or_inf(gradient), ta.gradient_norm(gradient), nearest()

    all_three = "bfloat16, finite check and norm in one read, 25e6 floats, 1 thread"
    yield Row(all_three, "ours, in three calls", *pair(three_calls, fused, 25))

    try:
        import torch
    except ModuleNotFoundError:
        print("rows beside torch are left out: it is not installed (pip install torch)", flush=True)
        return
    torch.set_num_threads(1)
    tensor, half = torch.from_numpy(gradient), torch.zeros(gradient.size, dtype=torch.bfloat16)

    def by_torch() -> object:
        half.copy_(tensor)
        return torch.isfinite(tensor).all(), torch.linalg.vector_norm(tensor, dtype=torch.float64)

    def by_torch_in_float32() -> object:
        half.copy_(tensor)
        return torch.linalg.vector_norm(tensor)

    work = "bfloat16 to the nearest, 25e6 floats, 1 thread"
    yield Row(work, "torch, copy_", *pair(lambda: half.copy_(tensor), nearest, 25))
    yield Row(all_three, "torch, three calls", *pair(by_torch, fused, 5))
    yield Row(all_three, "torch, copy_ and float32 norm", *pair(by_torch_in_float32, fused, 25))


def imports() -> Iterator[Row]:
    """Importing the package in a fresh interpreter, beside importing NumPy alone."""

    def seconds(statement: str) -> float:
        return best(lambda: subprocess.run([sys.executable, "-c", statement], check=True), 15)

    alone, ours = seconds("import numpy"), seconds("import tritter_accel")
    print(f"import: NumPy {1e3 * alone:.0f} ms, tritter_accel {1e3 * (ours - alone):.0f} ms more", flush=True)
    yield Row("import in a fresh interpreter", "import numpy", alone, ours)


GROUPS = {
    "names": names,
    "dense": dense,
    "shared": shared,
    "codec": codec,
    "passes": passes,
    "import": imports,
}


def main() -> None:
    """Run the groups, print their rows, and write the table when all of them ran."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.split("\n")[0])
    parser.add_argument(
        "group", nargs="*", choices=[[], *GROUPS], help="default: all, and the table is written"
    )
    chosen = parser.parse_args().group or list(GROUPS)
    # Both settings slow down a current OpenBLAS, and were made for old ones: the peer is not to be weakened.
    if os.environ.keys() & {"OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"}:
        clean = {key: value for key, value in os.environ.items() if not key.startswith("OPENBLAS_")}
        os.execve(sys.executable, [sys.executable, "-m", "benchmarks", *sys.argv[1:]], clean)
    header = ["| work | peer | peer | ours | ratio |", "|---|---|---|---|---|"]
    print("\n".join(header), flush=True)
    rows = []
    import tritter_accel

    threads = tritter_accel.get_num_threads()
    for group in chosen:
        tritter_accel.set_num_threads(threads)
        for row in GROUPS[group]():
            rows.append(row.markdown())
            print(rows[-1], flush=True)
    if set(chosen) == set(GROUPS):
        import numpy as np

        import tritter_accel as ta

        versions = f"Python {platform.python_version()}, NumPy {np.__version__}"
        machine = f"{os.cpu_count()} cores, {ta.simd_level()}, {versions}"
        text = TABLE.read_text(encoding="utf-8")
        before, after = text.split(BEGIN)[0], text.split(END)[1]
        table = "\n".join([BEGIN, f"Machine: {machine}.", "", *header, *rows, END])
        TABLE.write_text(before + table + after, encoding="utf-8")
        print(f"written to {TABLE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
