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
from pathlib import Path

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


def passes() -> Iterator[Row]:
    """Passes over a long gradient that do two things in one read, beside NumPy and beside our own two calls."""
    import numpy as np

    import tritter_accel as ta

    gradient = np.random.default_rng(0).standard_normal(25_000_000).astype(np.float32)
    # Close to 1, so that the same array can be divided over and over.
    scaler = ta.mixed_precision.LossScaler(1 + 2.0**-23)
    scale = np.float32(scaler.scale)

    def by_numpy() -> bool:
        np.divide(gradient, scale, out=gradient)
        return bool(np.isfinite(gradient).all())

    def by_two_calls() -> None:
        scaler.check_overflow(gradient)
        scaler.unscale_gradients(gradient)

    ta.set_num_threads(1)
    ours = best(lambda: scaler.unscale_and_check(gradient), 9)
    work = "unscale and check, 25e6 floats, 1 thread"
    yield Row(work, "NumPy, divide and isfinite", best(by_numpy, 9), ours)
    yield Row(work, "ours, in two calls", best(by_two_calls, 9), ours)


def imports() -> Iterator[Row]:
    """Importing the package in a fresh interpreter, beside importing NumPy alone."""

    def seconds(statement: str) -> float:
        return best(lambda: subprocess.run([sys.executable, "-c", statement], check=True), 15)

    alone, ours = seconds("import numpy"), seconds("import tritter_accel")
    print(f"import: NumPy {1e3 * alone:.0f} ms, tritter_accel {1e3 * (ours - alone):.0f} ms more", flush=True)
    yield Row("import in a fresh interpreter", "import numpy", alone, ours)


GROUPS = {"names": names, "dense": dense, "shared": shared, "passes": passes, "import": imports}


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
    for group in chosen:
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
