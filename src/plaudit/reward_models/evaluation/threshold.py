"""The threshold, chosen on purpose: as many successes as a target rate of false positives per episode allows."""

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
"""One episode in a hundred."""


@dataclass(frozen=True)
class Choice:
    """A threshold, what it was chosen for, and what it reached on the data that it was chosen on.

    Attributes:
        decision: With the threshold; it is 1, which is never reached, where the target allows no success.
        target: The rate of episodes with a false positive that was asked for.
        false_positives: Episodes in which it fires at a frame that is not a success.
        episodes: Episodes in which it could: those with such a frame.
        recall: Share of success frames at which it fires; NaN where there are none.
        note: What a reader must know, in a sentence or two; empty where all is well.
    """

    decision: Decision
    target: float
    false_positives: int
    episodes: int
    recall: float
    note: str

    @property
    def false_positive_rate(self) -> float:
        """Per episode; NaN where there are none."""
        return self.false_positives / self.episodes if self.episodes else math.nan

    @property
    def bounds(self) -> tuple[float, float]:
        """95 % bounds of the rate."""
        return rate_bounds(self.false_positives, self.episodes)

    @property
    def supported(self) -> bool:
        """Whether there are episodes enough to show the target at all, were none of them a false positive."""
        return self.episodes >= episodes_needed(self.target)


def pick_threshold(
    scores: Scores, calibration: Calibration, target: float = TARGET, *, hold: int = 1, mode: RewardMode = "per_step"
) -> Choice:
    """The threshold with the most success frames among those whose false-positive rate per episode is within `target`.

    An episode is a false positive if the model fires at any frame that is not a success. The lowest threshold within
    the target has the most successes; from there it is raised as far as that costs none, as false positives that buy
    nothing are not worth having, and put into the middle, in logits, between the scores on either side of it. It is
    never below 0.5, where by the model's own account failure is likelier. Exact over all scores.

    Args:
        scores: Of the validation split.
        calibration: Fitted on it.
        target: Rate of episodes with a false positive, 0 to below 1.
        hold: Frames in a row that have to be over the threshold.
        mode: When the model is asked.
    """
    if not 0 <= target < 1:
        raise ConfigError(f"the target false-positive rate must be at least 0 and below 1, not {target:g}.")
    decision = Decision(hold=hold, mode=mode)
    values = held(_as_probabilities_tell(calibration.logits(scores.logits)), scores, hold)
    counted = asked(scores, mode)
    failure, success = counted & (scores.labels == 0), counted & (scores.labels == 1)
    worst = np.maximum.reduceat(np.where(failure, values, -np.inf), scores.starts)
    worst = np.sort(worst[scores.per_episode(failure) > 0])[::-1]
    place = _place(worst, target, values[counted], values[success])
    decision = replace(decision, threshold=float(sigmoid(np.array([place]))[0]))
    fired = fires(calibration.probabilities(scores.logits), scores, decision)
    caught, successes = int((fired & success).sum()), int(success.sum())
    return Choice(
        decision=decision,
        target=target,
        false_positives=int((scores.per_episode(fired & failure) > 0).sum()),
        episodes=len(worst),
        recall=caught / successes if successes else math.nan,
        note=_note(target, len(worst), caught, successes),
    )


def _as_probabilities_tell(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    """Logits, of which those are the same that have the same probability, since decisions are made by that: close to 0,
    logits may differ where probabilities do not.
    """
    shares = sigmoid(logits)
    _, first, which = np.unique(shares, return_index=True, return_inverse=True)
    return np.where(shares == 0.5, 0.0, logits[first][which])


def _place(
    worst: NDArray[np.float64], target: float, values: NDArray[np.float64], successes: NDArray[np.float64]
) -> float:
    """The logit to put the threshold at; infinite where only one that never fires will do.

    Args:
        worst: The highest logit at a failure in each episode that has one, descending.
        target: Rate of them that may be above the threshold.
        values: All logits.
        successes: Those of success frames.
    """
    if not len(worst):
        return 0.0
    allowed = math.floor(target * len(worst)) + 1
    while allowed / len(worst) > target:  # Not by multiplying alone: 0.29 · 100 is 28.999….
        allowed -= 1
    lowest = max(worst[allowed], 0.0)
    if not len(successes):
        above = values[values > lowest].min(initial=np.inf)
        return max(_between(worst[allowed], above), 0.0)
    above = successes[successes > lowest].min(initial=np.inf)
    if above == np.inf:
        return math.inf
    return max(_between(values[values < above].max(initial=-np.inf), above), 0.0)


def _between(below: float, above: float) -> float:
    """The middle; one beyond the other where one of them is infinite."""
    if math.isinf(below) or math.isinf(above):
        return above - 1.0 if math.isinf(below) else below + 1.0
    return (below + above) / 2


def _note(target: float, episodes: int, caught: int, successes: int) -> str:
    """What a reader must know of a choice."""
    percent = f"{target * 100:.3g} %"
    said = []
    if not episodes:
        said.append("No episode has a frame that is not a success, so the threshold is 0.5 and not chosen.")
    elif not successes:
        said.append("There are no success frames, so how many successes this threshold lets through is not known.")
    elif not caught:
        said.append(f"No threshold fires at a success and keeps false positives to {percent} of episodes.")
    needed = episodes_needed(target)
    if episodes < needed:
        amount = "no number is enough" if math.isinf(needed) else f"at least {needed:.0f} are needed"
        said.append(f"Too few episodes to support {percent}: {episodes} have a frame that is not a success, {amount}.")
    return " ".join(said)
