"""Threshold selection: the highest recall within a target rate of false positives per episode."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from plaudit.errors import ConfigError
from plaudit.reward_models.evaluation.calibration import Calibration, sigmoid
from plaudit.reward_models.evaluation.confidence_bounds import episodes_needed, rate_bounds
from plaudit.reward_models.evaluation.scores import Scores
from plaudit.reward_models.evaluation.success_decision import Decision, RewardMode, asked, fires, held

TARGET = 0.01
"""Default target: a false positive in one episode of a hundred."""


@dataclass(frozen=True)
class Choice:
    """A selected threshold, its target, and its results on the data used for the selection.

    Attributes:
        decision: Contains the threshold; the threshold is 1, which is never exceeded, if the target allows no success.
        target: Requested rate of episodes with a false positive.
        false_positives: Number of episodes in which the model fires at a frame that is not a success.
        episodes: Number of episodes that have a frame that is not a success.
        recall: Share of success frames at which the model fires; NaN if there are none.
        note: Caveats for the reader, in a sentence or two; empty if there are none.
    """

    decision: Decision
    target: float
    false_positives: int
    episodes: int
    recall: float
    note: str

    @property
    def false_positive_rate(self) -> float:
        """False positives per episode; NaN if there are no episodes."""
        return self.false_positives / self.episodes if self.episodes else math.nan

    @property
    def bounds(self) -> tuple[float, float]:
        """95 % bounds of the false-positive rate."""
        return rate_bounds(self.false_positives, self.episodes)

    @property
    def supported(self) -> bool:
        """True if the episodes are enough to support the target, provided none has a false positive."""
        return self.episodes >= episodes_needed(self.target)


def pick_threshold(
    scores: Scores, calibration: Calibration, target: float = TARGET, *, hold: int = 1, mode: RewardMode = "per_step"
) -> Choice:
    """Pick the threshold with the highest recall within a false-positive target.

    An episode is a false positive if the model fires at any frame that is not a success. The lowest threshold within
    the target has the highest recall. It is then raised as far as that loses no success, because false positives that
    add no recall have no benefit, and placed midway, in logits, between the scores on either side of it. It is never
    below 0.5, where the model itself considers failure more likely. The search is exact over all scores.

    Args:
        scores: Scores of the validation split.
        calibration: Calibration fitted on the validation split.
        target: Rate of episodes with a false positive, at least 0 and below 1.
        hold: Number of consecutive frames that must be over the threshold.
        mode: Steps at which the model is evaluated.
    """
    if not 0 <= target < 1:
        raise ConfigError(f"the target false-positive rate must be at least 0 and below 1, not {target:g}.")
    decision = Decision(hold=hold, mode=mode)

    # With the hold applied, a frame fires exactly if its value is over the threshold.
    values = held(_merge_equal_probabilities(calibration.logits(scores.logits)), scores, hold)
    decided = asked(scores, mode)
    failure = decided & (scores.labels == 0)
    success = decided & (scores.labels == 1)

    # The highest value at a failure decides whether an episode is a false positive.
    worst = np.maximum.reduceat(np.where(failure, values, -np.inf), scores.starts)
    worst = np.sort(worst[scores.per_episode(failure) > 0])[::-1]
    logit = _threshold_logit(worst, target, values[decided], values[success])
    decision = replace(decision, threshold=float(sigmoid(np.array([logit]))[0]))

    # Measure with the decision itself, as it is used later.
    fired = fires(calibration.probabilities(scores.logits), scores, decision)
    detected = int((fired & success).sum())
    successes = int(success.sum())
    return Choice(
        decision=decision,
        target=target,
        false_positives=int((scores.per_episode(fired & failure) > 0).sum()),
        episodes=len(worst),
        recall=detected / successes if successes else math.nan,
        note=_note(target, len(worst), detected, successes),
    )


def _merge_equal_probabilities(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    """Give all logits with the same probability the same value.

    Decisions compare probabilities, and close to 0 different logits can have the same probability after rounding.
    """
    probabilities = sigmoid(logits)
    _, first, group = np.unique(probabilities, return_index=True, return_inverse=True)
    return np.where(probabilities == 0.5, 0.0, logits[first][group])


def _threshold_logit(
    worst: NDArray[np.float64], target: float, values: NDArray[np.float64], successes: NDArray[np.float64]
) -> float:
    """Return the logit of the threshold; infinite if only a threshold that never fires meets the target.

    Args:
        worst: The highest logit at a failure in each episode that has a failure, descending.
        target: Share of these episodes that may be above the threshold.
        values: Logits of all frames at which a decision is made.
        successes: Logits of the success frames among them.
    """
    if not len(worst):
        return 0.0

    # Number of false-positive episodes that the target allows.
    allowed = math.floor(target * len(worst)) + 1
    while allowed / len(worst) > target:  # Division corrects rounding: 0.29 · 100 is 28.999….
        allowed -= 1
    lowest = max(worst[allowed], 0.0)

    if not len(successes):
        above = values[values > lowest].min(initial=np.inf)
        return max(_midpoint(worst[allowed], above), 0.0)

    # Raise the threshold to just below the lowest success that it detects.
    above = successes[successes > lowest].min(initial=np.inf)
    if above == np.inf:
        return math.inf
    return max(_midpoint(values[values < above].max(initial=-np.inf), above), 0.0)


def _midpoint(below: float, above: float) -> float:
    """Return the midpoint; if one value is infinite, a point at distance 1 from the other."""
    if math.isinf(below) or math.isinf(above):
        return above - 1.0 if math.isinf(below) else below + 1.0
    return (below + above) / 2


def _note(target: float, episodes: int, detected: int, successes: int) -> str:
    """Describe the caveats of a choice."""
    percent = f"{target * 100:.3g} %"
    sentences = []

    # Cases in which the selection itself was limited.
    if not episodes:
        sentences.append("No episode has a frame that is not a success, so the threshold is 0.5 and not chosen.")
    elif not successes:
        sentences.append("There are no success frames, so how many successes this threshold lets through is not known.")
    elif not detected:
        sentences.append(f"No threshold fires at a success and keeps false positives to {percent} of episodes.")

    # Too little data to support the target, whatever was selected.
    needed = episodes_needed(target)
    if episodes < needed:
        amount = "no number is enough" if math.isinf(needed) else f"at least {needed:.0f} are needed"
        sentences.append(
            f"Too few episodes to support {percent}: {episodes} have a frame that is not a success, {amount}."
        )

    return " ".join(sentences)
