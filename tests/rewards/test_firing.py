"""When a model fires, against a plain loop over frames."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from score_samples import FEW, any_scores, make_scores

from plaudit.errors import ConfigError
from plaudit.reward_models.evaluation.calibration import Calibration
from plaudit.reward_models.evaluation.scores import Scores
from plaudit.reward_models.evaluation.success_decision import Decision, fires, held

P = np.array([0.9, 0.9, 0.4, 0.9, 0.9, 0.9, 0.2])
ONE_AND_ANOTHER = make_scores(([0] * 5, [0] * 5), ([0] * 2, [0] * 2))  # Five frames, and two.


def test_above_and_not_equal() -> None:
    assert fires(P, ONE_AND_ANOTHER, Decision(0.9)).sum() == 0
    assert fires(P, ONE_AND_ANOTHER, Decision(0.4)).tolist() == [1, 1, 0, 1, 1, 1, 0]


def test_hold_starts_anew_with_each_episode() -> None:
    assert held(P, ONE_AND_ANOTHER, 2).tolist() == [-np.inf, 0.9, 0.4, 0.4, 0.9, -np.inf, 0.2]
    assert fires(P, ONE_AND_ANOTHER, Decision(0.5, hold=2)).tolist() == [0, 1, 0, 0, 1, 0, 0]
    assert fires(P, ONE_AND_ANOTHER, Decision(0.5, hold=100)).sum() == 0


def test_release_keeps_it_going() -> None:
    assert fires(P, ONE_AND_ANOTHER, Decision(0.5, hold=2, release=0.3)).tolist() == [0, 1, 1, 1, 1, 0, 0]
    assert fires(P, ONE_AND_ANOTHER, Decision(0.5, hold=2, release=0.4)).tolist() == [0, 1, 0, 0, 1, 0, 0]
    assert fires(P, ONE_AND_ANOTHER, Decision(0.5, release=0.1)).tolist() == [1, 1, 1, 1, 1, 1, 1]


def test_terminal_mode_asks_at_the_end() -> None:
    assert fires(P, ONE_AND_ANOTHER, Decision(0.1, mode="terminal")).tolist() == [0, 0, 0, 0, 1, 0, 1]


def by_loop(p: NDArray[np.float64], scores: Scores, decision: Decision) -> list[bool]:
    """What a robot would do, frame after frame."""
    fired: list[bool] = []
    over, on = 0, False
    for row in range(len(scores)):
        if row in scores.starts:
            over, on = 0, False
        over = over + 1 if p[row] > decision.threshold else 0
        release = decision.threshold if decision.release is None else decision.release
        on = over >= decision.hold or (decision.release is not None and on and p[row] > release)
        fired.append(on)
    return fired


@FEW
@given(any_scores(), st.sampled_from([0.3, 0.5, 0.8]), st.integers(1, 4), st.sampled_from([None, 0.0, 0.2, 0.3]))
def test_is_what_a_loop_says(scores: Scores, threshold: float, hold: int, release: float | None) -> None:
    p = Calibration().probabilities(scores.logits)
    decision = Decision(threshold, hold, release=release)
    assert fires(p, scores, decision).tolist() == by_loop(p, scores, decision)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"threshold": 1.5}, "0 to 1, not 1.5"),
        ({"threshold": float("nan")}, "not nan"),
        ({"hold": 0}, "at least 1 frame, not 0"),
        ({"mode": "terminl"}, "per_step, terminal, not 'terminl'"),
        ({"release": 0.6}, "0.5, not 0.6"),
        ({"mode": "terminal", "hold": 2}, "one frame only"),
        ({"mode": "terminal", "release": 0.1}, "one frame only"),
    ],
)
def test_says_what_cannot_work(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Decision(**keys)
