"""Success decisions from probabilities: threshold, hold and release.

A model fires if its probability is over the threshold for a number of consecutive frames, and fires until it is
released. A policy is rewarded for this decision, not for the probability.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from plaudit.errors import ConfigError
from plaudit.reward_models.evaluation.scores import Scores

RewardMode = Literal["per_step", "terminal"]
"""Evaluate the model at every step, or only at an episode's last step."""


@dataclass(frozen=True)
class Decision:
    """Rule that turns probabilities into decisions. Invalid values raise a `ConfigError`.

    Attributes:
        threshold: The model fires if the probability is above it, not if it is equal.
        hold: Number of consecutive frames that must be above the threshold.
        mode: Steps at which the model is evaluated.
        release: Once the model fires, it keeps firing until the probability is no longer above this value; `None` for
            the threshold.
    """

    threshold: float = 0.5
    hold: int = 1
    mode: RewardMode = "per_step"
    release: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.threshold <= 1:
            raise ConfigError(f"the threshold is a probability, 0 to 1, not {self.threshold:g}.")
        if self.hold < 1:
            raise ConfigError(f"hold must be at least 1 frame, not {self.hold}.")
        if self.mode not in get_args(RewardMode):
            raise ConfigError(f"reward_mode must be one of {', '.join(get_args(RewardMode))}, not {self.mode!r}.")
        if self.release is not None and not 0 <= self.release <= self.threshold:
            raise ConfigError(f"release must lie within 0 and the threshold, {self.threshold:g}, not {self.release:g}.")
        if self.mode == "terminal" and (self.hold > 1 or self.release is not None):
            raise ConfigError("reward_mode 'terminal' looks at one frame only: it has no hold and no release.")


def asked(scores: Scores, mode: RewardMode) -> NDArray[np.bool_]:
    """Return the mask of frames at which a decision is made, (n,).

    These are all frames, or the last frame of each episode. "Last" means the last scored frame: if an episode ends with
    frames that have no label or are not stored, a live model is evaluated later than that.
    """
    if mode == "per_step":
        return np.ones(len(scores), bool)
    last = np.zeros(len(scores), bool)
    last[scores.ends] = True
    return last


def held(values: NDArray[np.float64], scores: Scores, hold: int) -> NDArray[np.float64]:
    """Return the running minimum over the last `hold` frames of the episode, (n,).

    The value is minus infinity if the episode has fewer than `hold` frames so far. A model with a hold fires if this
    minimum is over the threshold, so everything that holds for thresholds without a hold also holds for these values.

    The window counts stored frames: if only some instants are stored, or frames without a label were left out, a hold
    spans more time than the same number of robot steps.
    """
    minimum = values.copy()
    for back in range(1, min(hold, len(values))):
        np.minimum(minimum[back:], values[:-back], out=minimum[back:])

    # The shifts above cross episode boundaries; windows that are not full are invalid.
    position = np.arange(len(values)) - np.repeat(scores.starts, np.diff(scores.starts, append=len(values)))
    minimum[position < hold - 1] = -np.inf
    return minimum


def fires(probabilities: NDArray[np.float64], scores: Scores, decision: Decision) -> NDArray[np.bool_]:
    """Return the mask of frames at which the model fires, (n,).

    Args:
        probabilities: (n,), calibrated.
        scores: The episodes that the frames belong to.
        decision: Threshold, hold, mode and release.
    """
    on = (held(probabilities, scores, decision.hold) > decision.threshold) & asked(scores, decision.mode)
    if decision.release is None:
        return on

    # Hysteresis: the model fires if it was turned on more recently than off. Each episode starts turned off.
    row = np.arange(len(scores))
    off = probabilities <= decision.release
    off[scores.starts] |= ~on[scores.starts]
    turned_on = np.maximum.accumulate(np.where(on, row, -1))
    turned_off = np.maximum.accumulate(np.where(off, row, -1))
    return turned_on > turned_off
