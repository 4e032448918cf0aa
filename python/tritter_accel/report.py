"""What the command shows of a run: a progress bar, a chart for the terminal, a plot and a record for files.

The libraries for them come with the ``cli`` extra. Without it the command still trains; it says what is missing.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

__all__ = [
    "INSTALL",
    "ReportError",
    "can_plot",
    "chart",
    "check_target",
    "plot",
    "progress",
    "replaced",
    "write_json",
]

INSTALL = 'pip install "tritter-accel[cli]"'


class ReportError(Exception):
    """A file that cannot be written, or a library that is missing."""


class Progress(Protocol):
    """Where a run says how far it is."""

    def __call__(self, step: int, loss: float) -> None:
        """Say that `step` steps are made, the last one with `loss`."""


@contextmanager
def progress(steps: int, *, quiet: bool) -> Iterator[Progress]:
    """A bar on standard error, where that is a terminal."""
    if quiet or not sys.stderr.isatty():
        yield lambda step, loss: None
        return
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar
    except ImportError:
        print(f"(no progress bar: {INSTALL})", file=sys.stderr)
        yield lambda step, loss: None
        return
    columns = (
        TextColumn("training"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]:.4f}"),
        TimeRemainingColumn(),
    )
    # The bar would take what is printed for its own stream, standard error.
    own_output = sys.stdout.isatty()
    console = Console(stderr=True)
    with Bar(*columns, console=console, transient=True, redirect_stdout=own_output) as bar:
        task = bar.add_task("training", total=steps, loss=math.nan)
        yield lambda step, loss: bar.update(task, completed=step, loss=loss)


def chart(ends: list[int], means: list[float], lines: dict[str, float]) -> str:
    """A text chart of `means`, each of the steps up to `ends`, with level lines of given names."""
    try:
        plotext: Any = importlib.import_module("plotext")  # has no types
    except ImportError:
        return f"(no chart: {INSTALL})"
    width = max(40, min(76, shutil.get_terminal_size((76, 24)).columns))
    plotext.clear_figure()
    plotext.theme("clear")
    plotext.plot_size(width, 18)
    for name, level in lines.items():
        plotext.plot([0, ends[-1]], [level, level], marker="-")
        plotext.text(f" {name} {level:.4f} ", ends[-1], level, alignment="right")
    if len(means) == 1:
        plotext.scatter(ends, means, marker="*")
    else:
        plotext.plot(ends, means, marker="braille")
    levels = [*means, *lines.values()]
    margin = 0.05 * (max(levels) - min(levels)) or 1.0
    plotext.ylim(min(levels) - margin, max(levels) + margin)
    plotext.xlim(0, ends[-1])
    ticks = sorted({round(part * ends[-1] / 5) for part in range(6)})
    plotext.xticks(ticks, [str(tick) for tick in ticks])
    plotext.title(f"mean loss of {ends[0]} steps (nats)")
    plotext.xlabel("step")
    text = "\n".join(line.rstrip() for line in str(plotext.uncolorize(plotext.build())).rstrip().split("\n"))
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return f"(no chart: the terminal's encoding is {encoding}; set PYTHONIOENCODING=utf-8)"
    return text


def can_plot() -> bool:
    """Whether the library for plots is there, and works."""
    try:
        importlib.import_module("matplotlib.figure")
    except ImportError:
        return False
    return True


def plot(
    path: Path, losses: list[float], ends: list[int], means: list[float], lines: dict[str, float]
) -> None:
    """Write a PNG of every loss, the means and the level lines."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ReportError(f"--plot needs matplotlib: {INSTALL}") from error
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot()
    axes.plot(range(len(losses)), losses, linewidth=0.4, alpha=0.4, label="loss of a step")
    axes.plot(ends, means, marker="o", markersize=3, label="mean of the steps before")
    for color, (name, level) in zip(("tab:gray", "tab:green"), lines.items(), strict=False):
        axes.axhline(level, color=color, linestyle="--", linewidth=1, label=f"{name} {level:.4f}")
    axes.set(xlabel="step", ylabel="cross entropy (nats)", title="names network")
    axes.legend()
    with replaced(path) as beside:
        figure.savefig(beside, format="png")


def write_json(path: Path, record: dict[str, Any]) -> None:
    """Write a record; numbers that are not finite become null, since JSON has none."""
    with replaced(path) as beside:
        Path(beside).write_text(
            json.dumps(_finite(record), indent=1, allow_nan=False) + "\n", encoding="utf-8"
        )


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return value


def check_target(path: Path) -> None:
    """Refuse a place that no file can be written to, before the work that it is for."""
    try:
        if path.is_dir():
            raise ReportError(f"{path} is a directory; wanted a file")
        if _is_device(path):
            return
        path = path.resolve()
        if not path.parent.is_dir():
            raise ReportError(f"no directory {path.parent}; make it first")
        with _beside(path):
            pass
    except (OSError, RuntimeError) as error:
        raise ReportError(f"{path}: {getattr(error, 'strerror', None) or error}") from error


@contextmanager
def replaced(path: Path) -> Iterator[str]:
    """A new file beside `path`, renamed to it when the block ends well, so that no reader sees half of it.

    A link stays one. Pipes and devices are written as they are.
    """
    try:
        if _is_device(path):
            yield str(path)
            return
        path = path.resolve()
        with _beside(path) as beside:
            yield beside
            # mkstemp makes files private; a report is as readable as any other new file.
            mask = os.umask(0)
            os.umask(mask)
            os.chmod(beside, 0o666 & ~mask)
            os.replace(beside, path)
    except OSError as error:
        raise ReportError(f"{path}: {error.strerror or error}") from error


@contextmanager
def _beside(path: Path) -> Iterator[str]:
    """An empty file in the directory of `path`, removed unless it was renamed."""
    # Names have a length limit: the new one must not be much longer than the one it becomes.
    handle, beside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:20]}.")
    os.close(handle)
    try:
        yield beside
    finally:
        Path(beside).unlink(missing_ok=True)


def _is_device(path: Path) -> bool:
    """Whether there is something at `path` that must not be replaced by a file."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return False
    return not stat.S_ISREG(mode)
