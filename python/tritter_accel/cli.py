"""The command ``tritter-accel``: train the names network, and say what the installation has."""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import math
import platform
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from . import __version__, get_num_threads, set_num_threads, simd_level
from .corpus import Corpus
from .engine import Parameters
from .exceptions import CorpusError
from .names_network import NamesNetwork, Seeds
from .report import Progress, ReportError, chart, plot, progress, write_json
from .train import Trainer

__all__ = ["main"]

WINDOW_STEPS = 500
"""Steps of a line of the report, and of a mean in the record."""

REPORT_EVERY = 50
"""Steps between two looks of the progress bar."""

EXTRAS = {
    "cli": ("rich", "plotext", "matplotlib"),
    "torch": ("torch",),
    "mpi": ("mpi4py",),
    "bfloat16": ("ml_dtypes",),
}


class UsageError(Exception):
    """Input that cannot be worked with: one line, exit status 2."""


def _whole(least: int, most: float = math.inf) -> Any:
    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{value} is out of range, wanted {least} or more")
        return value

    return parse


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"{text} is not finite")
    return value


def _fraction(text: str) -> float:
    value = _number(text)
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"{text} is out of range, wanted 0 <= x < 1")
    return value


def _rate(text: str) -> float:
    value = _number(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text} is negative")
    return value


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        """Say what is wrong in one line, without the usage that argparse prints before it."""
        self.exit(2, f"{self.prog}: error: {message}\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="tritter-accel", description="Seeded gradient compression and reproducible training."
    )
    parser.add_argument("--version", action="version", version=f"tritter-accel {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    train = commands.add_parser(
        "train", help="train the names network", description="Train the names network."
    )
    train.add_argument(
        "--corpus", type=Path, metavar="FILE", help="words, one a line (default: 10,000 US names)"
    )
    train.add_argument("--steps", type=_whole(0), default=5000, help="steps to make (default: %(default)s)")
    train.add_argument(
        "--batch-size", type=_whole(1), default=64, help="samples a step (default: %(default)s)"
    )
    train.add_argument("--shards", type=_whole(1), default=8, help="parts of a batch (default: %(default)s)")
    train.add_argument(
        "--threads", type=_whole(1), help="threads; results do not depend on it (default: all cores)"
    )
    train.add_argument("--lr", type=_rate, default=0.1, help="learning rate (default: %(default)s)")
    train.add_argument(
        "--lr-drop-at",
        type=_whole(0),
        default=4000,
        metavar="STEP",
        help="step from which the rate is a tenth (default: %(default)s)",
    )
    train.add_argument(
        "--momentum", type=_fraction, default=0.0, help="momentum, 0 <= x < 1 (default: %(default)s)"
    )
    train.add_argument(
        "--seed",
        type=_whole(0, 2**64 - 1),
        default=0,
        help="added to the seeds of parameters, shuffle and sampling (default: %(default)s)",
    )
    train.add_argument(
        "--validation",
        type=_fraction,
        default=0.0,
        metavar="FRACTION",
        help="share of the words to hold out (default: %(default)s)",
    )
    train.add_argument("--plot", type=Path, metavar="FILE.png", help="write a plot of the losses")
    train.add_argument("--json", type=Path, metavar="FILE", help="write a record of the run")
    train.add_argument(
        "--samples", type=_whole(0), default=10, metavar="N", help="names to sample (default: %(default)s)"
    )
    train.add_argument("--quiet", action="store_true", help="print the sampled names and nothing else")
    train.set_defaults(run=_train)

    info = commands.add_parser(
        "info", help="say what this installation has", description="Say what this installation has."
    )
    info.set_defaults(run=_info)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and give its exit status: 0, 2 for bad input, 130 after Ctrl-C."""
    options = _parser().parse_args(arguments)
    try:
        options.run(options)
    except (UsageError, CorpusError, ReportError) as error:
        print(f"tritter-accel {options.command}: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"tritter-accel {options.command}: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of the output has gone; there is nobody left to tell.
        sys.stdout = None
        return 1
    return 0


def _info(options: argparse.Namespace) -> None:
    print(f"tritter-accel  {__version__}")
    print(f"Python         {platform.python_version()} on {platform.machine()} {platform.system()}")
    print(f"NumPy          {np.__version__}")
    print(f"SIMD level     {simd_level()}")
    print(f"threads        {get_num_threads()}")
    for extra, modules in EXTRAS.items():
        missing = [module for module in modules if importlib.util.find_spec(module) is None]
        state = f"missing {', '.join(missing)}" if missing else "found"
        print(f"{extra:<14} {state}")


def _check_writable(path: Path | None, option: str) -> None:
    """Refuse a place for a file before the work is done, not after."""
    if path is None:
        return
    if path.is_dir():
        raise UsageError(f"{option}: {path} is a directory")
    if not path.parent.is_dir():
        raise UsageError(f"{option}: no directory {path.parent}")


def _train(options: argparse.Namespace) -> None:
    _check_writable(options.plot, "--plot")
    _check_writable(options.json, "--json")
    if options.plot is not None and importlib.util.find_spec("matplotlib") is None:
        raise UsageError('--plot needs matplotlib: pip install "tritter-accel[cli]"')
    if options.threads is not None:
        set_num_threads(options.threads)
    say = _silent if options.quiet else print

    corpus = Corpus.embedded() if options.corpus is None else Corpus.read(options.corpus)
    seeds = Seeds.shifted(options.seed)
    kept, held = corpus.split(options.validation, seeds.shuffle)
    samples = kept.samples().shuffled(seeds.shuffle)
    if options.batch_size > len(samples):
        raise UsageError(
            f"a batch of {options.batch_size} is more than the {len(samples)} samples of {len(kept.words)} words; "
            f"pass --batch-size {max(len(samples), 1)} or less, or more words"
        )
    if options.shards > options.batch_size:
        raise UsageError(
            f"{options.shards} shards of a batch of {options.batch_size}; pass --shards {options.batch_size} or less"
        )

    network = NamesNetwork(corpus.vocabulary, seeds)
    start = network.network.parameters()
    uniform = math.log(corpus.vocabulary)
    limit = samples.bigram_limit(corpus.vocabulary)
    parameters = sum(math.prod(shape) for shape in start.shapes)
    say(f"corpus: {len(corpus.words):,} words, {len(samples):,} samples, {corpus.vocabulary} tokens")
    if held.words:
        say(f"held out: {len(held.words):,} words")
    say(f"network: {parameters:,} parameters, {network.network.nodes} nodes on the tape")

    trainer = Trainer(
        network.loss,
        start,
        {"contexts": samples.contexts, "targets": samples.targets},
        batch_size=options.batch_size,
        shards=options.shards,
        momentum=options.momentum,
    )
    began = time.perf_counter()
    with progress(options.steps, quiet=options.quiet) as advance:
        losses = _run(trainer, options, advance, say, uniform)
    seconds = time.perf_counter() - began
    rate = options.steps / seconds
    say(f"{options.steps:,} steps in {seconds:.2f} s, {rate:,.0f} steps/s")
    say(f"nodes on the tape: {network.network.nodes} before and after")
    dense = 4 * parameters
    say(
        f"exchange: none, all {options.shards} shards in one process: 0 bytes a step (float32 gradient: {dense:,})"
    )

    ends, means = _windows(losses)
    lines = {"uniform": uniform, "bigram limit": limit}
    if means:
        say(chart(ends, means, lines))
    say(f"bigram limit of the corpus: {limit:.4f}")
    trained = trainer.parameters
    validation = None
    if held.words:
        validation = network.mean_loss(trained, held.samples())
        say(f"held-out loss: {validation:.4f}")
    names = network.sample(trained, corpus, options.samples, seeds.sampling)
    print("sampled names:")
    for name in names:
        print(name)

    if options.plot is not None:
        plot(options.plot, losses, ends, means, lines)
    if options.json is not None:
        shards = options.shards
        write_json(
            options.json,
            {
                "corpus": {
                    "names": len(corpus.words),
                    "samples": len(samples),
                    "vocabulary": corpus.vocabulary,
                    "uniform": uniform,
                    "bigram_limit": limit,
                },
                "steps": options.steps,
                "seconds": seconds,
                "steps_per_second": rate,
                "losses": losses,
                "window_means": means,
                "tape_nodes": network.network.nodes,
                "parameters": parameters,
                "parameters_sha256": _digest(trained),
                "validation_loss": validation,
                "exchange": {
                    "kind": "local",
                    "plan": None,
                    "ranks": 1,
                    "workers": shards,
                    "compress": "none",
                    "bytes_sent_per_step": 0,
                    "dense_bytes_per_step": 2 * (shards - 1) * dense // shards,
                    "reduction": None,
                },
                "samples": names,
            },
        )


def _silent(text: str) -> None:
    """Say nothing."""


def _digest(parameters: Parameters) -> str:
    """SHA-256 of all parameters, float32 in little-endian order, in slot order."""
    return hashlib.sha256(parameters.flat().astype("<f4").tobytes()).hexdigest()


def _windows(losses: list[float]) -> tuple[list[int], list[float]]:
    """The ends of windows of 500 steps, the last one maybe shorter, and the mean loss of each."""
    ends = [min(start + WINDOW_STEPS, len(losses)) for start in range(0, len(losses), WINDOW_STEPS)]
    starts = range(0, len(losses), WINDOW_STEPS)
    return ends, [float(np.mean(losses[start:end])) for start, end in zip(starts, ends, strict=True)]


def _run(
    trainer: Trainer, options: argparse.Namespace, advance: Progress, say: Any, uniform: float
) -> list[float]:
    """Make the steps, a line every 500."""
    losses: list[float] = []
    while (step := len(losses)) < options.steps:
        dropped = step >= options.lr_drop_at
        rate = options.lr / 10 if dropped else options.lr
        stop = min(options.steps, (step // REPORT_EVERY + 1) * REPORT_EVERY)
        if step == 0:
            stop = 1
        if not dropped:
            stop = min(stop, options.lr_drop_at)
        losses += trainer.run(stop - step, rate).tolist()
        advance(stop, losses[-1])
        if step == 0:
            say(f"step {0:>6}  loss {losses[0]:.4f}  (uniform {uniform:.4f})")
        if stop % WINDOW_STEPS == 0 or stop == options.steps:
            window = losses[(stop - 1) // WINDOW_STEPS * WINDOW_STEPS :]
            say(f"step {stop:>6}  rate {rate:<6g} mean loss of the last {len(window)}: {np.mean(window):.4f}")
    return losses


if __name__ == "__main__":
    sys.exit(main())
