"""Which frames and episodes are shown, and that all figures are drawn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from score_samples import make_scores

from plaudit.reward_models.evaluation.calibration import Calibration
from plaudit.reward_models.evaluation.figures import draw_figures, telling_episodes, worst_frames
from plaudit.reward_models.evaluation.success_decision import Decision

NONE, HALF = Calibration(), Decision(0.5)
THREE = make_scores(
    ([-3, 1, 2, 4], [0, 0, 0, 1]),  # Rows 0 to 3: fires twice too early.
    ([-1, -2, 3], [0, 1, 1]),  # Rows 4 to 6: sees its success late.
    ([-4, -5], [0, 0]),  # Rows 7 and 8: all right.
)


def test_worst_frames_are_one_for_each_episode() -> None:
    assert worst_frames(THREE, 0).tolist() == [2, 4, 7]
    assert worst_frames(THREE, 1).tolist() == [5, 3]
    assert worst_frames(THREE, 0, count=1).tolist() == [2]


def test_telling_episodes_begin_with_mistakes() -> None:
    assert telling_episodes(THREE, NONE, HALF, count=3) == [0, 1, 2]
    assert telling_episodes(THREE, NONE, Decision(0.5, mode="terminal"), count=3) == [1, 0, 2]  # By error alone.
    # A hundred episodes, the 50th is fooled a little, the others are right but less sure: then some from all over.
    many = make_scores(*[([0.1 if index == 50 else -0.1], [0]) for index in range(100)])
    picked = telling_episodes(many, NONE, HALF, count=6)
    assert picked[0] == 50 and len(set(picked)) == 6 and max(picked) == 99


def test_draws_all_there_is(tmp_path: Path) -> None:
    asked: list[list[int]] = []

    def frames_at(rows: NDArray[np.intp]) -> NDArray[np.uint8]:
        asked.append(rows.tolist())
        return np.zeros((len(rows), 8, 8, 3), np.uint8)

    written = draw_figures(tmp_path / "figures", THREE, NONE, HALF, frames_at=frames_at, names=["a", "b", "c"])
    expected = {"roc", "precision_recall", "reliability", "timelines", "false_positives", "false_negatives"}
    assert {path.stem for path in written} == {path.stem for path in (tmp_path / "figures").iterdir()} == expected
    assert asked == [[2, 4, 7], [5, 3]]


def test_one_class_and_no_frames(tmp_path: Path) -> None:
    written = draw_figures(tmp_path, make_scores(([1.0, 2.0], [0, 0])), NONE, Decision(1.0))
    assert {path.name for path in written} == {"reliability.png", "timelines.png"}
