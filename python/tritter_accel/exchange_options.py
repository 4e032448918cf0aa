"""How ``tritter-accel train`` sends the shards' gradients: the options, the compressor they mean, and what was sent."""

from __future__ import annotations

import argparse
from typing import Any

from ._core import GradientCompressor, TrainingConfig
from .exceptions import ArgumentError

__all__ = ["add_options", "compressor", "record", "summary"]

SEED = 42
"""Seed of the compressor, to which ``--seed`` is added."""

RATIO = 0.1
"""Values sent per value of the gradient, where ``--ratio`` is not given."""


def add_options(train: argparse.ArgumentParser) -> None:
    """Add the options of the exchange to the parser of ``train``."""
    group = train.add_argument_group("exchange of gradients", "Every shard's gradient is sent as a message.")
    group.add_argument(
        "--compress",
        choices=["none", "bf16", "dense", "hadamard", "topk"],
        default="none",
        help="what is sent of a gradient: all of it, all in bfloat16, a projection, or its largest values "
        "(default: %(default)s; hadamard is the one to choose)",
    )
    group.add_argument(
        "--ratio",
        type=float,
        help=f"values sent per value, 0 < ratio <= 1, with dense, hadamard and topk (default: {RATIO})",
    )
    group.add_argument(
        "--quantize",
        choices=["none", "ternary", "sign", "levels2", "levels4"],
        default="none",
        help="bits of a value: 32, 1.6, 1, 2 or 4 (default: %(default)s)",
    )
    group.add_argument(
        "--error-feedback",
        action="store_true",
        help="add to each gradient what the messages before it could not say",
    )


def compressor(options: argparse.Namespace) -> GradientCompressor | None:
    """The compressor that the options mean, or None where gradients are not sent as messages.

    With error feedback, and for top-k, the scales are those of least error; otherwise those without bias.
    """
    compress, quantize = options.compress, options.quantize
    picked = compress in ("dense", "hadamard", "topk")
    if options.ratio is not None and not picked:
        raise ArgumentError(
            f"--ratio: every value is sent with --compress {compress}; choose dense, hadamard or topk",
            "ratio",
        )
    if compress == "bf16" and quantize != "none":
        raise ArgumentError(
            f"--quantize: values are bfloat16 with --compress bf16, not {quantize}; choose another --compress",
            "quantize",
        )
    if compress == "none" and quantize == "none":
        if options.error_feedback:
            raise ArgumentError(
                "--error-feedback: nothing is lost with --compress none and --quantize none; choose one of them",
                "error_feedback",
            )
        return None
    biased = options.error_feedback or compress == "topk"
    config = TrainingConfig(
        RATIO if options.ratio is None else options.ratio,
        (SEED + options.seed) % 2**64,
        projection=compress if picked else "none",
        scaling="contractive" if biased else "unbiased",
        quantize="bfloat16" if compress == "bf16" else quantize,
        quantizer_scale="least_squares" if biased else "unbiased",
    )
    return GradientCompressor(config)


def record(
    options: argparse.Namespace, *, workers: int, parameters: int, steps: int, bytes_sent: int
) -> dict[str, Any]:
    """What the exchange of a run was, and the bytes a worker put on the wire in a step.

    Every worker needs every other worker's message: in a ring it sends ``workers - 1`` messages a step, its own and
    those it passes on. float32 gradients in a ring take ``2 (workers - 1) / workers`` times their bytes.
    """
    dense = 2 * (workers - 1) * 4 * parameters // workers
    sends = options.compress != "none" or options.quantize != "none"
    # All messages of a run have one length.
    message_bytes = bytes_sent // (workers * steps) if steps else 0
    bytes_per_step = (workers - 1) * message_bytes
    return {
        "kind": "local",
        "plan": "gather" if sends else None,
        "ranks": 1,
        "workers": workers,
        "compress": options.compress,
        "quantize": options.quantize,
        "error_feedback": options.error_feedback,
        "message_bytes": message_bytes,
        "bytes_sent_per_step": bytes_per_step,
        "dense_bytes_per_step": dense,
        "reduction": dense / bytes_per_step if bytes_per_step else None,
    }


def summary(exchange: dict[str, Any], parameters: int) -> str:
    """One line of the report."""
    workers = f"{exchange['workers']:,} shard{'' if exchange['workers'] == 1 else 's'}"
    gradient = 4 * parameters
    if exchange["plan"] is None:
        return (
            f"exchange: none ({workers} in one process): 0 bytes a step, float32 gradient {gradient:,} bytes"
        )
    kind = "" if exchange["quantize"] == "none" else f", {exchange['quantize']}"
    feedback = ", error feedback" if exchange["error_feedback"] else ""
    line = f"exchange: {exchange['compress']}{kind}{feedback} ({workers} in one process)"
    message = exchange["message_bytes"]
    if not message:
        return f"{line}: nothing sent"
    line += f": messages of {message:,} bytes, float32 gradient {gradient:,} bytes, {gradient / message:.1f} times more"
    if exchange["reduction"] is None:
        return line
    return (
        f"{line}\nin a ring: {exchange['bytes_sent_per_step']:,} bytes a step and worker, "
        f"float32 {exchange['dense_bytes_per_step']:,}, {exchange['reduction']:.1f} times more"
    )
