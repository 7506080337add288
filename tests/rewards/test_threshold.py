"""The choice of a threshold, worked by hand and against a search of all thresholds."""

from __future__ import annotations

import json
import math
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from score_samples import FEW, any_scores, logit, make_scores

from plaudit.errors import ConfigError
from plaudit.reward_models.evaluation.calibration import Calibration
from plaudit.reward_models.evaluation.metrics import evaluate
from plaudit.reward_models.evaluation.scores import Scores
from plaudit.reward_models.evaluation.success_decision import Decision, RewardMode
from plaudit.reward_models.evaluation.threshold import Choice, pick_threshold

NONE = Calibration()


def picked_logit(choice: Choice) -> float:
    return logit(choice.decision.threshold)


def failures(*worst: float) -> list[tuple[list[float], list[int]]]:
    """Failed episodes with these highest logits."""
    return [([-5.0, high, -5.0], [0, 0, 0]) for high in worst]


def test_the_lowest_threshold_within_the_target() -> None:
    # Of ten failures one may fool it. Successes at 2.5 and above are seen, those at 1.5 cost a second failure.
    scores = make_scores(*failures(3, 2, *8 * [-1]), ([1.5, 2.5, 4.0], [1, 1, 1]))
    choice = pick_threshold(scores, NONE, 0.1)
    assert picked_logit(choice) == pytest.approx(2.25)  # Between 2, the second failure, and 2.5.
    assert (choice.false_positives, choice.episodes, choice.recall) == (1, 10, 2 / 3)
    assert choice.false_positive_rate == 0.1 and choice.bounds == pytest.approx((0.0025, 0.4450), abs=5e-5)
    none = pick_threshold(scores, NONE, 0.09)
    assert picked_logit(none) == pytest.approx(3.5) and none.false_positives == 0 and none.recall == 1 / 3


def test_early_firing_in_a_success_counts() -> None:
    scores = make_scores(([1.0, 3.0], [0, 1]), ([2.0, 3.0], [0, 1]), *failures(-1, -1))
    assert picked_logit(pick_threshold(scores, NONE, 0)) == pytest.approx(2.5)
    assert picked_logit(pick_threshold(scores, NONE, 0.25)) == pytest.approx(2.5)  # A false positive buys nothing.
    assert pick_threshold(scores, NONE, 0.25).episodes == 4


def test_false_positives_that_buy_nothing_are_not_spent() -> None:
    # Half of the failures might fool it, but all successes are above all of them: the middle of the gap.
    scores = make_scores(*failures(1, 0.5, 0.2, -4), ([3.0, 6.0], [1, 1]))
    choice = pick_threshold(scores, NONE, 0.5)
    assert picked_logit(choice) == pytest.approx(2) and choice.false_positives == 0 and choice.recall == 1


def test_a_success_that_no_threshold_can_tell_from_one_half_buys_nothing() -> None:
    # A logit of 1e-27 is a probability of exactly one half, over which it is not: only the one at 1 can be had.
    choice = pick_threshold(make_scores(([0.5, 1e-27], [0, 1]), ([-9.0, 1.0], [0, 1])), NONE, 0.5)
    assert picked_logit(choice) == pytest.approx(0.75) and choice.false_positives == 0 and choice.recall == 0.5


def test_never_below_one_half() -> None:
    # One success looks like a failure. A threshold as low as that would cost nothing here, and much elsewhere.
    scores = make_scores(*failures(-4, -4), ([-3.0, 5.0], [1, 1]))
    choice = pick_threshold(scores, NONE)
    assert picked_logit(choice) == pytest.approx(1) and choice.recall == 1 / 2  # Between -3 and 5.
    wide = pick_threshold(make_scores(*failures(-9), ([5.0], [1])), NONE)
    assert wide.decision.threshold == 0.5 and wide.recall == 1  # Their middle would be at -2.


def test_calibration_changes_the_probability_and_not_the_choice() -> None:
    scores = make_scores(*failures(3, 2, *8 * [-1]), ([1.5, 2.5, 4.0], [1, 1, 1]))
    choice = pick_threshold(scores, Calibration(temperature=2, bias=0.5), 0.1)
    assert picked_logit(choice) == pytest.approx(2.25 / 2 + 0.5) and choice.recall == 2 / 3


