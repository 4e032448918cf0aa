"""Messages are taken from any contiguous buffer, and everything else is refused by its name."""

from __future__ import annotations

import array
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tritter_accel as ta

from .calls import MESSAGE_ARGUMENTS, MessageArgument, outcome

every_message = pytest.mark.parametrize("row", MESSAGE_ARGUMENTS, ids=str)


TAKEN: dict[str, Callable[[bytes], Any]] = {
    "bytes": bytes,
    "Message": ta.wire.Message,
    "bytearray": bytearray,
    "memoryview": memoryview,
    "writable memoryview": lambda message: memoryview(bytearray(message)),
    "inside another": lambda message: memoryview(b"\0" + message + b"\0")[1:-1],
    "array of the standard library": lambda message: array.array("B", message),
    "ndarray of uint8": lambda message: np.frombuffer(message, np.uint8),
    "ndarray of int8": lambda message: np.frombuffer(message, np.int8),
    "characters": lambda message: memoryview(message).cast("c"),
    "one item": lambda message: np.frombuffer(message, f"V{len(message)}"),
    "two axes": lambda message: np.frombuffer(message, np.uint8).reshape(1, -1),
}


@every_message
@pytest.mark.parametrize("form", TAKEN)
def test_any_buffer_is_taken(row: MessageArgument, form: str) -> None:
    message = row.message()
    assert outcome(row.call(TAKEN[form](message))) == outcome(row.call(message))


def spread(message: bytes) -> Any:
    """The message in every second byte of an array."""
    return np.repeat(np.frombuffer(message, np.uint8), 2)[::2]


REFUSED: dict[str, tuple[Callable[[bytes], Any], str]] = {
    "every second byte": (spread, "bytes("),
    "memoryview of every second": (lambda message: memoryview(spread(message)), "bytes("),
    "reversed": (lambda message: np.frombuffer(message, np.uint8)[::-1], "bytes("),
    "transposed": (lambda message: np.frombuffer(2 * message, np.uint8).reshape(2, -1).T, "bytes("),
    "str": (lambda message: message.decode("latin-1"), "str"),
    "None": (lambda message: None, "None"),
    "number": (len, "int"),
    "list": (list, "list"),
    "type": (lambda message: bytes, "type"),
}


@every_message
@pytest.mark.parametrize("form", REFUSED)
def test_everything_else_is_refused_by_name(row: MessageArgument, form: str) -> None:
    make, named = REFUSED[form]
    with pytest.raises((ta.ArrayError, ta.ArgumentTypeError)) as caught:
        row.call(make(row.message()))
    assert caught.value.argument == "message"
    assert str(caught.value).startswith("argument message: ")
    assert named in str(caught.value)


@every_message
def test_the_message_is_not_changed_and_what_comes_of_it_owns_its_memory(row: MessageArgument) -> None:
    message = row.message()
    taken = bytearray(message)
    result = row.call(taken)
    assert taken == message
    before = outcome(result)
    taken[:] = bytes(len(taken))
    assert outcome(result) == before


@every_message
def test_a_buffer_is_let_go(row: MessageArgument) -> None:
    taken = bytearray(row.message())
    result = row.call(taken)
    taken.append(0)  # refused while anybody holds the buffer
    with pytest.raises(ta.WireError):
        row.call(taken)
    taken.append(0)
    del result


@every_message
@pytest.mark.parametrize("length", [0, 1, 63, 64, 67])
def test_a_short_message_is_refused(row: MessageArgument, length: int) -> None:
    with pytest.raises(ta.WireError) as caught:
        row.call(row.message()[:length])
    assert caught.value.field == "length"
