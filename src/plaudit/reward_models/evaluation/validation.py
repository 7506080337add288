"""Fit calibration and threshold on the validation split.

The unbiased metrics come from the test split.
"""

from __future__ import annotations

from dataclasses import dataclass

from plaudit.reward_models.evaluation.calibration import Calibration, fit_calibration
from plaudit.reward_models.evaluation.metrics import Metrics, evaluate
from plaudit.reward_models.evaluation.scores import Scores
from plaudit.reward_models.evaluation.success_decision import RewardMode
from plaudit.reward_models.evaluation.threshold import TARGET, Choice, pick_threshold


@dataclass(frozen=True)
class Aim:
    """Target of the threshold selection.

    Attributes:
        target: Rate of episodes with a false positive.
        hold: Number of consecutive frames that must be over the threshold.
        mode: Steps at which the model is evaluated.
    """

    target: float = TARGET
    hold: int = 1
    mode: RewardMode = "per_step"


@dataclass(frozen=True)
class ValidationResult:
    """Calibration, threshold and metrics of a model on the validation split.

    Attributes:
        calibration: Calibration fitted on the split.
        choice: Threshold picked on the split.
        metrics: Metrics measured on the same split, and therefore optimistic.
    """

    calibration: Calibration
    choice: Choice
    metrics: Metrics


def validate(scores: Scores, aim: Aim) -> ValidationResult:
    """Calibrate a model and pick its threshold on the validation scores.

    The log loss in the metrics is therefore that of calibrated probabilities. Overconfidence, or a prior with too many
    successes, is corrected by the calibration and must not decide which weights are the best.
    """
    calibration = fit_calibration(scores.logits, scores.labels)
    choice = pick_threshold(scores, calibration, aim.target, hold=aim.hold, mode=aim.mode)
    return ValidationResult(calibration, choice, evaluate(scores, calibration, choice.decision))
