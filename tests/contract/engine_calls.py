"""The engine's calls that the contract is checked on; a new call is one more line.

Built anew or immutable: no call here changes what another one sees.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

import tritter_accel as ta
from tritter_accel.names_network import NamesNetwork
from tritter_accel.random import SplitMix64
from tritter_accel.train import Trainer


def normal(*shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


class Classifier:
    """A perceptron of three classes over floats: products, relu, bias, softmax, cross entropy."""

    def __init__(self, inputs: int = 7, hidden: int = 11, rows: int = 40) -> None:
        tape = ta.Tape()
        features = tape.input("features", (ta.BATCH, inputs))
        labels = tape.selection("labels", 3, (ta.BATCH,))
        mlp = ta.nn.Mlp(tape, "mlp", [inputs, hidden, hidden, 3], activation="relu", init=ta.init.kaiming(5))
        logits = mlp(features)
        self.loss = ta.nn.cross_entropy(logits, labels)
        self.probabilities = logits.softmax()
        self.tape = tape
        self.network = tape.seal()
        self.entry = self.network.entry(self.loss, [self.probabilities])
        self.parameters = self.network.parameters()
        self.feeds: dict[str, NDArray[Any]] = {
            "features": normal(rows, inputs),
            "labels": np.arange(rows, dtype=np.int64) % 3,
        }

    def trainer(self, **options: Any) -> Trainer:
        options = {"batch_size": 16, "shards": 4, **options}
        return Trainer(self.entry, self.parameters, self.feeds, **options)

    def run(self) -> ta.Run:
        return self.entry.run(self.parameters, self.feeds)

    def outcome(self, entry: ta.Entry | None = None, parameters: ta.Parameters | None = None) -> list[Any]:
        """The bits of a run and of its way back, by another entry and table than its own if wanted."""
        run = (entry or self.entry).run(parameters or self.parameters, self.feeds)
        observed = (entry or self.entry).observed
        return [run.loss, *(run[value] for value in observed), run.backward().flat()]


CLASSIFIER = Classifier()
RUN = CLASSIFIER.run()


def open_tape() -> tuple[ta.Tape, ta.Value, ta.Value]:
    """A tape with a value of shape (4, 3) and a selection."""
    tape = ta.Tape()
    return tape, tape.input("x", (4, 3)), tape.selection("s", 4, (5,))


def _method(name: str, odd: Any) -> Any:
    return getattr(open_tape()[1], name)(odd)


# A call by its one odd argument. What has no meaning ends in an error of the package; an object of another
# class than the call asks for, in a TypeError.
ENGINE_ARGUMENTS: dict[str, Callable[[Any], Any]] = {
    "parameter(name)": lambda x: open_tape()[0].parameter(x, ta.init.zeros(), (2,)),
    "parameter(init)": lambda x: open_tape()[0].parameter("p", x, (2,)),
    "parameter(shape)": lambda x: open_tape()[0].parameter("p", ta.init.zeros(), x),
    "input(name)": lambda x: open_tape()[0].input(x, (2,)),
    "input(shape)": lambda x: open_tape()[0].input("p", x),
    "selection(vocabulary)": lambda x: open_tape()[0].selection("p", x, (2,)),
    "selection(shape)": lambda x: open_tape()[0].selection("p", 2, x),
    "constant": lambda x: open_tape()[0].constant(x),
    "value + x": lambda x: open_tape()[1] + x,
    "value - x": lambda x: open_tape()[1] - x,
    "value * x": lambda x: open_tape()[1] * x,
    "value / x": lambda x: open_tape()[1] / x,
    **{
        name: partial(_method, name)
        for name in (
            "sum", "mean", "reshape", "transpose", "broadcast_to", "gather", "matmul", "softmax", "log_softmax",
            "logsumexp",
        )
    },
    "sum(keepdims)": lambda x: open_tape()[1].sum(0, x),
    "cross_entropy(logits)": lambda x: ta.nn.cross_entropy(x, open_tape()[2]),
    "cross_entropy(targets)": lambda x: ta.nn.cross_entropy(open_tape()[1], x),
    "entry(loss)": lambda x: CLASSIFIER.network.entry(x),
    "entry(observe)": lambda x: CLASSIFIER.network.entry(CLASSIFIER.loss, x),
    "entry.run(parameters)": lambda x: CLASSIFIER.entry.run(x, CLASSIFIER.feeds),
    "entry.run(feeds)": lambda x: CLASSIFIER.entry.run(CLASSIFIER.parameters, x),
    "entry.run(features)": lambda x: CLASSIFIER.entry.run(CLASSIFIER.parameters, {**CLASSIFIER.feeds, "features": x}),
    "entry.run(labels)": lambda x: CLASSIFIER.entry.run(CLASSIFIER.parameters, {**CLASSIFIER.feeds, "labels": x}),
    "run[x]": lambda x: RUN[x],
    "backward": lambda x: RUN.backward(x),
    "Parameters": ta.Parameters,
    "Parameters(array)": lambda x: ta.Parameters({"a": x}),
    "x in parameters": lambda x: x in CLASSIFIER.parameters,
    "scale": lambda x: CLASSIFIER.parameters.scale(x),
    "replace": lambda x: CLASSIFIER.parameters.replace(x),
    "replace(array)": lambda x: CLASSIFIER.parameters.replace({"mlp.layer0.bias": x}),
    "map": lambda x: CLASSIFIER.parameters.map(lambda _: x),
    "zip": lambda x: CLASSIFIER.parameters.zip(x, lambda a, _: a),
    "parameters == x": lambda x: CLASSIFIER.parameters == x,
    "Trainer(entry)": lambda x: Trainer(x, CLASSIFIER.parameters, CLASSIFIER.feeds, batch_size=8),
    "Trainer(parameters)": lambda x: Trainer(CLASSIFIER.entry, x, CLASSIFIER.feeds, batch_size=8),
    "Trainer(data)": lambda x: Trainer(CLASSIFIER.entry, CLASSIFIER.parameters, x, batch_size=8),
    "Trainer(batch_size)": lambda x: CLASSIFIER.trainer(batch_size=x, shards=None),
    "Trainer(shards)": lambda x: CLASSIFIER.trainer(shards=x),
    "Trainer(momentum)": lambda x: CLASSIFIER.trainer(momentum=x),
    "trainer.run(learning_rate)": lambda x: CLASSIFIER.trainer().run(2, x),
    "SplitMix64": SplitMix64,
    "Initializer(kind)": lambda x: ta.init.Initializer(x, 1.0, 1),
    "Initializer(value)": lambda x: ta.init.Initializer("normal", x, 1),
    "Initializer(seed)": lambda x: ta.init.Initializer("normal", 1.0, x),
    "Initializer(state)": lambda x: ta.init.Initializer("normal", 1.0, 1, x),
}  # fmt: skip


def engine_results() -> dict[str, Any]:
    """What must be the same bits at every number of threads and SIMD level: large enough for the pool too."""
    large = Classifier(64, 128, 512)
    names = NamesNetwork(27)
    contexts = np.arange(3 * 4000).reshape(4000, 3) % 27
    feeds = {"contexts": contexts, "targets": contexts[:, 0] * 5 % 27}
    table = names.network.parameters()
    run = names.loss.run(table, feeds)
    name_trainer = Trainer(names.loss, table, feeds, batch_size=65, shards=8, momentum=0.9)
    trainers = [large.trainer(batch_size=256, shards=8), large.trainer(batch_size=33, shards=5, momentum=0.5)]
    small = CLASSIFIER.trainer(batch_size=40)
    return {
        "Entry.run": large.outcome(),
        "Entry.run, small": CLASSIFIER.outcome(),
        "Entry.run, names": [run.loss, run.backward().flat()],
        "Trainer": [[t.run(9, 0.05), t.parameters.flat()] for t in trainers],
        "Trainer, small": [small.run(20, 0.1), small.parameters.flat()],
        "Trainer, names": [name_trainer.run(30, 0.1), name_trainer.parameters.flat()],
        "Parameters": [(large.parameters * 2.0 - table.norm()).flat(), large.parameters.norm()],
    }


def drawn_stream() -> SplitMix64:
    stream = SplitMix64(3)
    stream.unit()
    return stream


def drawn_initializer() -> ta.init.Initializer:
    initializer = ta.init.normal(4, 0.5)
    ta.Tape().parameter("a", initializer, (3,))
    return initializer


def _fills(initializer: ta.init.Initializer) -> Any:
    tape = ta.Tape()
    tape.parameter("a", initializer, (5, 2))
    return tape.seal().parameters().flat().tolist()


# What pickles and copies, with how two of them are compared.
ENGINE_OBJECTS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "Parameters": (lambda: CLASSIFIER.parameters, lambda x: (repr(x), x.names, x.shapes, x.flat().tobytes())),
    "Network": (
        lambda: CLASSIFIER.network,
        lambda x: (
            repr(x),
            x.parameters().flat().tobytes(),
            x.entry(CLASSIFIER.loss).run(CLASSIFIER.parameters, CLASSIFIER.feeds).loss,
        ),
    ),
    "Entry": (lambda: CLASSIFIER.entry, lambda x: (repr(x), repr(CLASSIFIER.outcome(x)))),
    "Value": (
        lambda: CLASSIFIER.probabilities,
        lambda x: (repr(x), x.shape, RUN[x].tobytes()),
    ),
    "SplitMix64": (drawn_stream, lambda x: (repr(x), x.permutation(20).tolist(), x.unit())),
    "Initializer": (drawn_initializer, lambda x: (repr(x), _fills(x))),
    "BatchAxis": (lambda: ta.BATCH, lambda x: (repr(x), x == ta.BATCH, hash(x))),
}
