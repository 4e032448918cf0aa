"""The command ``tritter-accel``: train the names network, make messages of arrays, say what is installed."""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import io
import math
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from . import __version__, codec_commands, exchange_options, get_num_threads, set_num_threads, simd_level
from .corpus import Corpus
from .engine import Parameters
from .exceptions import InternalError, NonFiniteError, TrainingError
from .names_network import NamesNetwork, Seeds
from .report import (
    INSTALL,
    Progress,
    ReportError,
    can_plot,
    chart,
    check_target,
    plot,
    progress,
    write_json,
)
from .train import Trainer

__all__ = ["main"]

LARGEST_FLOAT32 = float(np.finfo(np.float32).max)

WINDOW_STEPS = 500
"""Steps of a line of the report, and of a mean in the record."""

CALL_SECONDS = 0.1
"""About how long the trainer is left alone between two looks of the progress bar."""

EXTRAS = {
    "cli": ("rich", "plotext", "matplotlib"),
    "torch": ("torch",),
    "mpi": ("mpi4py",),
    "bfloat16": ("ml_dtypes",),
}

MENDS = {
    "cli": INSTALL,
    "torch": "pip install torch",
    "mpi": "pip install mpi4py",
    "bfloat16": "pip install ml_dtypes",
}


class UsageError(Exception):
    """Input that cannot be worked with: one line, exit status 2."""


def _shown(text: str) -> str:
    return repr(text) if len(text) <= 40 else f"{text[:37]!r}..."


def _whole(least: int, most: int = 2**63 - 1) -> Callable[[str], int]:
    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{_shown(text)} is not a whole number") from None
        if value < least:
            raise argparse.ArgumentTypeError(f"{_shown(text)} is too small, wanted {least} or more")
        if value > most:
            raise argparse.ArgumentTypeError(f"{_shown(text)} is too large, wanted {most} or less")
        return value

    return parse


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{_shown(text)} is not a number") from None
    if not abs(value) <= LARGEST_FLOAT32:
        raise argparse.ArgumentTypeError(f"{_shown(text)} is no finite number of float32")
    return value


def _fraction(text: str) -> float:
    value = _number(text)
    # Rounded to float32, a value just below 1 can become it.
    if not value >= 0 or not np.float32(value) < 1:
        raise argparse.ArgumentTypeError(f"{_shown(text)} is out of range, wanted 0 <= x < 1")
    return value


