"""From scores to a verdict: calibration and threshold by the validation split, and the truth by the test split."""

from __future__ import annotations

from dataclasses import dataclass

from plaudit.reward_models.evaluation.calibration import Calibration, fit_calibration
from plaudit.reward_models.evaluation.metrics import Metrics, evaluate
from plaudit.reward_models.evaluation.scores import Scores
from plaudit.reward_models.evaluation.success_decision import RewardMode
from plaudit.reward_models.evaluation.threshold import TARGET, Choice, pick_threshold


@dataclass(frozen=True)
class Aim:
    """What a threshold is chosen for.

    Attributes:
        target: Rate of episodes with a false positive.
        hold: Frames in a row that have to be over the threshold.
        mode: When the model is asked.
    """

    target: float = TARGET
    hold: int = 1
    mode: RewardMode = "per_step"


@dataclass(frozen=True)
class ValidationResult:
    """What the validation split says of a model.

    Attributes:
        calibration: Fitted to it.
        choice: The threshold picked on it.
        metrics: Measured on it, and so too good.
    """

    calibration: Calibration
    choice: Choice
    metrics: Metrics


def validate(scores: Scores, aim: Aim) -> ValidationResult:
    """Calibrates and picks a threshold on the scores of the validation split.

    The log loss in the metrics is thus that of calibrated probabilities: that a model is too sure of itself, or expects
    more successes than there are, is mended afterwards and must not decide which weights are the best.
    """
    calibration = fit_calibration(scores.logits, scores.labels)
    choice = pick_threshold(scores, calibration, aim.target, hold=aim.hold, mode=aim.mode)
    return ValidationResult(calibration, choice, evaluate(scores, calibration, choice.decision))
