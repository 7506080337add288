"""The truth about a model, worked by hand for five short episodes."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from score_samples import FEW, any_scores, make_scores

from plaudit.reward_models.evaluation.calibration import Calibration
from plaudit.reward_models.evaluation.confidence_bounds import rate_bounds
from plaudit.reward_models.evaluation.metrics import evaluate, why_missing
from plaudit.reward_models.evaluation.scores import Scores
from plaudit.reward_models.evaluation.success_decision import Decision, RewardMode

NONE = Calibration()
HALF = Decision(0.5)  # Fires at logits above 0.

FIVE = make_scores(
    ([-1, -1, 2, 2], [0, 0, 1, 1]),  # A success, seen at once.
    ([-1, 2, 2], [0, 0, 1]),  # A success, seen one frame too early.
    ([-1, -1, -1], [0, 1, 1]),  # A success that is missed.
    ([-1, 2, 2, -1], [0, 0, 0, 0]),  # A failure that fools it, for two frames.
    ([-1, -1], [0, 0]),  # A failure that does not.
)


def test_frames() -> None:
    metrics = evaluate(FIVE, NONE, HALF)
    assert (metrics["frames"], metrics["success_frames"], metrics["failure_frames"]) == (16, 5, 11)
    confusion = [metrics[f"{sign}s"] for sign in ("true_positive", "false_positive", "true_negative", "false_negative")]
    assert confusion == [3, 3, 8, 2]
    assert metrics["accuracy"] == 11 / 16
    assert metrics["precision"] == 3 / 6
    assert metrics["recall"] == 3 / 5
    assert metrics["specificity"] == 8 / 11
    assert metrics["balanced_accuracy"] == pytest.approx((3 / 5 + 8 / 11) / 2)
    # Three of five successes are above, and two equal to, eight of eleven failures; the other three are as high.
    assert metrics["roc_auc"] == pytest.approx((3 * (8 + 3 / 2) + 2 * 8 / 2) / 55)
    high, low = 1 / (1 + math.exp(-2)), 1 / (1 + math.exp(1))
    assert metrics["brier"] == pytest.approx((3 * (1 - high) ** 2 + 3 * high**2 + 8 * low**2 + 2 * (1 - low) ** 2) / 16)
    assert metrics["ece"] == pytest.approx((6 * abs(high - 3 / 6) + 10 * abs(low - 2 / 10)) / 16)
    loss = -(3 * math.log(high) + 3 * math.log(1 - high) + 8 * math.log(1 - low) + 2 * math.log(low)) / 16
    assert metrics["log_loss"] == pytest.approx(loss)


def test_episodes() -> None:
    metrics = evaluate(FIVE, NONE, HALF)
    assert (metrics["episodes"], metrics["episodes_with_failure"], metrics["episodes_with_success"]) == (5, 5, 3)
    assert (metrics["episode_false_positives"], metrics["episode_misses"]) == (2, 1)
    for name, events, trials in (
        ("episode_false_positive_rate", 2, 5),
        ("failed_episode_false_positive_rate", 1, 2),
        ("early_firing_rate", 1, 3),
        ("episode_miss_rate", 1, 3),
    ):
        assert metrics[name] == events / trials
        assert (metrics[f"{name}_low"], metrics[f"{name}_high"]) == rate_bounds(events, trials)


def test_hold() -> None:
    metrics = evaluate(FIVE, NONE, Decision(0.5, hold=2))
    assert metrics["true_positives"] == 2  # One in the first episode, one in the second, a frame late each.
    assert metrics["early_firing_rate"] == 0
    assert metrics["failed_episode_false_positive_rate"] == 1 / 2  # Two frames are enough to fool it still,
    assert evaluate(FIVE, NONE, Decision(0.5, hold=3))["episode_false_positive_rate"] == 0  # but not three,
    assert evaluate(FIVE, NONE, Decision(0.5, hold=3))["episode_miss_rate"] == 1  # which no success has either.
    assert metrics["roc_auc"] == evaluate(FIVE, NONE, HALF)["roc_auc"]


def test_terminal_mode_judges_last_frames() -> None:
    metrics = evaluate(FIVE, NONE, Decision(0.5, mode="terminal"))
    assert (metrics["recall"], metrics["specificity"]) == (2 / 3, 1)
    assert (metrics["episodes_with_failure"], metrics["episode_false_positive_rate"]) == (2, 0)
    assert math.isnan(metrics["early_firing_rate"]) and metrics["episode_miss_rate"] == 1 / 3


def test_calibration_moves_the_threshold() -> None:
    assert evaluate(FIVE, Calibration(bias=-2.5), HALF)["recall"] == 0
    assert evaluate(FIVE, Calibration(temperature=10), Decision(0.6))["recall"] == 0  # 2 / 10 is 55 %.


def test_frames_of_an_episode_are_not_independent() -> None:
    # Ten episodes, of which one is wrong in all its frames: no surer than ten frames would be.
    ten = make_scores(*[([1.0] * 50, [index > 0] * 50) for index in range(10)], ([-1.0], [0]))
    metrics = evaluate(ten, NONE, HALF)
    assert metrics["precision"] == 0.9
    assert metrics["precision_high"] - metrics["precision_low"] > 0.4


def test_bounds_hold_the_truth_about_as_often_as_they_say() -> None:
    # 3 % of frames are wrong, and mostly in the same episodes: errors per episode are beta distributed.
    random = np.random.default_rng(0)
    held = independent = 0
    for _ in range(100):
        wrong = random.random((200, 12)) < random.beta(0.03 * 0.4, 0.97 * 0.4, (200, 1))
        success = np.repeat(random.random((200, 1)) < 0.5, 12, axis=1)
        logits = np.where(success ^ wrong, 1.0, -1.0)
        metrics = evaluate(make_scores(*zip(logits, success, strict=True)), NONE, HALF)
        held += metrics["accuracy_low"] <= 0.97 <= metrics["accuracy_high"]
        low, high = rate_bounds(metrics["accuracy"] * 2400, 2400)
        independent += low <= 0.97 <= high
    assert held >= 90 > 70 > independent


def test_bounds_of_balanced_accuracy() -> None:
    # Of each class four episodes of two frames, right in both or in none. Each moves its rate by 1/8 and the balance
    # by 1/16; the variance is 4/3 · 8/256 = 1/24, that of six independent frames.
    scores = make_scores(*[([high] * 2, [label] * 2) for label in (0, 1) for high in (1.0, 1.0, -1.0, -1.0)])
    metrics = evaluate(scores, NONE, HALF)
    assert metrics["balanced_accuracy"] == 1 / 2
    bounds = metrics["balanced_accuracy_low"], metrics["balanced_accuracy_high"]
    assert bounds == pytest.approx(rate_bounds(3, 6))


def test_stride_of_stored_frames() -> None:
    spaced = dataclasses.replace(FIVE, instant=FIVE.instant * 4)
    assert evaluate(FIVE, NONE, HALF)["frame_stride"] == 1 and evaluate(spaced, NONE, HALF)["frame_stride"] == 4


def test_disagreement() -> None:
    wrong = (FIVE.logits > 0) != (FIVE.labels == 1)
    spread = dataclasses.replace(FIVE, spread=wrong.astype(np.float32))
    assert evaluate(spread, NONE, HALF)["disagreement_auc"] == 1
    assert "disagreement_auc" not in evaluate(FIVE, NONE, HALF)


def test_one_class_is_said_and_not_a_crash() -> None:
    failures = evaluate(make_scores(([-1, -1], [0, 0])), NONE, HALF)
    missing = {name for name, value in failures.items() if math.isnan(value)}
    why = why_missing(failures)
    assert why.keys() == missing and {"recall", "roc_auc", "average_precision", "precision"} < missing
    assert why["recall"] == why["roc_auc"] == "no success frames"
    assert why["precision"] == "the model fires nowhere"
    successes = evaluate(make_scores(([1], [1])), NONE, HALF)
    why = why_missing(successes)
    assert why["roc_auc"] == why["specificity"] == "no failure frames"
    assert why["episode_false_positive_rate"] == "no episode with a failure frame"
    assert why["frame_stride"] == "no episode with two frames"
    assert why_missing(evaluate(FIVE, NONE, HALF)) == {}


@FEW
@given(
    any_scores(),
    st.builds(Calibration, st.floats(0.05, 20), st.floats(-10, 10)),
    st.floats(0, 1),
    st.integers(1, 4),
    st.sampled_from(["per_step", "terminal"]),
)
def test_always_gives_rates_within_their_bounds(
    scores: Scores, calibration: Calibration, threshold: float, hold: int, mode: RewardMode
) -> None:
    metrics = evaluate(scores, calibration, Decision(threshold, hold if mode == "per_step" else 1, mode))
    assert why_missing(metrics).keys() == {name for name, value in metrics.items() if math.isnan(value)}
    for name in (name.removesuffix("_low") for name in metrics if name.endswith("_low")):
        low, high = metrics[f"{name}_low"], metrics[f"{name}_high"]
        assert 0 <= low <= high <= 1
        if not math.isnan(metrics[name]):
            assert low - 1e-12 <= metrics[name] <= high + 1e-12
