"""Every argument that is no array: what is taken, and that all else is refused by its name."""

from __future__ import annotations

import pytest

import tritter_accel as ta

from .calls import SCALAR_ARGUMENTS, ScalarArgument

GOOD = [(row, value) for row in SCALAR_ARGUMENTS for value in row.good]
WRONG_VALUES = [(row, value) for row in SCALAR_ARGUMENTS for value in row.wrong_values]
WRONG_TYPES = [(row, value) for row in SCALAR_ARGUMENTS for value in row.wrong_types]


def name(item: object) -> str:
    if isinstance(item, ScalarArgument):
        return str(item)
    return type(item).__name__ if type(item).__repr__ is object.__repr__ else ascii(item)[:20]


@pytest.mark.parametrize(("row", "value"), GOOD, ids=name)
def test_is_taken(row: ScalarArgument, value: object) -> None:
    row.call(value)


@pytest.mark.parametrize(("row", "value"), WRONG_VALUES, ids=name)
def test_a_value_without_meaning_is_refused(row: ScalarArgument, value: object) -> None:
    with pytest.raises(row.error) as caught:
        row.call(value)
    if isinstance(caught.value, ta.ArgumentError):
        assert caught.value.argument == row.argument
        assert str(caught.value).startswith(f"argument {row.argument}: ")


@pytest.mark.parametrize(("row", "value"), WRONG_TYPES, ids=name)
def test_another_type_is_refused(row: ScalarArgument, value: object) -> None:
    with pytest.raises(ta.ArgumentTypeError) as caught:
        row.call(value)
    assert caught.value.argument == row.argument
    message = str(caught.value)
    assert message.startswith(f"argument {row.argument}: got {type(value).__name__}")
    assert "wanted" in message