def _rate(text: str) -> float:
    value = _number(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{_shown(text)} is negative, wanted 0 or more")
    return value


class _Parser(argparse.ArgumentParser):
    def __init__(self, **options: Any) -> None:
        # An abbreviation would end to be one when an option is added.
        super().__init__(**options, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """Say what is wrong in one line, without the usage that argparse prints before it."""
        self.exit(2, f"{self.prog}: error: {' '.join(message.split())} (see {self.prog} --help)\n")


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
    train.add_argument(
        "--shards", type=_whole(1), help="parts of a batch (default: 8, or a smaller batch size)"
    )
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
    exchange_options.add_options(train)
    train.add_argument("--plot", type=Path, metavar="FILE.png", help="write a plot of the losses")
    train.add_argument("--json", type=Path, metavar="FILE", help="write a record of the run")
    train.add_argument(
        "--samples", type=_whole(0), default=10, metavar="N", help="names to sample (default: %(default)s)"
    )
    train.add_argument("--quiet", action="store_true", help="print the sampled names alone")
    train.set_defaults(run=_train)

    codec_commands.add_commands(commands, _whole)

    info = commands.add_parser(
        "info", help="say what this installation has", description="Say what this installation has."
    )
    info.set_defaults(run=_info)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and give its exit status: 0, 2 for bad input, 130 after Ctrl-C, 1 for anything else."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that cannot show a letter is no reason to lose a run.
            stream.reconfigure(errors="backslashreplace")
    options = _parser().parse_args(arguments)
    try:
        options.run(options)
        sys.stdout.flush()
    except InternalError:
        raise
    except MemoryError as error:
        return _failed(options, f"error: not enough memory{f' ({error})' if str(error) else ''}", 2)
    except (UsageError, ReportError, TrainingError) as error:
        return _failed(options, f"error: {error}", 2)
    except KeyboardInterrupt:
        return _failed(options, "interrupted", 130)
    except BrokenPipeError:
        # The reader of the output has gone; there is nobody left to tell.
        _drop_output()
        return 1
    except OSError as error:
        _drop_output()
        return _failed(options, f"error: {error.strerror or error}", 1)
    return 0


def _failed(options: argparse.Namespace, message: str, status: int) -> int:
    line = " ".join(message.split())
    print(f"tritter-accel {options.command}: {line}", file=sys.stderr)
    return status


def _drop_output() -> None:
    """Send what is still to be printed nowhere, or Python would fail on it again while it exits."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _info(options: argparse.Namespace) -> None:
    print(f"tritter-accel  {__version__}")
    print(f"Python         {platform.python_version()} on {platform.machine()} {platform.system()}")
    print(f"NumPy          {np.__version__}")
    print(f"SIMD level     {simd_level()}")
    print(f"threads        {get_num_threads()}")
    for extra, modules in EXTRAS.items():
        missing = [module for module in modules if importlib.util.find_spec(module) is None]
        state = f"missing {', '.join(missing)}" if missing else "found"
        if missing:
            state += f": {MENDS[extra]}"
        print(f"{extra:<14} {state}")


def _check_files(options: argparse.Namespace) -> None:
    """Refuse places for files before the work is done, not after."""
    if options.plot is not None:
        if options.plot.suffix.lower() not in ("", ".png"):
            raise UsageError(f"--plot: {options.plot} is no FILE.png, and PNG is what is written")
        if not can_plot():
            raise UsageError(f"--plot needs matplotlib: {INSTALL}")
    taken = {} if options.corpus is None else {options.corpus.resolve(): "--corpus"}
    for option, path in (("--plot", options.plot), ("--json", options.json)):
        if path is None:
            continue
        try:
            check_target(path)
        except ReportError as error:
            raise UsageError(f"{option}: {error}") from error
        other = taken.setdefault(path.resolve(), option)
        if other != option:
            raise UsageError(f"{option}: {path} is the file of {other} too; name another")


def _split(options: argparse.Namespace, corpus: Corpus, seed: int) -> tuple[Corpus, Corpus]:
    kept, held = corpus.split(options.validation, seed)
    if options.validation > 0 and not held.words:
        raise UsageError(
            f"--validation {options.validation:g} of {_count(len(corpus.words), 'word')} holds none out; pass more"
        )
    if not kept.words:
        raise UsageError(
            f"--validation {options.validation:g} of {_count(len(corpus.words), 'word')} leaves none to train on; "
            "pass less"
        )
    return kept, held


def _count(number: int, name: str) -> str:
    return f"{number:,} {name}{'' if number == 1 else 's'}"


def _train(options: argparse.Namespace) -> None:
    _check_files(options)
    compressor = exchange_options.compressor(options)
    if options.threads is not None:
        set_num_threads(options.threads)
    say = _silent if options.quiet else _say

    corpus = Corpus.embedded() if options.corpus is None else Corpus.read(options.corpus)
    seeds = Seeds.shifted(options.seed)
    kept, held = _split(options, corpus, seeds.shuffle)
    every = corpus.samples()
    samples = (kept.samples() if held.words else every).shuffled(seeds.shuffle)
    batch_size = options.batch_size
    if batch_size > len(samples):
        raise UsageError(
            f"a batch of {batch_size:,} is more than the {_count(len(samples), 'sample')} of "
            f"{_count(len(kept.words), 'word')}; pass --batch-size {len(samples)} or less, or more words"
        )
    shards = min(8, batch_size) if options.shards is None else options.shards
    if shards > batch_size:
        raise UsageError(
            f"{shards:,} shards are more than a batch of {batch_size:,}; pass --shards {batch_size} or less"
        )

    network = NamesNetwork(corpus.vocabulary, seeds)
    start = network.network.parameters()
    nodes = network.network.nodes
    uniform = math.log(corpus.vocabulary)
    limit = every.bigram_limit(corpus.vocabulary)
    parameters = sum(math.prod(shape) for shape in start.shapes)
    say(
        f"corpus: {_count(len(corpus.words), 'word')}, {_count(len(every), 'sample')}, {corpus.vocabulary:,} tokens "
        "(the letters and the end of a word)"
    )
    if held.words:
        say(f"held out: {_count(len(held.words), 'word')}; trained on {_count(len(samples), 'sample')}")
    say(f"network: {parameters:,} parameters, {nodes} nodes on the tape")

    trainer = Trainer(
        network.loss,
        start,
        {"contexts": samples.contexts, "targets": samples.targets},
        batch_size=batch_size,
        shards=shards,
        momentum=options.momentum,
        compressor=compressor,
        error_feedback=options.error_feedback,
    )
    began = time.perf_counter()
    with progress(options.steps, quiet=options.quiet) as advance:
        losses = _run(trainer, options, advance, say, uniform)
    seconds = time.perf_counter() - began
    rate = options.steps / seconds if seconds > 0 else 0.0
    trained = trainer.parameters
    if not trained.isfinite():
        raise UsageError(_diverged(options, len(losses) - 1))
    say(f"{_count(options.steps, 'step')} in {seconds:.2f} s, {rate:,.0f} steps/s")
    say(f"nodes on the tape: {nodes} before, {network.network.nodes} after")
    exchange = exchange_options.record(
        options,
        workers=shards,
        parameters=parameters,
        steps=options.steps,
        bytes_sent=trainer.bytes_sent,
    )
    say(exchange_options.summary(exchange, parameters))

    ends, means = _windows(losses)
    lines = {"uniform": uniform, "bigram limit": limit}
    if means:
        say(chart(ends, means, lines))
    say(f"bigram limit: {limit:.4f} (the least loss of any model that sees one letter back)")
    validation = None
    if held.words:
        validation = network.mean_loss(trained, held.samples())
        say(f"held-out loss: {validation:.4f}")
    names = network.sample(trained, corpus, options.samples, seeds.sampling)
    if names:
        _say("sampled names:")
    for name in names:
        _say(name)

    if options.plot is not None:
        plot(options.plot, losses, ends, means, lines)
    if options.json is not None:
        write_json(
            options.json,
            {
                "corpus": {
                    "names": len(corpus.words),
                    "samples": len(every),
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
                "exchange": exchange,
                "samples": names,
            },
        )


def _say(text: str) -> None:
    """Print at once, for whoever reads along through a pipe."""
    print(text, flush=True)


def _diverged(options: argparse.Namespace, step: int) -> str:
    return f"the parameters or the loss are not finite from step {step} on; pass a --lr below {options.lr:g}"


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
    trainer: Trainer,
    options: argparse.Namespace,
    advance: Progress,
    say: Callable[[str], None],
    uniform: float,
) -> list[float]:
    """Make the steps, a line every 500."""
    losses: list[float] = []
    call = 1
    while (step := len(losses)) < options.steps:
        dropped = step >= options.lr_drop_at
        rate = options.lr / 10 if dropped else options.lr
        stop = min(options.steps, step + call, (step // WINDOW_STEPS + 1) * WINDOW_STEPS)
        if not dropped:
            stop = min(stop, options.lr_drop_at)
        began = time.perf_counter()
        try:
            made = trainer.run(stop - step, rate)
        except NonFiniteError as error:
            # What is no number cannot be sent as digits.
            raise UsageError(_diverged(options, trainer.step)) from error
        # Doubled while calls are short, so that every size of batch shows its progress.
        taken = time.perf_counter() - began
        call = (
            2 * call if taken < CALL_SECONDS / 2 else max(1, call // 2) if taken > 2 * CALL_SECONDS else call
        )
        if not np.isfinite(made).all():
            raise UsageError(_diverged(options, step + int(np.argmin(np.isfinite(made)))))
        losses += made.tolist()
        advance(stop, losses[-1])
        if step == 0:
            say(f"step {0:>6}  loss {losses[0]:.4f}  (uniform guessing costs {uniform:.4f})")
        if stop % WINDOW_STEPS == 0 or stop == options.steps:
            window = losses[(stop - 1) // WINDOW_STEPS * WINDOW_STEPS :]
            of = f"the last {len(window)}" if len(window) > 1 else "the last step"
            say(f"step {stop:>6}  rate {rate:<6g} mean loss of {of}: {np.mean(window):.4f}")
    return losses


if __name__ == "__main__":
    sys.exit(main())
