"""The training engine: record a network once, seal it, run it over any batch.

A :class:`Tape` records shapes and operations, and refuses what does not fit at the line that is wrong.
:meth:`Tape.seal` gives an immutable :class:`Network`; :meth:`Network.entry` selects what to compute, :meth:`Entry.run`
computes it, and :meth:`Run.backward` gives the gradient as a :class:`Parameters` table. What a run is fed is state of
the run, never of the network, so the tape does not grow while training.
"""

from __future__ import annotations

from ._core import BATCH, BatchAxis, Entry, Network, Parameters, Run, Tape, Value

__all__ = ["BATCH", "BatchAxis", "Entry", "Network", "Parameters", "Run", "Tape", "Value"]
