"""What learning is asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from plaudit.rl.async_.learner import Save
from plaudit.rl.checkpoint import CheckpointFolder


@pytest.mark.parametrize(
    ("newer", "older", "expected"),
    [
        ("latest.pt", "latest.pt", True),
        ("best.pt", "best.pt", True),
        ("step_2.pt", "step_1.pt", True),
        ("best.pt", "latest.pt", True),  # Whatever its name, it is written as the latest one too.
        ("step_1.pt", "latest.pt", True),
        ("latest.pt", "best.pt", False),
        ("latest.pt", "step_1.pt", False),
        ("best.pt", "step_1.pt", False),
        ("step_1.pt", "best.pt", False),
    ],
)
def test_a_wish_that_a_newer_one_makes_needless(newer: str, older: str, expected: bool) -> None:
    folder = CheckpointFolder(Path("checkpoints"), keep=0)
    assert Save(folder, newer, {}, 2).replaces(Save(folder, older, {}, 1)) == expected
