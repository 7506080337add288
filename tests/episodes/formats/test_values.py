"""Numbers out of lists of any depth, but not of any size."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from plaudit.data.formats import parsing as values


def doubled(times: int) -> list[Any]:
    """A list in which everything is there twice, so often that it could never be walked through."""
    found: list[Any] = [1.0]
    for _ in range(times):
        found = [found, found]
    return found


@pytest.mark.parametrize("value", [doubled(60), [doubled(60)], [[0.0] * 1000] * 1000, [np.zeros(1000)] * 1000])
def test_lists_without_end_are_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="success has lists of more than 100,000 numbers, or more than 8 deep"):
        values.number(value, "success")


def test_lists_within_lists_are_numbers_too() -> None:
    assert values.number([[[1]]], "success") == 1
    assert values.numeric([[1, 2], (3, 4)], "it").tolist() == [[1, 2], [3, 4]]
    assert values.numeric([np.zeros(2), np.ones(2)], "it").shape == (2, 2)


def test_names_that_are_not_there_are_said_briefly() -> None:
    with pytest.raises(ValueError, match="it has no 'frames', only 'a', tuple"):
        values.entry({"a": 1, (1, 2): 2}, "frames")
