"""What envs say: which flag counts, and what their floats mean."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

from plaudit.data.step_adapter import Output, Reader


def say(reader: Reader, brightness: float, **more: Any) -> Output:
    """One instant of two envs, whose pictures are of one value."""
    output = {"obs": {"camera": np.full((2, 4, 4, 3), brightness, np.float32)}, **more}
    return reader.mapping(output, {}, is_last_step=False)


def seen(output: Output) -> int:
    assert output.now.frames is not None
    return int(output.now.frames["camera"][0, 0, 0, 0])


def test_a_dark_batch_does_not_change_the_range(caplog: pytest.LogCaptureFixture) -> None:
    reader = Reader(2, None, None)
    with caplog.at_level(logging.WARNING, "plaudit"):
        assert [seen(say(reader, value)) for value in (0, 200, 1, 0, 90)] == [0, 200, 1, 0, 90]
    assert not caplog.records


def test_a_range_that_was_misjudged_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    reader = Reader(2, None, None)
    with caplog.at_level(logging.WARNING, "plaudit"):
        assert [seen(say(reader, value)) for value in (1, 200, 1, 200)] == [255, 200, 1, 200]
    assert [record.getMessage().partition(",")[0] for record in caplog.records] == ["an env's pictures go beyond 1"]


@pytest.mark.parametrize("order", [("grasp", "is_grasped", "grasped"), ("is_grasped", "grasped", "grasp")])
def test_of_several_flags_the_first_known_name_counts(order: tuple[str, ...]) -> None:
    given = {name: [name == "grasp", False] for name in order}
    assert say(Reader(2, None, None), 0, **given).flags["grasp"].tolist() == [1, 0]
    del given["grasp"]
    given["grasped"] = [False, True]
    assert say(Reader(2, None, None), 0, **given).flags["grasp"].tolist() == [0, 1]