def test_hold_has_its_own_threshold() -> None:
    # A flicker of one frame fools the model, two in a row never do.
    scores = make_scores(*failures(6, 6, 6), ([-5.0, 2.0, 2.0, 4.0], [0, 1, 1, 1]))
    alone = pick_threshold(scores, NONE)
    assert alone.decision.threshold == 1 and alone.recall == 0
    assert alone.note.startswith("No threshold fires at a success and keeps false positives to 1 % of episodes.")
    held = pick_threshold(scores, NONE, hold=2)
    # The first success frame comes after a failure; the others hold 2. In the failures at most -5 is held.
    assert held.decision.hold == 2 and held.recall == 2 / 3 and held.false_positives == 0
    assert 0.5 <= held.decision.threshold < 1 / (1 + math.exp(-2))


def test_terminal_mode_looks_at_last_frames_alone() -> None:
    scores = make_scores(*failures(6, 6, 6), ([-5.0, 2.0], [0, 1]))
    choice = pick_threshold(scores, NONE, mode="terminal")
    assert choice.decision.mode == "terminal" and choice.episodes == 3 and choice.recall == 1


def test_a_model_surer_than_float_can_say() -> None:
    # Both are as sure as can be told, so that firing at the success would mean firing at the failure.
    choice = pick_threshold(make_scores(*failures(100), ([200.0], [1])), NONE)
    assert choice.decision.threshold == 1 and choice.recall == 0


@pytest.mark.parametrize(("count", "supported"), [(298, False), (299, True)])
def test_says_when_there_are_too_few_episodes(count: int, supported: bool) -> None:
    choice = pick_threshold(make_scores(*failures(*count * [-1.0]), ([2.0], [1])), NONE)
    assert choice.supported == supported and choice.false_positives == 0
    said = "Too few episodes to support 1 %: 298 have a frame that is not a success, at least 299 are needed."
    assert choice.note == ("" if supported else said)


def test_says_what_could_not_be_chosen() -> None:
    only_success = pick_threshold(make_scores(([1.0], [1])), NONE)
    assert only_success.decision.threshold == 0.5 and math.isnan(only_success.false_positive_rate)
    assert only_success.note.startswith("No episode has a frame that is not a success")
    only_failure = pick_threshold(make_scores(*failures(1.0, 3.0)), NONE, 0.5)
    assert picked_logit(only_failure) == pytest.approx(2) and math.isnan(only_failure.recall)
    assert only_failure.note.startswith("There are no success frames")
    assert "no number is enough" in pick_threshold(make_scores(*failures(1.0)), NONE, 0).note


@pytest.mark.parametrize("target", [-0.1, 1.0, math.nan])
def test_impossible_targets(target: float) -> None:
    with pytest.raises(ConfigError, match="at least 0 and below 1"):
        pick_threshold(make_scores(([1.0], [1])), NONE, target)


def test_can_be_written_as_json() -> None:
    written = json.loads(json.dumps(asdict(pick_threshold(make_scores(*failures(1), ([2.0], [1])), NONE))))
    assert Decision(**written.pop("decision")) == Decision(1 / (1 + math.exp(-1.5)))
    assert written["target"] == 0.01 and written["episodes"] == 1


@FEW
@given(any_scores(), st.sampled_from([0, 0.01, 0.2, 0.29, 0.5, 0.9]), st.integers(1, 3), st.booleans())
def test_no_other_threshold_does_better(scores: Scores, target: float, hold: int, terminal: bool) -> None:
    mode: RewardMode = "terminal" if terminal else "per_step"
    hold = 1 if terminal else hold
    choice = pick_threshold(scores, NONE, target, hold=hold, mode=mode)
    reached = evaluate(scores, NONE, choice.decision)
    assert reached["episode_false_positives"] == choice.false_positives
    assert reached["recall"] == pytest.approx(choice.recall, nan_ok=True)
    if not choice.episodes:
        return
    assert choice.false_positive_rate <= target
    for threshold in {0.5, *NONE.probabilities(scores.logits)}:
        other = evaluate(scores, NONE, Decision(max(threshold, 0.5), hold, mode))
        if other["episode_false_positive_rate"] <= target and not math.isnan(choice.recall):
            assert other["recall"] <= choice.recall
            if other["recall"] == choice.recall > 0:
                assert other["episode_false_positives"] >= choice.false_positives


def test_target_is_met_exactly() -> None:
    # 0.29 · 100 is a little less than 29 to a computer, but 29 of 100 are within 29 %.
    scores = make_scores(*failures(*np.linspace(1, 3, 100)), ([1.0 + 2 / 99 * 70.5], [1]))
    choice = pick_threshold(scores, NONE, 0.29)
    assert choice.false_positives == 29 and choice.recall == 1
